#!/usr/bin/env python3
"""From a file of MNLI's size to token ids: seconds, rows per second and peak memory of reading and tokenizing it.

    python benchmarks/text.py --write runs/MNLI/train.tsv --rows 393000
    python benchmarks/text.py --read runs/MNLI/train.tsv --model path/to/model

Two processes, so that the memory is that of reading alone. Writing takes its words from the model's vocabulary; reading
prints one JSON line.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bert.data import Example, encode, read_examples
from bert.engines import peak_resident_memory
from bert.tasks import find_task
from bert.tokenization import load_tokenizer
from bert.weights import MINILM, find_pretrained, read_config

MNLI = find_task("MNLI")
#: Of the official file; the parses between them hold each sentence about five times more.
COLUMNS = ("index", "sentence1_parse", "sentence2_parse", "sentence1", "sentence2", "gold_label")


def make_pairs(tokenizer, count, seed=0):
    """Yield pairs of about MNLI's lengths: premises of 20 words on average with a long tail, hypotheses of 10.

    Words occur at frequencies that fall with their rank (Zipf's law): the vocabulary's whole ones first, then 100,000 that
    are two of them joined, which break into pieces as rare words do.
    """
    random = np.random.default_rng(seed)
    numbers = sorted((number, word) for word, number in tokenizer.backend.get_vocab().items() if word.isalpha())
    words = np.array([word for _, word in numbers], object)
    words = np.concatenate([words, words[random.integers(len(words), size=(2, 100_000))].sum(axis=0)])
    shares = 1 / np.arange(1, len(words) + 1)
    shares /= shares.sum()
    for start in range(0, count, 10000):  # bounds what is held
        rows = min(10000, count - start)
        premises = np.clip(random.lognormal(np.log(17), 0.6, rows).astype(int), 1, 300)
        hypotheses = np.clip(random.lognormal(np.log(9.5), 0.35, rows).astype(int), 1, 60)
        drawn = iter(words[random.choice(len(words), premises.sum() + hypotheses.sum(), p=shares)])
        for row, lengths in enumerate(zip(premises, hypotheses)):
            premise, hypothesis = (" ".join(next(drawn) for _ in range(length)) + "." for length in lengths)
            yield Example(start + row, premise, hypothesis, MNLI.labels[row % 3])


def write(path, tokenizer, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write("\t".join(COLUMNS) + "\n")
        for index, premise, hypothesis, label in make_pairs(tokenizer, rows):
            cells = (str(index), premise * 5, hypothesis * 5, premise, hypothesis, label)
            file.write("\t".join(cells) + "\n")


def measure(path, tokenizer):
    """Seconds of the whole way from the file to Features."""
    before, start = peak_resident_memory(), time.perf_counter()
    examples, _ = read_examples(path, MNLI, "train")
    read = time.perf_counter() - start
    features = encode(examples, tokenizer, labels=MNLI.labels, max_len=128)
    seconds = time.perf_counter() - start
    return {
        "rows": len(features),
        "read_seconds": round(read, 3),
        "text_seconds": round(seconds, 3),
        "tokens_per_second": round(len(features.input_ids) / seconds, 1),
        "tokens_per_row": round(len(features.input_ids) / len(features), 1),
        "peak_rss_before_mib": round(before / 2**20),
        "peak_rss_mib": round(peak_resident_memory() / 2**20),
    }


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", type=Path, metavar="FILE", help="generate the file")
    action.add_argument("--read", type=Path, metavar="FILE", help="read and tokenize the file")
    parser.add_argument("--rows", type=int, default=393_000, help="to generate (default: %(default)s)")
    parser.add_argument("--model", type=Path, help="folder with a tokenizer (default: the installed minilm_6_384_12)")
    args = parser.parse_args(argv)
    model = args.model or find_pretrained(MINILM)[0]
    tokenizer = load_tokenizer(model, read_config(model)[1])
    if args.write:
        write(args.write, tokenizer, args.rows)
    else:
        print(json.dumps(measure(args.read, tokenizer)))


if __name__ == "__main__":
    main()
