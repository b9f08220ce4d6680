"""A hostile person at the command line: every file that is read and every value, damaged or built to hurt.

Each run is a fork with half a GiB of memory and seconds to live (bounded_cli.py), so a case that fills the memory or hangs
fails here. What is unusable must end as one line on stderr that names the file, with exit code 2 and nothing written.
"""

import gzip
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert import InputError
from bert.config import parse
from bert.engines import installed

if sys.platform != "linux" or not installed("pytorch"):
    pytest.skip("needs Linux, to bound the memory, and PyTorch", allow_module_level=True)

WORDS = "bert.embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def bounded(bert_folder, glue_folder, tmp_path_factory):
    """bounded(*arguments) -> code, out, err of the script in a fork with bounded memory and time."""
    script = Path(__file__).with_name("bounded_cli.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as server:

        def send(*arguments):
            server.stdin.write(json.dumps([str(argument) for argument in arguments]) + "\n")
            server.stdin.flush()

        def run(*arguments):
            send(*arguments)
            return SimpleNamespace(**json.loads(server.stdout.readline()))

        flags = ["--task_name", "RTE", "--data_dir", glue_folder, "--bert_model", bert_folder, "--engine", "pytorch"]
        send(*flags, "--training_steps", 1, "--output_dir", tmp_path_factory.mktemp("bounded") / "run")
        yield run
        server.stdin.close()


@pytest.fixture
def check(bounded, tmp_path):
    """check(flags, words) runs a training of one update: refused with these words in its one line, or, for None, done."""

    def check(flags, words):
        output = tmp_path / "run"
        flags = [*flags, "--engine", "pytorch", "--max_len", "32", "--training_steps", "1", "--output_dir", output]
        result = bounded(*flags)
        if words is None:
            assert result.code == 0, (result.code, result.err[-600:])
            return
        lines = result.err.splitlines()
        assert result.code == 2 and len(lines) == 1 and lines[0].startswith("error: "), (result.code, result.err[-600:])
        assert lines[0].isprintable() and len(lines[0]) < 2200 and words in lines[0], lines[0]
        assert not output.exists()

    return check


def place(path, content):
    """Put something at `path`: bytes, or what a function of the path makes."""
    if os.path.lexists(path):
        path.unlink()
    if callable(content):
        content(path)
    else:
        path.write_bytes(content)


def sparse(size):
    """A file that declares `size` bytes and takes none of the disk."""

    def make(path):
        with open(path, "wb") as file:
            file.truncate(size)

    return make


NO_FILES = {  # what may stand where a file should
    "pipe": (os.mkfifo, "a pipe, expected a file"),
    "zeros": (lambda path: path.symlink_to("/dev/zero"), "a device, expected a file"),
    "noise": (lambda path: path.symlink_to("/dev/urandom"), "a device, expected a file"),
    "loop": (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
    "broken link": (lambda path: path.symlink_to("nothing"), "cannot be read: No such file"),
    "folder": (lambda path: path.mkdir(), "a folder, expected a file"),
}

# --- the benchmark's files -------------------------------------------------------------------------------------------

SST = b"sentence\tlabel\n"
STSB = b"sentence1\tsentence2\tscore\na\tb\t%s\n"
QQP = b"id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
TSV = {
    **{name: ("SST-2", content, f"train.tsv: {words}") for name, (content, words) in NO_FILES.items()},
    "a terabyte of zeros": ("SST-2", sparse(2**40), "train.tsv:1: found a line of more than"),
    "newlines": ("SST-2", SST + b"\n" * 10**7, "train.tsv:2: found 1 columns, expected 2"),
    "newlines only": ("SST-2", b"\n" * 10**7, "train.tsv:1: columns found: ;"),
    "short rows only": ("QQP", QQP + b"\n" * 10**6, "no rows"),
    "tabs": ("SST-2", SST + b"\t" * 4 * 10**6 + b"\n", "train.tsv:2: found 4000001 columns"),
    "a line too long": ("SST-2", SST + b"x" * 5 * 10**6, "train.tsv:2: found a line of more than"),
    "a long text": ("SST-2", SST + b"good " * 40000 + b"\t1\nbad\t0\n", None),
    "a long word": ("SST-2", SST + b"g" * 200000 + b"\t1\nbad\t0\n", None),
    "many long texts": ("SST-2", SST + (b"good " * 40000 + b"\t1\nbad\t0\n") * 100, None),
    "a long label": ("SST-2", SST + b"a\t" + b"1" * 200000 + b"\n", "train.tsv:2: label '111"),
    "NUL in a text": ("SST-2", SST + b"a\0b\t1\n\0\t0\n", None),
    "NULs": ("SST-2", b"\0" * 1000, "train.tsv:1: columns found"),
    "control characters": ("SST-2", SST + bytes(range(1, 9)) + b"\x7f\x1b[2J\t1\nc\t0\n", None),
    "control characters in a label": ("SST-2", SST + b"a\t\x1b[31m1\n", r"train.tsv:2: label '\x1b[31m1'"),
    "control characters in a header": ("SST-2", b"sen\rtence\tla\x1bbel\na\t1\n", r"columns found: sen\rtence, la\x1bbel;"),
    "UTF-16": ("SST-2", "sentence\tlabel\na\t1\n".encode("utf-16"), "train.tsv:1: found byte 0xff, expected UTF-8"),
    "Latin-1": ("SST-2", SST + b"a\t0\nna\xefve\t1\n", "train.tsv:3: found byte 0xef, expected UTF-8"),
    "a surrogate": ("SST-2", SST + b"\xed\xa0\x80\t1\n", "train.tsv:2: found byte 0xed"),
    "gzip": ("SST-2", gzip.compress(SST), "train.tsv: gzip data"),
    "zip": ("SST-2", b"PK\x03\x04" + b"\xff" * 50, "train.tsv:1: found byte 0xff"),
    "empty": ("SST-2", b"", "train.tsv: empty file"),
    "a header only": ("SST-2", SST, "train.tsv: no rows"),
    "one row": ("SST-2", SST + b"a\t1\n", None),
    "one class": ("SST-2", SST + b"a\t1\nb\t1\n", None),
    "a column twice": ("SST-2", b"sentence\tsentence\tlabel\na\tb\t1\n", "column sentence is there 2 times"),
    "an empty first line": ("SST-2", b"\n" + SST + b"a\t1\n", "train.tsv:1: columns found"),
    "a missing label": ("SST-2", SST + b"a\t1\nb\n", "train.tsv:3: found 1 columns, expected 2"),
    "an empty label": ("SST-2", SST + b"a\t\n", "train.tsv:2: label '', expected 0, 1"),
    "a wrong label": ("SST-2", SST + b"a\tmaybe\n", "train.tsv:2: label 'maybe', expected 0, 1"),
    "a label in digits of another script": ("SST-2", SST + "a\t١\n".encode(), "train.tsv:2: label '١'"),
    "no header": ("CoLA", b"sentence\tlabel\na\t1\n", "train.tsv:1: found 2 columns, expected 4 and no header"),
    **{
        f"score {score}": ("STS-B", STSB % score.encode(), f"train.tsv:2: score {score!r}, expected a finite number")
        for score in ("1e400", "nan", "inf", "1_0", "0x10", "", "٣", "1e", "--1")
    },
}


@pytest.mark.parametrize("case", TSV)
def test_files_of_the_benchmark(case, check, bert_folder, glue_writer, tmp_path):
    task, content, words = TSV[case]
    glue_writer.task(tmp_path, task)
    place(tmp_path / task / "train.tsv", content)
    check(["--task_name", task, "--data_dir", tmp_path, "--bert_model", bert_folder], words)


# --- a person's own files --------------------------------------------------------------------------------------------

CSV = b"text,label\n"
OWN = {
    **{f"{name} {end}": (end, content, words) for name, (content, words) in NO_FILES.items() for end in ("csv", "jsonl")},
    "a long cell": ("csv", CSV + b"good " * 40000 + b",x\nb,y\n", None),
    "an open quote": ("csv", CSV + b'a,x\n"a,x\n' + b"b,y\n" * 1000, "train.csv:3: not CSV"),
    "an open quote in a large file": ("csv", CSV + b'"a,x\n' + b"b,y\n" * 2 * 10**6, "train.csv:2: not CSV"),
    "carriage returns": ("csv", b"text,label\ra,x\rb,y\r", "train.csv:1: not CSV: a carriage return inside"),
    "a spreadsheet": ("csv", b"PK\x03\x04\n" + bytes(range(256)), "train.csv:1: columns found: PK"),
    "empty": ("csv", b"", "train.csv: empty file"),
    "no label": ("csv", b"text\na\n", "expected one named label"),
    "a line end in a label": ("csv", CSV + b'a,"x\ny"\nb,y\n', r"label 'x\ny' holds a tab"),
    "a tab in a label": ("csv", CSV + b"a,x\ty\nb,y\n", r"label 'x\ty' holds a tab"),
    "a line end in a header": ("csv", b'"te\nxt","a\nb",c,label\na,b,c,x\na,b,c,y\n', r"columns found: te\nxt, a\nb, c"),
    "a key twice": ("jsonl", b'{"text":"a","label":"x","label":"y"}\n', "train.jsonl:1: not JSON: a key occurs twice"),
    "NaN": ("jsonl", b'{"text":NaN,"label":"x"}\n', "train.jsonl:1: not JSON: NaN"),
    "a number too long": ("jsonl", b'{"text":' + b"9" * 5000 + b',"label":"x"}\n', "train.jsonl:1: not JSON"),
    "deep": ("jsonl", b"[" * 10**6, "train.jsonl:1: not JSON"),
    "wide": ("jsonl", b"[" + b"[]," * 2 * 10**6, "train.jsonl:1: found a line of more than"),
    "an array": ("json", b'[{"text":"a","label":"x"}]', "train.json:1: found list, expected one JSON object per line"),
    "over lines": ("json", b'[\n {"text":"a","label":"x"}\n]', "train.json:1: not JSON"),
    "a line end in a key": ("jsonl", b'{"te\\nxt":"a","b":1,"c":2,"label":"x"}\n', r"columns found: te\nxt, b, c, label"),
    "half a character": ("jsonl", b'{"text":"\\ud83d","label":"x"}\n{"text":"b","label":"y"}\n', "half a surrogate"),
    "a truth value": ("jsonl", b'{"text":"a","label":true}\n', "train.jsonl:1: label is true, expected a text or a number"),
}


@pytest.mark.parametrize("case", OWN)
def test_own_files(case, check, bert_folder, tmp_path):
    end, content, words = OWN[case]
    place(tmp_path / f"train.{end}", content)
    (tmp_path / "dev.csv").write_text("text,label\na,x\nb,y\n")
    files = ["--train_file", tmp_path / f"train.{end}", "--dev_file", tmp_path / "dev.csv"]
    check([*files, "--bert_model", bert_folder], words)


# --- models ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def check_model(check, make_model, glue_folder, tmp_path):
    """check_model(name, content, words): like check, with this content at this name in a model's folder."""

    def run(name, content, words, **model):
        folder = make_model(tmp_path / "model", **model)
        if callable(name):
            name(folder)
        else:
            place(folder / name, content)
        check(["--task_name", "RTE", "--data_dir", glue_folder, "--bert_model", folder], words)

    return run


MODEL_FILES = ["config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "tokenizer_config.json"]


@pytest.mark.parametrize("name", MODEL_FILES)
@pytest.mark.parametrize("kind", [*NO_FILES, "a terabyte of zeros", "not UTF-8"])
def test_what_stands_for_a_models_file(name, kind, check_model):
    contents = {"a terabyte of zeros": (sparse(2**40), ""), "not UTF-8": (b"\xff\xfe\0" * 50, "")}
    content, words = {**NO_FILES, **contents}[kind]
    check_model(name, content, f"{name}: {words}" if words else name)


@pytest.mark.parametrize(
    "key, value",
    [
        ("hidden_act", []),
        ("hidden_act", None),
        ("hidden_act", "swish"),
        ("position_embedding_type", {}),
        ("layer_norm_eps", 10**400),
        ("layer_norm_eps", -1e-12),
        ("hidden_size", 10**400),
        ("hidden_size", True),
        ("hidden_size", 16.5),
        ("num_hidden_layers", -1),
        ("num_hidden_layers", "2"),
        ("vocab_size", 1e308),
        ("num_attention_heads", 0),
        ("num_attention_heads", 3),
        ("model_type", []),
        ("type_vocab_size", float("nan")),
        ("pad_token_id", -5),
        ("pad_token_id", 10**6),
        ("hidden_dropout_prob", 1.5),
        ("classifier_dropout", "x"),
        ("max_position_embeddings", 2),
    ],
)
def test_configurations(key, value, check_model, bert_folder):
    config = json.loads((bert_folder / "config.json").read_text())
    words = "config.json: activation is None" if value is None else "config.json: "
    check_model("config.json", json.dumps({**config, key: value}).encode(), words)


SIZES = {"hidden_size": 65536, "num_hidden_layers": 1000, "vocab_size": 2_000_000, "intermediate_size": 524288}


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "config.json: not JSON"),
        (b"[]", "config.json: found list, expected a JSON object"),
        (b"[" * 10**6, "config.json: not JSON"),
        (b"[" + b"[]," * 10**7, "config.json: 30000001 bytes, expected at most"),
        (b"{}", "config.json: model_type is None"),
    ],
)
def test_configurations_that_are_none(content, words, check_model):
    check_model("config.json", content, words)


def test_a_configuration_of_a_huge_model(check_model, bert_folder):
    """The shapes are compared before anything of that size is made."""
    config = json.loads((bert_folder / "config.json").read_text())
    check_model("config.json", json.dumps({**config, **SIZES}).encode(), "has shape")


def safetensors(header, body=b""):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + body


def entry(shape, data):
    return {"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, data]}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 9 * 10**7) + b"{}",
        safetensors(b" " * 6 * 10**7),
        safetensors(b'{"a":' + b"[" * 10**6),
        safetensors(
            b"{" + b",".join(b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % n for n in range(10**5)) + b"}"
        ),
        safetensors(entry([2**62, 4], 4), b"0000"),
        safetensors(entry([0, 2**62, 16], 0)),
        safetensors(entry([1] * 40, 4), b"0000"),
        safetensors({"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}),
        safetensors({"../x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"0000"),
        b"PK\x03\x04",
        pickle.dumps({"x": 1}),
    ],
    ids=range(13),
)
def test_safetensors_files(content, check_model):
    check_model("model.safetensors", content, "model.safetensors: ")


def changed(change):
    def apply(folder):
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return apply


def with_nan(tensors):
    tensors[WORDS][3, 3] = np.nan


def beyond_float32(tensors):
    tensors[WORDS] = tensors[WORDS].astype(np.float64)
    tensors[WORDS][0, 0] = 1e300


def second_spelling(tensors):
    tensors[WORDS.removeprefix("bert.")] = tensors[WORDS] * 2


def no_numbers(tensors):
    tensors[WORDS] = tensors[WORDS].astype(np.int32)


@pytest.mark.parametrize(
    "change, words",
    [
        (with_nan, f"tensor {WORDS} holds values that are not finite"),
        (beyond_float32, f"tensor {WORDS} holds values that are not finite"),
        (second_spelling, "a second time under another spelling"),
        (no_numbers, f"tensor {WORDS} is missing"),
    ],
)
def test_tensors_that_would_be_computed_with(change, words, check_model):
    check_model(changed(change), None, words)


def torch_file(make):
    """Replaces the weights by what make(path, tensors) writes."""

    def apply(folder):
        import torch

        tensors = {name: torch.tensor(array) for name, array in load_file(folder / "model.safetensors").items()}
        (folder / "model.safetensors").unlink()
        make(torch, folder / "pytorch_model.bin", tensors)

    return apply


class Evil:
    def __reduce__(self):
        return (print, ("code from the file ran",))


def zip_bomb(torch, path, tensors):
    torch.save({**tensors, "x": torch.zeros(3 * 10**7)}, path)
    with zipfile.ZipFile(path) as source:
        members = {member.filename: source.read(member) for member in source.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bomb:
        for name, content in members.items():
            bomb.writestr(name, content)
    assert path.stat().st_size < 10**6


TORCH = {
    "plain": (lambda torch, path, tensors: torch.save(tensors, path), None),
    "parameters": (
        lambda torch, path, tensors: torch.save({name: torch.nn.Parameter(t) for name, t in tensors.items()}, path),
        None,
    ),
    "older format": (lambda torch, path, tensors: torch.save(tensors, path, _use_new_zipfile_serialization=False), None),
    "a number repeated": (
        lambda torch, path, tensors: torch.save({**tensors, "x": torch.zeros(1).half().expand(2**40)}, path),
        "declares",
    ),
    "no storage": (lambda torch, path, tensors: torch.save({**tensors, "x": torch.zeros(3, device="meta")}, path), "meta"),
    "sparse": (lambda torch, path, tensors: torch.save({**tensors, WORDS: tensors[WORDS].to_sparse()}, path), "Sparse"),
    "zip bomb": (zip_bomb, "a compressed zip"),
    "code": (lambda torch, path, tensors: path.write_bytes(pickle.dumps(Evil())), "not a torch file of plain tensors"),
    "nested": (lambda torch, path, tensors: torch.save({"state_dict": tensors}, path), "is missing"),
    "a list": (lambda torch, path, tensors: torch.save([1], path), "holds list"),
    "a terabyte": (lambda torch, path, tensors: sparse(2**40)(path), "1099511627776 bytes, expected at most"),
    "empty": (lambda torch, path, tensors: path.write_bytes(b""), "not a torch file"),
}


@pytest.mark.parametrize("case", TORCH)
def test_torch_files(case, check_model):
    make, words = TORCH[case]
    check_model(torch_file(make), None, words)


# --- tokenizers ------------------------------------------------------------------------------------------------------


def tokenizer(vocabulary=None, unknown="[UNK]", **parts):
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4} if vocabulary is None else vocabulary
    word_piece = {"type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##"}
    model = {**word_piece, "max_input_chars_per_word": 100, "vocab": vocabulary}
    empty = dict.fromkeys(["truncation", "padding", "normalizer", "post_processor", "decoder"])
    content = {"version": "1.0", **empty, "added_tokens": [], "pre_tokenizer": {"type": "BertPreTokenizer"}, "model": model}
    return json.dumps({**content, **parts}).encode()


def sequence(parts):
    return {"type": "Sequence", "normalizers": parts}


TOKENIZERS = {
    "plain": (tokenizer(), None),
    "no unknown token": (tokenizer(unknown="[NOPE]"), "this tokenizer cannot encode the texts"),
    "an id too large": (tokenizer({"[UNK]": 1, "[CLS]": 2, "[SEP]": 2**32 - 1}), "numbers 4294967296 tokens"),
    "an id below 0": (tokenizer({"[UNK]": -1}), "not a tokenizer file"),
    "no words": (tokenizer({}), "is not in the vocabulary"),
    "padding": (
        tokenizer(
            padding={
                "strategy": {"Fixed": 10**9},
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "[PAD]",
            }
        ),
        None,
    ),
    "a slow expression": (
        tokenizer(
            pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False},
        ),
        "pre_tokenizer Split, expected one of",
    ),
    "a growing text": (
        tokenizer(normalizer=sequence([{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40)),
        "normalizer Replace, expected one of",
    ),
    "a long prefix": (
        tokenizer(normalizer=sequence([sequence([{"type": "Prepend", "prepend": "a" * 10**6}] * 20)])),
        "normalizer Prepend, expected one of",
    ),
}


@pytest.mark.parametrize("case", TOKENIZERS)
def test_tokenizer_files(case, check_model):
    content, words = TOKENIZERS[case]
    check_model("tokenizer.json", content, words)


@pytest.mark.parametrize(
    "content, words",
    [
        ("[]", "expected a JSON object"),
        ('{"cls_token": 5}', "the cls_token 5 is not in the vocabulary"),
        ('{"sep_token": {"content": {}}}', "the sep_token {} is not in the vocabulary"),
        ('{"do_lower_case": []}', "do_lower_case is [], expected true or false"),
        ('{"do_lower_case": 1}', "do_lower_case is 1, expected true or false"),
        ('{"vocab_file": "/dev/zero", "tokenizer_file": "../../x", "auto_map": {"AutoTokenizer": "x.py"}}', None),
    ],
)
def test_tokenizer_settings(content, words, check_model):
    check_model("tokenizer_config.json", content.encode(), words)


@pytest.mark.parametrize(
    "content", ["{}", '{"idx_to_token": 5}', '{"idx_to_token": [1, 2]}', '{"idx_to_token": ["[UNK]", null]}', "[]", ""]
)
def test_gluonnlp_vocabularies(content, check_model):
    def apply(folder):
        (folder / "vocab.txt").unlink()
        (folder / "x.vocab").write_text(content)

    check_model(apply, None, "x.vocab: ")


# --- values ----------------------------------------------------------------------------------------------------------

NO_NUMBERS = ("nan", "-1", "x", "", "-1e400", "1e400", "0x10")
BAD_VALUES = {
    **dict.fromkeys(("lr", "loss_scale", "init_loss_scale", "min_loss_scale"), (*NO_NUMBERS, "1e-400", "1e-30", "1e300")),
    **dict.fromkeys(("epsilon", "weight_decay", "warmup_ratio", "max_grad_norm", "max_loss_scale"), NO_NUMBERS),
    **dict.fromkeys(("loss_scale_growth_factor", "loss_scale_backoff_factor"), NO_NUMBERS),
    **dict.fromkeys(
        ("epochs", "training_steps", "batch_size", "dev_batch_size", "accumulate", "log_interval", "early_stop", "round_to"),
        ("0", "-1", "1.5", "nan", "", "1" + "0" * 30, "1" + "0" * 400, "9" * 5000),
    ),
    **dict.fromkeys(("max_len", "seed", "gpu"), ("-1", "1.5", "nan", "", "1" + "0" * 30, "1" + "0" * 400, "9" * 5000)),
    **dict.fromkeys(("bert_model", "data_dir", "model_parameters", "output_dir", "task_name", "train_file"), ("",)),
}


@pytest.mark.parametrize("flag, value", [(flag, value) for flag, values in BAD_VALUES.items() for value in values])
def test_values_that_make_no_run(flag, value):
    with pytest.raises(InputError) as caught:
        parse(["--task_name", "RTE", "--dtype", "float16", f"--{flag}={value}"])
    assert f"--{flag}" in str(caught.value) and len(str(caught.value)) < 2100


@pytest.mark.parametrize("flag", ["--bert_model", "--data_dir", "--model_parameters", "--pretrained_bert_parameters"])
@pytest.mark.parametrize("value", ["a" * 300, "/dev/zero", "/dev/null", "a\nb", "\udcff", "~", "%s%n"])
def test_names_that_lead_nowhere(flag, value, check, bert_folder, glue_folder):
    flags = ["--task_name", "RTE", "--data_dir", glue_folder, "--bert_model", bert_folder, f"{flag}={value}"]
    check(flags, "")
