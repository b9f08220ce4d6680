"""Leaderboard files: names, header, order, label texts."""

import numpy as np
import pytest

from bert import RunError
from bert.submission import prediction_texts, write_submission
from bert.tasks import TASKS, find_task, own_task

GLUE_NAMES = {
    ("CoLA", "test"): "CoLA.tsv",
    ("SST-2", "test"): "SST-2.tsv",
    ("MRPC", "test"): "MRPC.tsv",
    ("STS-B", "test"): "STS-B.tsv",
    ("QQP", "test"): "QQP.tsv",
    ("MNLI", "test_matched"): "MNLI-m.tsv",
    ("MNLI", "test_mismatched"): "MNLI-mm.tsv",
    ("MNLI", "test_ax"): "AX.tsv",
    ("QNLI", "test"): "QNLI.tsv",
    ("RTE", "test"): "RTE.tsv",
    ("WNLI", "test"): "WNLI.tsv",
    ("AX", "test"): "AX.tsv",
}


def favouring(task, texts):
    """Logits whose predictions are these label texts."""
    logits = np.zeros((len(texts), task.num_labels), np.float32)
    for row, text in enumerate(texts):
        logits[row, task.labels.index(text)] = 1
    return logits


@pytest.mark.parametrize("name, split", GLUE_NAMES)
def test_names_header_and_first_lines(name, split, tmp_path):
    task = find_task(name)
    if task.regression:
        path = write_submission(tmp_path, task, split, np.array([[2.5], [4.1239]], np.float32))
        lines = ["0\t2.500", "1\t4.124"]
    else:
        texts = {2: ["1", "0", "1"], 3: ["contradiction", "neutral", "entailment"]}[task.num_labels]
        texts = ["entailment", "not_entailment"] if name in ("RTE", "QNLI") else texts
        path = write_submission(tmp_path, task, split, favouring(task, texts))
        lines = [f"{number}\t{text}" for number, text in enumerate(texts)]
    assert path == tmp_path / GLUE_NAMES[name, split]
    assert path.read_bytes() == ("\n".join(["index\tprediction", *lines]) + "\n").encode()


@pytest.mark.parametrize("rows", [1, 2, 1725])
def test_as_many_lines_as_rows(rows, tmp_path):
    logits = np.random.default_rng(0).normal(size=(rows, 2)).astype(np.float32)
    lines = write_submission(tmp_path, find_task("MRPC"), "test", logits).read_text(encoding="utf-8").split("\n")
    assert lines[0] == "index\tprediction" and lines[-1] == "" and len(lines) == rows + 2
    assert [line.split("\t")[0] for line in lines[1:-1]] == [str(number) for number in range(rows)]
    assert [line.split("\t")[1] for line in lines[1:-1]] == [str(label) for label in logits.argmax(axis=1)]


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if not task.regression])
def test_every_label_comes_out_as_its_text(name):
    task = find_task(name)
    assert prediction_texts(task, favouring(task, task.labels)) == list(task.labels)


def test_sts_b_scores_stay_in_their_range():
    logits = np.array([[-0.5], [0], [2.71828], [5.0], [7]], np.float32)
    assert prediction_texts(find_task("STS-B"), logits) == ["0.000", "0.000", "2.718", "5.000", "5.000"]


def test_own_scores_have_no_range():
    task = own_task({"test": "x.csv"}, labels=())
    assert [float(text) for text in prediction_texts(task, np.array([[-12.5], [250]], np.float32))] == [-12.5, 250]


def test_own_scores_of_small_size_are_not_rounded_away():
    texts = prediction_texts(own_task({"test": "x.csv"}, labels=()), np.array([[1e-4], [2e-4]], np.float32))
    assert [float(text) for text in texts] == pytest.approx([1e-4, 2e-4], rel=1e-3)


def test_own_labels_may_be_any_text(tmp_path):
    task = own_task({"test": "x.csv"}, labels=("naïve — 漢", "b c"))
    path = write_submission(tmp_path, task, "test", favouring(task, ["b c", "naïve — 漢"]))
    assert path.name == "test.tsv"
    assert path.read_bytes().decode() == "index\tprediction\n0\tb c\n1\tnaïve — 漢\n"


def test_an_older_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path):
    task = find_task("RTE")
    write_submission(tmp_path, task, "test", favouring(task, ["entailment"] * 50))
    write_submission(tmp_path, task, "test", favouring(task, ["not_entailment"]))
    assert [path.name for path in tmp_path.iterdir()] == ["RTE.tsv"]
    assert (tmp_path / "RTE.tsv").read_text() == "index\tprediction\n0\tnot_entailment\n"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["RTE", "STS-B"])
def test_outputs_that_are_not_finite_are_no_predictions(name, bad, tmp_path):
    """argmax would call them the first label, and nan would stand in the file as a score."""
    task = find_task(name)
    logits = np.zeros((4, task.num_labels), np.float32)
    logits[2, 0] = bad
    with pytest.raises(RunError, match="row 2 is not finite"):
        write_submission(tmp_path, task, "test", logits)
    assert not list(tmp_path.iterdir())
