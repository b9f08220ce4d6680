"""Predictions as leaderboard files: GLUE's names, header, order and label texts. Knows no engine and no metric."""

from pathlib import Path

import numpy as np

from bert import RunError
from bert.files import whole_file, writing
from bert.metrics import predictions

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
    with writing(path):
        path.parent.mkdir(exist_ok=True)
    with whole_file(path) as file:
        file.write("index\tprediction\n")
        file.writelines(f"{index}\t{text}\n" for index, text in enumerate(prediction_texts(task, logits)))
    return path
