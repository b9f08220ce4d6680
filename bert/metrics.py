"""Scores of whole splits, by scikit-learn and SciPy, and the loss that training minimises, from float32 logits.

A score that is not defined (one class only, constant predictions) is 0.0 with a warning for the person: never NaN,
which would win or lose comparisons at random. Knows no engine.
"""

import warnings
from contextlib import contextmanager

import numpy as np


def predictions(logits, *, regression):
    """Class ids (rows,) int64, or the scores themselves (rows,) float32, from logits (rows, num_labels)."""
    return logits[:, 0] if regression else logits.argmax(axis=1)


def probabilities(logits):
    """Softmax over the classes, (rows, classes) float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def mean_loss(logits, labels, *, regression):
    """Mean cross-entropy or mean squared error over all rows, in float64; the same for every batch size.

    NaN where an output is not finite, whichever kind it is.
    """
    logits = logits.astype(np.float64)
    if not np.isfinite(logits).all():
        return float("nan")
    if regression:
        return float(np.mean((logits[:, 0] - labels) ** 2))
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(axis=1))
    return float(np.mean(log_sum - shifted[np.arange(len(labels)), labels]))


def compute_metrics(names, logits, labels, *, regression):
    """(scores, warnings): name -> float for each of `names`, and a line for each thing a person should know.

    `logits` (rows, num_labels) float32; `labels` (rows,) class ids, or float scores for regression.
    """
    notes = []
    if not np.isfinite(logits).all():
        return dict.fromkeys(names, 0.0), ["the model's outputs are not finite: every score counts as 0"]
    predicted = predictions(logits, regression=regression)
    if len(np.unique(predicted)) == 1 and len(predicted) > 1:
        notes.append("all predictions are the same: the model has learned nothing, or has collapsed")
    scores = {}
    for name in names:
        value = _METRICS[name](labels, predicted)
        if not np.isfinite(value):
            notes.append(f"{name} is not defined here and counts as 0")
            value = 0.0
        scores[name] = float(value)
    return scores, notes


# scikit-learn and SciPy take a second to import, so each metric imports its own when it is first used.


def _accuracy(labels, predicted):
    return np.mean(labels == predicted)


def _f1(labels, predicted):
    from sklearn.metrics import f1_score

    return f1_score(labels, predicted, zero_division=0.0)


def _f1_macro(labels, predicted):
    from sklearn.metrics import f1_score

    return f1_score(labels, predicted, average="macro", zero_division=0.0)


def _mcc(labels, predicted):
    from sklearn.metrics import matthews_corrcoef

    with _quiet():
        return matthews_corrcoef(labels, predicted)


def _correlation(kind, labels, predicted):
    from scipy import stats

    if len(labels) < 2:
        return np.nan
    with _quiet():
        return getattr(stats, kind)(labels, predicted)[0]


@contextmanager
def _quiet():
    """No warnings of the libraries' own on one-sided input: compute_metrics says it more calmly."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


_METRICS = {
    "accuracy": _accuracy,
    "f1": _f1,
    "f1_macro": _f1_macro,
    "mcc": _mcc,
    "pearson": lambda labels, predicted: _correlation("pearsonr", labels, predicted),
    "spearman": lambda labels, predicted: _correlation("spearmanr", labels, predicted),
}
