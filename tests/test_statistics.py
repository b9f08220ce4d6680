"""Statistics against SciPy, scikit-learn, closed forms and simulation."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk

from bert.metrics import compute_metrics
from bert.statistics import (
    best_of_seeds,
    bootstrap_interval,
    calibration_error,
    degenerate,
    equality_chance,
    maximum_band,
    mean_interval,
    non_inferior,
    paired_permutation,
    paired_test,
    parity,
    row_score,
    summarize,
)

SCORES = [84.1, 86.3, 85.0, 87.7, 83.9]


def spread(mean, sd, n):
    """n scores with exactly this mean and sd."""
    values = np.linspace(-1, 1, n)
    return mean + sd * values / values.std(ddof=1)


# --- seeds -----------------------------------------------------------------------------------------------------------


def test_summary():
    found = summarize(SCORES)
    assert (found.n, found.median, found.low, found.high) == (5, 85.0, 83.9, 87.7)
    assert found.mean == pytest.approx(85.4) and found.sd == pytest.approx(stats.tstd(SCORES))
    assert summarize([1.0]).sd is None


def test_the_interval_of_a_mean_is_scipys():
    expected = stats.t.interval(0.9, 4, np.mean(SCORES), stats.sem(SCORES))
    assert mean_interval(SCORES, 0.9) == pytest.approx(expected)
    assert mean_interval([85.0]) is None


@pytest.mark.parametrize("sd, n, half", [(2.2, 5, 2.73), (2.2, 20, 1.03), (1.3, 10, 0.93), (0.25, 5, 0.31), (1.5, 20, 0.70)])
def test_half_widths_of_d2(sd, n, half):
    low, high = mean_interval(spread(70, sd, n))
    assert (high - low) / 2 == pytest.approx(half, abs=0.006)


# --- a published mean ------------------------------------------------------------------------------------------------


def test_non_inferior_by_hand():
    """n = 4, sd 1, k = 4: SE = sqrt(1/2); t with 3 degrees of freedom: 2.3534 and 3.1824."""
    found = non_inferior(spread(84, 1, 4), 84.5, 4, 2.5)
    assert found.difference == pytest.approx(-0.5)
    assert found.lower_bound == pytest.approx(-0.5 - 2.3534 * math.sqrt(0.5), abs=1e-4)
    assert found.interval == pytest.approx((-0.5 - 3.1824 * math.sqrt(0.5), -0.5 + 3.1824 * math.sqrt(0.5)), abs=1e-4)


@pytest.mark.parametrize("sd, margin", [(2.2, 2.5), (1.3, 1.5)])
@pytest.mark.parametrize("difference, outcome", [(-0.05, "reproduced"), (-0.2, "consistent, not shown")])
def test_ten_runs_against_four_need_a_difference_of_a_tenth(sd, margin, difference, outcome):
    assert non_inferior(spread(80 + difference, sd, 10), 80, 4, margin).outcome == outcome


def test_outcomes_against_a_mean():
    assert non_inferior(spread(80, 0.5, 10), 84, 4, 1.5).outcome == "below"
    assert non_inferior(spread(83, 0.1, 10), 84, 25, 1.5).outcome == "reproduced"  # less, and by no more than the margin
    for few, outcome in (([90.0], "too few runs"), ([90, 90.5], "too few runs"), ([90, 90, 90], "no spread to judge by")):
        one = non_inferior(few, 84, 4, 1.5)
        assert (one.outcome, one.interval, one.lower_bound) == (outcome, None, None)
        assert one.difference == pytest.approx(np.mean(few) - 84)


def test_a_worse_model_is_rarely_called_reproduced():
    """Truly worse by the margin: 5% of the time."""
    random = np.random.default_rng(0)
    outcomes = [
        non_inferior(random.normal(78.5, 1.3, 8), random.normal(80, 1.3, 4).mean(), 4, 1.5).outcome for _ in range(2000)
    ]
    assert 0.035 < outcomes.count("reproduced") / 2000 < 0.065


# --- a published best ------------------------------------------------------------------------------------------------


def test_bands_of_d3():
    bands = {1: (-1.96, 1.96), 3: (-0.55, 2.39), 5: (-0.05, 2.57), 10: (0.50, 2.80), 20: (0.96, 3.02)}
    for m, band in bands.items():
        assert maximum_band(m) == pytest.approx(band, abs=0.006)
    draws = np.random.default_rng(0).normal(size=(20000, 5)).max(axis=1)
    low, high = maximum_band(5)
    assert np.mean((low <= draws) & (draws <= high)) == pytest.approx(0.95, abs=0.006)


@pytest.mark.parametrize(
    "z, outcome, holds",
    [
        (3.1, "ours fall short", ()),
        (3.0, "consistent", (20,)),
        (1.0, "consistent", (1, 3, 5, 10, 20)),
        (0.0, "consistent", (1, 3, 5)),
        (-1.9, "consistent", (1,)),
        (-2.0, "theirs is weak, or ours tuned better", ()),
    ],
)
def test_where_a_published_best_falls(z, outcome, holds):
    found = best_of_seeds(spread(60, 1.5, 10), 60 + 1.5 * z)
    assert (found.outcome, found.holds) == (outcome, holds) and found.z == pytest.approx(z)


def test_a_published_best_without_a_spread_of_ours():
    assert best_of_seeds([60.0], 61).outcome == "too few runs"
    assert best_of_seeds([60, 61], 75).outcome == "too few runs"
    found = best_of_seeds([66.4, 66.4, 66.4 + 1e-14], 70)
    assert (found.outcome, found.z, found.holds) == ("no spread to judge by", None, ())


def test_five_runs_judge_a_run_like_theirs_as_often_wrong_as_is_said():
    random = np.random.default_rng(0)
    outcomes = [best_of_seeds(random.normal(80, 1, 5), random.normal(80, 1)).outcome for _ in range(3000)]
    assert outcomes.count("theirs is weak, or ours tuned better") / 3000 == pytest.approx(0.07, abs=0.015)
    assert outcomes.count("ours fall short") / 3000 == pytest.approx(0.025, abs=0.01)


# --- two precisions --------------------------------------------------------------------------------------------------


def paired(differences):
    a = {seed: 80.0 + seed for seed in range(len(differences))}
    return a, {seed: a[seed] + difference for seed, difference in enumerate(differences)}


def test_parity_is_scipys_paired_test():
    random = np.random.default_rng(1)
    a, b = random.normal(85, 1, 7), random.normal(85.3, 1, 7)
    found = parity(dict(enumerate(a)), dict(enumerate(b)), 1.5)
    expected = stats.ttest_rel(b, a)
    assert found.p == pytest.approx(expected.pvalue) and found.difference == pytest.approx(np.mean(b - a))
    assert found.interval90 == pytest.approx(tuple(expected.confidence_interval(0.9)))


def test_equality_is_two_one_sided_tests():
    random = np.random.default_rng(2)
    seen = []
    for margin in (0.5, 0.7, 1.5):
        differences = random.normal(0.1, 0.6, 6)
        above = stats.ttest_1samp(differences, -margin, alternative="greater").pvalue
        below = stats.ttest_1samp(differences, margin, alternative="less").pvalue
        seen.append(max(above, below) < 0.05)
        assert (parity(*paired(differences), margin).outcome == "equal within the margin") == seen[-1]
    assert set(seen) == {True, False}


def test_outcomes_of_parity():
    assert parity(*paired([1.0, 1.2, 0.9, 1.1, 1.0]), 0.5).outcome == "different"
    assert parity(*paired([0.1, 0.2, 0.0, 0.1, 0.15]), 0.5).outcome == "equal within the margin"
    assert parity(*paired([3, -3, 2, -2, 1]), 0.5).outcome == "no difference detected"
    assert parity(*paired([0.1, 0, -0.1]), None).outcome == "no difference detected"  # no margin, nothing to be inside of
    for margin in (None, 2.5):  # where scores are coarse ties are common, and no proof
        assert parity(*paired([0, 0, 0]), margin).outcome == "the same in every pair"
        assert parity(*paired([1, 1, 1]), margin).outcome == "no spread to judge by"
        assert parity(*paired([0, 0]), margin).outcome == "too few pairs"
    assert parity({0: 80, 1: 81}, {2: 80, 3: 81}, 1).n == 0
    one = parity({0: 80, 1: 81}, {1: 83}, 1)
    assert (one.outcome, one.n, one.difference, one.interval90, one.chance) == ("too few pairs", 1, 2, None, None)


def test_pairs_are_those_of_the_same_seed():
    found = parity({0: 70, 1: 80, 2: 90, 5: 1}, {2: 90.5, 0: 70.75, 1: 80.25, 9: 1}, 1)
    assert (found.n, found.difference) == (3, 0.5) and found.interval90[1] < 1


@pytest.mark.parametrize(
    "sd, margin, chances",
    [
        (2.2, 2.5, (0.14, 0.52, 0.93)),
        (1.3, 1.5, (0.15, 0.54, 0.94)),
        (1.0, 1.0, (0.09, 0.35, 0.84)),
        (1.5, 2.0, (0.24, 0.73, 0.98)),
        (0.5, 0.7, (0.29, 0.78, 0.99)),
        (0.4, 0.5, (0.20, 0.65, 0.97)),
        (0.25, 0.4, (0.41, 0.90, 1.00)),
    ],
)
def test_chances_of_d3(sd, margin, chances):
    found = [equality_chance(n, math.sqrt(2) * sd, margin) for n in (5, 10, 20)]
    assert found == pytest.approx(chances, abs=0.007)


@pytest.mark.parametrize("n, sd, margin", [(2, 1.0, 4.0), (5, 1.0, 1.5), (12, 2.0, 1.0)])
def test_the_chance_is_what_simulation_says(n, sd, margin):
    differences = np.random.default_rng(3).normal(0, sd, (40000, n))
    half = stats.t.ppf(0.95, n - 1) * differences.std(axis=1, ddof=1) / math.sqrt(n)
    passed = np.abs(differences.mean(axis=1)) + half < margin
    assert equality_chance(n, sd, margin) == pytest.approx(passed.mean(), abs=0.008)


def test_the_ends_of_the_chance():
    assert equality_chance(5, 0.0, 1.0) == 1
    assert equality_chance(5, 1e-3, 1.0) == pytest.approx(1) and equality_chance(200, 0.1, 1.0) == pytest.approx(1)
    assert 0 <= equality_chance(5, 100.0, 1.0) < 1e-6


def test_unequal_precisions_are_rarely_called_equal():
    """Truly apart by the margin: 5% of the time. Truly the same: "different" in at most 5%."""
    random = np.random.default_rng(4)
    apart = [parity(*paired(random.normal(1.5, 1, 8)), 1.5).outcome for _ in range(1000)]
    same = [parity(*paired(random.normal(0, 1, 8)), None).outcome for _ in range(1000)]
    assert 0.03 < apart.count("equal within the margin") / 1000 < 0.07
    assert 0.03 < same.count("different") / 1000 < 0.07


# --- rows ------------------------------------------------------------------------------------------------------------

CLASS_METRICS = {
    "accuracy": sk.accuracy_score,
    "f1": lambda labels, predicted: sk.f1_score(labels, predicted, zero_division=0.0),
    "f1_macro": lambda labels, predicted: sk.f1_score(labels, predicted, average="macro", zero_division=0.0),
    "mcc": sk.matthews_corrcoef,
}


@pytest.mark.parametrize("metric, classes", [*((name, 2) for name in CLASS_METRICS), ("f1_macro", 4), ("mcc", 4)])
def test_scores_of_rows_are_scikit_learns(metric, classes):
    random = np.random.default_rng(5)
    labels, predicted = random.integers(0, classes, 60), random.integers(0, classes, 60)
    score = row_score(metric, labels, predicted)
    for rows in (np.arange(60), random.integers(60, size=60), np.arange(3), np.flatnonzero(labels == 0)):
        assert score(rows) == pytest.approx(CLASS_METRICS[metric](labels[rows], predicted[rows]), abs=1e-12)


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_correlations_of_rows_are_scipys(metric):
    random = np.random.default_rng(6)
    labels, predicted = random.integers(0, 6, 80).astype(float), random.normal(size=80).astype(np.float32)
    rows = random.integers(80, size=80)
    expected = getattr(stats, metric + "r")(labels[rows], predicted[rows])[0]
    assert row_score(metric, labels, predicted)(rows) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("metric", ["mcc", "f1", "pearson", "spearman"])
def test_undefined_scores_are_zero_as_in_a_run(metric):
    labels, predicted = np.array([0, 1, 0, 1]), np.zeros(4, int)
    regression = metric in ("pearson", "spearman")
    logits = np.zeros((4, 1), np.float32) if regression else np.array([[1, 0]] * 4, np.float32)
    assert row_score(metric, labels, predicted)(np.arange(4)) == 0
    assert compute_metrics([metric], logits, labels.astype(np.float32), regression=regression)[0][metric] == 0
    assert row_score("pearson", [0.0, 1.0], [np.nan, 1.0])(np.arange(2)) == 0  # a run that diverged


def test_the_bootstrap_is_scipys():
    random = np.random.default_rng(7)
    right = random.random(400) < 0.8
    found = bootstrap_interval(lambda rows: right[rows].mean(), 400, seed=1)
    other = stats.bootstrap((right,), np.mean, method="percentile", n_resamples=4000, random_state=random)
    assert found == pytest.approx(tuple(other.confidence_interval), abs=0.006)
    assert found == pytest.approx(stats.binom.interval(0.95, 400, right.mean()) / np.array(400), abs=0.006)
    assert found == bootstrap_interval(lambda rows: right[rows].mean(), 400, seed=1)


def test_the_bootstrap_covers_the_truth():
    """A model that is right with probability 0.8 on balanced labels has an MCC of 0.6; a 90% interval holds it in 90%."""
    random = np.random.default_rng(8)
    held = 0
    for trial in range(200):
        labels = random.integers(0, 2, 300)
        predicted = np.where(random.random(300) < 0.8, labels, 1 - labels)
        low, high = bootstrap_interval(row_score("mcc", labels, predicted), 300, seed=trial, resamples=200, level=0.9)
        held += low <= 0.6 <= high
    assert 0.84 < held / 200 < 0.96


def test_mcnemar_by_hand():
    """1 row only the first has right, 5 only the second: p = 2 (1 + 6) / 2^6."""
    a, b = np.array([1] * 4 + [1] + [0] * 5 + [0] * 3, bool), np.array([1] * 4 + [0] + [1] * 5 + [0] * 3, bool)
    found = paired_test(a, b)
    assert (found.only_a, found.only_b) == (1, 5) and found.p == pytest.approx(2 * (1 + 6) / 2**6)
    assert paired_test(a, a).p == 1


def test_the_permutation_test_is_the_exact_one():
    """Every one of the 2^10 swaps, by hand and by SciPy."""
    random = np.random.default_rng(9)
    labels = random.normal(size=10)
    a, b = labels + random.normal(0, 0.2, 10), labels + random.normal(0, 1.2, 10)

    def score(predicted):
        return float(np.corrcoef(labels, predicted)[0, 1])

    swaps = np.array(list(itertools.product([True, False], repeat=10)))
    observed = abs(score(a) - score(b)) - 1e-12
    exact = np.mean([abs(score(np.where(s, b, a)) - score(np.where(s, a, b))) >= observed for s in swaps])
    scipys = stats.permutation_test(
        (a, b),
        lambda x, y: abs(score(x) - score(y)),
        permutation_type="samples",
        vectorized=False,
        alternative="greater",
    )
    assert exact == pytest.approx(scipys.pvalue)
    assert 0.01 < exact < 0.5
    assert paired_permutation(score, a, b, resamples=4000) == pytest.approx(exact, abs=0.025)


def test_the_permutation_test_of_accuracy_is_mcnemars():
    """Of a mean of rows the swaps are coin flips of the rows that differ, which is what McNemar's test counts."""
    random = np.random.default_rng(10)
    labels = random.integers(0, 2, 300)
    a, b = (np.where(random.random(300) < share, labels, 1 - labels) for share in (0.8, 0.74))
    expected = paired_test(a == labels, b == labels).p
    found = paired_permutation(lambda predicted: float(np.mean(predicted == labels)), a, b)
    assert found == pytest.approx(expected, abs=0.03) and 0.001 < expected < 0.5


def test_no_difference_gives_p_1():
    labels = np.array([0, 1, 1, 0])
    assert paired_permutation(lambda predicted: float(np.mean(predicted == labels)), labels, labels) == 1


def test_calibration_by_hand():
    """Bins of a tenth, and 0.8 is the top of its: two rows at 0.8 with half right, one at 0.95 right, one at 0.6 wrong."""
    confidence = np.array([0.8, 0.8, 0.95, 0.6])
    found, bins = calibration_error(np.stack([confidence, 1 - confidence], axis=1), np.array([0, 1, 0, 1]), bins=10)
    assert found == pytest.approx((2 * 0.3 + 0.05 + 0.6) / 4)
    assert bins["count"].tolist() == [0, 0, 0, 0, 0, 1, 0, 2, 0, 1]
    assert bins["accuracy"][7] == 0.5 and bins["confidence"][7] == pytest.approx(0.8) and np.isnan(bins["accuracy"][0])


def test_a_calibrated_model_has_a_small_calibration_error():
    random = np.random.default_rng(11)
    sure = random.uniform(0.5, 1, 50000)
    labels = (random.random(50000) > sure).astype(int)
    assert calibration_error(np.stack([sure, 1 - sure], axis=1), labels)[0] < 0.01
    assert calibration_error(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0, 1]))[0] == 0


@pytest.mark.parametrize(
    "metric, labels, predicted, failed",
    [
        ("accuracy", [0, 0, 0, 1], [0, 0, 0, 0], True),
        ("accuracy", [0, 0, 0, 1], [0, 0, 1, 1], True),  # another way to the majority's share
        ("accuracy", [0, 0, 0, 1], [0, 0, 0, 1], False),
        ("f1", [1, 1, 1, 0], [1, 1, 1, 1], True),  # with an F1 of 86
        ("mcc", [0, 0, 1, 1], [1, 1, 1, 1], True),
        ("mcc", [0, 0, 0, 1], [0, 1, 1, 1], False),  # below the majority's share, and yet better than chance
        ("pearson", [0.0, 1.0, 2.0], [1.0, 1.0, 1.0], True),
        ("pearson", [0.0, 1.0, 2.0], [2.0, 1.0, 1.5], True),
        ("spearman", [0.0, 1.0, 2.0], [0.0, 5.0, 6.0], False),
    ],
)
def test_runs_that_learned_nothing(metric, labels, predicted, failed):
    assert degenerate(np.array(labels), np.array(predicted), metric) is failed
