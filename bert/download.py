"""Fetch a GLUE task from the Hugging Face hub and write it in the official TSV layout. Used only on --download."""

import os
from pathlib import Path

from bert import InputError
from bert.tasks import TASKS, Split

REPOSITORY = "nyu-mll/glue"  # a dataset repository: <config>/<split>-00000-of-00001.parquet
_CONFIGS = {"SST-2": "sst2", "STS-B": "stsb"}
_SPLITS = {"dev": "validation", "dev_matched": "validation_matched", "dev_mismatched": "validation_mismatched"}
# Official header of each task's labelled and unlabelled files; CoLA's labelled files have none.
_HEADERS = {
    "CoLA": (("source", "label", "mark", "sentence"), ("index", "sentence")),
    "SST-2": (("sentence", "label"), ("index", "sentence")),
    "MRPC": (
        ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
        ("index", "#1 ID", "#2 ID", "#1 String", "#2 String"),
    ),
    "STS-B": (
        ("index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2", "score"),
        ("index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2"),
    ),
    "QQP": (("id", "qid1", "qid2", "question1", "question2", "is_duplicate"), ("id", "question1", "question2")),
    "MNLI": (("index", "sentence1", "sentence2", "gold_label"), ("index", "sentence1", "sentence2")),
    "QNLI": (("index", "question", "sentence", "label"), ("index", "question", "sentence")),
    "RTE": (("index", "sentence1", "sentence2", "label"), ("index", "sentence1", "sentence2")),
    "WNLI": (("index", "sentence1", "sentence2", "label"), ("index", "sentence1", "sentence2")),
    "AX": ((), ("index", "sentence1", "sentence2")),
}
_TEXTS = {"CoLA": ("sentence",), "SST-2": ("sentence",), "QQP": ("question1", "question2"), "QNLI": ("question", "sentence")}
_INDEX_COLUMNS = ("index", "id")


def download_task(task, data_dir, log):
    """Write the files of a GLUE task that are not below `data_dir` yet; InputError in one line when that cannot be done."""
    missing = {
        name: Path(data_dir) / split.files[0]
        for name, split in task.splits.items()
        if not any((Path(data_dir) / file).exists() for file in split.files)
    }
    if not missing:
        return
    first = next(iter(missing.values()))
    if task.name not in _HEADERS:
        raise InputError(f"--download: {task.name} is not on the hub; put its files at {first}")
    try:
        import polars
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise InputError(f"--download needs {error.name}; pip install '.[hub]', or put the file at {first}") from None
    for name, path in missing.items():
        config = "ax" if name == "test_ax" or task.name == "AX" else _CONFIGS.get(task.name, task.name.lower())
        split = "test" if config == "ax" else _SPLITS.get(name, name)
        try:
            parquet = hf_hub_download(REPOSITORY, f"{config}/{split}-00000-of-00001.parquet", repo_type="dataset")
        except Exception as error:  # the library raises its HTTP client's errors, its own, and OSError
            raise InputError(
                f"--download: {REPOSITORY} cannot be reached ({type(error).__name__}); put the file at {path}"
            ) from None
        rows = polars.read_parquet(parquet).to_dicts()
        write_tsv(path, "AX" if config == "ax" else task.name, task.splits[name], rows)
        log.say(f"downloaded {path}: {len(rows)} rows")


def write_tsv(path, task_name, split: Split, rows):
    """Write the hub's rows (dicts) in the official layout. Columns that the hub does not have are left empty."""
    labelled, unlabelled = _HEADERS[task_name]
    header = labelled if split.label is not None else unlabelled
    sources = {"#1 String": "sentence1", "#2 String": "sentence2"}
    if task_name in ("MNLI", "AX"):
        sources = {"sentence1": "premise", "sentence2": "hypothesis"}
    names = TASKS[task_name].hub_labels
    label_column = header[split.label] if isinstance(split.label, int) else split.label

    def cell(column, number, row):
        if column == label_column:
            value = row["label"]
            return names[value] if names else f"{value:.3f}" if isinstance(value, float) else str(value)
        if column in _INDEX_COLUMNS:
            return str(number)
        source = sources.get(column, column)
        if source not in row or source == "label":
            return ""
        return " ".join(str(row[source]).replace("\r", "\n").replace("\t", "\n").split("\n"))

    wanted = [sources.get(name, name) for name in _TEXTS.get(task_name, ("sentence1", "sentence2"))]
    if not set(wanted) <= set(rows[0]):
        raise InputError(
            f"--download: {task_name} on the hub has columns {', '.join(rows[0])}, expected {', '.join(wanted)}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}.partial")  # several runs may be at it
    with open(aside, "w", encoding="utf-8", newline="\n") as file:
        if split.width is None:
            file.write("\t".join(header) + "\n")
        file.writelines("\t".join(cell(column, *item) for column in header) + "\n" for item in enumerate(rows))
    aside.replace(path)
