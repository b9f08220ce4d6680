"""Predictions as files: the leaderboard's (GLUE's names, header, order and label texts) and their zip, and those on dev.

Knows no engine and computes no metric.
"""

import io
import math
import re
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert import InputError, RunError
from bert.files import file_size, read_json, read_lines, whole_file, writing
from bert.metrics import predictions, probabilities
from bert.tasks import SUBMISSIONS, TASKS

_HEADER = "index\tprediction"
_DEV_HEADER = ["index", "label", "prediction"]
_MAX_DEV_PREDICTIONS = 256 * 2**20  # bytes; QQP's 40,430 rows take 2 MiB
_STS_B_RANGE = (0.0, 5.0)  # of the human scores; Cer et al. 2017
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?(e-?[0-9]+)?")  # what float() takes besides, such as 1_0 or nan, is no score
_OUTPUT = re.compile(r"-?([0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?|inf|nan)")
_QNLI_V1_ROWS = 5740  # of the test file before 2019; the server then says "not all ids present in task Question NLI"


def prediction_texts(task, logits):
    """One text per row of `logits` (rows, num_labels): the label's text, or a score (STS-B's has three decimals)."""
    predicted = predictions(logits, regression=task.regression)
    if not task.regression:
        return [task.labels[number] for number in predicted]
    if task.name == "STS-B":
        return [f"{score:.3f}" for score in np.clip(predicted, *_STS_B_RANGE)]
    return [f"{score:.6g}" for score in predicted]


def write_submission(folder, task, split_name, logits):
    """Write index and prediction of every row of a test split, in file order, whole or not at all; returns the path.

    RunError where an output is not finite: what it would be rounded to is no prediction.
    """
    if not np.isfinite(logits).all():
        row = int(np.flatnonzero(~np.isfinite(logits).all(axis=1))[0])
        raise RunError(f"{split_name}: the model's output for row {row} is not finite, so no predictions are written")
    path = Path(folder) / task.splits[split_name].submission
    rows = ((str(index), text) for index, text in enumerate(prediction_texts(task, logits)))
    return _write_rows(path, _HEADER.split("\t"), rows)


def choose_submissions(runs):
    """The leaderboard files of finished runs' folders, each from the run with the best dev score on its task.

    Returns file name -> path, and for each a line that says whose it is. The score is that of the weights that predicted,
    in the task's first metric, averaged over its dev files; at a tie the lowest seed. AX is MNLI's to answer: its file is
    the chosen MNLI run's, and that of a run of its own only where that run has none.
    """
    candidates = {}  # task's name -> [(score, -seed, folder)]
    for folder in map(Path, runs):
        results = read_json(folder / "results.json")
        task = TASKS.get(results["task"])
        if task and _submissions_in(folder, task):
            candidates.setdefault(task.name, []).append((_dev_score(task, results), -results["seed"], folder))
    files, lines = {}, []
    for name, runs_of_task in sorted(candidates.items(), key=lambda item: item[0] == "AX"):
        score, _, folder = max(runs_of_task, key=lambda run: run[:2])
        for file_name, path in _submissions_in(folder, TASKS[name]).items():
            if files.setdefault(file_name, path) == path:
                scored = f", {TASKS[name].metrics[0]} {100 * score:.1f} on dev" if math.isfinite(score) else ""
                of = f", the best of {len(runs_of_task)} runs" if len(runs_of_task) > 1 else ""
                lines.append(f"{file_name}: {folder}{scored}{of}")
    return files, lines


def _submissions_in(folder, task):
    names = [split.submission for split in task.splits.values() if split.official_rows]
    paths = {name: folder / "predictions" / name for name in names}
    return {name: path for name, path in paths.items() if path.exists()}


def _dev_score(task, results):
    """Of the weights that predicted; -inf where there is none, as on AX, or where it was not finite."""
    scores = results["scores"].get("best") or results["scores"].get("saved") or {}
    values = [scores[name][task.metrics[0]] for name in task.split_names("dev") if name in scores]
    return float(np.mean(values)) if values and None not in values else -math.inf


def write_zip(path, files):
    """Write gluebenchmark.com's zip of `files` (leaderboard file -> path of it), whole or not at all, after checking all.

    Checked is what the server counts: header, indices from 0 on, label texts, STS-B's range, the official number of rows.
    InputError with file, line, what was found and what was expected. The same files give the same bytes.

    Returns lines for the person. What is missing is named, and not made up: the server refuses a zip that lacks one of
    the eleven files, or has an empty one (keras-team/keras-hub, examples/glue_benchmark; we did not ask the server).
    """
    unknown = sorted(set(files) - set(SUBMISSIONS))
    if unknown or not files:
        found = unknown[0] if unknown else "no file"
        raise InputError(f"{path}: found {found}, expected some of {', '.join(SUBMISSIONS)}")
    contents = {name: _checked(files[name], *SUBMISSIONS[name]) for name in SUBMISSIONS if name in files}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():  # at its top level, where the server looks
            entry = zipfile.ZipInfo(name)  # with zip's first date, 1980
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, content)
    path = Path(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, binary=True) as file:
        file.write(buffer.getvalue())
    lines = [f"wrote {path}: {len(contents)} of the leaderboard's {len(SUBMISSIONS)} files, checked"]
    missing = [name for name in SUBMISSIONS if name not in contents]
    if missing:
        lines.append(
            f"WARNING: {path} lacks {', '.join(missing)}: gluebenchmark.com takes a zip of all {len(SUBMISSIONS)} files "
            "only; those of its sample, https://gluebenchmark.com/assets/CBOW.zip, can stand in for what you did not run"
        )
    return lines


def _checked(path, task, split):
    """The text of a leaderboard file, every line as the server takes it."""
    low, high = _STS_B_RANGE
    expected = f"a number from {low:g} to {high:g}" if task.regression else f"one of {', '.join(task.labels)}"
    lines = []

    def require(condition, found, expected):
        if not condition:
            raise InputError(f"{path}:{max(len(lines), 1)}: found {found}, expected {expected}")

    for _, line in read_lines(path):
        lines.append(line)
        if len(lines) == 1:
            require(line == _HEADER, repr(line[:60]), f"the header {_HEADER!r}")
            continue
        index, _, text = line.partition("\t")
        require(index == str(len(lines) - 2), f"index {index[:60]!r}", f"index {len(lines) - 2}")
        if task.regression:
            good = _NUMBER.fullmatch(text) and low <= float(text) <= high
        else:
            good = text in task.labels
        require(good, f"prediction {text[:60]!r}", expected)
    require(lines, "an empty file", f"the header {_HEADER!r}")
    found, expected = f"{len(lines) - 1} rows", f"{split.official_rows}"
    if task.name == "QNLI":
        found += " (QNLI v1)" if len(lines) - 1 == _QNLI_V1_ROWS else ""
        expected += " (QNLI v2)"
    require(len(lines) - 1 == split.official_rows, found, expected)
    return "".join(f"{line}\n" for line in lines)


def write_dev_predictions(folder, task, split_name, kind, logits, label_ids):
    """Write label, prediction and logits of every row of a dev split as `<split>.<kind>.tsv`; returns the path.

    `kind` says whose they are: "last", "best" or "saved". Logits have the 9 digits that give back a float32.
    """
    header = (*_DEV_HEADER, *(f"logit:{name}" for name in task.labels or ("score",)))
    rows = (
        (str(index), label, text, *(f"{value:.9g}" for value in row))
        for index, (label, text, row) in enumerate(
            zip(_label_texts(task, label_ids), prediction_texts(task, logits), logits)
        )
    )
    return _write_rows(Path(folder) / f"{split_name}.{kind}.tsv", header, rows)


class DevPredictions(NamedTuple):
    """What write_dev_predictions wrote: labels and predictions (rows,) as class ids or scores, logits (rows, num_labels).

    A class's id is its place among the logits. The scores of regression are the outputs themselves, which metrics are made
    of: as text they are rounded, and STS-B's are clipped.
    """

    labels: np.ndarray
    predictions: np.ndarray
    logits: np.ndarray


def read_dev_predictions(path):
    """DevPredictions of a file such as dev.last.tsv; InputError with its line, what was found and what was expected.

    Outputs may be nan or inf: a run that has diverged says so.
    """
    file_size(path, limit=_MAX_DEV_PREDICTIONS)
    ids, labels, predicted, logits = None, [], [], []

    def require(condition, found, expected):
        if not condition:
            raise InputError(f"{path}:{1 if ids is None else len(labels) + 2}: found {found}, expected {expected}")

    for _, line in read_lines(path):
        cells = line.split("\t")
        if ids is None:
            names = [cell.removeprefix("logit:") for cell in cells[3:]]
            good = cells[:3] == _DEV_HEADER and all(cell.startswith("logit:") for cell in cells[3:])
            expected = "index, label, prediction and a column logit:... for each class"
            require(good and names and len(set(names)) == len(names), repr(line[:60]), expected)
            ids = {} if names == ["score"] else {name: place for place, name in enumerate(names)}
            continue
        require(len(cells) == 3 + len(names), f"{len(cells)} columns", f"{3 + len(names)}")
        require(cells[0] == str(len(labels)), f"index {cells[0][:60]!r}", f"index {len(labels)}")
        for cell in cells[1:3] if ids else ():
            require(cell in ids, repr(cell[:60]), f"one of {', '.join(names)}")
        for cell in cells[3:]:
            require(_OUTPUT.fullmatch(cell), repr(cell[:60]), "a number")
        if not ids:
            good = _OUTPUT.fullmatch(cells[1]) and math.isfinite(float(cells[1]))
            require(good, repr(cells[1][:60]), "a score")
        labels.append(ids[cells[1]] if ids else float(cells[1]))
        predicted.append(ids[cells[2]] if ids else float(cells[3]))
        logits.append(np.array(cells[3:], np.float32))
    if not labels:
        raise InputError(f"{path}: found no rows, expected a header and at least one")
    return DevPredictions(np.array(labels), np.array(predicted), np.stack(logits))


def write_mistakes(folder, task, split_name, logits, label_ids, examples):
    """Write the wrong rows of a dev split as `<split>.mistakes.tsv`, the surest first; returns the path.

    A class's confidence is its softmax probability. Scores are never just wrong: all rows, the largest error first.
    """
    if task.regression:
        column, values = "error", logits[:, 0].astype(np.float64) - label_ids
        wrong, rank = np.arange(len(values)), np.abs(values)
    else:
        column, values = "confidence", probabilities(logits).max(axis=1)
        wrong, rank = np.flatnonzero(predictions(logits, regression=False) != label_ids), values
    labels, texts = _label_texts(task, label_ids), prediction_texts(task, logits)
    rows = (
        (str(row), f"{values[row]:.4f}", labels[row], texts[row], examples[row].text_a, examples[row].text_b or "")
        for row in wrong[np.argsort(-rank[wrong], kind="stable")]
    )
    header = ("index", column, "label", "prediction", "text_a", "text_b")
    return _write_rows(Path(folder) / f"{split_name}.mistakes.tsv", header, rows)


def _label_texts(task, label_ids):
    return [f"{label:.6g}" for label in label_ids] if task.regression else [task.labels[number] for number in label_ids]


def _write_rows(path, header, rows):
    """A TSV file of texts, whole or not at all. What would end a cell or a line inside a text becomes a space."""
    with writing(path):
        path.parent.mkdir(exist_ok=True)
    with whole_file(path) as file:
        file.write("\t".join(header) + "\n")
        file.writelines("\t".join(cell.translate(_CELL_ENDS) for cell in row) + "\n" for row in rows)
    return path


_CELL_ENDS = str.maketrans("\t\n\r", "   ")
