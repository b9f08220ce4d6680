"""The task table: names, layouts, labels and submission files."""

import pytest

from bert import InputError
from bert.data import read_examples
from bert.tasks import TASKS, find_task, own_task

GLUE_TASKS = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI", "AX")


@pytest.mark.parametrize(
    "name, spellings",
    [
        ("SST-2", ["sst-2", "SST-2", "SST", "sst2", "SST2", "sst_2"]),
        ("STS-B", ["STS-B", "stsb", "sts-b", "STSB", "sts_b"]),
        ("CoLA", ["cola", "COLA", "CoLA"]),
        ("MNLI", ["mnli", "MNLI", "mnli-m", "MNLI-mm", "mnli_matched", "mnli_mismatched"]),
        ("MRPC", ["mrpc"]),
        ("QQP", ["qqp"]),
        ("QNLI", ["qnli", "QNLI"]),
        ("RTE", ["rte"]),
        ("WNLI", ["wnli"]),
        ("AX", ["ax", "AX"]),
        ("ChnSentiCorp", ["chnsenticorp", "ChnSentiCorp"]),
        ("LCQMC", ["lcqmc"]),
        ("XNLI", ["xnli"]),
    ],
)
def test_usual_spellings(name, spellings):
    assert {spelling: find_task(spelling).name for spelling in spellings} == dict.fromkeys(spellings, name)


@pytest.mark.parametrize("name", ["FOO", "", "-", "MNLIX", "sst-3"])
def test_an_unknown_name_is_answered_with_the_list(name):
    with pytest.raises(InputError) as caught:
        find_task(name)
    assert all(task in str(caught.value) for task in TASKS)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_reads_its_official_layout(name, glue_folder, glue_writer):
    """Each split has columns of its own: the right texts, in the right order, and the labels."""
    task = find_task(name)
    expected = {"train": (12, 0), "dev": (7, 10), "test": (5, 20)} if name != "AX" else {"test": (5, 4)}
    for kind, (count, seed) in expected.items():
        for split in task.split_names(kind):
            if split == "test_ax":
                continue
            examples, warnings = read_examples(glue_folder / task.splits[split].files[0], task, split)
            rows = glue_writer.rows(name, count, seed=seed)
            assert [example.index for example in examples] == list(range(count))
            assert [(example.text_a, example.text_b) for example in examples] == [row[:2] for row in rows]
            labels = [row[2] if kind != "test" else None for row in rows]
            assert [example.label for example in examples] == labels
            assert warnings == []


@pytest.mark.parametrize(
    "name, train, dev, test",
    [
        ("CoLA", 8551, 1043, 1063),
        ("SST-2", 67349, 872, 1821),
        ("MRPC", 3668, 408, 1725),
        ("STS-B", 5749, 1500, None),
        ("RTE", 2490, 277, 3000),
        ("WNLI", 635, 71, 146),
    ],
)
def test_official_files_have_the_published_sizes(name, train, dev, test, official_glue):
    task = find_task(name)
    for split, count in {"train": train, "dev": dev, "test": test}.items():
        if count is not None:
            examples, warnings = read_examples(official_glue / task.splits[split].files[0], task, split)
            assert len(examples) == count and warnings == []
            texts = [text for example in examples for text in (example.text_a, example.text_b) if text is not None]
            assert all(text.strip() for text in texts)


@pytest.mark.parametrize("name", TASKS)
def test_labels_as_written_in_the_files(name, glue_writer):
    task = find_task(name)
    assert task.regression == (name == "STS-B")
    assert task.num_labels == (1 if name == "STS-B" else len(glue_writer.labels[name]))
    if name != "STS-B":
        assert sorted(task.labels) == sorted(glue_writer.labels[name])


def test_mnli_ax_and_xnli_share_one_label_order():
    assert find_task("MNLI").labels == find_task("AX").labels == find_task("XNLI").labels


def test_metrics_are_those_of_the_benchmark():
    metrics = {name: TASKS[name].metrics for name in GLUE_TASKS}
    assert metrics["CoLA"] == ("mcc",)
    assert metrics["STS-B"] == ("pearson", "spearman")
    assert metrics["MRPC"] == metrics["QQP"] == ("accuracy", "f1")
    assert {metrics[name] for name in ("SST-2", "MNLI", "QNLI", "RTE", "WNLI")} == {("accuracy",)}


def test_submission_files_have_the_leaderboards_names():
    files = {split.submission for name in GLUE_TASKS for split in TASKS[name].splits.values() if split.submission}
    assert files == {
        f"{name}.tsv" for name in ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI", "AX")
    }


def test_mnli_has_two_dev_and_two_test_files_and_the_diagnostic_set():
    task = find_task("MNLI")
    assert task.split_names("dev") == ["dev_matched", "dev_mismatched"]
    assert task.split_names("test") == ["test_matched", "test_mismatched", "test_ax"]
    assert task.split_names("train") == ["train"]


@pytest.mark.parametrize(
    "labels, metrics",
    [((), ("pearson", "spearman")), (("no", "yes"), ("accuracy", "f1")), (("a", "b", "c"), ("accuracy", "f1_macro"))],
)
def test_own_tasks_are_scored_by_their_kind(labels, metrics):
    task = own_task({"train": "x.tsv", "dev": "y.tsv", "test": "z.tsv"}, labels=labels)
    assert task.metrics == metrics
    assert task.num_labels == max(1, len(labels))
    assert [task.split_names(kind) for kind in ("train", "dev", "test")] == [["train"], ["dev"], ["test"]]


@pytest.mark.parametrize("labels, words", [(("a", "b\tc"), "tab"), (("a\n", "b"), "tab"), (("a", "b", "a"), "twice")])
def test_own_labels_that_predictions_could_not_be_told_apart_by(labels, words):
    with pytest.raises(InputError, match=words):
        own_task({"test": "x.csv"}, labels=labels)
