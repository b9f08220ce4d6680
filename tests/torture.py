#!/usr/bin/env python3
"""Kill a short real run with SIGKILL at random instants, resume it, kill it again, and compare what comes out in the end
with an undisturbed run: weights, predictions, log (its timings aside) and results must be the same to the bit.

    python tests/torture.py --kills 200 --dtype float32 float16 bfloat16

Half of the kills come at any instant of a session, half within a checkpoint or the best model being written. Sessions are
forked from a process that has imported everything, so that a kill costs a fraction of a second.
"""

import argparse
import hashlib
import json
import mmap
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from conftest import write_model, write_task

import bert.checkpoint
import bert.engines.pytorch  # noqa: F401 - imported here, so that no session has to
import bert.training
import finetune_classifier

PHASES = ("start", "train", "checkpoint", "model", "evaluate", "predict", "end")
TIMINGS = {
    "tokens_per_second",
    "train_seconds",
    "eval_seconds",
    "examples_per_second",
    "wall_seconds",
    "peak_memory_mib",
}


class Watch:
    """What a session is doing, in memory that it shares with its killer."""

    def __init__(self):
        self.now = mmap.mmap(-1, 1)  # number of the phase
        times, seconds = mmap.mmap(-1, 8 * len(PHASES)), mmap.mmap(-1, 8 * len(PHASES))
        self.times, self.seconds = np.frombuffer(times, np.int64), np.frombuffer(seconds, np.float64)  # (phases,)

    @property
    def phase(self):
        return PHASES[self.now[0]]

    def entered(self, phase):
        return int(self.times[PHASES.index(phase)])

    def mean_seconds(self, phase):
        return float(self.seconds[PHASES.index(phase)] / self.times[PHASES.index(phase)])

    def reset(self):
        self.now[0] = self.times[:] = self.seconds[:] = 0

    @contextmanager
    def during(self, phase):
        number, before, start = PHASES.index(phase), self.now[0], time.perf_counter()
        self.times[number] += 1
        self.now[0] = number
        yield
        self.seconds[number] += time.perf_counter() - start
        self.now[0] = before if phase != "predict" else PHASES.index("end")

    def wrap(self, owner, name, phase):
        function = getattr(owner, name)

        def wrapped(*arguments, **options):
            with self.during(phase):
                return function(*arguments, **options)

        setattr(owner, name, wrapped)


def watch_sessions():
    watch = Watch()
    watch.wrap(finetune_classifier, "train", "train")
    watch.wrap(bert.checkpoint.Checkpoints, "_write", "checkpoint")
    watch.wrap(finetune_classifier, "save_model", "model")
    watch.wrap(bert.training, "evaluate_splits", "evaluate")
    watch.wrap(finetune_classifier, "write_submission", "predict")
    return watch


def begin_session(argv, output):
    """Fork a process that runs the script's main; returns its number."""
    pid = os.fork()
    if pid:
        return pid
    os.setpriority(os.PRIO_PROCESS, 0, 0)
    code = 70
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout = open(1, "w", closefd=False)
        sys.stderr = open(2, "w", closefd=False)
        try:
            code = finetune_classifier.main(argv)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def end_of(pid):
    """Exit code of a session, or None while it runs."""
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def outcome(folder):
    """What must not differ, by name."""

    def digest(path):
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def timeless(record):
        return {name: value for name, value in record.items() if name not in TIMINGS}

    return {
        "weights": digest(folder / "model" / "model.safetensors"),
        "card": digest(folder / "model" / "README.md"),
        "predictions": {path.name: digest(path) for path in sorted((folder / "predictions").iterdir())},
        "log": [timeless(json.loads(line)) for line in (folder / "log.jsonl").read_text().splitlines()],
        "results": timeless(json.loads((folder / "results.json").read_text())),
        "left over": sorted(set(os.listdir(folder)) - {"config.json", "log.jsonl", "results.json", "predictions", "model"}),
    }


def kill_somewhere(pid, watch, chance, duration, usual):
    """SIGKILL the session at a random instant; returns (its exit code or None where it was killed, phase it was in).

    `duration` is a whole session's, `usual` maps "checkpoint" and "model" to how often and how long one is written.
    """
    due = time.monotonic() + chance.uniform(0, duration)
    delay, phase, number = 0.0, None, 0
    if chance.random() < 0.5:
        phase = chance.choice(list(usual))
        times, seconds = usual[phase]
        number, delay = chance.randint(1, max(1, times // 3)), chance.uniform(0, seconds)
    code = None
    while code is None and (watch.entered(phase) < number if phase else time.monotonic() < due):
        time.sleep(0.0005)
        code = end_of(pid)
    if code is not None:
        return code, None
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    found = watch.phase
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return (None, found) if code == -signal.SIGKILL else (code, None)


def torture(dtype, kills, folder, seed, watch, say=print):
    """Run until `kills` kills are done and the last run is finished; returns the number of mismatches."""
    write_model(folder / "bert")
    write_task(folder / "glue", "STS-B", train=24, dev=15, test=9)
    argv = ["--task_name", "STS-B", "--data_dir", folder / "glue", "--bert_model", folder / "bert", "--engine", "pytorch"]
    argv += [
        "--dtype",
        dtype,
        "--batch_size",
        "2",
        "--accumulate",
        "2",
        "--epochs",
        "6",
        "--early_stop",
        "2",
        "--lr",
        "3e-3",
    ]
    argv += ["--save_steps", "2", "--log_interval", "3", "--seed", "4"]
    if dtype == "float16":  # overflows, and growth again
        argv += ["--init_loss_scale", str(2**17), "--loss_scale_growth_interval", "5"]
    argv = [str(word) for word in argv]

    watch.reset()
    start = time.monotonic()
    code = os.waitstatus_to_exitcode(
        os.waitpid(begin_session([*argv, "--output_dir", str(folder / "whole")], folder / "out"), 0)[1]
    )
    duration = time.monotonic() - start
    if code:
        raise SystemExit(f"the undisturbed run failed:\n{(folder / 'out').read_text()}")
    expected = outcome(folder / "whole")
    results = expected["results"]
    usual = {phase: (watch.entered(phase), watch.mean_seconds(phase)) for phase in ("checkpoint", "model")}
    say(
        f"{dtype}: undisturbed: {duration:.2f} s, {results['updates']} updates, {results['epochs']} epochs, "
        f"stopped early: {results['stopped_early']}, best epoch {results['best_epoch']}, "
        f"{results['skipped_updates']} skipped; "
        + ", ".join(f"{times} {phase}s of {1000 * seconds:.1f} ms" for phase, (times, seconds) in usual.items()),
        flush=True,
    )

    chance = random.Random(f"{seed} {dtype}")
    start = time.monotonic()
    at, sessions, runs, resumed, mismatches = Counter(), 0, 0, 0, []
    while sum(at.values()) < kills:
        run = folder / f"run{runs}"
        runs += 1
        while True:
            newest = max((path.name for path in run.glob("checkpoints/step-*")), default=None)
            watch.reset()
            sessions += 1
            pid = begin_session([*argv, "--output_dir", str(run), "--resume"], folder / "out")
            if sum(at.values()) < kills:
                code, phase = kill_somewhere(pid, watch, chance, duration, usual)
            else:
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            said = (folder / "out").read_text(errors="replace")
            if any(words in said for words in ("damaged", "no checkpoint at", "log.jsonl cannot", "may differ")):
                mismatches.append(f"run {runs}: {[line for line in said.splitlines() if 'WARNING' in line]}")
            if newest and "resume:" in said:
                resumed += 1
                if f"from update {int(newest.split('-')[1])}," not in said:
                    mismatches.append(f"run {runs}: {newest} was there but was not resumed from")
            if code is not None:
                break
            at[phase] += 1
        if code:
            mismatches.append(f"run {runs}: exit code {code}: {said.splitlines()[-3:]}")
        else:
            found = outcome(run)
            mismatches += [f"run {runs}: {name} differ" for name in expected if found[name] != expected[name]]
        shutil.rmtree(run, ignore_errors=True)
    where = ", ".join(f"{at[phase]} {phase}" for phase in PHASES if at[phase])
    say(
        f"{dtype}: {sum(at.values())} kills ({where}) in {sessions} sessions of {runs} runs, "
        f"{time.monotonic() - start:.0f} s; "
        f"{resumed} sessions resumed from a checkpoint; {len(mismatches)} mismatches",
        flush=True,
    )
    for line in mismatches:
        say(f"  {line}", flush=True)
    return len(mismatches)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="per precision (default: %(default)s)")
    parser.add_argument("--dtype", nargs="+", default=["float32", "float16", "bfloat16"])
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    parser.add_argument("--folder", default="/dev/shm" if os.path.isdir("/dev/shm") else None, help="where to work")
    options = parser.parse_args(argv)
    watch = watch_sessions()
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -10)  # to strike at the instant that was drawn, on one core too
    except PermissionError:
        pass
    mismatches = 0
    for dtype in options.dtype:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            mismatches += torture(dtype, options.kills, Path(folder), options.seed, watch)
    return 1 if mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
