#!/usr/bin/env python3
"""Fuzz the readers: whatever the bytes, a reader returns, or raises InputError that names the file.

    python tests/fuzz.py params --seconds 300      # coverage-guided, where atheris is installed (Linux, Python 3.11 to 3.13)
    python tests/fuzz.py tsv --executions 20000    # mutations of the corpus from a seed: the same every time

Begins with tests/corpus/TARGET, which --write_corpus makes anew. Memory is bounded by RLIMIT_AS, one execution by seconds;
an input that breaks the property ends the program with a traceback and is kept beside the working directory by atheris.
"""

import argparse
import itertools
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

import numpy as np

from bert import InputError

try:
    import atheris
except ImportError:
    atheris = None
else:
    with atheris.instrument_imports(include=["bert"]):
        import bert.data
        import bert.params_file
import bert.architecture
import bert.data
import bert.files
import bert.params_file
import bert.tasks
import bert.weights

CORPUS = Path(__file__).with_name("corpus")
MEMORY = 2**29  # beyond what the imports take
SECONDS = 20  # of one execution
MAX_BYTES = 4096  # of an input
_LABELS = ("no", "yes")


def _rows(path):
    """All that is done with a person's own file: its labels, its columns, its rows."""
    task = bert.tasks.own_task({"train": path}, labels=_LABELS)
    for call in (lambda: bert.data.read_labels([path]), lambda: bert.data.read_examples(path, task, "train")):
        try:
            call()
        except InputError as error:
            _named(error, path, line=True)


def _tsv(path):
    for task, split in (("CoLA", "train"), ("SST-2", "train"), ("STS-B", "dev"), ("QQP", "train")):
        try:
            examples, _ = bert.data.read_examples(path, bert.tasks.TASKS[task], split)
        except InputError as error:
            _named(error, path, line=True)
        else:
            assert examples and [example.index for example in examples] == list(range(len(examples)))
    _rows(path)


def _params(path):
    try:
        tensors = bert.params_file.read_params(path)
    except InputError as error:
        return _named(error, path)
    assert sum(tensor.nbytes for tensor in tensors.values()) <= 2 * path.stat().st_size  # bfloat16 doubles
    try:
        config = bert.params_file.gluon_config(tensors, "bert_2_4_2", path)
        bert.params_file.from_gluon(tensors, bert.architecture.read_architecture(config, str(path)))
    except InputError:
        pass


def _safetensors(path):
    try:
        bert.weights.read_tensors(path)
    except InputError as error:
        _named(error, path)


def _config(path):
    try:
        bert.architecture.read_architecture(bert.files.read_json(path), str(path))
    except InputError as error:
        _named(error, path)


#: name -> (what is done with a file, how its name ends)
TARGETS = {
    "params": (_params, ".params"),
    "tsv": (_tsv, ".tsv"),
    "csv": (_rows, ".csv"),
    "jsonl": (_rows, ".jsonl"),
    "safetensors": (_safetensors, ".safetensors"),
    "config": (_config, ".json"),
}
_WHOLE_FILE = re.compile(r": (no rows|empty file|gzip data|column label holds)|^label")


def _named(error, path, line=False):
    message = str(error)
    assert message.isprintable() and len(message) < 2100, message
    if line:
        assert re.match(re.escape(str(path)) + r":\d+: ", message) or _WHOLE_FILE.search(message), message
    else:
        assert str(path) in message, message


# --- the corpus ------------------------------------------------------------------------------------------------------


def corpus_files():
    """File name below the corpus -> content, made by the tests' own writers."""
    from params_writer import write_params
    from safetensors.numpy import save

    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, np.float16), np.array([7], np.int64)]
    names = ["bert.word_embed.0.weight", "bert.encoder.position_weight", "classifier.1.bias"]
    names += ["bert.encoder.transformer_cells.0.ffn.ffn_1.weight"]
    files = {"safetensors/plain": save({"a": arrays[0], "b": arrays[1]}), "safetensors/empty": save({})}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        for name, tensors in {
            "types": {str(number): array for number, array in enumerate(arrays)},
            "model": {name: np.ones((4, 4), np.float32) for name in names},
            "none": {},
        }.items():
            write_params(path, tensors)
            files[f"params/{name}"] = path.read_bytes()
    files |= {
        "tsv/cola": b"gj04\t1\t\tthe dog runs\ngj04\t0\t*\tdog the runs\n",
        "tsv/sst": b'\xef\xbb\xbfsentence\tlabel\r\n"a good film\t1\r\nna\xc3\xafve \xe2\x80\xa8\t0\r\n',
        "tsv/stsb": b"sentence1\tsentence2\tscore\na\tb\t4.60\nc\td\t1e-1\n",
        "tsv/qqp": b"id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\ta\tb\t1\n1\t2\n",
        "tsv/own": b"text\tlabel\na\tyes\nb\tno\n",
        "csv/own": b'text,other,label\n"a ""b"", c",d,yes\n"two\nlines",e,no\n',
        "jsonl/own": b'{"text": "a \\u00ef", "label": "yes"}\n{"label": "no", "text": 1.5}\n',
        "config/bert": json.dumps(
            {
                "model_type": "bert",
                "vocab_size": 30,
                "hidden_size": 16,
                "num_hidden_layers": 2,
                "hidden_act": "gelu",
                "num_attention_heads": 2,
                "intermediate_size": 32,
                "max_position_embeddings": 64,
                "layer_norm_eps": 1e-12,
            }
        ).encode(),
    }
    return files


# --- running ---------------------------------------------------------------------------------------------------------

_PIECES = [b"\0", b"\t", b"\n", b"\r", b'"', b",", b"{", b"[", b"1e999", b"NaN", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf"]
_PIECES += [
    b"label",
    b"text",
    b"yes",
    b"\x7f" * 8,
    b"\xff" * 8,
    (2**31).to_bytes(8, "little"),
    (2**62).to_bytes(8, "little"),
]


def mutations(seeds, seed):
    """Endlessly many inputs, the seeds first, then changed ones; the same for the same arguments."""
    choose = random.Random(seed)
    yield from seeds
    while True:
        data = bytearray(choose.choice(seeds))
        for _ in range(choose.randint(1, 6)):
            begin, end = sorted(choose.randint(0, len(data)) for _ in range(2))
            kind = choose.randrange(5)
            if kind == 0:
                data[begin : begin + 1] = bytes([choose.randrange(256)])
            elif kind == 1:
                data[begin:begin] = choose.choice(_PIECES)
            elif kind == 2:
                piece = choose.choice(_PIECES)
                data[begin : begin + len(piece)] = piece
            elif kind == 3:
                del data[begin:end]
            else:
                data[end:end] = data[begin:end] * choose.randint(1, 3)
        yield bytes(data[:MAX_BYTES])


def bound_memory():
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=TARGETS, nargs="?")
    parser.add_argument("--seconds", type=int, help="coverage-guided for so long (mutations only, without atheris)")
    parser.add_argument("--executions", type=int, help="so many mutations from --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write_corpus", action="store_true", help="write tests/corpus anew")
    arguments = parser.parse_args()
    if arguments.write_corpus:
        for name, content in corpus_files().items():
            (CORPUS / name).parent.mkdir(parents=True, exist_ok=True)
            (CORPUS / name).write_bytes(content)
        return
    if arguments.target is None or (arguments.seconds is None) == (arguments.executions is None):
        parser.error("expected a target, and --seconds or --executions")
    read, suffix = TARGETS[arguments.target]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = Path(folder) / f"file{suffix}"

        def execute(data):
            path.write_bytes(data)
            signal.alarm(SECONDS)
            read(path)
            signal.alarm(0)

        if arguments.seconds is not None and atheris is not None:
            options = [f"-max_total_time={arguments.seconds}", f"-max_len={MAX_BYTES}", f"-seed={arguments.seed}"]
            options += ["-rss_limit_mb=1024", "-print_final_stats=1", "-verbosity=0"]
            with tempfile.TemporaryDirectory() as found:  # what is new goes here, the committed corpus is only read
                child = os.fork()  # libFuzzer ends its process, and would leave the folders
                if not child:
                    atheris.Setup([sys.argv[0], *options, found, str(CORPUS / arguments.target)], execute)
                    atheris.Fuzz()
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            sys.exit(code)
        bound_memory()
        seeds = [file.read_bytes() for file in sorted((CORPUS / arguments.target).iterdir())]
        end = None if arguments.seconds is None else time.monotonic() + arguments.seconds
        done = 0
        for data in itertools.islice(mutations(seeds, arguments.seed), arguments.executions):
            if end is not None and time.monotonic() > end:
                break
            try:
                execute(data)
            except BaseException:
                print(f"input: {data!r}", file=sys.stderr)
                raise
            done += 1
        print(f"stat::number_of_executed_units: {done}", file=sys.stderr)


if __name__ == "__main__":
    main()
