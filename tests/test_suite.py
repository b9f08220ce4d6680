"""Suites: which runs a command line means, and that each is made once, whatever happens to the suite.

Most of it runs a stand-in for the script, which knows the command line and the folder's contract and trains nothing.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT

from bert import InputError, Stopped
from bert.config import FinetuneConfig, ReportConfig, SuiteConfig, command_line, parse, run_name
from bert.engines import installed
from bert.folder import locked_folder
from bert.logs import RunLog
from bert.recipes import RECIPES
from bert.suite import run_suite
from bert.tasks import GLUE, TASKS

SCRIPT = ROOT / "finetune_classifier.py"

# --- which runs ------------------------------------------------------------------------------------------------------


def parsed(words):
    return parse(words.split())


def names(*words):
    return [run_name(run) for run in parse(list(words)).runs]


def test_every_combination_is_a_run_in_a_folder_of_its_own():
    suite = parsed("--task_name sst MRPC --dtype float32 float16 --seeds 0-1 7 --output_dir out --jobs 2")
    assert isinstance(suite, SuiteConfig) and suite.jobs == 2
    expected = [
        f"{task}-{dtype}-seed{seed}" for seed in (0, 1, 7) for dtype in ("float32", "float16") for task in ("SST-2", "MRPC")
    ]
    assert [run_name(run) for run in suite.runs] == expected
    assert [run.output_dir for run in suite.runs] == [f"out/{name}" for name in expected]


def test_one_run_is_no_suite():
    for words in ("--task_name MRPC", "--task_name mrpc --dtype float16 --seed 3", "--train_file a.csv --dev_file b.csv"):
        assert isinstance(parsed(words), FinetuneConfig)
    assert len(parsed("--task_name MRPC --seeds 3").runs) == 1  # asked for as a suite, so it is one
    assert names("--train_file", "a.csv", "--dev_file", "b.csv", "--seeds", "0-1") == [
        "own-float32-seed0",
        "own-float32-seed1",
    ]


def test_glue_is_its_nine_tasks_and_nothing_comes_twice():
    assert names("--task_name", "GLUE", "--seeds", "0") == [f"{task}-float32-seed0" for task in GLUE]
    assert len(GLUE) == 9 and set(GLUE) < set(TASKS)
    assert names("--task_name", "rte", "RTE", "--seeds", "0", "0-1") == ["RTE-float32-seed0", "RTE-float32-seed1"]


def test_from_mnli_comes_first_and_three_tasks_start_from_it():
    suite = parsed("--task_name RTE CoLA STS-B MNLI MRPC --seeds 0-1 --from_mnli --output_dir out --bert_model m")
    for seed in (0, 1):
        runs = [run for run in suite.runs if run.seed == seed]
        assert runs[0].task_name == "MNLI"
        models = {run.task_name: run.bert_model for run in runs}
        model = f"out/MNLI-float32-seed{seed}/model"
        assert models == {"MNLI": "m", "CoLA": "m", "RTE": model, "STS-B": model, "MRPC": model}


@pytest.mark.parametrize(
    "words, expected",
    [
        ("--seeds 4-0", "seeds"),
        ("--seeds 0-", "range"),
        ("--seeds -1", "seeds"),
        ("--seeds x", "range"),
        ("--seeds 0-100000", "100001 seeds"),
        ("--seeds 99999999999", "2**32"),
        ("--seed 1 --seeds 2", "not allowed with"),
        ("--seeds 0 --jobs 0", "--jobs is 0"),
        ("--seeds 0 --from_mnli", "MNLI among"),
        ("--from_mnli", "for a suite"),
        ("--retry_failed", "for a suite"),
        ("--seeds 0-1 --only_inference --model_parameters m", "for one run"),
        ("--seeds 0-1 --recipe nobody", "nobody"),
        ("--seeds 0-1 --seed 2", "not allowed with"),  # the default's value
        ("--jobs 2", "for a suite"),
        ("--print_commands --overwrite", "exclude each other"),
        ("--print_commands --dry_run", "exclude each other"),
        ("--report a", "--task_name has no place"),
        ("--report a --leaderboard b", "not allowed with"),
        ("--dtype float32 float64", "float64"),
        ("--seeds 0 --lr 0", "--lr is 0"),
    ],
)
def test_what_makes_no_sense_is_refused(words, expected, refused):
    assert expected in refused("--task_name", "MRPC", *words.split())


def test_a_fault_of_every_run_is_told_once(refused):
    line = refused("--task_name", "MRPC", "RTE", "--seeds", "0-4", "--epochs", "0")
    assert line.count("--epochs") == 1


# --- recipes and commands --------------------------------------------------------------------------------------------


def test_recipes_give_each_task_its_published_values():
    """Literal values from references: GluonNLP's published commands, Devlin et al., Mosbach et al., MiniLM's appendix B."""
    runs = {run.task_name: run for run in parsed("--task_name GLUE --seeds 0 --recipe gluonnlp").runs}
    assert (runs["CoLA"].epochs, runs["CoLA"].lr, runs["CoLA"].optimizer) == (10, 2e-5, "bertadam")
    assert (runs["MNLI"].epochs, runs["MNLI"].batch_size) == (4, 48)
    assert (runs["RTE"].epochs, runs["RTE"].batch_size, runs["RTE"].lr) == (5, 32, 2e-5)
    assert (runs["WNLI"].epochs, runs["WNLI"].lr) == (3, 3e-5)
    one = parsed("--task_name RTE --recipe mosbach")
    assert (one.batch_size, one.epochs, one.lr, one.epsilon, one.optimizer) == (16, 20, 2e-5, 1e-6, "adamw")
    one = parsed("--task_name RTE --recipe devlin")
    assert (one.batch_size, one.epochs, one.lr, one.warmup_ratio, one.optimizer) == (32, 3, 2e-5, 0.1, "bertadam")
    one = parsed("--task_name MRPC --recipe minilm")
    assert (one.batch_size, one.epochs, one.lr) == (32, 10, 1.5e-5)
    assert all(recipe.source for recipe in RECIPES.values())


@pytest.mark.parametrize("recipe", RECIPES)
def test_flags_win_over_a_recipe_also_when_they_say_the_default(recipe):
    config = parsed(f"--task_name RTE --recipe {recipe} --lr 3e-5 --epochs 3")
    assert (config.lr, config.epochs) == (3e-5, 3)
    assert parse(command_line(config)) == config


@pytest.mark.parametrize(
    "words",
    [
        "--task_name MRPC",
        "--task_name STS-B --recipe gluonnlp --batch_size 32 --seed 0",
        "--task_name MNLI --dtype float16 --loss_scale 128 --gpu 1 --engine mxnet --pad --epsilon 1e-08",
        "--task_name MNLI --loss_scale dynamic --dtype float16 --lr 1.2345678901234567e-05 --output_dir a/b --resume",
        "--train_file a.csv --dev_file b.csv --regression --training_steps 7 --save_steps 3 --max_minutes 0.5 --overwrite",
        "--task_name AX --only_inference --model_parameters m --dev_batch_size 3",
    ],
)
def test_a_command_line_leads_back_to_its_config(words):
    config = parsed(words)
    assert parse(command_line(config)) == config
    assert parse(command_line(json.loads(json.dumps(vars(config))))) == config  # as config.json has it


def test_print_commands_prints_the_runs_and_starts_none(run_cli, tmp_path):
    flags = ["--task_name", "GLUE", "--seeds", "0-1", "--from_mnli", "--recipe", "devlin", "--lr", "3e-5"]
    result = run_cli(*flags, "--output_dir", tmp_path / "a b", "--print_commands")
    lines = result.out.splitlines()
    assert result.code == 0 and len(lines) == 18 and not (tmp_path / "a b").exists()
    assert "MNLI" in result.err  # that the others wait for it
    runs = parse([*flags, "--output_dir", str(tmp_path / "a b")]).runs
    for line, run in zip(lines, runs):
        python, script, *words = shlex.split(line)
        assert (python, Path(script)) == (sys.executable, SCRIPT) and parse(words) == run


# --- making them, with a stand-in for the script ---------------------------------------------------------------------

STAND_IN = """
import hashlib, json, os, signal, sys, time
from dataclasses import asdict
from pathlib import Path
from bert.config import parse, run_name

config = parse(sys.argv[1:])
folder = Path(config.output_dir)
folder.mkdir(parents=True, exist_ok=True)
here = Path(__file__).parent
name = run_name(config)

def note(word):
    with open(here / "events.txt", "a") as file:
        file.write(f"{name} {word}\\n")

def stop(number, frame):
    note("stopped")
    sys.exit(3)

time.sleep(float(os.environ.get("STAND_IN_STARTS", "0")))
signal.signal(signal.SIGTERM, signal.SIG_IGN if os.environ.get("STAND_IN_DEAF") else stop)
note("begin")
if name in os.environ.get("STAND_IN_STOPS", "").split():
    stop(None, None)
record = {"config": asdict(config), "engine": {"name": "pytorch"}, "plan": {"total_updates": 10}, "versions": {}}
record["data_sha256"] = {}
for split in ("train", "dev"):
    path = Path(config.data_dir, config.task_name or "", f"{split}.tsv")
    if path.exists():
        record["data_sha256"][split] = hashlib.sha256(path.read_bytes()).hexdigest()
(folder / "config.json").write_text(json.dumps(record))
(folder / "log.jsonl").write_text(json.dumps({"step": 5}) + "\\n")
time.sleep(float(os.environ.get("STAND_IN_SECONDS", "0")))
if name in os.environ.get("STAND_IN_FAILS", "").split():
    print("error: it went wrong", file=sys.stderr)
    sys.exit(1)
if name in os.environ.get("STAND_IN_REFUSES", "").split():
    print("error: no such model", file=sys.stderr)
    sys.exit(2)
if name in os.environ.get("STAND_IN_CRASHES", "").split():
    os.kill(os.getpid(), signal.SIGKILL)
scores = {"dev": {"accuracy": 0.5, "loss": 1.0}}
results = {"scores": {"best": scores, "last": scores}, "train_seconds": 1.0, "eval_seconds": 0.5}
(folder / "results.json").write_text(json.dumps(results))
note("end")
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    return script


@pytest.fixture
def flags(tmp_path, glue_folder):
    return ["--data_dir", str(glue_folder), "--output_dir", str(tmp_path / "out")]


def events(script):
    path = script.with_name("events.txt")
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def begun(script):
    return [name for name, what in events(script) if what == "begin"]


@pytest.fixture
def make(stand_in, flags):
    """Run a suite of the stand-in: make("--task_name ...", more flags) -> [(name, error)] of the runs that failed."""
    return lambda words, *more: run_suite(parse([*words.split(), *flags, *more]), str(stand_in), RunLog())


def test_runs_are_made_once_and_their_outcome_is_told(make, stand_in, flags, capsys, tmp_path):
    assert make("--task_name MRPC RTE --seeds 0 1") == []
    told = capsys.readouterr().out
    assert begun(stand_in) == ["MRPC-float32-seed0", "RTE-float32-seed0", "MRPC-float32-seed1", "RTE-float32-seed1"]
    assert "MRPC-float32-seed1: accuracy 50.0" in told and "[4 of 4 runs finished]" in told
    with pytest.raises(InputError, match="not empty"):
        make("--task_name MRPC RTE --seeds 0 1")
    assert make("--task_name MRPC RTE --seeds 0-2 --resume") == []  # more seeds: only those are new
    assert begun(stand_in)[4:] == ["MRPC-float32-seed2", "RTE-float32-seed2"]
    assert make("--task_name RTE --seeds 1 --overwrite") == []
    assert begun(stand_in)[6:] == ["RTE-float32-seed1"]
    assert not (tmp_path / "out" / ".lock").exists()


def test_a_run_that_would_not_go_on_as_it_began_is_refused_before_any_starts(make, stand_in):
    make("--task_name MRPC --seeds 0")
    with pytest.raises(InputError, match=r"MRPC-float32-seed0: .*--lr was 3e-05, is 0.001"):
        make("--task_name RTE MRPC --seeds 0 --resume --lr 1e-3")
    assert begun(stand_in) == ["MRPC-float32-seed0"]


def test_failed_runs_are_named_and_tried_again_on_demand_only(make, stand_in, monkeypatch, capsys):
    monkeypatch.setenv("STAND_IN_FAILS", "RTE-float32-seed0")
    monkeypatch.setenv("STAND_IN_CRASHES", "MRPC-float32-seed0")
    failed = dict(make("--task_name MRPC RTE WNLI --seeds 0"))
    assert failed.keys() == {"RTE-float32-seed0", "MRPC-float32-seed0"}  # and WNLI was made all the same
    assert failed["RTE-float32-seed0"].startswith("it went wrong (exit code 1; see ")
    assert failed["MRPC-float32-seed0"].startswith("no message (signal 9; see ")
    assert "2 failed" in capsys.readouterr().out
    monkeypatch.setenv("STAND_IN_FAILS", "")
    monkeypatch.setenv("STAND_IN_CRASHES", "")
    assert dict(make("--task_name MRPC RTE WNLI --seeds 0 --resume")) == failed
    assert len(begun(stand_in)) == 3
    assert make("--task_name MRPC RTE WNLI --seeds 0 --resume --retry_failed") == []
    assert sorted(begun(stand_in)[3:]) == ["MRPC-float32-seed0", "RTE-float32-seed0"]


def test_a_retry_is_not_blamed_for_what_the_run_said_before(make, monkeypatch):
    monkeypatch.setenv("STAND_IN_FAILS", "MRPC-float32-seed0")
    make("--task_name MRPC --seeds 0")
    monkeypatch.setenv("STAND_IN_FAILS", "")
    monkeypatch.setenv("STAND_IN_CRASHES", "MRPC-float32-seed0")
    ((_, error),) = make("--task_name MRPC --seeds 0 --resume --retry_failed")
    assert error.startswith("no message (signal 9; see ")


def test_wrong_input_is_no_reason_not_to_try_again(make, stand_in, monkeypatch):
    monkeypatch.setenv("STAND_IN_REFUSES", "MRPC-float32-seed0")
    ((_, error),) = make("--task_name MRPC --seeds 0")
    assert error.startswith("no such model (exit code 2")
    monkeypatch.setenv("STAND_IN_REFUSES", "")
    assert make("--task_name MRPC --seeds 0 --resume") == []


def test_a_suite_remembers_the_failures_of_runs_that_are_not_asked_for_now(make, stand_in, monkeypatch):
    monkeypatch.setenv("STAND_IN_FAILS", "RTE-float32-seed0")
    make("--task_name MRPC RTE --seeds 0")
    make("--task_name MRPC --seeds 0 --resume")
    assert len(make("--task_name MRPC RTE --seeds 0 --resume")) == 1 and len(begun(stand_in)) == 2


@pytest.mark.parametrize("content", ["", "[]", '{"failed": 5}', '{"failed": ["MRPC-float32-seed0"]}'])
def test_a_damaged_record_is_named(content, make, tmp_path):
    make("--task_name MRPC --seeds 0")
    (tmp_path / "out" / "suite.json").write_text(content)
    with pytest.raises(InputError, match="suite.json"):
        make("--task_name MRPC --seeds 0 --resume")


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("change", ["model", "data", "engine", "from_mnli"])
def test_runs_that_began_with_something_else_are_not_taken_for_the_suites(change, finished, make, tmp_path, glue_writer):
    make("--task_name RTE MNLI --seeds 0")
    if not finished:
        (tmp_path / "out" / "RTE-float32-seed0" / "results.json").unlink()
    more = {"model": ["--bert_model", "another"], "engine": ["--engine", "mxnet"], "from_mnli": ["--from_mnli"]}.get(change)
    if change == "data":
        glue_writer.task(tmp_path / "glue", "RTE", train=20)
        glue_writer.task(tmp_path / "glue", "MNLI")
        more = ["--data_dir", str(tmp_path / "glue")]
    with pytest.raises(InputError, match="begun with something else: .* was .*, is "):
        make("--task_name RTE MNLI --seeds 0 --resume", *more)


def test_the_same_data_under_another_name_are_the_same(make, stand_in, tmp_path, glue_folder):
    make("--task_name RTE --seeds 0")
    shutil.copytree(glue_folder, tmp_path / "copy")
    assert make("--task_name RTE --seeds 0 --resume", "--data_dir", str(tmp_path / "copy")) == []
    assert begun(stand_in) == ["RTE-float32-seed0"]


def test_overwrite_removes_nothing_before_all_is_checked(make, stand_in, tmp_path):
    make("--task_name MRPC RTE --seeds 0")
    model = tmp_path / "out" / "RTE-float32-seed0" / "model"
    model.mkdir()
    with pytest.raises(InputError, match="no files for"):
        make("--task_name MRPC RTE --seeds 0 --overwrite", "--data_dir", str(tmp_path))
    with pytest.raises(InputError, match="which this run reads"):
        make("--task_name MRPC RTE --seeds 0 --overwrite", "--bert_model", str(model))
    with locked_folder(tmp_path / "out" / "RTE-float32-seed0"), pytest.raises(InputError, match="in use"):
        make("--task_name MRPC RTE --seeds 0 --overwrite")
    assert len(list((tmp_path / "out").glob("*/results.json"))) == 2
    assert make("--task_name MRPC RTE --seeds 0 --overwrite --lr 1e-3") == [] and len(begun(stand_in)) == 4


def test_what_starts_from_mnli_takes_no_other_weights():
    suite = parsed("--task_name MNLI RTE --seeds 0 --from_mnli --model_parameters a/model --output_dir out")
    assert [run.model_parameters for run in suite.runs] == ["a/model", None]


def test_what_starts_from_mnli_waits_for_it(make, stand_in, monkeypatch):
    monkeypatch.setenv("STAND_IN_SECONDS", "0.3")
    make("--task_name RTE CoLA MNLI --seeds 0 --from_mnli --jobs 3")
    order = events(stand_in)
    assert order.index(["RTE-float32-seed0", "begin"]) > order.index(["MNLI-float32-seed0", "end"])
    assert order.index(["CoLA-float32-seed0", "begin"]) < order.index(["MNLI-float32-seed0", "end"])


def test_what_starts_from_a_run_that_failed_fails_with_it(make, stand_in, monkeypatch):
    monkeypatch.setenv("STAND_IN_FAILS", "MNLI-float32-seed0")
    failed = dict(make("--task_name RTE MNLI --seeds 0 --from_mnli"))
    assert "MNLI-float32-seed0" in failed["RTE-float32-seed0"] and begun(stand_in) == ["MNLI-float32-seed0"]


@pytest.mark.parametrize("jobs", [1, 3])
def test_jobs_is_how_many_run_at_a_time(make, jobs, stand_in, monkeypatch):
    monkeypatch.setenv("STAND_IN_SECONDS", "0.5")
    make(f"--task_name CoLA MRPC RTE WNLI --seeds 0 --jobs {jobs}")
    running = most = 0
    for _, what in events(stand_in):
        running += {"begin": 1, "end": -1}[what]
        most = max(most, running)
    assert most == jobs


def test_missing_files_are_named_before_anything_starts(refused, tmp_path, glue_writer):
    glue_writer.task(tmp_path / "glue", "RTE")
    flags = ["--data_dir", tmp_path / "glue", "--output_dir", tmp_path / "new"]
    line = refused("--task_name", "RTE", "QNLI", "MNLI", "--seeds", "0", *flags)
    assert "QNLI (QNLI/train.tsv)" in line and "MNLI (MNLI/train.tsv)" in line and "RTE (" not in line
    assert not list((tmp_path / "new").rglob("*"))


# --- being killed ----------------------------------------------------------------------------------------------------

SUITE = """
import sys
sys.path.insert(0, {root!r})
from bert import Stopped
from bert.config import parse
from bert.logs import RunLog
from bert.suite import run_suite
try:
    run_suite(parse(sys.argv[1:]), {script!r}, RunLog())
except Stopped:
    sys.exit(3)
"""


def start(script, words, flags):
    code = SUITE.format(root=str(ROOT), script=str(script))
    return subprocess.Popen([sys.executable, "-c", code, *words.split(), *flags], stdout=subprocess.PIPE, text=True)


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_runs_save_and_the_suite_goes_on_later(make, number, stand_in, flags, monkeypatch):
    monkeypatch.setenv("STAND_IN_SECONDS", "30")
    process = start(stand_in, "--task_name MRPC RTE WNLI --seeds 0 --jobs 2", flags)
    wait_for(lambda: len(begun(stand_in)) == 2)
    process.send_signal(number)
    assert process.wait(20) == 3
    assert sorted(what for _, what in events(stand_in)) == ["begin", "begin", "stopped", "stopped"]
    monkeypatch.setenv("STAND_IN_SECONDS", "0")
    assert make("--task_name MRPC RTE WNLI --seeds 0 --resume") == []
    assert sum(what == "end" for _, what in events(stand_in)) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere runs outlive a suite that is killed")
def test_a_suite_that_is_killed_leaves_nothing_running_and_goes_on(make, stand_in, flags, monkeypatch):
    monkeypatch.setenv("STAND_IN_SECONDS", "30")
    process = start(stand_in, "--task_name MRPC RTE --seeds 0", flags)
    wait_for(lambda: len(begun(stand_in)) == 1)
    process.kill()
    process.wait()
    monkeypatch.setenv("STAND_IN_SECONDS", "0")
    assert make("--task_name MRPC RTE --seeds 0 --resume") == []  # at once: it waits for the lock by itself
    assert [what for _, what in events(stand_in)] == ["begin", "stopped", "begin", "end", "begin", "end"]


def test_a_second_signal_ends_the_runs_at_once_and_none_has_failed(make, stand_in, flags, monkeypatch):
    monkeypatch.setenv("STAND_IN_SECONDS", "30")
    monkeypatch.setenv("STAND_IN_DEAF", "1")
    process = start(stand_in, "--task_name MRPC RTE --seeds 0 --jobs 2", flags)
    wait_for(lambda: len(begun(stand_in)) == 2)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    assert process.wait(20) != 0
    monkeypatch.setenv("STAND_IN_SECONDS", "0")
    assert make("--task_name MRPC RTE --seeds 0 --resume") == []
    assert sum(what == "end" for _, what in events(stand_in)) == 2


def test_a_run_that_had_not_begun_to_listen_has_not_failed(make, stand_in, flags, monkeypatch):
    monkeypatch.setenv("STAND_IN_STARTS", "30")
    process = start(stand_in, "--task_name MRPC --seeds 0", flags)
    wait_for(lambda: Path(flags[-1], "MRPC-float32-seed0.txt").exists())
    time.sleep(0.3)
    process.terminate()
    assert process.wait(20) == 3
    monkeypatch.setenv("STAND_IN_STARTS", "0")
    assert make("--task_name MRPC --seeds 0 --resume") == []


def test_a_run_that_somebody_else_stops_is_continued_with_what_starts_from_it(make, stand_in, monkeypatch):
    monkeypatch.setenv("STAND_IN_STOPS", "MNLI-float32-seed0")
    with pytest.raises(Stopped, match="MNLI-float32-seed0, RTE-float32-seed0 by somebody else"):
        make("--task_name MNLI RTE --seeds 0 --from_mnli")
    monkeypatch.setenv("STAND_IN_STOPS", "")
    assert make("--task_name MNLI RTE --seeds 0 --from_mnli --resume") == []
    assert sum(what == "end" for _, what in events(stand_in)) == 2


def test_one_sigterm_to_all_processes_is_one_request(stand_in, flags, tmp_path):
    """As a scheduler sends it: the run hears of it twice, from there and from the suite."""
    code = f"""
import os, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
from bert import Stopped
from bert.stop import StopRequest
stop = StopRequest()
with stop.listening():
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)
    try:
        stop.check()
    except Stopped:
        sys.exit(3)
"""
    assert subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode == 3


def test_two_suites_on_one_folder_are_one_too_many(make, stand_in, flags, monkeypatch):
    monkeypatch.setattr("bert.suite._PATIENCE", 0.5)
    monkeypatch.setenv("STAND_IN_SECONDS", "30")
    process = start(stand_in, "--task_name MRPC --seeds 0", flags)
    wait_for(lambda: begun(stand_in))
    with pytest.raises(InputError, match=f"in use by another run, process {process.pid}"):
        make("--task_name MRPC --seeds 0 --resume")
    process.terminate()
    assert process.wait(20) == 3


def test_a_budget_of_minutes_is_the_suites(stand_in, flags, monkeypatch):
    monkeypatch.setenv("STAND_IN_SECONDS", "30")
    assert start(stand_in, "--task_name MRPC --seeds 0 --max_minutes 0.02", flags).wait(20) == 3
    assert [what for _, what in events(stand_in)] == ["begin", "stopped"]


def test_a_dry_run_tells_what_is_done_and_writes_nothing(make, stand_in, run_cli, flags, tmp_path):
    make("--task_name MRPC --seeds 0")
    before = sorted(os.listdir(tmp_path / "out"))
    result = run_cli("--task_name", "MRPC", "--seeds", "0-1", "--resume", "--dry_run", *flags)
    assert result.code == 0
    assert "MRPC-float32-seed0: finished" in result.out and "MRPC-float32-seed1: waiting" in result.out
    assert sorted(os.listdir(tmp_path / "out")) == before


def test_report_is_a_command_of_its_own():
    assert parse(["--report", "a", "b", "--output_dir", "c"]) == ReportConfig(("a", "b"), "c")


# --- with the script itself ------------------------------------------------------------------------------------------


def outcome(folder):
    """What a suite's runs came to: every file but those that hold times, and the log without its."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (path.parent.name in ("predictions", "model") or path.name == "log.jsonl"):
            content = path.read_bytes().replace(str(folder).encode(), b"")  # a model's card says what it was made from
            if path.name == "log.jsonl":
                content = [{**json.loads(line), "tokens_per_second": None} for line in content.splitlines()]
            found[str(path.relative_to(folder))] = content
    return found


@pytest.mark.skipif(not installed("pytorch"), reason="PyTorch is not installed")
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere runs outlive a suite that is killed")
def test_a_suite_killed_twice_ends_as_one_left_alone(tmp_path, bert_folder, glue_folder):
    words = ["--task_name", "RTE", "MNLI", "--from_mnli", "--seeds", "0-1", "--data_dir", str(glue_folder), "--bert_model"]
    words += [
        str(bert_folder),
        "--batch_size",
        "2",
        "--epochs",
        "30",
        "--save_steps",
        "4",
        "--engine",
        "pytorch",
        "--jobs",
        "2",
    ]

    def begin(name):
        command = [sys.executable, str(SCRIPT), *words, "--output_dir", str(tmp_path / name), "--resume"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def seen(pattern):
        return lambda: list((tmp_path / "killed").glob(pattern))

    alone = begin("alone")
    assert alone.wait(120) == 0
    for pattern in ("MNLI-*/checkpoints/step-*", "RTE-*/checkpoints/step-*"):
        process = begin("killed")
        wait_for(seen(pattern), 60)
        process.kill()
        process.wait()
    assert begin("killed").wait(120) == 0
    expected, found = outcome(tmp_path / "alone"), outcome(tmp_path / "killed")
    assert expected.keys() == found.keys() and len(expected) > 30
    assert [name for name in expected if expected[name] != found[name]] == []
