"""The report: what is gathered, how it is grouped and counted, and what its files hold."""

import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from run_folders import write_run
from scipy import stats

import finetune_classifier
from bert import InputError, page, plots
from bert.config import parse
from bert.metrics import probabilities
from bert.report import DEV_ROWS, document, table_lines, write_report
from bert.runs import gather, group_runs
from bert.tasks import TASKS

DTYPES = ("float32", "float16", "bfloat16")


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """Three seeds of MRPC in every precision, two of MNLI and STS-B, one run that learned nothing, one that failed."""
    folder = tmp_path_factory.mktemp("runs")
    for dtype in DTYPES:
        for seed in range(3):
            write_run(folder / f"MRPC-{dtype}-seed{seed}", "MRPC", dtype=dtype, seed=seed)
    for task in ("MNLI", "STS-B"):
        for seed in range(2):
            write_run(folder / "more" / f"{task}-float32-seed{seed}", task, seed=seed, rows=30)
    write_run(folder / "WNLI-float32-seed0", "WNLI", rows=DEV_ROWS["WNLI"], skill=-2)
    write_run(folder / "MRPC-float16-seed7", "MRPC", dtype="float16", seed=7, finished=False)
    console = "epoch 1\n\x1b[Atrain:  66%|\u2588\u258b  | 5/8 [00:01<00:01]\rtrain:  67%|\u2588\u258b  | 6/8\n"
    (folder / "MRPC-float16-seed7.txt").write_text(console)
    return folder


@pytest.fixture(scope="module")
def runs(suite):
    return gather([suite])


@pytest.fixture(scope="module")
def written(runs, tmp_path_factory):
    """Path of a report's folder."""
    folder = tmp_path_factory.mktemp("report")
    paths = write_report(runs, folder)
    assert all(path.is_file() for path in paths)
    return folder


@pytest.fixture(scope="module")
def blocks(runs):
    return list(page.flat(document(runs)[2]))


def tables(blocks):
    """Title -> Table of a document."""
    return {block.title: block for block in page.flat(blocks) if isinstance(block, page.Table)}


def texts(blocks):
    """Every item of a document's lists."""
    return [line for block in page.flat(blocks) if isinstance(block, page.Items) for line in block.texts]


def text(cell):
    return page.cell_text(cell)


# Gathering


def test_every_run_below_is_found_once(suite):
    found = gather([suite, suite / "more", suite / "more/MNLI-float32-seed0", f"{suite}/./more"])
    assert len(found) == 15
    assert sum(run.results is None for run in found) == 1
    assert [run.folder for run in gather([suite / "more/MNLI-float32-seed0"])] == [suite / "more/MNLI-float32-seed0"]


def test_a_models_config_is_no_run(tmp_path):
    write_run(tmp_path / "a/run", "RTE")
    for path in ("a/run/model", "pretrained"):
        (tmp_path / path).mkdir()
        (tmp_path / path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "pretrained/sub").mkdir()
    assert [run.folder for run in gather([tmp_path])] == [tmp_path / "a/run"]


def test_an_unfinished_run_says_its_last_words(runs, blocks):
    (run,) = [run for run in runs if run.results is None]
    assert run.last_words == "train: 67% 6/8"
    assert [text(cell) for cell in tables(blocks)["Runs that are not finished"].rows[0].values()] == [
        str(run.folder),
        "train: 67% 6/8",
    ]


def test_a_run_that_failed_before_its_first_file_is_named(tmp_path):
    write_run(tmp_path / "RTE-float32-seed0", "RTE")
    write_run(tmp_path / "RTE-float32-seed1", "RTE", seed=1, finished=False)
    failed = {"RTE-float32-seed1": "no memory", "RTE-float32-seed2": "no | data\n<b>", "RTE-float32-seed0": "earlier"}
    (tmp_path / "suite.json").write_text(json.dumps({"runs": [], "failed": failed}))
    runs = gather([tmp_path])
    assert [(run.folder.name[-1], run.last_words) for run in runs] == [
        ("0", ""),
        ("1", "no memory"),
        ("2", "no | data\n<b>"),
    ]
    assert "1 of 3 runs finished" in document(runs)[2][0].texts[0]
    assert "no \\| data \\<b\\>" in page.to_markdown(*document(runs), {})


@pytest.mark.parametrize("name", ["nothing", "file", "empty"])
def test_a_folder_without_runs_is_refused(tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=rf"{name}: found .*expected"):
        gather([tmp_path / name])


@pytest.mark.parametrize(
    "file, change, complaint",
    [
        ("config.json", lambda content: [], "found list, expected a JSON object"),
        ("config.json", lambda content: {}, "found null for task, expected a text"),
        (
            "config.json",
            lambda c: c | {"config": c["config"] | {"seed": True}},
            "found true for config.seed, expected an integer",
        ),
        ("config.json", lambda c: c | {"engine": "pytorch"}, "found null for engine.name, expected a text"),
        ("results.json", lambda c: c | {"scores": {"last": {"dev": 3}}}, "found 3 for scores.last.dev, expected an object"),
        (
            "results.json",
            lambda c: c | {"scores": {"last": {"dev": {"f1": "x"}}}},
            'found "x" for scores.last.dev.f1, expected a number',
        ),
        (
            "results.json",
            lambda c: c | {"scores": {"last": {"dev": {}}}},
            "found null for scores.last.dev.metric, expected a number",
        ),
        ("config.json", lambda c: c | {"data_sha256": {"dev": 5}}, "found 5 for data_sha256.dev, expected a text"),
        ("config.json", lambda c: c | {"labels": [1]}, "found 1 for labels, expected a text"),
        (
            "config.json",
            lambda c: c | {"config": c["config"] | {"bert_model": 5}},
            "found 5 for config.bert_model, expected a text",
        ),
        (
            "config.json",
            lambda c: c | {"lengths": {"train": {"rows": 1}}},
            "found null for lengths.train.max, expected an integer",
        ),
        ("config.json", lambda c: c | {"lengths": [1]}, "found [1] for lengths, expected an object"),
        ("results.json", lambda c: c | {"train_seconds": None}, "found null for train_seconds, expected a number"),
    ],
)
def test_foreign_json_is_refused(tmp_path, file, change, complaint):
    write_run(tmp_path / "run", "RTE")
    path = tmp_path / "run" / file
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(InputError) as error:
        gather([tmp_path])
    assert str(error.value) == f"{path}: {complaint}"


def test_a_broken_log_is_refused_with_its_line(tmp_path):
    write_run(tmp_path / "run", "RTE")
    lines = (tmp_path / "run/log.jsonl").read_text().splitlines()
    (tmp_path / "run/log.jsonl").write_text("\n".join([lines[0], lines[1][:40]]))
    with pytest.raises(InputError, match=r"log\.jsonl:2: found .*expected a record"):
        document(gather([tmp_path]))


def test_results_of_another_version_may_say_more(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"{seed}", "RTE", seed=seed)
    path = tmp_path / "0/results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"something": "new"}))
    assert tables(document(gather([tmp_path]))[2])["Cost of a run"].rows


# Groups


def test_seeds_are_a_group_and_settings_are_not(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", "RTE", seed=seed, flags=["--log_interval", str(5 + seed), "--dev_batch_size", "9"])
        write_run(tmp_path / f"b{seed}", "RTE", seed=seed, flags=["--lr", "1e-5"])
        write_run(tmp_path / f"c{seed}", "RTE", seed=seed, dtype="float16", flags=["--init_loss_scale", "64"])
    write_run(tmp_path / "again", "RTE", seed=1)
    groups = group_runs(gather([tmp_path]))["RTE"]
    assert [(group.label, [run.seed for run in group.runs], group.variant) for group in groups] == [
        ("float32, lr 3e-5", [0, 1], 0),
        ("float32, lr 1e-5", [0, 1], 1),
        ("float16, lr 3e-5", [0, 1], 0),
    ]
    assert [run.folder.name for run in groups[0].doubles] == ["again"] or [run.folder.name for run in groups[0].doubles] == [
        "a1"
    ]
    assert groups[2].family == groups[0].family  # a loss scale is part of a precision


def test_other_data_and_other_weights_are_other_groups(tmp_path):
    for number in range(3):
        write_run(tmp_path / str(number), "RTE", seed=number)
    for number, keys in ((1, ("data_sha256", "dev")), (2, ("model", "sha256"))):
        path = tmp_path / str(number) / "config.json"
        record = json.loads(path.read_text())
        record[keys[0]][keys[1]] = "f" * 64
        path.write_text(json.dumps(record))
    labels = [group.label for group in group_runs(gather([tmp_path]))["RTE"]]
    assert len(labels) == len(set(labels)) == 3
    assert all(part in " ".join(labels) for part in ("weights ffffffff", "weights 55555555", "data ffffff-"))


def test_runs_that_start_from_their_seeds_mnli_run_are_a_group(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"RTE{seed}", "RTE", seed=seed, flags=["--bert_model", f"x/MNLI-float32-seed{seed}/model"])
        path = tmp_path / f"RTE{seed}/config.json"
        path.write_text(path.read_text().replace("5" * 64, str(seed) * 64))
    (group,) = group_runs(gather([tmp_path]))["RTE"]
    assert len(group.runs) == 3


# Numbers


def test_scores_are_those_of_the_last_epoch(suite, blocks):
    scores = [json.loads((suite / f"MRPC-float32-seed{seed}/results.json").read_text())["scores"] for seed in range(3)]
    last = [100 * one["last"]["dev"]["f1"] for one in scores]
    best = [100 * one["best"]["dev"]["f1"] for one in scores]
    rows = tables(blocks)["Scores"].rows
    (row,) = [row for row in rows if row["Task"] == "MRPC" and row["Metric"] == "f1" and row["Precision"] == "float32"]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(last), scale=stats.sem(last))
    assert text(row["Mean ± sd"]) == f"{np.mean(last):.1f} ± {np.std(last, ddof=1):.1f}"
    assert text(row["95% interval"]) == f"{low:.1f} to {high:.1f}"
    assert [text(row[name]) for name in ("Runs", "Median", "Min", "Max", "Best epoch")] == [
        *("3", f"{np.median(last):.1f}", f"{min(last):.1f}", f"{max(last):.1f}", f"{np.mean(best):.1f}")
    ]
    assert row["Seeds"].values == pytest.approx(last)


def test_mnlis_halves_are_told_apart_and_its_primary_score_is_their_mean(runs):
    run = next(run for run in runs if run.task == "MNLI")
    halves = [100 * run.results["scores"]["last"][name]["accuracy"] for name in ("dev_matched", "dev_mismatched")]
    assert run.scores("last") == pytest.approx(dict(zip(("accuracy, matched", "accuracy, mismatched"), halves)))
    assert run.primary("last") == pytest.approx(np.mean(halves))


def test_the_console_table_names_failures(runs):
    lines = table_lines(runs)
    header, rows = lines[0].split(), [line.split() for line in lines[1:]]
    assert header[-2:] == ["unfinished", "degenerate"]
    assert [row[-2:] for row in rows if row[:2] == ["MRPC", "float16"]] == [["1", "0"], ["1", "0"]]
    assert [row[-2:] for row in rows if row[0] == "WNLI"] == [["0", "1"]]
    assert len(rows) == 3 * 2 + 2 + 2 + 1


def test_the_summary_counts_runs_overflows_and_runs_that_learned_nothing(blocks):
    told = " ".join(blocks[0].texts)
    assert "14 of 15 runs finished" in told
    assert (
        "No better than the majority class, or than a correlation of 0 (1 run, counted in every mean): WNLI float32 seed 0."
        in told
    )
    assert "(not every combination)" in told
    assert "float16 skipped 6 of 240 updates (2.50%): a gradient overflowed." in told


def test_the_summary_says_that_nothing_overflowed(tmp_path):
    write_run(tmp_path / "run", "RTE", dtype="float16")
    (run,) = gather([tmp_path])
    run.results["skipped_updates"] = 0
    told = " ".join(document([run])[2][0].texts)
    assert "float16 skipped none of 80 updates: no gradient overflowed." in told


def test_scores_on_other_rows_are_not_compared_with_published_ones(blocks):
    said = texts(blocks)
    assert "float32: not compared with published figures, these dev data have 60 rows, GLUE's have 408." in said


def test_an_interval_and_a_calibration_error_for_the_median_seed(runs, blocks):
    rows = [
        {name: text(cell) for name, cell in row.items()} for row in tables(blocks)["How sure the score of one seed is"].rows
    ]
    (row,) = [row for row in rows if row["Task"] == "MRPC" and row["Precision"] == "float32"]
    scores = {run.seed: run.primary("last") for run in runs if run.task == "MRPC" and run.dtype == "float32"}
    assert float(row["Score"]) == pytest.approx(np.median(list(scores.values())), abs=0.05)
    low, high = map(float, row["95% interval"].split(" to "))
    share = float(row["Score"]) / 100
    assert high - low == pytest.approx(100 * 2 * 1.96 * np.sqrt(share * (1 - share) / 60), rel=0.2)  # binomial
    one = next(run for run in runs if (run.task, run.dtype, run.seed) == ("MRPC", "float32", int(row["Seed"]))).outputs[
        "dev"
    ]
    sure, right = probabilities(one.logits).max(axis=1), one.predictions == one.labels
    bins = np.minimum(np.ceil(sure * 15), 15)
    gaps = [abs(sure[bins == b].mean() - right[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)]
    assert float(row["Calibration error"]) == pytest.approx(100 * sum(gaps), abs=0.051)
    assert [row["Calibration error"] for row in rows if row["Task"] == "STS-B"] == ["–"]


def test_the_commands_make_the_same_runs(runs, blocks):
    (code,) = [block.text for block in blocks if isinstance(block, page.Code)]
    made = []
    for line in code.splitlines():
        if line.startswith("for seed in "):
            seeds = line.removeprefix("for seed in ").removesuffix("; do").split()
        elif line.startswith("  python"):
            made += [parse(shlex.split(line.replace("$seed", seed))[2:]) for seed in seeds]
        elif line.startswith("python"):
            made.append(parse(shlex.split(line)[2:]))
    wanted = {run.folder: run.record["config"] for run in runs if run.results}
    assert {config.output_dir for config in made} == set(map(str, wanted))
    for config in made:
        assert vars(config) == {**next(c for f, c in wanted.items() if str(f) == config.output_dir), "resume": False}
    subprocess.run(["bash", "-n"], input=code, text=True, check=True)


# Files


class Reader(HTMLParser):
    """What a page holds, as far as the tests ask."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.ids, self.links, self.open = [], [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append((tag, attributes))
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [value for name, value in attributes.items() if name in ("href", "src", "xlink:href")]
        if tag not in ("meta", "link", "br", "img", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_no_network(written):
    html = (written / "report.html").read_text()
    found = Reader(html)
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert {link.removeprefix("#") for link in found.links if link.startswith("#")} <= set(found.ids)
    assert all(link.startswith(("#", "data:")) for link in found.links)
    assert not re.search(r"https?://(?!www\.w3\.org/(2000/svg|1999/xlink)\")", html)
    assert not re.search(r"#[0-9a-f]{6}", html[html.index("</style>") :].replace("0" * 60, "")), (
        "a colour outside the style sheet"
    )
    assert all(attributes["scope"] in ("col", "row") for tag, attributes in found.tags if tag == "th")
    pictures = [attributes for tag, attributes in found.tags if tag == "svg"]
    assert len(pictures) > 25 and all(len(attributes["aria-label"]) >= 3 for attributes in pictures)
    assert dict(found.tags)["html"] == {"lang": "en"}
    assert len(html) < 60_000 * len(pictures)


def test_no_text_of_the_data_is_published(written, suite):
    assert re.search(r"\ttext \d+ <b>", (suite / "MRPC-float32-seed0/predictions/dev.mistakes.tsv").read_text())
    for name in ("report.html", "report.md", "results.csv"):
        content = (written / name).read_text()
        assert "surest mistakes" in content or name == "results.csv"
        assert not re.search(r"text \d+ ", content)


def test_what_others_wrote_is_only_text(tmp_path):
    hostile = "<script>alert(1)</script>|`$x$`*"
    write_run(tmp_path / "runs" / "a<b>&c", "RTE")
    path = tmp_path / "runs/a<b>&c/config.json"
    record = json.loads(path.read_text())
    record["labels"] = [hostile, '"><img src=x>']
    record["task"] = "own $\\frac$ <i>"
    record["versions"]["numpy"] = hostile
    path.write_text(json.dumps(record))
    for file in (tmp_path / "runs/a<b>&c/predictions").iterdir():
        content = file.read_text().replace("not_entailment", hostile)
        file.write_text(re.sub(r"(?<!_)\bentailment\b", '"><img src=x>', content))
    write_report(gather([tmp_path / "runs"]), tmp_path)
    html, markdown = (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()
    found = Reader(html)
    assert [tag for tag, _ in found.tags].count("script") == 1
    assert not {"img", "i", "b"} & {tag for tag, _ in found.tags}
    assert "&lt;script&gt;alert(1)" in html
    markdown = re.sub(r"```sh\n.*?\n```", "", markdown, flags=re.S)  # code is shown as it is
    assert not re.search(r"(?<!\\)<[a-z]", markdown) and "\\<script\\>" in markdown


def test_the_markdown_shows_every_picture(written):
    markdown = (written / "report.md").read_text()
    shown = re.findall(r"\]\((report/[^)]+\.png)\)", markdown)
    assert len(shown) > 20 and sorted(shown) == sorted(f"report/{path.name}" for path in (written / "report").iterdir())
    assert all((written / path).read_bytes().startswith(b"\x89PNG") for path in shown)
    for block in re.findall(r"(?:^\|.*\n)+", markdown, flags=re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_the_csv_has_a_line_for_every_run(written, suite):
    with open(written / "results.csv", newline="") as file:
        rows = {row["folder"]: row for row in csv.DictReader(file)}
    assert len(rows) == 15
    row = rows[str(suite / "MRPC-float16-seed1")]
    results = json.loads((suite / "MRPC-float16-seed1/results.json").read_text())
    assert (row["task"], row["dtype"], row["seed"], row["skipped_updates"]) == ("MRPC", "float16", "1", "2")
    assert float(row["last f1"]) == pytest.approx(100 * results["scores"]["last"]["dev"]["f1"])
    assert float(row["lr"]) == 3e-5
    assert rows[str(suite / "MRPC-float16-seed7")]["finished"] == "False"


def test_without_matplotlib_the_findings_stay(suite, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    paths = write_report(gather([suite / "WNLI-float32-seed0"]), tmp_path)
    assert [path.name for path in paths] == ["report.html", "report.md", "results.csv"]
    for name in ("report.html", "report.md"):
        content = (tmp_path / name).read_text()
        assert "pip install" in content and "pictures are missing" in content and "Confusion matrix" in content
    assert not (tmp_path / "report").exists()


def test_one_seed_needs_no_spread(suite):
    found = tables(document(gather([suite / "WNLI-float32-seed0"]))[2])
    assert list(found["Scores"].rows[0]) == ["Task", "Metric", "Precision", "Score", "Runs", "Best epoch"]
    assert found["1 run"].rows[0]["Seed"] == page.Cell("0", 0)


def test_a_run_that_only_predicted_is_reported(tmp_path):
    write_run(tmp_path / "run", "RTE")
    folder = tmp_path / "run"
    results = json.loads((folder / "results.json").read_text())
    kept = {name: results[name] for name in ("task", "engine", "dtype", "seed", "peak_memory_mib", "wall_seconds")}
    (folder / "results.json").write_text(json.dumps(kept | {"scores": {"saved": results["scores"]["last"]}}))
    record = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(record | {"plan": None}))
    (folder / "log.jsonl").unlink()
    (folder / "predictions/dev.last.tsv").rename(folder / "predictions/dev.saved.tsv")
    runs = gather([tmp_path])
    score = 100 * results["scores"]["last"]["dev"]["accuracy"]
    assert text(tables(document(runs)[2])["Scores"].rows[0]["Score"]) == f"{score:.1f}"
    write_report(runs, tmp_path / "report")
    assert (tmp_path / "report/report/rte-dev-confusion.png").is_file()


def test_odd_runs_are_reported(tmp_path, recwarn):
    write_run(tmp_path / "a", "RTE", updates=1, rows=1)
    write_run(tmp_path / "b", "STS-B", updates=3, rows=3, skill=0)
    write_run(tmp_path / "c", "CoLA")
    shutil.rmtree(tmp_path / "c/predictions")
    write_run(tmp_path / "d", "SST-2", updates=4)
    log = (tmp_path / "d/log.jsonl").read_text()
    (tmp_path / "d/log.jsonl").write_text(re.sub(r'"(loss|grad_norm)": [-\d.]+', r'"\1": null', log))  # nothing was finite
    write_run(tmp_path / "e", "QNLI", finished=False)
    runs = gather([tmp_path])
    assert len(table_lines(runs)) == 1 + 5 + 1
    blocks = document(runs)[2]
    assert any("the runs' folders hold no dev predictions" in text for text in texts(blocks))
    for picture in page.pictures(blocks):
        plots.to_svg(picture.draw(), picture.name, picture.finding)
    assert "0 of 1 run finished: QNLI in float32, seed 0." in texts(document(gather([tmp_path / "e"]))[2])
    assert not recwarn.list


def test_figures_of_the_same_checkpoint_are_judged(tmp_path):
    for dtype in ("float32", "bfloat16"):
        for seed in range(3):
            flags = ["--bert_model", "bert-base-uncased"]
            write_run(tmp_path / dtype / str(seed), "MRPC", dtype=dtype, seed=seed, rows=DEV_ROWS["MRPC"], flags=flags)
    runs = gather([tmp_path])
    found = list(page.flat(document(runs)[2]))
    rows = tables(found)["Published figures of the same checkpoint"].rows
    mean = np.mean([run.scores("last")["f1"] for run in runs if run.dtype == "float32"])
    assert {text(row["Here"]) for row in rows if (row["Metric"], row["Precision"]) == ("f1", "float32")} >= {f"{mean:.1f}"}
    assert len(rows) > 8 and {row["Task"] for row in rows} == {"MRPC"}
    said = texts(found)
    assert sum(line.startswith("float32, accuracy: ") for line in said) == sum(
        (row["Metric"], row["Precision"]) == ("accuracy", "float32") for row in rows
    )
    assert any(line.startswith("accuracy, bfloat16 against float32: ") for line in said)


def test_the_command_writes_the_same_again(suite, tmp_path, capsys):
    folder = str(suite / "WNLI-float32-seed0")
    assert finetune_classifier.main(["--report", folder, "--output_dir", str(tmp_path / "a")]) == 0
    said = capsys.readouterr().out
    paths = write_report(gather([folder]), tmp_path / "b")
    assert len(paths) == 3 and re.search(r"^WNLI +float32 ", said, flags=re.M)
    assert all(f"wrote {tmp_path / 'a' / path.name}\n" in said for path in paths)
    files = [path for path in (tmp_path / "b").rglob("*") if path.is_file()]
    assert len(files) > 8
    for path in files:
        assert path.read_bytes() == (tmp_path / "a" / path.relative_to(tmp_path / "b")).read_bytes()
    assert finetune_classifier.main(["--report", str(tmp_path / "nothing"), "--output_dir", str(tmp_path)]) == 2


# Pictures


def test_a_thinned_curve_keeps_means_and_extremes():
    values = np.random.default_rng(0).normal(size=1000)
    values[17] = np.nan
    steps, mean, low, high = plots.thin(np.arange(1, 1001), values, 100)
    slices = values.reshape(100, 10)
    assert steps.tolist() == list(range(1, 1001, 10))
    np.testing.assert_allclose(mean, np.nanmean(slices, axis=1))
    np.testing.assert_array_equal(low, np.nanmin(slices, axis=1))
    np.testing.assert_array_equal(high, np.nanmax(slices, axis=1))
    assert [len(part) for part in plots.thin([1, 2], [3.0, 4.0], 100)] == [2] * 4


def test_a_drawing_takes_its_colours_from_the_page():
    look = plots.Series("float16", "float16")
    figure = plots.confusion(np.array([[3, 1], [0, 4]]), ["a$b$", "<c>"], look)
    svg = plots.to_svg(figure, "name", 'it\'s "<alt>"')
    assert svg == plots.to_svg(figure, "name", 'it\'s "<alt>"')
    assert "var(--float16)" in svg and "var(--ink)" in svg and not re.search(r"#[0-9a-f]{6}|font-family|<style", svg)
    assert 'aria-label="it\'s &quot;&lt;alt&gt;&quot;"' in svg
    assert {"75%", "25%", "0%", "100%", "a$b$", "&lt;c&gt;"} <= set(re.findall(r"<text[^>]*>([^<]+)</text>", svg))
    other = plots.to_svg(figure, "other", "")
    assert not set(re.findall(r'\bid="([^"]+)"', svg)) & set(re.findall(r'\bid="([^"]+)"', other))


@pytest.mark.parametrize("task_name", TASKS)
def test_every_task_can_be_reported(task_name, tmp_path):
    if not TASKS[task_name].split_names("dev"):
        pytest.skip("it has no dev split")
    write_run(tmp_path / "run", task_name, rows=12, updates=6)
    title, _, blocks = document(gather([tmp_path]))
    assert title == "minilm_6_384_12 on GLUE"
    assert len(list(page.pictures(blocks))) >= 6
