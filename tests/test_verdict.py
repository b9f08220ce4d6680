"""Published figures, verdicts in sentences, and the comparison of two files of dev predictions."""

import json

import numpy as np
import pytest

from bert import InputError, verdict
from bert.submission import read_dev_predictions, write_dev_predictions
from bert.tasks import TASKS, find_task
from bert.weights import HUB_IDS

UNCASED, CASED, MINILM = (
    "google-bert/bert-base-uncased",
    "google-bert/bert-base-cased",
    "sentence-transformers/all-MiniLM-L6-v2",
)


def seeds(mean, sd=1.0, n=5):
    values = np.linspace(-1, 1, n)
    return dict(enumerate(mean + sd * values / values.std(ddof=1)))


# --- the published figures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "figure", verdict.load_published(), ids=lambda figure: f"{figure.title} {figure.task} {figure.metric}"
)
def test_every_figure_is_well_formed(figure):
    task = TASKS[figure.task]
    metric, _, where = figure.metric.partition(", ")
    dev = task.split_names("dev")
    assert metric in task.metrics and (f"dev_{where}" if where else "dev") in dev
    assert 0 < figure.value < 100 and (figure.sd is None or 0 < figure.sd < 10)
    assert figure.kind in ("mean", "median", "single", "best") and figure.split in ("dev", "half of dev")
    assert figure.checkpoint.count("/") == 1 and figure.title and figure.source and figure.recipe
    assert {
        "mean": (figure.runs or 0) > 1,
        "median": (figure.runs or 0) > 1,
        "single": figure.runs == 1,
        "best": figure.runs is None,
    }[figure.kind]


def test_no_figure_is_there_twice():
    keys = [(one.checkpoint, one.title, one.task, one.metric) for one in verdict.load_published()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    "title, checkpoint, task, metric, value, runs",
    [
        ("BERT paper, table 6", UNCASED, "MRPC", "accuracy", 86.7, 5),
        ("GluonNLP v0.10", UNCASED, "MRPC", "f1", 91.96, None),
        ("GluonNLP v0.10", UNCASED, "MNLI", "accuracy, mismatched", 85.07, None),
        ("GluonNLP v0.10, last epoch", UNCASED, "CoLA", "mcc", 58.43, 1),
        ("transformers, text classification example, float16", CASED, "QNLI", "accuracy", 90.96, 1),
        ("MiniLM's README", "microsoft/MiniLM-L6-H384-uncased", "CoLA", "mcc", 47.5, 4),
        ("MiniLM's README", "microsoft/MiniLM-L12-H384-uncased", "QQP", "accuracy", 91.3, 4),
        ("DistilBERT paper, table 1", "distilbert/distilbert-base-uncased", "RTE", "accuracy", 59.9, 5),
        ("Mosbach et al. 2021, table 1", "google-bert/bert-large-uncased", "RTE", "accuracy", 70.1, 25),
        ("fairseq's RoBERTa", "FacebookAI/roberta-large", "SST-2", "accuracy", 96.4, 5),
    ],
)
def test_some_figures_as_the_sources_print_them(title, checkpoint, task, metric, value, runs):
    found = [
        one
        for one in verdict.load_published()
        if (one.title, one.checkpoint, one.task, one.metric) == (title, checkpoint, task, metric)
    ]
    assert [(one.value, one.runs) for one in found] == [(value, runs)]


def test_margins():
    assert verdict.margin("MRPC", "accuracy") == 1.5 and verdict.margin("MRPC", "f1") == 1.0
    assert verdict.margin("MNLI", "accuracy, matched") == 0.4
    assert verdict.margin("WNLI", "accuracy") is None and verdict.margin("own", "accuracy") is None
    for task in set(TASKS) & {"CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE"}:
        assert all(verdict.margin(task, metric) > 0 for metric in TASKS[task].metrics)


# --- whose figures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags, checkpoint",
    [
        ({"bert_model": "bert_12_768_12", "bert_dataset": None}, UNCASED),
        ({"bert_model": "bert_12_768_12", "bert_dataset": "book_corpus_wiki_en_cased"}, CASED),
        ({"bert_model": "bert_12_768_12", "bert_dataset": "openwebtext_book_corpus_wiki_en_uncased"}, None),
        ({"bert_model": "roberta_24_1024_16"}, "FacebookAI/roberta-large"),
        ({"bert_model": "minilm_6_384_12"}, MINILM),
        ({"bert_model": MINILM}, MINILM),
        ({"bert_model": "bert-base-uncased"}, UNCASED),
        ({"bert_model": "google-bert/bert-base-cased"}, CASED),
        ({"bert_model": "/models/distilbert-base-uncased/"}, "distilbert/distilbert-base-uncased"),
        ({"bert_model": "MiniLM-L12-H384-uncased"}, "microsoft/MiniLM-L12-H384-uncased"),
        ({"bert_model": "nreimers/MiniLM-L6-H384-uncased"}, "nreimers/MiniLM-L6-H384-uncased"),
        ({"bert_model": "MiniLM-L6-H384-uncased"}, None),  # whose?
        ({"bert_model": "runs/MNLI-float32-seed0/model"}, None),
        ({"bert_model": "bert_12_768_12", "pretrained_bert_parameters": "own.params"}, None),
        ({"bert_model": "bert_12_768_12", "model_parameters": "tuned.params"}, None),
    ],
)
def test_names_of_a_checkpoint(flags, checkpoint):
    assert verdict.canonical(flags) == checkpoint


def test_gluonnlps_names_have_figures():
    published = {one.checkpoint for one in verdict.load_published()}
    assert {
        HUB_IDS["bert_12_768_12", "book_corpus_wiki_en_uncased"],
        *(name for name in HUB_IDS.values() if "roberta" in name),
    } <= published


# --- verdicts --------------------------------------------------------------------------------------------------------


def texts(task, checkpoint, last, best=None):
    return {one.published.title: one for one in verdict.verdicts(task, checkpoint, last, best or {})}


def test_a_mean_that_is_reproduced():
    found = texts("MRPC", UNCASED, {"accuracy": seeds(87.2, 0.6)})["BERT paper, table 6"]
    assert found.same_checkpoint and found.comparison.outcome == "reproduced"
    assert found.text.startswith(
        "accuracy: reproduced: 87.2 here (5 runs), 0.5 above the published 86.7 (BERT paper, table 6, mean of 5 runs); "
        "95% interval of the difference -0.6 to +1.6, one-sided from -0.3; margin 1.5 (their recipe: batch 32, 3 epochs"
    )


@pytest.mark.parametrize("mean, outcome", [(83.0, "below"), (86.0, "consistent, not shown")])
def test_a_mean_that_is_not(mean, outcome):
    found = texts("MRPC", UNCASED, {"accuracy": seeds(mean)})["BERT paper, table 6"]
    assert found.comparison.outcome == outcome and f"accuracy: {outcome}: {mean:.1f} here (5 runs), " in found.text


def test_best_epochs_meet_best_epochs_and_last_meet_last():
    found = texts("CoLA", UNCASED, {"mcc": seeds(58.43, 1.0)}, {"mcc": seeds(59.32, 1.0)})
    assert "58.4 here (5 runs), the published 58.4 (GluonNLP v0.10, last epoch, one run) is +0.0 sd from that" in (
        found["GluonNLP v0.10, last epoch"].text
    )
    best = found["GluonNLP v0.10"]
    assert best.published.epoch == "best" and best.comparison.z == pytest.approx(1.0)
    assert best.text.startswith(
        "mcc: consistent: 59.3 here (5 runs), the published 60.3 (GluonNLP v0.10, best epoch) is +1.0 sd from that, "
        "as one such run may be, or the best of up to 20; preliminary: the sd of 5 runs is itself uncertain (their recipe: "
    )


@pytest.mark.parametrize(
    "mean, outcome, words",
    [
        (56.0, "ours fall short", "+4.3 sd from that, higher than the best of 20 such runs would be"),
        (57.4, "consistent", "+2.9 sd from that, as the best of 20 such runs may be"),
        (57.6, "consistent", "+2.7 sd from that, as the best of 10 to 20 such runs may be"),
        (60.0, "consistent", "+0.3 sd from that, as one such run may be, or the best of up to 5"),
        (62.0, "consistent", "-1.7 sd from that, as one such run may be"),
        (63.0, "theirs is weak, or ours tuned better", "-2.7 sd from that, lower than one such run would be"),
    ],
)
def test_where_a_best_epoch_falls(mean, outcome, words):
    found = texts("CoLA", UNCASED, {}, {"mcc": seeds(mean)})["GluonNLP v0.10"].text
    here = f"mcc: {outcome}: {mean:.1f} here (5 runs), the published 60.3 (GluonNLP v0.10, best epoch) is "
    assert found.startswith(here + words + "; preliminary: the sd of 5 runs is itself uncertain (their recipe: ")
    found = texts("CoLA", UNCASED, {}, {"mcc": seeds(mean, n=10)})["GluonNLP v0.10"].text
    assert "preliminary" not in found


def test_few_seeds_are_named():
    one = texts("MRPC", UNCASED, {"accuracy": {0: 86.0}}, {"accuracy": {0: 86.0}})
    assert all("accuracy: too few runs: 86.0 here (1 run), " in found.text for found in one.values())
    assert (
        "preliminary, with fewer than 5 seeds"
        in texts("MRPC", UNCASED, {"accuracy": seeds(87, n=3)})["BERT paper, table 6"].text
    )


def test_a_median_says_less_than_a_mean():
    """Of 5 runs as much as a mean of 3.2: SE = sd sqrt(1/5 + pi/10)."""
    found = texts("RTE", "FacebookAI/roberta-base", {"accuracy": seeds(78.7, 2)})["fairseq's RoBERTa"]
    assert found.comparison.lower_bound == pytest.approx(-2.1318 * 2 * (1 / 5 + np.pi / 10) ** 0.5, abs=1e-3)
    assert "(fairseq's RoBERTa, median of 5 runs)" in found.text


def test_another_checkpoint_is_no_verdict():
    found = verdict.verdicts("CoLA", MINILM, {"mcc": seeds(28.6)}, {"mcc": seeds(29)})
    assert len(found) == 1 and not found[0].same_checkpoint and found[0].comparison is None
    assert found[0].text.startswith("mcc: another checkpoint: 47.5 there, 28.6 here, -18.9 (MiniLM-L6-H384-uncased, ")
    assert "trained on as a sentence encoder" in found[0].text
    assert verdict.verdicts("STS-B", MINILM, {"pearson": seeds(85)}, {}) == []
    assert verdict.verdicts("MRPC", None, {"accuracy": seeds(85)}, {}) == []


def test_other_rows_are_no_verdict():
    found = texts("RTE", "google-bert/bert-large-uncased", {"accuracy": seeds(70)})
    assert (
        found["Zhang et al. 2021"].comparison is None
        and "on half of dev: not the same rows" in found["Zhang et al. 2021"].text
    )
    assert found["Mosbach et al. 2021, table 1"].comparison.outcome == "reproduced"


def test_wnli_has_no_verdict():
    for found in verdict.verdicts("WNLI", CASED, {"accuracy": seeds(56.3)}, {}):
        assert found.comparison is None and "what always guessing the more frequent label has" in found.text


# --- precisions ------------------------------------------------------------------------------------------------------


def test_precisions_in_sentences():
    base = seeds(85.0)

    def shift(by):
        return {seed: score + by[seed] for seed, score in base.items()}

    found = verdict.precision_parity(
        "MRPC",
        {
            "float32": {"accuracy": base},
            "float16": {"accuracy": shift([0.2, -0.1, 0.1, 0, -0.2])},
            "bfloat16": {"accuracy": shift([2.0, -2.2, 1.0, 0.5, -1.4])},
            "float64": {"accuracy": shift([-2.0, -2.1, -1.9, -2.2, -1.8])},
        },
    )
    assert [(metric, dtype, result.outcome) for metric, dtype, result, _ in found] == [
        ("accuracy", "float16", "equal within the margin"),
        ("accuracy", "bfloat16", "no difference detected"),
        ("accuracy", "float64", "different"),
    ]
    equal, undecided, different = (text for *_, text in found)
    assert equal == (
        "accuracy, float16 against float32: equal within the margin: +0.0 over 5 seeds, "
        "90% interval -0.2 to +0.2, margin 1.5"
    )
    chance = found[1][2].chance
    assert undecided.endswith(
        f"; were there none, with a spread as here (sd 1.7), so many seeds would show equality in {chance:.0%} of cases"
    )
    assert "different: -2.0 over 5 seeds, 90% interval -2.2 to -1.8, p = " in different


def test_precisions_without_pairs_or_margin():
    assert verdict.precision_parity("MRPC", {"float32": {"accuracy": seeds(85)}}) == []
    ((_, _, result, text),) = verdict.precision_parity("MRPC", {"float16": {"accuracy": seeds(85)}})
    assert text == "accuracy, float16 against float32: too few pairs" and result.n == 0
    ((_, _, _, text),) = verdict.precision_parity(
        "WNLI", {"float32": {"accuracy": {0: 56.3, 1: 56.3, 2: 57.7}}, "float16": {"accuracy": {0: 56.3, 1: 54.9, 2: 59.1}}}
    )
    assert text == (
        "accuracy, float16 against float32: no difference detected: +0.0 over 3 seeds, 90% interval -2.4 to +2.4; "
        "there is no margin for WNLI; preliminary, with fewer than 5 seeds"
    )
    same = {"accuracy": {0: 56.3, 1: 56.3, 2: 57.7}}
    ((_, _, _, text),) = verdict.precision_parity("RTE", {"float32": same, "float16": same})
    assert text == "accuracy, float16 against float32: the same in every pair: +0.0 over 3 seeds"


# --- two files of predictions ----------------------------------------------------------------------------------------


def class_file(folder, name, right, seed=0, task="MRPC", kind="last"):
    """A run's folder with predictions of which the first `right` shares are right; returns the file."""
    task = find_task(task)
    labels = np.random.default_rng(0).integers(0, task.num_labels, 400)
    predicted = np.where(np.random.default_rng(seed).random(400) < right, labels, (labels + 1) % task.num_labels)
    logits = np.zeros((400, task.num_labels), np.float32)
    logits[np.arange(400), predicted] = 1.5
    run = folder / name
    (run / "predictions").mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"task": task.name}), encoding="utf-8")
    return write_dev_predictions(run / "predictions", task, "dev", kind, logits, labels)


def test_a_better_model_is_called_better(tmp_path):
    lines = verdict.compare_predictions(class_file(tmp_path, "a", 0.7, seed=1), class_file(tmp_path, "b", 0.9, seed=2))
    two = ["95%", "interval"]
    assert lines[2].split() == ["metric", "first", *two, "second", *two, "difference", "p"]
    assert [line.split()[0] for line in lines[3:5]] == ["accuracy", "f1"]
    assert "McNemar's exact test for accuracy, only the first right " in lines[5] and "2000 random swaps" in lines[5]
    assert lines[6].startswith("The second is better in accuracy by ") and "400 rows more than chance explains" in lines[6]


def test_equally_good_models_are_not(tmp_path):
    lines = verdict.compare_predictions(class_file(tmp_path, "a", 0.8, seed=1), class_file(tmp_path, "b", 0.8, seed=2))
    assert lines[-1].startswith(
        "The difference in accuracy may well be chance: these 400 rows do not show which model is better."
    )


def test_the_tasks_own_metric_decides(tmp_path):
    a = class_file(tmp_path, "a", 0.9, seed=1, task="CoLA")
    lines = verdict.compare_predictions(a, class_file(tmp_path, "b", 0.7, seed=2, task="CoLA"))
    assert lines[3].split()[0] == "mcc" and len(lines) == 6 and lines[-1].startswith("The first is better in mcc by ")
    assert verdict.compare_predictions(a, a)[-1].startswith("Both predict the same on each of the 400 rows.")
    (a.parents[1] / "config.json").unlink()
    assert [line.split()[0] for line in verdict.compare_predictions(a, a)[3:6]] == ["accuracy", "f1", "mcc"]


def test_scores_are_compared_by_swaps(tmp_path):
    random, task = np.random.default_rng(0), find_task("STS-B")
    labels = random.uniform(0, 5, 200).astype(np.float32)
    files = [
        write_dev_predictions(tmp_path / name, task, "dev", "last", (labels + random.normal(0, noise, 200))[:, None], labels)
        for name, noise in (("a", 0.5), ("b", 2.0))
        if not (tmp_path / name).mkdir()
    ]
    lines = verdict.compare_predictions(*files)
    assert [line.split()[0] for line in lines[3:5]] == ["pearson", "spearman"] and "McNemar" not in lines[5]
    assert lines[-1].startswith("The first is better in pearson by ")


def test_other_rows_are_refused(tmp_path):
    a, b = class_file(tmp_path, "a", 0.8), class_file(tmp_path, "b", 0.8)
    lines = b.read_text(encoding="utf-8").split("\n")
    label = lines[7].split("\t")[1]
    changed = "\t".join([lines[7].split("\t")[0], "10"[int(label)], *lines[7].split("\t")[2:]])
    b.write_text("\n".join([*lines[:7], changed, *lines[8:]]), encoding="utf-8")
    with pytest.raises(
        InputError, match=rf"b/predictions/dev.last.tsv:8: found label {'10'[int(label)]}, expected {label} as in .*a/"
    ):
        verdict.compare_predictions(a, b)
    b.write_text("\n".join(lines[:-2]) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="found 399 rows, expected 400 as in"):
        verdict.compare_predictions(a, b)
    c = class_file(tmp_path, "c", 0.8, task="MNLI")
    with pytest.raises(InputError, match=r"dev.last.tsv:1: found logit:neutral, .*, expected logit:0, logit:1 as in"):
        verdict.compare_predictions(a, c)


# --- reading such a file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["MRPC", "MNLI", "RTE"])
def test_classes_read_back_as_written(name, tmp_path):
    task = find_task(name)
    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(50, task.num_labels)).astype(np.float32), random.integers(0, task.num_labels, 50)
    found = read_dev_predictions(write_dev_predictions(tmp_path, task, "dev", "last", logits, labels))
    np.testing.assert_array_equal(found.logits, logits)
    np.testing.assert_array_equal(found.labels, labels)
    np.testing.assert_array_equal(found.predictions, logits.argmax(axis=1))


def test_scores_read_back_as_the_outputs_not_as_the_text(tmp_path):
    logits, labels = np.array([[5.25], [2.12345678], [np.nan], [1e20]], np.float32), np.array([5, 2.2, 0, 1.25], np.float32)
    path = write_dev_predictions(tmp_path, find_task("STS-B"), "dev", "last", logits, labels)
    found = read_dev_predictions(path)
    np.testing.assert_array_equal(found.logits, logits)
    np.testing.assert_array_equal(found.predictions.astype(np.float32), logits[:, 0])
    np.testing.assert_allclose(found.labels, labels, rtol=1e-6)


HEADER = "index\tlabel\tprediction\tlogit:0\tlogit:1\n"


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "found no rows, expected a header and at least one"),
        (HEADER, "found no rows"),
        (
            "index\tprediction\n0\t1\n",
            r":1: found 'index\\tprediction', expected index, label, prediction and a column logit",
        ),
        ("index\tlabel\tprediction\tlogit:0\tlogit:0\n0\t0\t0\t1\t2\n", ":1: found"),
        (HEADER + "0\t0\t1\t0.1\n", ":2: found 4 columns, expected 5"),
        (HEADER + "0\t0\t1\t0.1\t0.2\n2\t0\t1\t0.1\t0.2\n", ":3: found index '2', expected index 1"),
        (HEADER + "0\t0\t2\t0.1\t0.2\n", ":2: found '2', expected one of 0, 1"),
        (HEADER + "0\t0\t1\t0.1\tabc\n", ":2: found 'abc', expected a number"),
        (HEADER + "0\t0\t1\t0.1\t1_0\n", ":2: found '1_0', expected a number"),
        ("index\tlabel\tprediction\tlogit:score\n0\tnan\t1\t1\n", ":2: found 'nan', expected a score"),
    ],
)
def test_what_is_no_such_file_is_refused(content, message, tmp_path):
    path = tmp_path / "dev.last.tsv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_dev_predictions(path)
