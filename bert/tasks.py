"""One row per task: where its files are, which columns hold text and label, its labels, metrics and submission files.

Knows the layouts and nothing of how they are read, scored or learned.
"""

import unicodedata
from dataclasses import dataclass, field, replace
from typing import Optional, Union

from bert import InputError

Column = Union[str, int]  # a header's name, or a place (from 0) in a file without header


@dataclass(frozen=True)
class Split:
    """One file of a task."""

    files: tuple[str, ...]  # below --data_dir; the first that exists is read
    text: tuple[Column, ...]  # one or two columns; the first is segment 0
    label: Optional[Column] = None  # None: the file has no labels
    width: Optional[int] = None  # number of columns of a file without header; None: the first row is a header
    submission: Optional[str] = None  # leaderboard file of the predictions
    official_rows: Optional[int] = None  # of GLUE's test file; the leaderboard takes neither more nor fewer predictions
    optional: bool = False  # worth using when there, not worth a word when not


@dataclass(frozen=True)
class Task:
    """A task's constants; `labels` is in GluonNLP v0.10's order, so that its heads fit, and empty for regression."""

    name: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]  # the first one selects the best epoch (mean over the dev files)
    splits: dict = field(hash=False)
    hub_labels: tuple[str, ...] = ()  # the order of the Hugging Face hub's numbers, where it is another one
    aliases: dict = field(default_factory=dict, hash=False)  # other spellings of a label -> the label
    skip_short_rows: bool = False  # the official train file holds rows with columns missing

    @property
    def num_labels(self):
        return len(self.labels) or 1

    @property
    def regression(self):
        return not self.labels

    def split_names(self, kind):
        """Names of the splits of a kind: "train", "dev" or "test"; MNLI has two dev splits."""
        return [name for name in self.splits if name.split("_")[0] == kind]


def _splits(folder, text, label, *, test_text=None, width=None, test=True, test_rows=None):
    """The three files of an ordinary task; only train and dev have labels, and only they may lack a header."""
    rows = {kind: Split((f"{folder}/{kind}.tsv",), text, label, width) for kind in ("train", "dev")}
    if test:
        files = (f"{folder}/test.tsv",)
        rows["test"] = Split(files, test_text or text, submission=f"{folder}.tsv", official_rows=test_rows)
    return rows


_PAIR = ("sentence1", "sentence2")
_BINARY = ("0", "1")
_ENTAILMENT = ("not_entailment", "entailment")
_HUB_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("neutral", "entailment", "contradiction")
_HUB_NLI = ("entailment", "neutral", "contradiction")
_AX = Split(
    ("AX/diagnostic.tsv", "MNLI/diagnostic.tsv", "diagnostic/diagnostic.tsv"),
    _PAIR,
    submission="AX.tsv",
    official_rows=1104,
    optional=True,
)

TASKS = {
    task.name: task
    for task in (
        Task(
            "CoLA",
            _BINARY,
            ("mcc",),
            _splits("CoLA", (3,), 1, test_text=("sentence",), width=4, test_rows=1063),
            aliases={"unacceptable": "0", "acceptable": "1"},
        ),
        Task(
            "SST-2",
            _BINARY,
            ("accuracy",),
            _splits("SST-2", ("sentence",), "label", test_rows=1821),
            aliases={"negative": "0", "positive": "1"},
        ),
        Task(
            "MRPC",
            _BINARY,
            ("accuracy", "f1"),
            _splits("MRPC", ("#1 String", "#2 String"), "Quality", test_rows=1725),
            aliases={"not_equivalent": "0", "equivalent": "1"},
        ),
        Task("STS-B", (), ("pearson", "spearman"), _splits("STS-B", _PAIR, "score", test_rows=1379)),
        Task(
            "QQP",
            _BINARY,
            ("accuracy", "f1"),
            _splits("QQP", ("question1", "question2"), "is_duplicate", test_rows=390965),
            aliases={"not_duplicate": "0", "duplicate": "1"},
            skip_short_rows=True,
        ),
        Task(
            "MNLI",
            _NLI,
            ("accuracy",),
            {
                "train": Split(("MNLI/train.tsv",), _PAIR, "gold_label"),
                "dev_matched": Split(("MNLI/dev_matched.tsv",), _PAIR, "gold_label"),
                "dev_mismatched": Split(("MNLI/dev_mismatched.tsv",), _PAIR, "gold_label"),
                "test_matched": Split(("MNLI/test_matched.tsv",), _PAIR, submission="MNLI-m.tsv", official_rows=9796),
                "test_mismatched": Split(("MNLI/test_mismatched.tsv",), _PAIR, submission="MNLI-mm.tsv", official_rows=9847),
                "test_ax": _AX,
            },
            _HUB_NLI,
        ),
        Task(
            "QNLI",
            _ENTAILMENT,
            ("accuracy",),
            _splits("QNLI", ("question", "sentence"), "label", test_rows=5463),
            _HUB_ENTAILMENT,
        ),
        Task("RTE", _ENTAILMENT, ("accuracy",), _splits("RTE", _PAIR, "label", test_rows=3000), _HUB_ENTAILMENT),
        Task(
            "WNLI",
            _BINARY,
            ("accuracy",),
            _splits("WNLI", _PAIR, "label", test_rows=146),
            aliases={"not_entailment": "0", "entailment": "1"},
        ),
        Task("AX", _NLI, ("accuracy",), {"test": replace(_AX, optional=False)}, _HUB_NLI),
        Task(
            "XNLI",
            _NLI,
            ("accuracy",),
            _splits("XNLI", ("premise", "hypo"), "label"),
            _HUB_NLI,
            aliases={"contradictory": "contradiction"},
        ),
        Task("LCQMC", _BINARY, ("accuracy",), _splits("LCQMC", ("text_a", "text_b"), "label")),
        Task("ChnSentiCorp", _BINARY, ("accuracy",), _splits("ChnSentiCorp", ("text_a",), "label")),
    )
}

#: The benchmark's nine tasks with training data; AX is answered by MNLI's model.
GLUE = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI")
#: Tasks that gain from a start at MNLI's model (arXiv 1811.01088; RoBERTa, arXiv 1907.11692, does so for these three).
FROM_MNLI = ("RTE", "MRPC", "STS-B")
#: Leaderboard file -> its task and split: the eleven that gluebenchmark.com wants in one zip.
SUBMISSIONS = {
    split.submission: (task, split) for task in TASKS.values() for split in task.splits.values() if split.official_rows
}

_ALSO = {
    "sst": "SST-2",
    "sts": "STS-B",
    "mnlim": "MNLI",
    "mnlimm": "MNLI",
    "mnlimatched": "MNLI",
    "mnlimismatched": "MNLI",
    "diagnostic": "AX",
}


#: A model of the first task also answers the second: the same question with the same answers.
ALSO_ANSWERS = {("MNLI", "AX"), ("MNLI", "XNLI")}


def _key(name):
    return "".join(character for character in name.lower() if character.isalnum())


_SPELLINGS = {**{_key(name): name for name in TASKS}, **_ALSO}


def find_task(name):
    """The Task for any usual spelling (SST, sst-2, SST2, sts_b); InputError with the list for anything else."""
    if _key(name) not in _SPELLINGS:
        raise InputError(f"--task_name {name}: no such task; choose from {', '.join(TASKS)}")
    return TASKS[_SPELLINGS[_key(name)]]


def known_task(name):
    """The benchmark's spelling of a task's name, or None for a name that is not one."""
    return _SPELLINGS.get(_key(name))


def own_task(files, *, labels, text=()):
    """The Task for a person's own files: split name -> path. `labels` () means regression.

    `text` names one or two columns of text; without it each file's own header decides, see bert.data. InputError for a
    label that could not stand in a file of predictions.
    """
    for label in labels:
        if any(unicodedata.category(character) == "Cc" for character in label):
            raise InputError(f"label {label[:60]!r} holds a tab or another control character, expected plain text")
    if len(set(labels)) < len(labels):
        raise InputError(f"labels {', '.join(labels)}: one occurs twice, expected a different one for each class")
    metrics = ("pearson", "spearman") if not labels else ("accuracy", "f1") if len(labels) == 2 else ("accuracy", "f1_macro")
    splits = {
        name: Split(
            (str(path),), text, None if name == "test" else "label", submission=f"{name}.tsv" if name == "test" else None
        )
        for name, path in files.items()
    }
    return Task("own", tuple(labels), metrics, splits)
