"""Predictions as files: the leaderboard's (GLUE's names, header, order and label texts), and those on dev, for reports.

Knows no engine and no metric.
"""

from pathlib import Path

import numpy as np

from bert import RunError
from bert.files import whole_file, writing
from bert.metrics import predictions, probabilities

_STS_B_RANGE = (0.0, 5.0)  # of the human scores; Cer et al. 2017


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
    return _write_rows(path, ("index", "prediction"), rows)


def write_dev_predictions(folder, task, split_name, kind, logits, label_ids):
    """Write label, prediction and logits of every row of a dev split as `<split>.<kind>.tsv`; returns the path.

    `kind` says whose they are: "last", "best" or "saved". Logits have the 9 digits that give back a float32.
    """
    header = ("index", "label", "prediction", *(f"logit:{name}" for name in task.labels or ("score",)))
    rows = (
        (str(index), label, text, *(f"{value:.9g}" for value in row))
        for index, (label, text, row) in enumerate(
            zip(_label_texts(task, label_ids), prediction_texts(task, logits), logits)
        )
    )
    return _write_rows(Path(folder) / f"{split_name}.{kind}.tsv", header, rows)


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
