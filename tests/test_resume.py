"""Nothing lost: a run that is cut anywhere goes on to the same bits; and what faults of disks and people do to it."""

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from test_training import BATCHING, RTE, CountingEngine, make_features

import bert.checkpoint
import bert.training
import finetune_classifier
from bert import InputError, RunError, Stopped
from bert.checkpoint import Checkpoints
from bert.config import parse, resume_command
from bert.engines import installed, out_of_memory
from bert.folder import LOCK, MAY_CHANGE, claim_folder
from bert.logs import RunLog
from bert.plan import make_plan
from bert.precision import LossScaler, make_loss_scaler
from bert.stop import StopRequest
from bert.training import Result, train

needs_torch = pytest.mark.skipif(not installed("pytorch"), reason="torch is not installed")
ROOT = Path(finetune_classifier.__file__).parent
DTYPES = ["float32", "float16", "bfloat16"]


class Killed(BaseException):
    """In the place of SIGKILL, for cuts at a chosen call; tests/torture.py sends the real one at any instant."""


def kill_at(monkeypatch, owner, name, call, *, before=True, error=Killed):
    """The `call`-th call (from 1) of owner.name raises, before or after doing its work."""
    function, calls = getattr(owner, name), []

    def wrapped(*arguments, **options):
        calls.append(1)
        if before and len(calls) == call:
            raise error
        result = function(*arguments, **options)
        if len(calls) == call:
            raise error
        return result

    monkeypatch.setattr(owner, name, wrapped)
    return calls


def outcome(folder):
    """What a run leaves, its timings aside."""
    timings = {"tokens_per_second", "train_seconds", "eval_seconds", "examples_per_second", "wall_seconds"}
    timings |= {"peak_memory_mib"}

    def timeless(record):
        return {name: value for name, value in record.items() if name not in timings}

    files = [folder / "model" / "model.safetensors", folder / "model" / "README.md", *(folder / "predictions").iterdir()]
    return {
        **{str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        "log": [timeless(json.loads(line)) for line in (folder / "log.jsonl").read_text().splitlines()],
        "results": timeless(json.loads((folder / "results.json").read_text())),
        "names": sorted(os.listdir(folder)),
    }


def snapshot(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """For the sessions here and those in processes of their own: the last bits of a product depend on their number, and
    other tests may leave another one behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        if not installed("pytorch"):
            yield
            return
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def flags_of(tmp_path_factory, make_model, glue_writer):
    """Function dtype -> flags of a run that stops early after 4 epochs of 6 updates of 2 x 2 rows, best in the second."""
    base = tmp_path_factory.mktemp("resume")
    make_model(base / "bert")
    glue_writer.task(base / "glue", "STS-B", train=24, dev=15, test=9)
    common = ["--task_name", "STS-B", "--data_dir", base / "glue", "--bert_model", base / "bert", "--engine", "pytorch"]
    common += ["--batch_size", 2, "--accumulate", 2, "--epochs", 6, "--early_stop", 2, "--lr", 3e-3, "--seed", 3]
    common += ["--log_interval", 3]

    def flags(dtype="float32"):
        overflows = ["--init_loss_scale", 2**17, "--loss_scale_growth_interval", 5] if dtype == "float16" else []
        return [*common, "--dtype", dtype, *overflows]

    return flags


@pytest.fixture(scope="module")
def undisturbed(flags_of, tmp_path_factory):
    """Function dtype -> outcome of the run that nobody disturbs."""
    found = {}

    def run(dtype):
        if dtype not in found:
            folder = tmp_path_factory.mktemp("undisturbed") / dtype
            assert finetune_classifier.main([str(word) for word in [*flags_of(dtype), "--output_dir", folder]]) == 0
            found[dtype] = outcome(folder)
        return found[dtype]

    return run


# --- exact -----------------------------------------------------------------------------------------------------------


@needs_torch
def test_the_undisturbed_runs_are_worth_comparing_with(undisturbed):
    for dtype in DTYPES:
        results = undisturbed(dtype)["results"]
        assert results["stopped_early"] and results["best_epoch"] < results["epochs"] < 6
        assert (results["skipped_updates"] > 0) == (dtype == "float16")


def _engine():
    import bert.engines.pytorch

    return bert.engines.pytorch.PyTorchEngine


# (where the first session dies, --save_steps, update from which the second goes on); 12 micro-batches, 6 updates an epoch
CUTS = {
    "before anything was saved": (lambda: (_engine(), "forward_backward", 3, True), 0, None),
    "in mid-epoch, between two saves": (lambda: (_engine(), "apply_gradients", 10, False), 2, 8),
    "within an accumulation": (lambda: (_engine(), "forward_backward", 16, True), 1, 7),
    "in an evaluation": (lambda: (bert.training, "compute_metrics", 2, True), 0, 6),
    "between the best model and its checkpoint": (lambda: (finetune_classifier, "save_model", 2, False), 0, 6),
    "at an epoch's end": (lambda: (Checkpoints, "save", 2, False), 0, 12),
    "while a checkpoint is written": (lambda: (bert.checkpoint, "save_file", 3, False), 5, 6),
    "between a checkpoint's digest and its rename": (lambda: (bert.checkpoint.os, "replace", 7, True), 4, 6),
    "after the last update": (lambda: (finetune_classifier, "write_submission", 1, True), 0, "end"),
}


@needs_torch
@pytest.mark.parametrize(
    ("cut", "dtype"),
    [*((cut, "float16") for cut in CUTS), *((cut, dtype) for cut in list(CUTS)[1:4] for dtype in DTYPES[::2])],
)
def test_a_run_that_is_cut_anywhere_goes_on_to_the_same_bits(
    cut, dtype, flags_of, undisturbed, run_cli, tmp_path, monkeypatch
):
    where, save_steps, expected = CUTS[cut]
    owner, name, call, before = where()
    flags = [*flags_of(dtype), "--output_dir", tmp_path / "run", "--save_steps", save_steps]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, owner, name, call, before=before)
        run_cli(*flags)
    result = run_cli(*flags, "--resume")
    assert result.code == 0, result.err
    if expected == "end":
        expected = 6 * undisturbed(dtype)["results"]["epochs"]
    said = "no checkpoint here yet" if expected is None else f"resume:    from update {expected},"
    assert said in result.out
    assert outcome(tmp_path / "run") == undisturbed(dtype)


@needs_torch
def test_right_after_an_overflow_and_twice_over(flags_of, undisturbed, run_cli, tmp_path, monkeypatch):
    """Scale and counters go on: the first updates overflow, later ones grow the scale again."""
    flags = [*flags_of("float16"), "--output_dir", tmp_path / "run", "--save_steps", 1]
    skipped = [record["step"] for record in undisturbed("float16")["log"] if record.get("skipped")]
    for step in (skipped[0], skipped[-1]):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            done = 0 if step == skipped[0] else skipped[0]
            kill_at(patch, Checkpoints, "save", step - done + (step - 1) // 6, before=False)
            run_cli(*flags, "--resume")
    assert run_cli(*flags, "--resume").code == 0
    assert outcome(tmp_path / "run") == undisturbed("float16")


@needs_torch
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["update", "evaluation", "prediction"])
def test_a_signal_ends_the_update_saves_and_says_how_to_go_on(
    number, when, flags_of, undisturbed, run_cli, tmp_path, monkeypatch
):
    owner, name, call = {
        "update": (_engine(), "forward_backward", 15),  # the first micro-batch of update 8
        "evaluation": (_engine(), "predict", 2),
        "prediction": (finetune_classifier, "predict_logits", 1),
    }[when]
    function, calls = getattr(owner, name), []

    def signalled(*arguments, **options):
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), number)
        return function(*arguments, **options)

    folder = tmp_path / "a run's folder"
    flags = [*flags_of(), "--output_dir", folder, "--dev_batch_size", 4]
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, signalled)
        stopped = run_cli(*flags, "--overwrite")
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == [before[0], signal.default_int_handler]
    assert stopped.code == 3 and "Traceback" not in stopped.err
    assert not (folder / "results.json").exists() and not (folder / LOCK).exists()
    said, command = stopped.err.splitlines()[-2:]
    assert said.startswith("stopped: " + {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}[number])
    python, script, *arguments = shlex.split(command)
    assert (python, script) == (sys.executable, finetune_classifier.__file__) and "--overwrite" not in arguments
    resumed = run_cli(*arguments)
    assert resumed.code == 0
    last = 6 * undisturbed("float32")["results"]["epochs"]
    updates = {"update": 8, "evaluation": 6, "prediction": last}
    assert f"from update {updates[when]}," in resumed.out
    assert {**outcome(folder), "log": 0, "results": 0} == {**undisturbed("float32"), "log": 0, "results": 0}
    steps = [record["step"] for record in outcome(folder)["log"] if "step" in record]
    assert steps == list(range(1, last + 1))


@needs_torch
def test_a_budget_of_minutes_stops_a_run_again_and_again(flags_of, undisturbed, run_cli, tmp_path, monkeypatch):
    """Each session gets its own budget; a clock that only these tests know makes every update take a minute."""
    minutes = [0]
    monkeypatch.setattr(bert.stop.time, "monotonic", lambda: 60.0 * minutes[0])
    apply_gradients = _engine().apply_gradients

    def slow(self, **options):
        minutes[0] += 1
        return apply_gradients(self, **options)

    monkeypatch.setattr(_engine(), "apply_gradients", slow)
    codes = []
    while not codes or codes[-1] == 3:
        result = run_cli(*flags_of(), "--output_dir", tmp_path / "run", "--max_minutes", 7, "--resume")
        codes.append(result.code)
    updates = json.loads((tmp_path / "run" / "results.json").read_text())["updates"]
    sessions = -(-updates // 7)
    assert sessions > 2 and codes == [3] * (sessions - 1) + [0]
    assert f"resume:    from update {7 * (sessions - 1)}," in result.out
    assert outcome(tmp_path / "run") == undisturbed("float32")


@pytest.mark.skipif(not installed("mxnet"), reason="mxnet is not installed")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mxnet_goes_on_to_the_same_bits_too(dtype, flags_of, tmp_path):
    """On the CPU. Processes of their own: MXNet's precision is fixed once for each."""
    script = Path(__file__).with_name("mxnet_resume.py")
    command = [sys.executable, script, tmp_path, *flags_of(), "--engine", "mxnet", "--dtype", dtype]
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    if result.returncode == 2 and "cannot run on the CPU" in result.stderr:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stderr
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


@needs_torch
@pytest.mark.parametrize("dtype", ["float16"])
def test_torture_in_small(dtype):
    """SIGKILL at random instants; README has the figures of the long run."""
    command = [sys.executable, Path(__file__).with_name("torture.py"), "--kills", "8", "--dtype", dtype]
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "8 kills" in result.stdout and " 0 mismatches" in result.stdout


# --- the loop, on an engine that only counts ---------------------------------------------------------------------------


class StatefulEngine(CountingEngine):
    """Its whole state is a number of updates, and a random state of 64 bits."""

    def __init__(self, **options):
        super().__init__(**options)
        self.state = np.array(2**64 - 1, np.uint64)

    def apply_gradients(self, **options):
        with np.errstate(over="ignore"):
            self.state = self.state * np.uint64(6364136223846793005)
        return super().apply_gradients(**options)

    def get_weights(self, **options):
        return {"w": np.array([len(self.rates)], np.float32)}

    def set_weights(self, weights):
        self.rates = [0.0] * int(weights["w"][0])

    def state_dict(self, **options):
        return {"random": self.state, "flags": np.zeros((2, 3), np.float32).T}

    def load_state_dict(self, state):
        assert state["random"].dtype == np.uint64 and state["random"].shape == () and state["flags"].shape == (3, 2)
        self.state = state["random"]


def session(folder, engine, *, flags="", scaler=None, rows=24, stop=None, keep_best=lambda evaluation: None):
    """One session of a run in `folder`, resumed where there is a checkpoint; (Result or None where stopped, Checkpoints)."""
    config = parse(shlex.split(f"--task_name RTE --batch_size 2 --accumulate 2 --epochs 2 {flags}"))
    log, scaler = RunLog(tensorboard=config.tensorboard), scaler or make_loss_scaler(config)
    checkpoints = Checkpoints(folder / "checkpoints", engine=engine, scaler=scaler, log=log)
    result, logged = checkpoints.restore() or (Result(), 0)
    log.open(folder / "log.jsonl", keep=logged)
    options = {"task": RTE, "config": config, "plan": make_plan(rows, config), "batching": BATCHING, "scaler": scaler}
    dev = {"dev": make_features(10)}
    options.update(log=log, keep_best=keep_best, checkpoints=checkpoints, stop=stop, result=result)
    try:
        return train(engine, make_features(rows), dev, **options), checkpoints
    except Stopped:
        return None, checkpoints
    finally:
        log.close()


class StopAt(StopRequest):
    def __init__(self, check):
        super().__init__()
        self.left = check

    def check(self):
        self.left -= 1
        if self.left == 0:
            raise Stopped("the test")


@pytest.mark.parametrize("check", range(1, 15))  # 6 updates and one batch of evaluation, twice
def test_the_loop_goes_on_at_the_very_next_batch(check, tmp_path):
    whole, _ = session(tmp_path / "whole", first := StatefulEngine()) if (tmp_path / "whole").mkdir() is None else None
    (tmp_path / "cut").mkdir()
    result, _ = session(tmp_path / "cut", before := StatefulEngine(), stop=StopAt(check))
    assert result is None
    result, _ = session(tmp_path / "cut", after := StatefulEngine())
    assert before.groups + after.groups == first.groups
    assert (result.evaluations, result.tokens, result.examples) == (whole.evaluations, whole.tokens, whole.examples)
    assert after.state == first.state
    steps = [json.loads(line).get("step") for line in (tmp_path / "cut" / "log.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6, None, 7, 8, 9, 10, 11, 12, None]


def test_early_stopping_survives_its_own_checkpoint(tmp_path):
    """A run killed between its early stop and its predictions must not train on."""
    flags = "--epochs 9 --early_stop 1"
    result, _ = session(tmp_path, StatefulEngine(dev_scores=[8, 7]), flags=flags)
    again, _ = session(tmp_path, after := StatefulEngine(), flags=flags)
    assert after.groups == [] and again == result and again.stopped_early and again.best["epoch"] == 1


def test_the_newest_two_checkpoints_are_kept(tmp_path):
    _, checkpoints = session(tmp_path, StatefulEngine(), flags="--save_steps 1")
    assert [path.name[:18] for path in checkpoints.paths()] == ["step-00000012-0002", "step-00000012-0001"]
    assert sorted(os.listdir(checkpoints.folder)) == sorted(path.name for path in checkpoints.paths())


def test_a_static_scale_saves_nothing_while_gradients_are_not_finite(tmp_path, capsys):
    norms = [1.0, 1.0, 1.0, *[np.nan] * 3, 1.0]
    _, checkpoints = session(tmp_path, StatefulEngine(norms=norms), flags="--save_steps 1 --epochs 1")
    assert capsys.readouterr().out.count("WARNING: no checkpoint at step") == 4  # updates 4 to 6, and the epoch's end
    assert [path.name[:13] for path in checkpoints.paths()] == ["step-00000003", "step-00000002"]


@pytest.mark.parametrize("part", ["get_weights", "state_dict"])
def test_no_checkpoint_ever_holds_a_number_that_is_not_finite(part, tmp_path, monkeypatch, capsys):
    def broken(self, **options):
        return {"w": np.array([1.0, np.inf if len(self.rates) > 2 else 1.0], np.float32)}

    monkeypatch.setattr(StatefulEngine, part, broken)
    _, checkpoints = session(tmp_path, StatefulEngine(), flags="--save_steps 1")
    assert "not finite" in capsys.readouterr().out
    assert [path.name[:13] for path in checkpoints.paths()] == ["step-00000002", "step-00000001"]


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_ends_the_run_though_its_gradients_are(loss, tmp_path):
    class Engine(StatefulEngine):
        def forward_backward(self, batch, **options):
            super().forward_backward(batch, **options)
            return loss if len(self.rates) >= 7 else 0.5

    kept = []
    with pytest.raises(RunError, match=r"the loss of step 8 is (nan|inf).*--lr"):
        session(tmp_path, Engine(), keep_best=lambda evaluation: kept.append(evaluation["epoch"]))
    assert kept == [1]
    assert [path.name[:18] for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000006-0001"]


# --- checkpoints on bad disks ----------------------------------------------------------------------------------------


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


DAMAGE = {
    "cut in half": truncate,
    "empty": lambda path: os.truncate(path, 0),
    "a bit of its header": lambda path: flip(path, 3),
    "a bit of its numbers": lambda path: flip(path, path.read_bytes().index(b"good_updates") + 16),
    "a bit of its last tensor": lambda path: flip(path, -1),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(damage, tmp_path, capsys):
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole, _ = session(tmp_path / "whole", StatefulEngine())
    session(tmp_path / "cut", StatefulEngine(), flags="--save_steps 2", stop=StopAt(11))
    newest, before = sorted((tmp_path / "cut" / "checkpoints").iterdir(), reverse=True)
    assert (newest.name[:13], before.name[:13]) == ("step-00000010", "step-00000008")
    DAMAGE[damage](newest)
    capsys.readouterr()
    result, checkpoints = session(tmp_path / "cut", after := StatefulEngine(), flags="--save_steps 2")
    assert re.search(rf"WARNING: .*{newest.name}: damaged", capsys.readouterr().out)
    assert len(after.groups) == 4 and result.evaluations == whole.evaluations
    assert checkpoints.restore() is not None


def test_no_whole_checkpoint_at_all_is_refused_and_nothing_is_begun_anew(tmp_path):
    session(tmp_path, StatefulEngine(), stop=StopAt(3))
    for path in (tmp_path / "checkpoints").iterdir():
        truncate(path)
    log = (tmp_path / "log.jsonl").read_bytes()
    for _ in range(2):  # the second time too
        with pytest.raises(InputError, match="no checkpoint in it is whole"):
            session(tmp_path, StatefulEngine())
    assert (tmp_path / "log.jsonl").read_bytes() == log


def test_a_log_that_the_disk_lost_is_not_filled_up_with_zeros(tmp_path):
    session(tmp_path, StatefulEngine(), stop=StopAt(8))
    truncate(tmp_path / "log.jsonl")
    session(tmp_path, StatefulEngine())
    assert b"\0" not in (tmp_path / "log.jsonl").read_bytes()


@pytest.fixture
def small_disk(tmp_path):
    """Function size -> folder on a file system of its own with that many KiB; skipped where none can be mounted."""
    mounted = []

    def mount(size):
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    if shutil.which("mount") is None:
        pytest.skip("no mount here")
    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def free(folder):
    return os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize


def fill(folder, leave):
    """A file that leaves so many bytes free."""
    path = folder / "ballast"
    path.write_bytes(bytes(max(0, free(folder) - leave)))
    return path


class HungryEngine(StatefulEngine):
    """Its checkpoints take 400 KiB; fills the disk, but for `leave` bytes, within update 5, and frees it within update 9."""

    def __init__(self, disk, leave=0):
        super().__init__()
        self.disk, self.leave = disk, leave

    def get_weights(self, **options):
        return {**super().get_weights(**options), "ballast": np.zeros(100 * 1024, np.float32)}

    def apply_gradients(self, **options):
        if len(self.rates) == 4:
            fill(self.disk, self.leave)
        if len(self.rates) == 8:
            (self.disk / "ballast").unlink()
        return super().apply_gradients(**options)


def test_a_full_disk_costs_checkpoints_but_not_the_run(small_disk, capsys):
    disk = small_disk(2000)
    seen = {}

    def look(evaluation):
        seen[evaluation["step"]] = sorted(path.name[:13] for path in (disk / "checkpoints").iterdir())

    result, checkpoints = session(disk, HungryEngine(disk), flags="--save_steps 1 --epochs 3", keep_best=look)
    out = capsys.readouterr().out
    assert result.updates == 18
    assert out.count("WARNING: no checkpoint at step") == 5 and "No space left on device" in out  # updates 5 to 8, epoch 1
    assert seen[6] == ["step-00000003", "step-00000004"]
    assert not (disk / "checkpoints" / "partial").exists()
    assert checkpoints.restore()[0].updates == 18


def test_a_full_disk_costs_log_lines_but_not_the_run(small_disk, capsys):
    disk = small_disk(2000)
    result, _ = session(disk, HungryEngine(disk), flags="--log_interval 1 --epochs 20", rows=20)  # frees within update 9
    whole = [json.loads(line) for line in (disk / "log.jsonl").read_text().splitlines()]
    assert result.updates == len([record for record in whole if "step" in record]) == 100
    shutil.rmtree(disk / "checkpoints")
    (disk / "log.jsonl").unlink()

    class Engine(HungryEngine):
        def apply_gradients(self, **options):
            if len(self.rates) in (20, 60):
                fill(disk, 0) if len(self.rates) == 20 else (disk / "ballast").unlink()
            return StatefulEngine.apply_gradients(self, **options)

    capsys.readouterr()
    result, _ = session(disk, Engine(disk), flags="--log_interval 1 --epochs 20", rows=20)
    out = capsys.readouterr().out
    assert result.updates == 100
    assert out.count("WARNING: log.jsonl cannot be written") == 1
    records = [json.loads(line) for line in (disk / "log.jsonl").read_text().splitlines()]  # whole lines
    steps = [record["step"] for record in records if "step" in record]
    assert steps == sorted(set(steps)) and set(range(1, 21)) | set(range(62, 101)) <= set(steps)
    lost = int(re.search(r"WARNING: log.jsonl lacks (\d+) lines", out)[1])
    assert lost > 0 and lost >= len(whole) - len(records)


def test_a_folder_that_became_read_only_costs_checkpoints_only(small_disk, tmp_path, capsys):
    disk = small_disk(4000)
    (tmp_path / "checkpoints").symlink_to(disk)  # the log, which is open, would keep the disk from becoming read-only

    class Engine(StatefulEngine):
        def apply_gradients(self, **options):
            if len(self.rates) == 4:
                subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            return super().apply_gradients(**options)

    result, checkpoints = session(tmp_path, Engine(), flags="--save_steps 1")
    out = capsys.readouterr().out
    assert (
        result.updates == 12 and out.count("WARNING: no checkpoint at step") == 10
    )  # updates 5 to 12, and two epochs' ends
    assert "Read-only file system" in out
    assert [path.name[:13] for path in checkpoints.paths()] == ["step-00000004", "step-00000003"]


@needs_torch
@pytest.mark.parametrize("what", ["model", "predictions", "results.json"])
def test_what_a_run_is_for_must_be_written(what, flags_of, undisturbed, run_cli, small_disk, monkeypatch):
    """Exit code 1 and one line; with room again, --resume gives what an undisturbed run gives."""
    disk = small_disk(4000)
    name = {"model": "save_model", "predictions": "write_submission", "results.json": "write_json"}[what]
    function, calls = getattr(finetune_classifier, name), []

    def full(*arguments, **options):
        calls.append(1)
        if len(calls) == (1 if what == "predictions" else 2):  # config.json is the first JSON file, and not the matter here
            fill(disk, 0)
        return function(*arguments, **options)

    flags = [*flags_of(), "--output_dir", disk / "run"]
    with monkeypatch.context() as patch:
        patch.setattr(finetune_classifier, name, full)
        failed = run_cli(*flags)
    errors = [line for line in failed.err.splitlines() if "error" in line]
    assert failed.code == 1 and len(errors) == 1 and "Traceback" not in failed.err
    assert what in errors[0] and "cannot be written: No space left on device" in errors[0]
    if what != "predictions":
        assert (disk / "run" / "model" / "model.safetensors").is_file()
    (disk / "ballast").unlink()
    assert run_cli(*flags, "--resume").code == 0
    assert outcome(disk / "run") == undisturbed("float32")


@needs_torch
def test_full_streams_do_not_stop_a_run(flags_of, undisturbed, tmp_path):
    """As with `> out.txt 2>&1` on a disk that fills up."""
    command = [sys.executable, finetune_classifier.__file__, *flags_of(), "--output_dir", tmp_path / "run"]
    code = f"import sys, finetune_classifier as f; sys.exit(f.main({[str(word) for word in command[2:]]!r}))"
    with open("/dev/full", "w") as full:
        process = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    assert process.returncode == 0, process.stderr.decode()[-2000:]
    assert outcome(tmp_path / "run") == undisturbed("float32")


# --- what may be resumed ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(flags_of, tmp_path_factory):
    """A run that was stopped after 8 updates; do not change it."""
    if not installed("pytorch"):
        pytest.skip("torch is not installed")
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, _engine(), "apply_gradients", 9, before=False)
        finetune_classifier.main([str(word) for word in [*flags_of(), "--save_steps", 2, "--output_dir", folder]])
    return folder


CHANGES = {
    "lr": "0.001",
    "seed": "5",
    "batch_size": "4",
    "accumulate": "1",
    "epochs": "7",
    "training_steps": "30",
    "early_stop": "3",
    "dtype": "bfloat16",
    "optimizer": "bertadam",
    "epsilon": "1e-07",
    "weight_decay": "0.1",
    "warmup_ratio": "0.5",
    "max_grad_norm": "0",
    "max_len": "16",
    "round_to": "8",
    "init_loss_scale": "8",
    "loss_scale_growth_interval": "7",
}


@pytest.mark.parametrize("flag", CHANGES)
def test_a_change_that_would_bend_the_curve_is_refused_by_name(flag, stopped, refused, flags_of):
    before = snapshot(stopped)
    message = refused(*flags_of(), "--output_dir", stopped, "--resume", f"--{flag}", CHANGES[flag])
    assert re.search(rf"--{flag} was \S+, is ", message) and CHANGES[flag] in message
    assert snapshot(stopped) == before


def test_every_flag_either_may_change_or_is_compared():
    """A new flag is compared unless somebody has thought about it."""
    fields = set(parse(["--task_name", "RTE"]).__dataclass_fields__)
    assert fields >= MAY_CHANGE
    assert {"lr", "seed", "dtype", "gpu", "only_inference", "loss_scale", "early_stop"} <= fields - MAY_CHANGE


@needs_torch
def test_changes_that_bend_nothing_are_accepted(stopped, run_cli, flags_of, undisturbed, tmp_path):
    """Also another spelling of the task, the same files elsewhere, and the run's folder moved."""
    flags = dict(zip(flags_of()[::2], flags_of()[1::2]))
    folder = shutil.copytree(stopped, tmp_path / "moved")
    for flag in ("--data_dir", "--bert_model"):
        flags[flag] = shutil.copytree(flags[flag], tmp_path / flag)
    flags.update({"--task_name": "stsb", "--engine": "auto", "--log_interval": 1, "--save_steps": 5, "--max_minutes": 60})
    result = run_cli(*(word for pair in flags.items() for word in pair), "--output_dir", folder, "--resume")
    assert result.code == 0, result.err
    assert "resume:    from update 8," in result.out
    card = {"model/README.md": "names where the model came from"}
    assert {**outcome(folder), **card} == {**undisturbed("float32"), **card}


@needs_torch
@pytest.mark.parametrize("what", ["train data", "test data", "weights", "vocabulary", "architecture", "task", "engine"])
def test_other_inputs_under_the_same_flags_are_refused(what, stopped, refused, flags_of, tmp_path, glue_writer):
    flags = dict(zip(flags_of()[::2], flags_of()[1::2]))
    for flag in ("--data_dir", "--bert_model"):
        flags[flag] = shutil.copytree(flags[flag], tmp_path / flag)
    if what in ("train data", "test data"):
        path = flags["--data_dir"] / "STS-B" / f"{what.split()[0]}.tsv"
        path.write_text(path.read_text().replace(" the ", " a ", 1) + "")
    elif what == "weights":
        flip(flags["--bert_model"] / "model.safetensors", -1)
    elif what == "vocabulary":
        path = flags["--bert_model"] / "vocab.txt"
        words = path.read_text().split("\n")
        words[-2], words[5] = words[5], words[-2]
        path.write_text("\n".join(words))
    elif what == "architecture":
        path = flags["--bert_model"] / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "num_attention_heads": 4}))
    elif what == "task":
        glue_writer.task(flags["--data_dir"], "RTE", train=24, dev=15, test=9)
        flags["--task_name"] = "RTE"
    elif what == "engine":
        if not installed("mxnet"):
            pytest.skip("mxnet is not installed")
        flags["--engine"] = "mxnet"
    before = snapshot(stopped)
    message = refused(*(word for pair in flags.items() for word in pair), "--output_dir", stopped, "--resume")
    word = {"train data": "data_sha256 of train", "test data": "data_sha256 of test", "weights": "weights"}
    word.update({"vocabulary": "tokens_sha256", "architecture": "architecture", "task": "--task_name", "engine": "--engine"})
    assert word[what] in message and "was" in message
    assert snapshot(stopped) == before


@needs_torch
def test_another_library_is_warned_about(stopped, run_cli, flags_of, tmp_path):
    folder = shutil.copytree(stopped, tmp_path / "run")
    record = json.loads((folder / "config.json").read_text())
    record["versions"]["torch"] = "1.0"
    (folder / "config.json").write_text(json.dumps(record))
    result = run_cli(*flags_of(), "--output_dir", folder, "--resume")
    assert result.code == 0 and "WARNING: torch was 1.0, is " in result.out


@needs_torch
def test_a_folder_without_its_config_is_not_taken_for_a_run(flags_of, run_cli, refused, tmp_path, monkeypatch):
    """Whatever it was begun with cannot be compared then."""
    flags = [*flags_of(), "--output_dir", tmp_path / "run"]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, _engine(), "forward_backward", 15)
        run_cli(*flags)
    config = (tmp_path / "run" / "config.json").rename(tmp_path / "config.json")
    before = snapshot(tmp_path / "run")
    assert "has lost its config.json" in refused(*flags, "--resume", "--lr", "0.01")
    assert snapshot(tmp_path / "run") == before
    config.rename(tmp_path / "run" / "config.json")
    (tmp_path / "run" / "checkpoints" / "step-99999999-0000-ab.safetensors").mkdir()  # nothing of ours
    assert run_cli(*flags, "--resume").code == 0
    (tmp_path / "run" / "checkpoints").mkdir()  # as after a kill at the very end
    assert "nothing was done" in run_cli(*flags, "--resume").out
    assert not (tmp_path / "run" / "checkpoints").exists()


@needs_torch
def test_a_finished_run_is_said_to_be_finished_and_left_alone(flags_of, run_cli, refused, tmp_path):
    flags = [*flags_of(), "--output_dir", tmp_path / "run", "--epochs", "1"]
    assert run_cli(*flags, "--resume").code == 0  # in an empty place it simply begins
    before = snapshot(tmp_path / "run")
    again = run_cli(*flags, "--resume")
    assert again.code == 0 and "finished" in again.out and again.err == ""
    assert "--epochs was 1, is 2" in refused(*flags, "--resume", "--epochs", "2")
    assert snapshot(tmp_path / "run") == before


@needs_torch
@pytest.mark.parametrize("there", ["nothing", "settings", "remains"])
def test_resume_begins_a_run_that_never_got_to_a_checkpoint(there, flags_of, run_cli, undisturbed, stopped, tmp_path):
    """So that a scheduler can always pass --resume."""
    folder = tmp_path / "run"
    if there != "nothing":
        shutil.copytree(stopped, folder)
        shutil.rmtree(folder / "checkpoints")
    if there == "remains":
        (folder / "config.json").unlink()
    result = run_cli(*flags_of(), "--output_dir", folder, "--resume")
    assert result.code == 0 and "the run begins at its beginning" in result.out
    assert outcome(folder) == undisturbed("float32")


@pytest.mark.parametrize("there", ["somebody's notes", "a model", "not JSON"])
def test_resume_in_a_folder_that_is_no_runs_is_refused(there, refused, flags_of, make_model, tmp_path):
    folder = tmp_path / "folder"
    if there == "a model":
        make_model(folder)
    else:
        folder.mkdir()
        (folder / {"not JSON": "config.json"}.get(there, "notes.txt")).write_text("mine")
    before = snapshot(folder)
    assert str(folder) in refused(*flags_of(), "--output_dir", folder, "--resume")
    assert snapshot(folder) == before


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("--resume --overwrite", ["--resume", "--overwrite"]),
        ("--save_steps -1", ["--save_steps"]),
        ("--max_minutes 0", ["--max_minutes"]),
        ("--max_minutes nan", ["--max_minutes"]),
        ("--max_minutes soon", ["--max_minutes", "soon"]),
    ],
)
def test_wrong_usage(arguments, words, refused):
    message = refused("--task_name", "RTE", *shlex.split(arguments))
    assert all(word in message for word in words)


def test_the_command_that_continues_can_be_pasted():
    command = resume_command("a script.py", ["--output_dir", "it's $HOME", "--overwrite", "--overw", "--lr", "1e-3"])
    assert shlex.split(command)[1:] == ["a script.py", "--output_dir", "it's $HOME", "--lr", "1e-3", "--resume"]
    assert resume_command("s.py", ["--resume"]).count("--resume") == 1


# --- two runs, and killed ones ---------------------------------------------------------------------------------------


def test_a_second_run_on_the_same_folder_is_refused_and_names_the_first(refused, flags_of, tmp_path):
    holder = "import sys, time; sys.path.insert(0, sys.argv[1]); from bert.folder import claim_folder\n"
    holder += "with claim_folder(sys.argv[2], overwrite=False, resume=False): print('held', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", holder, str(ROOT), str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        for extra in ([], ["--resume"], ["--overwrite"]):
            message = refused(*flags_of(), "--output_dir", tmp_path / "run", *extra)
            assert f"process {process.pid}" in message
        with (
            pytest.raises(InputError, match=f"process {process.pid}"),
            claim_folder(tmp_path / "run", overwrite=True, resume=False),
        ):
            pass
        process.kill()
    assert (tmp_path / "run" / LOCK).exists()  # what a killed run leaves of its lock means nothing
    with claim_folder(tmp_path / "run", overwrite=False, resume=False) as folder:
        assert (folder / LOCK).read_text() == str(os.getpid())
    assert not (tmp_path / "run" / LOCK).exists()


def test_a_run_that_came_between_check_and_claim_is_not_overwritten(tmp_path):
    (tmp_path / "results.json").write_text("{}")
    for resume in (False, True):
        with pytest.raises(InputError, match="another run"), claim_folder(tmp_path, overwrite=False, resume=resume):
            pass
    assert os.listdir(tmp_path) == ["results.json"]


@needs_torch
@pytest.mark.parametrize("call", [1, 2])
def test_a_kill_between_the_renames_of_the_best_model_loses_no_model(
    call, flags_of, run_cli, undisturbed, tmp_path, monkeypatch
):
    """The second best model has moved the first aside and is killed before, or after, it takes its place."""
    flags = [*flags_of(), "--output_dir", tmp_path / "run"]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        rename = Path.rename

        def stop(self, target):
            if self.name == "model.partial" and (tmp_path / "run" / "model.old").exists():
                if call == 2:
                    rename(self, target)
                raise Killed
            return rename(self, target)

        patch.setattr(Path, "rename", stop)
        run_cli(*flags)
    assert (tmp_path / "run" / "model").exists() == (call == 2) and (tmp_path / "run" / "model.old").exists()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, _engine(), "forward_backward", 1)  # the next session, killed at once
        run_cli(*flags, "--resume")
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    assert run_cli(*flags, "--resume").code == 0
    assert outcome(tmp_path / "run") == undisturbed("float32")


@needs_torch
def test_a_second_ctrl_c_stops_at_once_and_the_last_checkpoint_is_good(flags_of, undisturbed, tmp_path):
    """A real process: the first signal waits for an update that would take a minute."""
    slow = "import sys, time, finetune_classifier as f, bert.engines.pytorch as p; step = p.PyTorchEngine.apply_gradients\n"
    slow += "def late(self, **o):\n  late.calls += 1\n  if late.calls == 9: print('slow', flush=True); time.sleep(60)\n"
    slow += (
        "  return step(self, **o)\nlate.calls = 0\np.PyTorchEngine.apply_gradients = late\nsys.exit(f.main(sys.argv[1:]))"
    )
    flags = [*flags_of(), "--output_dir", tmp_path / "run", "--save_steps", 2]
    command = [str(word) for word in [sys.executable, "-c", slow, *flags]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        while process.stdout.readline() not in (b"slow\n", b""):
            pass
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None  # it finishes its update
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 3 and time.monotonic() - start < 30 and b"Traceback" not in err
    assert b"stopped: at once" in err and err.decode().splitlines()[-1].endswith(" --resume")
    assert finetune_classifier.main([str(word) for word in [*flags, "--resume"]]) == 0
    assert outcome(tmp_path / "run") == undisturbed("float32")


@needs_torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_run_that_diverges_fails_and_saves_nothing_that_is_not_finite(dtype, flags_of, run_cli, tmp_path, monkeypatch):
    monkeypatch.setattr(bert.training, "learning_rate", lambda step, **options: 1e-4 if step < 3 else 1e30)
    flags = [*flags_of(dtype), "--output_dir", tmp_path / "run", "--save_steps", 1]
    flags += ["--init_loss_scale", 16] if dtype == "float16" else []
    result = run_cli(*flags)
    errors = [line for line in result.err.replace("\r", "\n").splitlines() if line.startswith("error: ")]
    assert result.code == 1 and len(errors) == 1 and "--lr" in errors[0] and "Traceback" not in result.err
    assert not (tmp_path / "run" / "results.json").exists()
    from safetensors.numpy import load_file

    files = [*(tmp_path / "run").glob("checkpoints/*"), *(tmp_path / "run").glob("model/*.safetensors")]
    assert all(np.isfinite(array).all() for path in files for array in load_file(path).values())


@needs_torch
def test_nan_among_the_weights_is_refused_before_anything_is_written(flags_of, refused, make_model, tmp_path):
    def broken(tensors):
        tensors["bert.encoder.layer.1.output.dense.bias"][3] = np.nan

    flags = [*flags_of(), "--output_dir", tmp_path / "run", "--bert_model", make_model(tmp_path / "broken", change=broken)]
    assert "layer.1.output.dense.bias holds values that are not finite" in refused(*flags)
    assert not (tmp_path / "run").exists()


# --- memory, and clocks ----------------------------------------------------------------------------------------------


def _errors():
    class OutOfMemoryError(RuntimeError):  # as torch's and, by its name, as others'
        pass

    class MXNetError(RuntimeError):
        pass

    return [
        (MemoryError(), True),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: 9 bytes"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."), True),
        (MXNetError("Check failed: e == cudaSuccess || e == cudaErrorCudartUnloading: CUDA: out of memory"), True),
        (MXNetError("cudaMalloc retry failed: out of memory"), True),
        (RuntimeError("output with shape [] doesn't match the broadcast shape [1]"), False),
        (KeyError("out of memory"), False),
    ]


@pytest.mark.parametrize("number", range(8))
def test_out_of_memory_is_told_from_other_errors(number):
    error, expected = _errors()[number]
    assert out_of_memory(error) == expected


@needs_torch
def test_running_out_of_memory_says_what_to_turn(flags_of, run_cli, undisturbed, tmp_path, monkeypatch):
    """torch's own error, from an allocation that no machine grants; later --resume goes on."""
    import torch

    def hungry(self, batch, **options):
        if hungry.calls == 14:
            torch.empty(2**60, dtype=torch.uint8)
        hungry.calls += 1
        return forward_backward(self, batch, **options)

    hungry.calls, forward_backward = 0, _engine().forward_backward
    flags = [*flags_of(), "--output_dir", tmp_path / "run"]
    with monkeypatch.context() as patch:
        patch.setattr(_engine(), "forward_backward", hungry)
        result = run_cli(*flags)
    errors = [line for line in result.err.splitlines() if "error" in line]
    assert result.code == 1 and len(errors) == 1 and "Traceback" not in result.err
    assert all(flag in errors[0] for flag in ("--batch_size", "--accumulate", "--max_len"))
    assert run_cli(*flags, "--resume").code == 0
    assert outcome(tmp_path / "run") == undisturbed("float32")


def test_no_clock_that_can_jump_is_ever_read():
    """time.time and datetime follow the clock on the wall, which people and NTP set."""
    told = {  # to people, never reckoned with
        "logs.py": "event.wall_time = time.time()",
        "runs.py": 'time.gmtime(os.path.getmtime(self.folder / "results.json"))',
    }
    for path in [ROOT / "finetune_classifier.py", *(ROOT / "bert").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        if path.name in told:
            assert text.count(told[path.name]) == 1
            text = text.replace(told[path.name], "")
        assert not re.search(r"\btime\.time\b|\bdatetime\b|from time import|getmtime", text), path


def test_a_clock_that_stands_still_divides_nothing_by_zero(tmp_path, monkeypatch):
    monkeypatch.setattr(bert.training.time, "perf_counter", lambda: 5.0)
    result, _ = session(tmp_path, StatefulEngine())
    assert result.train_seconds == 0.0 and result.updates == 12


def test_the_scalers_counters_are_part_of_a_checkpoint(tmp_path):
    engine, scaler = StatefulEngine(norms=[np.inf, np.inf, 1.0, 1.0]), LossScaler(2.0**10, growth_interval=7)
    flags = "--dtype float16"
    session(tmp_path, engine, flags=flags, scaler=scaler, stop=StopAt(4))
    assert scaler.state_dict() == {"scale": 256.0, "good_updates": 2, "bad_updates": 0, "skipped_updates": 2}
    again = LossScaler(2.0**10, growth_interval=7)
    session(tmp_path, after := StatefulEngine(), flags=flags, scaler=again)
    assert after.scales == [256.0] * 5 + [512.0] * 3 and again.skipped_updates == 2
