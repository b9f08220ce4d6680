"""What a handful of seeds and a few hundred dev rows can show: intervals, paired tests, comparisons with published scores.

Pure functions on numbers. Knows no task, no file and no engine; scores are percent points where the unit matters. Where no
paper is named the formula is derived in its docstring.
"""

import math
from dataclasses import dataclass
from typing import Optional

import numpy as np

# SciPy takes a second to import, so each function imports what it needs when it is first used.


@dataclass(frozen=True)
class Summary:
    """Scores of several seeds; `sd` (with n - 1) is None for one seed."""

    n: int
    mean: float
    sd: Optional[float]
    median: float
    low: float
    high: float


def summarize(values):
    """Summary of at least one score."""
    values = np.asarray(values, np.float64)
    sd = float(values.std(ddof=1)) if len(values) > 1 else None
    return Summary(len(values), float(values.mean()), sd, *map(float, (np.median(values), values.min(), values.max())))


def mean_interval(values, level=0.95):
    """(low, high), the t interval of the mean over seeds; None for one seed."""
    ours = summarize(values)
    if ours.sd is None:
        return None
    half = _t((1 + level) / 2, ours.n - 1) * ours.sd / math.sqrt(ours.n)
    return ours.mean - half, ours.mean + half


# One model on one dev split: what its rows can show.


def row_score(metric, labels, predictions):
    """The function of row indices that bootstrap_interval takes: `metric` of those rows, a fraction; 0 where undefined.

    `labels` and `predictions` (rows,) are class ids, or scores for pearson and spearman. f1 is that of class 1; mcc with
    more than two classes is Gorodkin's (2004). Same values as bert.metrics, a hundred times as fast.
    """
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if metric in ("pearson", "spearman"):
        return lambda indices: _correlation(metric, labels[indices], predictions[indices])
    classes = int(max(labels.max(), predictions.max(), 1)) + 1
    cells = labels * classes + predictions

    def score(indices):
        counts = np.bincount(cells[indices], minlength=classes**2).reshape(classes, classes).astype(np.float64)
        return _CLASS_METRICS[metric](counts, counts.sum(axis=1), counts.sum(axis=0))

    return score


def _correlation(metric, labels, predictions):
    if metric == "spearman":
        from scipy.stats import rankdata

        labels, predictions = rankdata(labels), rankdata(predictions)
    labels, predictions = labels - labels.mean(dtype=np.float64), predictions - predictions.mean(dtype=np.float64)
    scale = math.sqrt((labels @ labels) * (predictions @ predictions))
    return float(labels @ predictions) / scale if scale > 0 else 0.0


def _mcc(counts, labelled, predicted):
    rows = counts.sum()
    scale = math.sqrt((rows**2 - labelled @ labelled) * (rows**2 - predicted @ predicted))
    return float(rows * np.trace(counts) - labelled @ predicted) / scale if scale else 0.0


def _f1_of_each(counts, labelled, predicted):
    seen = labelled + predicted > 0  # of classes that are neither label nor prediction there is none
    return seen, 2 * counts.diagonal() / np.where(seen, labelled + predicted, 1)


def _f1_macro(*counts):
    seen, scores = _f1_of_each(*counts)
    return float(scores[seen].mean())


_CLASS_METRICS = {  # of counts (label, prediction) and its sums by label and by prediction
    "accuracy": lambda counts, labelled, predicted: float(np.trace(counts) / counts.sum()),
    "f1": lambda *counts: float(_f1_of_each(*counts)[1][1]),
    "f1_macro": _f1_macro,
    "mcc": _mcc,
}


def bootstrap_interval(score, rows, *, seed=0, resamples=2000, level=0.95):
    """(low, high) of `score(indices)` over `rows` rows drawn anew: the percentile interval (Efron & Tibshirani 1993, 13).

    It says how far the score of this one model could be off for want of rows; the spread over seeds is another matter.
    """
    random = np.random.default_rng(seed)
    scores = [score(random.integers(rows, size=rows)) for _ in range(resamples)]
    low, high = np.quantile(scores, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class PairedTest:
    """Rows that only the first, and only the second, has right; `p` of so uneven a split if neither were better."""

    only_a: int
    only_b: int
    p: float


def paired_test(correct_a, correct_b):
    """McNemar's exact test of two models on the same rows; booleans (rows,). PairedTest."""
    from scipy.stats import binomtest

    correct_a, correct_b = np.asarray(correct_a, bool), np.asarray(correct_b, bool)
    only_a, only_b = int((correct_a & ~correct_b).sum()), int((correct_b & ~correct_a).sum())
    p = binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0
    return PairedTest(only_a, only_b, float(p))


def paired_permutation(score, predictions_a, predictions_b, *, seed=0, resamples=2000):
    """p of a difference in score(predictions), for metrics that are no mean over rows: MCC, F1, correlations.

    If neither model were better, it would not matter whose prediction is whose: each row's two are swapped at random, and
    counted is how often the difference is as large (Yeh 2000, approximate randomization). Never 0: the data count as one.
    """
    random = np.random.default_rng(seed)
    observed = abs(score(predictions_a) - score(predictions_b)) * (1 - 1e-9)  # the same sum in another order is as large
    extreme = 0
    for _ in range(resamples):
        swap = random.random(len(predictions_a)) < 0.5
        first, second = np.where(swap, predictions_b, predictions_a), np.where(swap, predictions_a, predictions_b)
        extreme += abs(score(first) - score(second)) >= observed
    return (1 + extreme) / (1 + resamples)


def calibration_error(probabilities, labels, bins=15):
    """(ECE as a fraction, {"count", "confidence", "accuracy"}: arrays (bins,)); NaN in what an empty bin has no mean of.

    Expected calibration error, Guo et al. 2017 (arXiv 1706.04599): bins of equal width, open below and closed above.
    `probabilities` (rows, classes), `labels` (rows,) class ids.
    """
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    places = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    count = np.bincount(places, minlength=bins)
    with np.errstate(invalid="ignore"):
        means = [np.bincount(places, weights=values, minlength=bins) / count for values in (confidence, right)]
    gaps = np.abs(means[0] - means[1])
    return float(np.nansum(gaps * count) / count.sum()), dict(zip(("count", "confidence", "accuracy"), (count, *means)))


def degenerate(labels, predictions, metric):
    """Whether a run learned nothing: an accuracy of at most the majority class's share (Mosbach et al. 2021, "failed run").

    F1 is judged by accuracy too: the majority class alone has a high one. mcc and correlations: at most 0, which is what
    constant predictions have.
    """
    if metric in ("mcc", "pearson", "spearman"):
        return row_score(metric, labels, predictions)(slice(None)) <= 0
    right = int((np.asarray(labels) == np.asarray(predictions)).sum())
    return right <= int(np.bincount(labels).max())


# Several seeds: what they can show.

_FEWEST = 3  # runs, or pairs: of two the spread says next to nothing, and where dev scores are coarse it is often 0
_NO_SPREAD = 1e-9  # percent points


@dataclass(frozen=True)
class MeanComparison:
    """Our mean less a published one; `interval` is the difference's (95%), `lower_bound` the one-sided one (95%)."""

    outcome: str
    difference: float
    interval: Optional[tuple]
    lower_bound: Optional[float]


def non_inferior(ours, published_mean, k, margin):
    """MeanComparison of our scores with the mean of `k` published runs: is ours less by no more than `margin`?

    The published runs are taken to spread as ours do: SE = sd sqrt(1/n + 1/k), t with n - 1 degrees of freedom.
    "reproduced": the lower bound is at least -margin. Else "below": the whole interval is below 0. Else "consistent, not
    shown". Without an interval: "too few runs", fewer than three, and "no spread to judge by".
    """
    ours = summarize(ours)
    difference = ours.mean - published_mean
    if ours.n < _FEWEST or ours.sd < _NO_SPREAD:
        return MeanComparison("too few runs" if ours.n < _FEWEST else "no spread to judge by", difference, None, None)
    error = ours.sd * math.sqrt(1 / ours.n + 1 / k)
    half = _t(0.975, ours.n - 1) * error
    lower_bound = difference - _t(0.95, ours.n - 1) * error
    if lower_bound >= -margin:
        outcome = "reproduced"
    else:
        outcome = "below" if difference + half < 0 else "consistent, not shown"
    return MeanComparison(outcome, difference, (difference - half, difference + half), lower_bound)


DRAWS = (1, 3, 5, 10, 20)  # numbers of runs whose best may have been published


@dataclass(frozen=True)
class BestComparison:
    """A published best in sds above our mean (`z`); `holds`: of which numbers of runs it may well be the best."""

    outcome: str
    z: Optional[float]
    holds: tuple


def best_of_seeds(scores, published):
    """BestComparison of a published figure with the best of m runs that spread as our `scores` do.

    How many runs it was chosen from is rarely said: "consistent" if the 95% band of the best of m holds it for some m from
    1 to 20, -1.96 to +3.02 sd. Above: "ours fall short"; below: "theirs is weak, or ours tuned better". Normal scores, and
    our sd taken as known, which with 5 runs it hardly is: then a single run like ours is called weak in 7% of cases, and
    ours fall short of it in 2.5% (simulated), instead of 2.5% and 0.1%. Without a z: as non_inferior.
    """
    ours = summarize(scores)
    if ours.n < _FEWEST or ours.sd < _NO_SPREAD:
        return BestComparison("too few runs" if ours.n < _FEWEST else "no spread to judge by", None, ())
    z = (published - ours.mean) / ours.sd
    bands = {m: maximum_band(m) for m in DRAWS}
    if z > bands[max(DRAWS)][1]:
        outcome = "ours fall short"
    else:
        outcome = "theirs is weak, or ours tuned better" if z < bands[1][0] else "consistent"
    return BestComparison(outcome, z, tuple(m for m, (low, high) in bands.items() if low <= z <= high))


def maximum_band(m, level=0.95):
    """(low, high), in sds above the mean, that the largest of `m` normal draws is in with probability `level`.

    All m are below x with probability Phi(x)^m.
    """
    from scipy.stats import norm

    return tuple(float(norm.ppf(q ** (1 / m))) for q in ((1 - level) / 2, (1 + level) / 2))


@dataclass(frozen=True)
class Parity:
    """Mean of b - a over `n` common seeds; `p` of the t test for no difference; `sd` of the differences, and `chance`, that
    of equality_chance, only where nothing was detected."""

    outcome: str
    n: int
    difference: Optional[float]
    interval90: Optional[tuple]
    p: Optional[float]
    sd: Optional[float] = None
    chance: Optional[float] = None


def parity(a, b, margin):
    """Parity of scores `b` with scores `a` (seed -> score), paired over their common seeds.

    "equal within the margin": the 90% interval of the mean difference lies inside +-margin, which is two one-sided t tests
    at 5% (Schuirmann 1987). Else "different": p < 0.05, that is, the 95% interval leaves out 0. Else "no difference
    detected", which is not "equal": `chance` says how likely so many seeds were to show equality, were the spread what it
    is here. Without a margin (None) nothing is ever shown to be equal. Without an interval: "too few pairs", fewer than
    three; "the same in every pair"; and "no spread to judge by", another difference that is the same in every pair.
    """
    seeds = sorted(set(a) & set(b))
    if not seeds:
        return Parity("too few pairs", 0, None, None, None)
    differences = summarize([b[seed] - a[seed] for seed in seeds])
    n, mean, sd = differences.n, differences.mean, differences.sd
    if n < _FEWEST:
        return Parity("too few pairs", n, mean, None, None)
    if sd < _NO_SPREAD:
        return Parity("the same in every pair" if abs(mean) < _NO_SPREAD else "no spread to judge by", n, mean, None, None)
    from scipy.stats import t

    error = sd / math.sqrt(n)
    half = _t(0.95, n - 1) * error
    p = float(2 * t.sf(abs(mean) / error, n - 1))
    if margin is not None and -margin < mean - half and mean + half < margin:
        outcome = "equal within the margin"
    else:
        outcome = "different" if p < 0.05 else "no difference detected"
    undecided = outcome == "no difference detected" and margin is not None
    return Parity(outcome, n, mean, (mean - half, mean + half), p, sd, equality_chance(n, sd, margin) if undecided else None)


def equality_chance(n, sd, margin):
    """Probability that `n` pairs are found "equal within the margin" where there is no true difference.

    `sd` is that of the differences. Exact power of the two one-sided t tests (Phillips 1990): given the sample's sd s, the
    mean must lie within margin - t s / sqrt(n) of 0; averaged over s, which is chi distributed.
    """
    if sd == 0:
        return 1.0
    from scipy.integrate import fixed_quad
    from scipy.stats import chi, norm

    critical, largest = _t(0.95, n - 1), margin * math.sqrt(n) / sd  # both in standard errors of the mean
    freedom = math.sqrt(n - 1)

    def passing(x):  # x = s sqrt(n - 1) / sd
        return (2 * norm.cdf(largest - critical * x / freedom) - 1) * chi.pdf(x, n - 1)

    start, end = max(0, freedom - 10), min(largest * freedom / critical, freedom + 10)  # beyond: no mass, or none passes
    return float(fixed_quad(passing, start, end, n=200)[0]) if start < end else 0.0


def _t(quantile, freedom):
    from scipy.stats import t

    return float(t.ppf(quantile, freedom))
