"""Leaderboard files: names, header, order, label texts; their zip, and which run's go into it."""

import json
import os
import re
import zipfile

import numpy as np
import pytest

from bert import InputError, RunError
from bert.submission import choose_submissions, prediction_texts, write_submission, write_zip
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


# The leaderboard's zip. Rows are those that `wc -l` shows in the README of BERT on STILTs (Phang et al. 2018), less the
# header; label texts are those of nyu-mll/jiant's tasks, which its GLUE formatter writes.
OFFICIAL = {
    "CoLA.tsv": (1063, ("0", "1")),
    "SST-2.tsv": (1821, ("0", "1")),
    "MRPC.tsv": (1725, ("0", "1")),
    "STS-B.tsv": (1379, ("0.000", "5.000", "2.5", "3")),
    "QQP.tsv": (390965, ("0", "1")),
    "MNLI-m.tsv": (9796, ("entailment", "neutral", "contradiction")),
    "MNLI-mm.tsv": (9847, ("entailment", "neutral", "contradiction")),
    "QNLI.tsv": (5463, ("entailment", "not_entailment")),
    "RTE.tsv": (3000, ("entailment", "not_entailment")),
    "WNLI.tsv": (146, ("0", "1")),
    "AX.tsv": (1104, ("entailment", "neutral", "contradiction")),
}


def official_text(name, rows=None):
    """A file as the server takes it, every label in it."""
    count, labels = OFFICIAL[name]
    lines = (f"{row}\t{labels[row % len(labels)]}\n" for row in range(count if rows is None else rows))
    return "index\tprediction\n" + "".join(lines)


def written(folder, name, text=None):
    path = folder / name
    path.write_text(official_text(name) if text is None else text, encoding="utf-8", newline="")
    return path


def test_all_eleven_files_make_a_zip_that_holds_them_unchanged_at_its_top(tmp_path):
    files = {name: written(tmp_path, name) for name in OFFICIAL}
    lines = write_zip(tmp_path / "GLUE.zip", files)
    assert lines == [f"wrote {tmp_path / 'GLUE.zip'}: 11 of the leaderboard's 11 files, checked"]
    with zipfile.ZipFile(tmp_path / "GLUE.zip") as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == sorted(OFFICIAL)
        for name, path in files.items():
            assert archive.read(name) == path.read_bytes()


def test_the_same_files_make_the_same_bytes(tmp_path):
    small = {name: written(tmp_path, name) for name in ("WNLI.tsv", "AX.tsv")}
    write_zip(tmp_path / "a.zip", small)
    for path in small.values():
        os.utime(path, (1e9, 1e9))
    write_zip(tmp_path / "b.zip", dict(reversed(small.items())))
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_missing_files_are_named_and_not_made_up(tmp_path):
    missing = {"QQP.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv", "QNLI.tsv"}
    lines = write_zip(tmp_path / "GLUE.zip", {name: written(tmp_path, name) for name in OFFICIAL if name not in missing})
    assert "6 of the leaderboard's 11 files" in lines[0]
    assert lines[1].startswith("WARNING") and set(re.findall(r"[\w-]+\.tsv", lines[1])) == missing
    assert not missing & set(zipfile.ZipFile(tmp_path / "GLUE.zip").namelist())


@pytest.mark.parametrize("name", OFFICIAL)
@pytest.mark.parametrize("off", [-1, 1])
def test_a_row_too_few_or_too_many(name, off, tmp_path):
    count = OFFICIAL[name][0]
    path = written(tmp_path, name, official_text(name, rows=count + off))
    with pytest.raises(InputError, match=rf"{name}:{count + off + 1}: found {count + off} rows, expected {count}\b"):
        write_zip(tmp_path / "GLUE.zip", {name: path})
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_first_version_of_qnli_is_named(tmp_path):
    path = written(tmp_path, "QNLI.tsv", official_text("QNLI.tsv", rows=5740))
    with pytest.raises(InputError, match=r"found 5740 rows \(QNLI v1\), expected 5463 \(QNLI v2\)$"):
        write_zip(tmp_path / "GLUE.zip", {"QNLI.tsv": path})


FAULTS = {
    "empty": ("WNLI.tsv", lambda text: "", r":1: found an empty file, expected the header 'index\\tprediction'"),
    "no header": ("WNLI.tsv", lambda text: text.split("\n", 1)[1], r":1: found '0\\t0', expected the header"),
    "other header": ("WNLI.tsv", lambda text: text.replace("prediction", "label"), r":1: found 'index\\tlabel', expected"),
    "carriage returns": (
        "WNLI.tsv",
        lambda text: text.replace("\n", "\r\n"),
        r":1: found 'index\\tprediction\\r', expected",
    ),
    "commas": ("WNLI.tsv", lambda text: text.replace("\t", ","), r":1: found 'index,prediction', expected the header"),
    "gap": ("RTE.tsv", lambda text: text.replace("7\tnot_entailment\n", "", 1), r":9: found index '8', expected index 7"),
    "from one": ("MRPC.tsv", lambda text: text.replace("\n0\t0", "", 1), r":2: found index '1', expected index 0"),
    "padded index": ("MRPC.tsv", lambda text: text.replace("\n1\t", "\n01\t"), r":3: found index '01', expected index 1"),
    "blank end": ("CoLA.tsv", lambda text: text + "\n", r":1065: found index '', expected index 1063"),
    "number for a word": ("RTE.tsv", lambda text: text.replace("4\tentailment", "4\t1"), r":6: found prediction '1', exp"),
    "word for a number": (
        "WNLI.tsv",
        lambda text: text.replace("\n3\t1", "\n3\tentailment"),
        r":5: .* expected one of 0, 1$",
    ),
    "another task's": (
        "QNLI.tsv",
        lambda text: text.replace("\n0\tentailment", "\n0\tneutral"),
        r":2: .*'neutral', expected",
    ),
    "hyphen": ("RTE.tsv", lambda text: text.replace("not_", "not-"), r":3: found prediction 'not-entailment', expected one"),
    "third column": (
        "AX.tsv",
        lambda text: text.replace("0\tentailment", "0\tentailment\t0.9", 1),
        r":2: .*\\t0.9', expected",
    ),
    "space": (
        "SST-2.tsv",
        lambda text: text.replace("\n5\t1", "\n5\t1 "),
        r":7: found prediction '1 ', expected one of 0, 1",
    ),
    "above 5": (
        "STS-B.tsv",
        lambda text: text.replace("1\t5.000", "1\t5.001"),
        r":3: found prediction '5.001', expected a num",
    ),
    "below 0": (
        "STS-B.tsv",
        lambda text: text.replace("0\t0.000", "0\t-0.1", 1),
        r":2: .*'-0.1', expected a number from 0 to 5",
    ),
    "nan": (
        "STS-B.tsv",
        lambda text: text.replace("0\t0.000", "0\tnan", 1),
        r":2: found prediction 'nan', expected a number",
    ),
    "digits apart": (
        "STS-B.tsv",
        lambda text: text.replace("0\t0.000", "0\t1_0", 1),
        r":2: found prediction '1_0', expected",
    ),
    "not UTF-8": ("WNLI.tsv", lambda text: text.encode("utf-16"), r":1: found byte 0xff, expected UTF-8 text"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_by_line_and_nothing_is_written(fault, tmp_path):
    name, spoil, message = FAULTS[fault]
    good, path = written(tmp_path, "MRPC.tsv") if name != "MRPC.tsv" else None, tmp_path / name
    spoilt = spoil(official_text(name))
    assert spoilt != official_text(name)
    path.write_bytes(spoilt if isinstance(spoilt, bytes) else spoilt.encode())
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match=rf"^{re.escape(str(path))}{message}"):
        write_zip(tmp_path / "GLUE.zip", {**({"MRPC.tsv": good} if good else {}), name: path})
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_no_leaderboard_file_is_refused(tmp_path):
    for files, found in (({}, "no file"), ({"SST.tsv": written(tmp_path, "SST-2.tsv")}, "SST.tsv")):
        with pytest.raises(InputError, match=f"found {found}, expected some of CoLA.tsv, "):
            write_zip(tmp_path / "GLUE.zip", files)
    with pytest.raises(InputError, match="RTE.tsv: cannot be read: No such file"):
        write_zip(tmp_path / "GLUE.zip", {"RTE.tsv": tmp_path / "RTE.tsv"})
    with pytest.raises(RunError, match="GLUE.zip: cannot be written"):
        write_zip(tmp_path / "SST-2.tsv" / "GLUE.zip", {"WNLI.tsv": written(tmp_path, "WNLI.tsv")})
    write_zip(tmp_path / "a new" / "folder" / "GLUE.zip", {"WNLI.tsv": tmp_path / "WNLI.tsv"})
    assert zipfile.is_zipfile(tmp_path / "a new" / "folder" / "GLUE.zip")


def finished_run(folder, task, scores, seed, files=()):
    """A run's folder with what `choose_submissions` reads: `scores` is split -> metric -> score of the best epoch."""
    (folder / "predictions").mkdir(parents=True)
    for name in files:
        written(folder / "predictions", name)
    last = {split: dict.fromkeys(values, 1.0) for split, values in scores.items()}
    results = {"task": task, "seed": seed, "scores": {"best": scores, "last": last} if scores else {"saved": {}}}
    (folder / "results.json").write_text(json.dumps(results))
    return folder


def test_the_best_dev_score_is_chosen_and_the_lowest_seed_at_a_tie(tmp_path):
    def run(name, task, seed, score, files=("RTE.tsv",), metric="accuracy"):
        return finished_run(tmp_path / name, task, {"dev": {metric: score, "loss": 1.0}}, seed, files)

    runs = [
        run("a", "RTE", 3, 0.70),
        run("b", "RTE", 1, 0.72),
        run("c", "RTE", 0, 0.72),
        run("d", "RTE", 2, 0.71),
        run("unscored", "RTE", 4, None),
        run("without a test file", "RTE", 5, 0.99, files=()),
        run("own", "own", 0, 1.0, files=()),
        run("other", "CoLA", 7, -0.1, files=("CoLA.tsv",), metric="mcc"),
    ]
    files, lines = choose_submissions(runs)
    assert files == {
        "RTE.tsv": tmp_path / "c" / "predictions" / "RTE.tsv",
        "CoLA.tsv": tmp_path / "other/predictions/CoLA.tsv",
    }
    assert lines[0] == f"RTE.tsv: {tmp_path / 'c'}, accuracy 72.0 on dev, the best of 5 runs"
    assert lines[1] == f"CoLA.tsv: {tmp_path / 'other'}, mcc -10.0 on dev"


def test_mnli_is_chosen_by_the_mean_of_both_dev_files_and_answers_ax(tmp_path):
    names = ("MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv")
    runs = []
    for seed, (matched, mismatched) in enumerate([(0.85, 0.80), (0.83, 0.84)]):
        scores = {"dev_matched": {"accuracy": matched}, "dev_mismatched": {"accuracy": mismatched}}
        runs.append(finished_run(tmp_path / str(seed), "MNLI", scores, seed, names))
    runs.insert(0, finished_run(tmp_path / "ax", "AX", {}, 0, ("AX.tsv",)))
    files, lines = choose_submissions(runs)
    assert files == {name: tmp_path / "1" / "predictions" / name for name in names}
    assert lines[0] == f"MNLI-m.tsv: {tmp_path / '1'}, accuracy 83.5 on dev, the best of 2 runs" and len(lines) == 3
    (tmp_path / "1" / "predictions" / "AX.tsv").unlink()  # the test files had no diagnostic.tsv then
    assert choose_submissions(runs)[0]["AX.tsv"] == tmp_path / "ax" / "predictions" / "AX.tsv"
    assert f"AX.tsv: {tmp_path / 'ax'}" in choose_submissions(runs)[1]


def test_a_run_that_is_not_finished_is_no_candidate(tmp_path):
    with pytest.raises(InputError, match="results.json: cannot be read"):
        choose_submissions([tmp_path])
