"""Scores against scikit-learn, SciPy and hand computation; degenerate cases; independence from the batch size."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk

from bert.metrics import compute_metrics, mean_loss, predictions
from bert.tasks import find_task
from bert.training import primary_score

QUICK = settings(max_examples=60, deadline=None, derandomize=True)


def logits_for(predicted, num_labels=None):
    """Logits whose largest entries are the predicted classes."""
    logits = np.zeros((len(predicted), num_labels or max(2, max(predicted) + 1)), np.float32)
    logits[np.arange(len(predicted)), predicted] = 1
    return logits


def classes(names, labels, predicted, num_labels=None):
    return compute_metrics(names, logits_for(predicted, num_labels), np.array(labels, np.int32), regression=False)


def scores(names, labels, predicted):
    logits = np.array(predicted, np.float32)[:, None]
    return compute_metrics(names, logits, np.array(labels, np.float32), regression=True)


# --- known answers ---------------------------------------------------------------------------------------------------


def test_f1_is_that_of_the_whole_set():
    found, notes = classes(["f1"], [1, 0, 0, 0, 1, 1, 0, 0], [1, 0, 0, 1, 1, 0, 0, 0])
    assert found["f1"] == pytest.approx(2 / 3) and notes == []


def test_pearson_is_that_of_the_whole_set():
    found, _ = scores(["pearson"], [0, 1, 2, 3, 4, 5, 5, 0, 1, 2], [0, 1, 2, 3, 4, 0, 0, 5, 1, 2])
    assert found["pearson"] == pytest.approx(-0.2150, abs=5e-5)


def test_a_majority_predictor_on_wnli():
    found, notes = classes(["accuracy"], [0] * 40 + [1] * 31, [0] * 71)
    assert found["accuracy"] == pytest.approx(0.5634, abs=5e-5)
    assert len(notes) == 1 and "all predictions are" in notes[0]


def test_mcc_by_hand():
    """2 true positives, 1 false positive, 1 false negative, 3 true negatives."""
    found, _ = classes(["mcc"], [1, 1, 1, 0, 0, 0, 0], [1, 1, 0, 1, 0, 0, 0])
    assert found["mcc"] == pytest.approx((2 * 3 - 1 * 1) / math.sqrt(3 * 3 * 4 * 4))


def test_spearman_shares_ranks_among_ties():
    found, _ = scores(["spearman"], [1, 2, 2, 3], [10, 20, 30, 40])
    assert found["spearman"] == pytest.approx(np.corrcoef([1, 2.5, 2.5, 4], [1, 2, 3, 4])[0, 1])


def test_the_loss_is_a_mean_over_rows_not_over_batches():
    """Losses of 1, 1, 1, 1 and 6: at a batch size of 4 the mean of batch means would be 3.5."""
    logits = np.array([[math.log(math.exp(loss) - 1), 0] for loss in (1, 1, 1, 1, 6)], np.float32)
    assert mean_loss(logits, np.ones(5, np.int32), regression=False) == pytest.approx(2.0, abs=1e-6)


def test_squared_error_compares_rows_with_rows():
    """A column of outputs against a row of targets would give 1.3333."""
    logits = np.array([[1], [2], [3]], np.float32)
    assert mean_loss(logits, np.array([1, 2, 3], np.float32), regression=True) == 0.0
    assert mean_loss(logits, np.array([1, 2, 6], np.float32), regression=True) == pytest.approx(3.0)


def test_large_logits_do_not_overflow_the_loss():
    logits = np.array([[1e4, -1e4], [60, 0]], np.float32)
    assert mean_loss(logits, np.array([1, 0]), regression=False) == pytest.approx(1e4)


# --- against scikit-learn and SciPy ----------------------------------------------------------------------------------


@QUICK
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40))
def test_binary_scores_equal_scikit_learns(pairs):
    labels, predicted = map(list, zip(*pairs))
    found, _ = classes(["accuracy", "f1", "mcc"], labels, predicted)
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(labels, predicted))
    assert found["f1"] == pytest.approx(sk.f1_score(labels, predicted, zero_division=0))
    assert found["mcc"] == pytest.approx(sk.matthews_corrcoef(labels, predicted))


@QUICK
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_scores_of_many_classes_equal_scikit_learns(pairs):
    labels, predicted = map(list, zip(*pairs))
    found, _ = classes(["accuracy", "f1_macro"], labels, predicted, num_labels=4)
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(labels, predicted))
    assert found["f1_macro"] == pytest.approx(sk.f1_score(labels, predicted, average="macro", zero_division=0))


@QUICK
@given(st.lists(st.tuples(st.integers(0, 25), st.integers(-50, 50)), min_size=2, max_size=40))
def test_correlations_equal_scipys(pairs):
    labels, predicted = (np.array(column, np.float32) / 5 for column in zip(*pairs))
    found, notes = scores(["pearson", "spearman"], labels, predicted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = stats.pearsonr(labels, predicted)[0], stats.spearmanr(labels, predicted)[0]
    for name, value in zip(("pearson", "spearman"), expected):
        assert found[name] == pytest.approx(0.0 if math.isnan(value) else value, abs=1e-6)
        assert any(name in note for note in notes) == math.isnan(value)


@QUICK
@given(
    st.lists(st.lists(st.floats(-60, 60, width=32), min_size=3, max_size=3), min_size=1, max_size=20),
    st.randoms(use_true_random=False),
)
def test_the_loss_equals_scikit_learns_log_loss(rows, random):
    logits = np.array(rows, np.float32)
    labels = np.array([random.randrange(3) for _ in rows])
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    chosen = np.maximum((shifted / shifted.sum(axis=1, keepdims=True))[np.arange(len(rows)), labels], 1e-300)
    assert mean_loss(logits, labels, regression=False) == pytest.approx(-np.log(chosen).mean(), rel=1e-6, abs=1e-9)


# --- degenerate cases ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("predicted", [[0, 0, 0], [1, 1, 1]])
def test_predictions_of_one_class_score_without_nan_and_are_warned_about(predicted):
    found, notes = classes(["accuracy", "f1", "mcc"], [1, 1, 0], predicted)
    assert found["mcc"] == 0.0
    assert found["accuracy"] == pytest.approx(1 / 3 if predicted[0] == 0 else 2 / 3)
    assert found["f1"] == pytest.approx(0.0 if predicted[0] == 0 else 0.8)
    assert any("all predictions" in note for note in notes)


def test_one_class_everywhere():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the notes tell the person; a library's own warning must not come on top
        found, _ = classes(["accuracy", "f1", "mcc"], [0, 0], [0, 0])
    assert found == {"accuracy": 1.0, "f1": 0.0, "mcc": 0.0}


@pytest.mark.parametrize("labels, predicted", [([1, 2, 3], [2, 2, 2]), ([2, 2, 2], [1, 2, 3]), ([1], [1])])
def test_correlations_that_are_not_defined_count_as_zero_and_are_said(labels, predicted):
    found, notes = scores(["pearson", "spearman"], labels, predicted)
    assert found == {"pearson": 0.0, "spearman": 0.0}
    assert sum("not defined" in note for note in notes) == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("regression, names", [(False, ["accuracy", "f1", "mcc"]), (True, ["pearson", "spearman"])])
def test_outputs_that_are_not_finite_never_win(bad, regression, names):
    logits = logits_for([1, 1, 0]) if not regression else np.array([[1.0], [2], [3]], np.float32)
    logits[1, 0] = bad
    labels = np.array([1, 1, 0], np.float32 if regression else np.int32)
    found, notes = compute_metrics(names, logits, labels, regression=regression)
    assert found == dict.fromkeys(names, 0.0)
    assert notes and "not finite" in notes[0]


def test_ordinary_predictions_are_not_warned_about():
    assert classes(["accuracy", "f1", "mcc"], [0, 1, 1], [0, 1, 0])[1] == []
    assert scores(["pearson"], [0, 1, 2], [0.1, 1, 3])[1] == []
    assert classes(["accuracy"], [1], [1])[1] == []  # one row is always of one class


# --- choosing by them ------------------------------------------------------------------------------------------------


def test_predictions_are_class_numbers_or_the_scores_themselves():
    assert predictions(np.array([[0.1, 0.9], [3, 2]], np.float32), regression=False).tolist() == [1, 0]
    assert predictions(np.array([[0.5], [-2]], np.float32), regression=True).tolist() == [0.5, -2.0]


def test_mnli_is_judged_by_the_mean_of_its_two_dev_files():
    by_split = {"dev_matched": {"accuracy": 1.0, "loss": 9.0}, "dev_mismatched": {"accuracy": 0.0, "loss": 0.0}}
    assert primary_score(find_task("MNLI"), by_split) == 0.5


@pytest.mark.parametrize("name, metric", [("CoLA", "mcc"), ("MRPC", "accuracy"), ("STS-B", "pearson"), ("RTE", "accuracy")])
def test_the_primary_metric(name, metric):
    task = find_task(name)
    values = dict.fromkeys(task.metrics, 0.25) | {metric: 0.75, "loss": 0.5}
    assert primary_score(task, {"dev": values}) == 0.75


def test_an_epoch_whose_outputs_are_not_finite_never_wins():
    """Its scores count as 0, which is more than a poor but honest correlation below 0."""
    task = find_task("CoLA")
    broken = {"dev": {"mcc": 0.0, "loss": math.nan}}
    assert not primary_score(task, broken) > primary_score(task, {"dev": {"mcc": -0.05, "loss": 0.7}})


def test_the_scores_that_betray_a_collapsed_mrpc_run():
    """Always "equivalent" on MRPC's dev file, 279 of 408 rows, by hand: 279 / 408 and 2 * 279 / (408 + 279)."""
    labels = np.array([1] * 279 + [0] * 129)
    logits = np.tile(np.array([[0.0, 1.0]], np.float32), (408, 1))
    scores, notes = compute_metrics(("accuracy", "f1"), logits, labels, regression=False)
    assert scores == pytest.approx({"accuracy": 0.6838, "f1": 0.8122}, abs=5e-5)
    assert len(notes) == 1 and "all predictions are the same" in notes[0]
