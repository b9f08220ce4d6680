"""Shared fixtures: tiny random models in Hugging Face layout, small files in the tasks' layouts, the script in-process.

Tensor names and file layouts are written out here by hand, so that the tests do not take them from the code they test.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
GLUE = ROOT.parent / "shared" / "glue"  # the official files, where a checkout has them beside it

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_TEXT = (
    "the a is was film meal book good bad fine dull very not we it they see saw hear red blue small large man woman dog "
    "cat runs sleeps where why who one two three un ##able ##ing ##s ##a ##b walk talk naive cafe yes no sep [ ] . , ? ! '"
)
WORDS = _TEXT.split()
LETTERS = "bcdefghijklmnopqrstuvwxyz"
PIECES = [*SPECIAL, *WORDS, *LETTERS, *(f"##{letter}" for letter in "cdefghijklmnopqrtuvwxyz")]

HIDDEN, LAYERS, HEADS, INTERMEDIATE, POSITIONS = 16, 2, 2, 32, 128


def _byte_level_tokenizer():
    """A RoBERTa tokenizer without merges: one token for each byte."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

    names = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "<mask>"]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")])
    return tokenizer


def _tensors(model_type, vocab_size, positions, num_labels, seed):
    random = np.random.default_rng(seed)
    tensors = {}

    def dense(name, inputs, outputs):
        tensors[f"{name}.weight"] = random.normal(0, 0.3, (outputs, inputs))
        tensors[f"{name}.bias"] = random.normal(0, 0.1, outputs)

    def norm(name):
        tensors[f"{name}.weight"] = random.normal(1, 0.1, HIDDEN)
        tensors[f"{name}.bias"] = random.normal(0, 0.1, HIDDEN)

    tables = {"word_embeddings": vocab_size, "position_embeddings": positions}
    if model_type != "distilbert":
        tables["token_type_embeddings"] = 2 if model_type == "bert" else 1
    for name, rows in tables.items():
        tensors[f"{model_type}.embeddings.{name}.weight"] = random.normal(0, 1, (rows, HIDDEN))
    norm(f"{model_type}.embeddings.LayerNorm")
    for number in range(LAYERS):
        if model_type == "distilbert":
            layer = f"distilbert.transformer.layer.{number}"
            for part in ("q_lin", "k_lin", "v_lin", "out_lin"):
                dense(f"{layer}.attention.{part}", HIDDEN, HIDDEN)
            norm(f"{layer}.sa_layer_norm")
            dense(f"{layer}.ffn.lin1", HIDDEN, INTERMEDIATE)
            dense(f"{layer}.ffn.lin2", INTERMEDIATE, HIDDEN)
            norm(f"{layer}.output_layer_norm")
        else:
            layer = f"{model_type}.encoder.layer.{number}"
            for part in ("self.query", "self.key", "self.value", "output.dense"):
                dense(f"{layer}.attention.{part}", HIDDEN, HIDDEN)
            norm(f"{layer}.attention.output.LayerNorm")
            dense(f"{layer}.intermediate.dense", HIDDEN, INTERMEDIATE)
            dense(f"{layer}.output.dense", INTERMEDIATE, HIDDEN)
            norm(f"{layer}.output.LayerNorm")
    pooler = {"bert": "bert.pooler.dense", "roberta": "classifier.dense", "distilbert": "pre_classifier"}[model_type]
    if model_type == "bert" or num_labels:
        dense(pooler, HIDDEN, HIDDEN)
    if num_labels:
        dense("classifier.out_proj" if model_type == "roberta" else "classifier", HIDDEN, num_labels)
    return {name: array.astype(np.float32) for name, array in tensors.items()}


def _config(model_type, vocab_size, positions):
    if model_type == "distilbert":
        sizes = {"dim": HIDDEN, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": INTERMEDIATE}
    else:
        sizes = {
            "hidden_size": HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "intermediate_size": INTERMEDIATE,
            "type_vocab_size": 2 if model_type == "bert" else 1,
        }
    special = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2} if model_type == "roberta" else {"pad_token_id": 0}
    return {
        "model_type": model_type,
        "vocab_size": vocab_size,
        "max_position_embeddings": positions,
        **sizes,
        **special,
    }


def write_model(
    folder, model_type="bert", *, labels=None, num_labels=None, config=None, change=None, words=PIECES, settings=None, seed=0
):
    """Write a tiny random model; returns its folder.

    `labels` names the rows of a classification head, `num_labels` makes one without names, neither makes an encoder only.
    `config` is merged into config.json (None removes a key); `change(tensors)` may alter the dict of tensors; `words` is the
    vocabulary and `settings` the tokenizer_config.json of a BERT or DistilBERT.
    """
    from safetensors.numpy import save_file

    folder = Path(folder)
    folder.mkdir(parents=True)
    if model_type == "roberta":
        tokenizer = _byte_level_tokenizer()
        tokenizer.save(str(folder / "tokenizer.json"))
        vocab_size = tokenizer.get_vocab_size()
    else:
        (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
        vocab_size = len(words)
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    positions = POSITIONS + (2 if model_type == "roberta" else 0)
    content = _config(model_type, vocab_size, positions)
    if labels is not None:
        content["id2label"] = {str(number): label for number, label in enumerate(labels)}
        content["label2id"] = {label: number for number, label in enumerate(labels)}
        num_labels = len(labels)
    content.update(config or {})
    content = {key: value for key, value in content.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    tensors = _tensors(model_type, vocab_size, positions, num_labels, seed)
    if change is not None:
        tensors = change(tensors) or tensors
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


# --- files in the tasks' layouts -------------------------------------------------------------------------------------

_MNLI = (
    "promptID",
    "pairID",
    "genre",
    "sentence1_binary_parse",
    "sentence2_binary_parse",
    "sentence1_parse",
    "sentence2_parse",
)
_STSB = ("genre", "filename", "year", "old_index", "source1", "source2")


def _row(header, cells):
    return [cells.get(name, "-") for name in header]


def _layout(task, kind):
    """(header or None, columns that hold text, column that holds the label or None) of an official file."""
    labelled = kind not in ("test", "diagnostic")
    pair = ("sentence1", "sentence2")
    if task == "CoLA":
        return (None, (3,), 1) if labelled else (("index", "sentence"), ("sentence",), None)
    if task == "SST-2":
        return (("sentence", "label"), ("sentence",), "label") if labelled else (("index", "sentence"), ("sentence",), None)
    if task == "MRPC":
        header = ("Quality" if labelled else "index", "#1 ID", "#2 ID", "#1 String", "#2 String")
        return header, ("#1 String", "#2 String"), "Quality" if labelled else None
    if task == "STS-B":
        return ("index", *_STSB, *pair, *(["score"] if labelled else [])), pair, "score" if labelled else None
    if task == "QQP":
        texts = ("question1", "question2")
        return (
            (("id", "qid1", "qid2", *texts, "is_duplicate"), texts, "is_duplicate")
            if labelled
            else (("id", *texts), texts, None)
        )
    if task == "MNLI":
        annotators = {"train": ("label1",), "dev": tuple(f"label{number}" for number in range(1, 6)), "test": ()}[kind]
        gold = ("gold_label",) if labelled else ()
        return ("index", *_MNLI, *pair, *annotators, *gold), pair, "gold_label" if labelled else None
    if task == "QNLI":
        texts = ("question", "sentence")
        return ("index", *texts, *(["label"] if labelled else [])), texts, "label" if labelled else None
    if task in ("RTE", "WNLI", "AX"):
        return ("index", *pair, *(["label"] if labelled else [])), pair, "label" if labelled else None
    texts = {"XNLI": ("premise", "hypo"), "LCQMC": ("text_a", "text_b"), "ChnSentiCorp": ("text_a",)}[task]
    if task == "ChnSentiCorp" and labelled:
        return ("label", *texts), texts, "label"
    return (*texts, *(["label"] if labelled else [])), texts, "label" if labelled else None


TASK_LABELS = {
    "CoLA": ("0", "1"),
    "SST-2": ("0", "1"),
    "MRPC": ("0", "1"),
    "STS-B": ("0.400", "2.750", "4.600"),
    "QQP": ("0", "1"),
    "MNLI": ("neutral", "entailment", "contradiction"),
    "QNLI": ("not_entailment", "entailment"),
    "RTE": ("not_entailment", "entailment"),
    "WNLI": ("0", "1"),
    "AX": ("neutral", "entailment", "contradiction"),
    "XNLI": ("neutral", "entailment", "contradiction"),
    "LCQMC": ("0", "1"),
    "ChnSentiCorp": ("0", "1"),
}
PAIRS = {"MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI", "AX", "XNLI", "LCQMC"}


def file_names(task, kind):
    if task == "AX":
        return ["diagnostic"]
    return [f"{kind}_matched", f"{kind}_mismatched"] if task == "MNLI" and kind != "train" else [kind]


def texts_of(count, seed):
    """Texts of different lengths from the tiny vocabulary: row i has i + 1 words, and ends in a number of its own."""
    random = np.random.default_rng(seed)
    plain = [word for word in WORDS if word.isalpha()]
    return [" ".join([*random.choice(plain, number % 9 + 1), plain[number % len(plain)]]) for number in range(count)]


def write_split(folder, task, kind, rows):
    """Write `rows`, (text_a, text_b, label), as the official file or files of a split; returns the paths."""
    header, text_columns, label_column = _layout(task, kind)
    lines = [] if header is None else ["\t".join(header)]
    for number, (text_a, text_b, label) in enumerate(rows):
        if header is None:
            cells = {0: "gj04", 1: label, 2: "", 3: text_a}
            lines.append("\t".join(cells[place] for place in range(4)))
            continue
        cells = {"index": str(number), "id": str(number), **dict(zip(text_columns, (text_a, text_b)))}
        if label_column:
            cells[label_column] = label
        lines.append("\t".join(_row(header, cells)))
    mark = "\ufeff" if task == "MRPC" else ""
    paths = []
    for name in file_names(task, kind):
        path = Path(folder) / task / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((mark + "\n".join(lines) + "\n").encode())
        paths.append(path)
    return paths


def make_rows(task, count, seed=0):
    """(text_a, text_b or None, label) rows; every label occurs."""
    labels = TASK_LABELS[task]
    firsts, seconds = texts_of(count, seed), texts_of(count, seed + 1)[::-1]
    return [
        (firsts[number], seconds[number] if task in PAIRS else None, labels[number % len(labels)]) for number in range(count)
    ]


def write_task(folder, task, *, train=12, dev=7, test=5):
    """Write all files of a task below `folder`; returns `folder`."""
    if task == "AX":
        write_split(folder, task, "diagnostic", make_rows(task, test, seed=4))
        return folder
    for seed, (kind, count) in enumerate({"train": train, "dev": dev, "test": test}.items()):
        write_split(folder, task, kind, make_rows(task, count, seed=10 * seed))
    return folder


# --- fixtures --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def make_model():
    """The function write_model."""
    return write_model


@pytest.fixture(scope="session")
def glue_writer():
    """The functions that write official layouts."""
    return SimpleNamespace(task=write_task, split=write_split, rows=make_rows, labels=TASK_LABELS)


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory):
    """A tiny BERT encoder with a lower-casing vocab.txt."""
    return write_model(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="session")
def glue_folder(tmp_path_factory):
    """Small files of all tasks in the official layouts."""
    folder = tmp_path_factory.mktemp("glue")
    for task in TASK_LABELS:
        write_task(folder, task)
    return folder


@pytest.fixture(scope="session")
def official_glue():
    """The official GLUE files beside the checkout."""
    if not GLUE.is_dir():
        pytest.skip("the official GLUE files are not beside this checkout (../shared/glue)")
    return GLUE


@pytest.fixture
def run_cli(capsys):
    """Run the script's main in this process: run_cli(*arguments) -> code, out, err."""
    import finetune_classifier

    def run(*arguments):
        capsys.readouterr()
        code = finetune_classifier.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return SimpleNamespace(code=code, out=captured.out, err=captured.err)

    return run


@pytest.fixture
def refused(run_cli):
    """Run the script and check that it refuses: exit code 2 and one line on stderr, which is returned."""

    def run(*arguments):
        result = run_cli(*arguments)
        assert result.code == 2, result.err
        lines = result.err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: "), result.err
        assert "Traceback" not in result.err
        return lines[0]

    return run


def pytest_configure(config):
    for module in ("mxnet", "gluonnlp"):  # retired: their warnings will not be mended
        config.addinivalue_line("filterwarnings", f"ignore::DeprecationWarning:{module}")
