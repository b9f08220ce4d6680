"""--tensorboard: TensorBoard reads from its files what log.jsonl says, over stops and resumes too."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from test_resume import ROOT, HungryEngine, StatefulEngine, StopAt, needs_torch, session, small_disk  # noqa: F401 (a fixture)
from test_training import CountingEngine, run

from bert import InputError
from bert.folder import claim_folder
from bert.logs import RunLog

CURVES = ("loss", "learning_rate", "grad_norm", "loss_scale", "skipped", "tokens_per_second")


@pytest.fixture(scope="module")
def accumulator():
    """TensorBoard's own reader; skipped where it is not installed."""
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    return lambda folder: module.EventAccumulator(str(folder), size_guidance={module.SCALARS: 0})


def scalars(reader):
    """tag -> [(step, value)], as TensorBoard has them."""
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def logged(folder):
    """The same of log.jsonl, null left out, as float32."""
    found = {}
    for line in (folder / "log.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "evaluation" in record:
            step = record["evaluation"]["step"]
            scores = record["evaluation"]["scores"]
            values = {f"{split}/{metric}": value for split in scores for metric, value in scores[split].items()}
        else:
            step, values = record["step"], {f"train/{name}": record[name] for name in CURVES}
        for tag, value in values.items():
            if value is not None:
                found.setdefault(tag, []).append((step, float(np.float32(value))))
    return found


def test_tensorboard_shows_what_the_log_says(tmp_path, accumulator):
    log = RunLog(tensorboard=True)
    log.open(tmp_path / "log.jsonl")
    engine = CountingEngine(norms=[1.0, math.inf, 2.0])
    run(engine, rows=6, log=log, batch_size=2, epochs=2, dtype="float16", log_interval=2)
    log.close()
    found = scalars(accumulator(tmp_path / "tensorboard"))
    assert found == logged(tmp_path)
    assert found.keys() == {f"train/{name}" for name in CURVES} | {"dev/accuracy", "dev/loss"}
    assert [step for step, _ in found["train/loss"]] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in found["train/grad_norm"]] == [1, 3, 4, 5, 6]  # the overflow of step 2 is no number
    assert [value for _, value in found["train/skipped"]] == [0, 1, 0, 0, 0, 0]
    assert [value for _, value in found["train/loss_scale"]] == [65536] * 2 + [32768] * 4
    assert [step for step, _ in found["dev/accuracy"]] == [3, 6]


def test_both_halves_of_mnli_have_curves_and_no_number_breaks_the_file(tmp_path, accumulator):
    log = RunLog(tensorboard=True)
    log.open(tmp_path / "log.jsonl")
    scores = {"dev_matched": {"accuracy": 0.5, "loss": math.nan}, "dev_mismatched": {"accuracy": 0.25, "loss": 1e300}}
    log.write([{"evaluation": {"epoch": 1, "step": 2**40, "primary": 0.375, "scores": scores}}])
    log.close()
    found = scalars(accumulator(tmp_path / "tensorboard"))
    assert found["dev_matched/accuracy"] == [(2**40, 0.5)] and found["dev_mismatched/accuracy"] == [(2**40, 0.25)]
    assert "dev_matched/loss" not in found and found["dev_mismatched/loss"] == [(2**40, math.inf)]  # beyond float32


@pytest.mark.parametrize("check", [2, 4, 6, 7, 9, 14])  # 6 updates and one batch of evaluation, twice
def test_no_step_is_there_twice_after_a_resume(check, tmp_path, accumulator):
    flags = "--tensorboard --save_steps 3 --log_interval 1"
    session(tmp_path, StatefulEngine(), flags=flags, stop=StopAt(check))
    watching = accumulator(tmp_path / "tensorboard")
    assert scalars(watching) == logged(tmp_path)
    for checkpoint in sorted((tmp_path / "checkpoints").iterdir())[1:]:
        checkpoint.unlink()  # as after a kill: the updates since the one before are done, and logged, again
    result, _ = session(tmp_path, StatefulEngine(), flags=flags)
    assert result.updates == 12
    found = scalars(accumulator(tmp_path / "tensorboard"))
    assert found == logged(tmp_path)
    assert [step for step, _ in found["train/loss"]] == list(range(1, 13))
    assert [step for step, _ in found["dev/loss"]] == [6, 12]
    assert scalars(watching) == found  # by who has read the first session's
    sizes = [path.stat().st_size for path in sorted((tmp_path / "tensorboard").iterdir())]
    assert len(sizes) == 2 and sizes[0] == 0  # what the first session wrote is not kept twice


def test_a_run_that_was_begun_without_it_is_shown_whole(tmp_path, accumulator):
    session(tmp_path, StatefulEngine(), stop=StopAt(9))
    assert not (tmp_path / "tensorboard").exists()
    session(tmp_path, StatefulEngine(), flags="--tensorboard")
    found = scalars(accumulator(tmp_path / "tensorboard"))
    assert found == logged(tmp_path) and [step for step, _ in found["train/loss"]] == list(range(1, 13))


@pytest.mark.parametrize("content", ["[]\n", "{}\n", "no JSON\n", '{"step": 1, "loss": "high"}\n', '{"evaluation": 3}\n'])
def test_a_damaged_log_is_refused_in_one_line(content, tmp_path, accumulator):
    (tmp_path / "log.jsonl").write_text(content)
    with pytest.raises(InputError, match=r"log.jsonl: is not the log of a run"):
        RunLog(tensorboard=True).open(tmp_path / "log.jsonl", keep=len(content))


def test_a_full_disk_costs_curves_but_not_the_run(small_disk, accumulator, capsys):  # noqa: F811 (a fixture)
    disk = small_disk(2000)
    flags = "--tensorboard --log_interval 1 --epochs 20"
    result, _ = session(
        disk, HungryEngine(disk, leave=0), flags=flags, rows=20
    )  # fills it within update 5, frees it within 9
    out = capsys.readouterr().out
    assert result.updates == 100 and "Traceback" not in out
    found = [step for step, _ in scalars(accumulator(disk / "tensorboard"))["train/loss"]]
    assert found == sorted(set(found)) and set(range(1, 5)) | set(range(10, 101)) <= set(found)


def test_without_the_package_it_is_refused_before_anything_is_done(refused, monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    line = refused("--task_name", "RTE", "--tensorboard", "--output_dir", tmp_path / "run")
    assert line.startswith("error: --tensorboard: ") and line.endswith("; pip install '.[tensorboard]'")
    assert not (tmp_path / "run").exists()


def test_it_brings_in_no_framework(accumulator):
    code = "import sys; from bert.logs import RunLog; RunLog(tensorboard=True); "
    code += "print(*{'torch', 'mxnet', 'tensorflow', 'grpc'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout == "\n"


def test_overwrite_clears_it(tmp_path):
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "events.out.tfevents.1.1").write_bytes(b"")
    with claim_folder(tmp_path, overwrite=True, resume=False):
        assert not (tmp_path / "tensorboard").exists()


@needs_torch
def test_the_flag_does_it(make_model, glue_writer, run_cli, tmp_path, accumulator):
    make_model(tmp_path / "bert")
    glue_writer.task(tmp_path / "glue", "RTE", train=12, dev=6, test=3)
    flags = ["--task_name", "RTE", "--data_dir", tmp_path / "glue", "--bert_model", tmp_path / "bert", "--engine", "pytorch"]
    flags += ["--batch_size", 4, "--epochs", 2, "--output_dir", tmp_path / "run", "--tensorboard"]
    done = run_cli(*flags)
    assert done.code == 0, done.err
    found = scalars(accumulator(tmp_path / "run" / "tensorboard"))
    assert found == logged(tmp_path / "run") and len(found["train/loss"]) == 6 and len(found["dev/accuracy"]) == 2
