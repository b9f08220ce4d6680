"""Tasks x precisions x seeds: each combination is a run of its own, in a process and a folder of its own.

Knows runs by their commands, folders and exit codes only; what is finished is what its folder says, so that a suite can be
killed at any instant and go on, and its runs may as well be made by somebody else's scheduler.
"""

import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bert import InputError, Stopped
from bert.config import command_line, run_name
from bert.files import is_there, read_json
from bert.folder import LOCK, check_folder, claim_folder, is_finished, locked_folder
from bert.logs import progress_bar, write_json
from bert.stop import StopRequest
from bert.tasks import TASKS

_RECORD = "suite.json"  # which runs failed, and with what words
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PATIENCE = 60.0  # seconds for the runs of a suite that was killed to save and end


@dataclass
class _Run:
    """One run of the suite."""

    config: object
    weight: float  # its expected share of the work: bytes of text to learn from
    state: str = "waiting"  # running, finished, failed, stopped
    error: str = ""
    process: object = None
    started: float = 0.0
    done_before: float = 0.0  # share that was done when it started
    seconds: float = field(default=0.0)

    @property
    def name(self):
        return run_name(self.config)

    @property
    def folder(self):
        return Path(self.config.output_dir)


def run_command(config, script):
    """The shell words that make one run, and go on with it when it is there already."""
    return [sys.executable, script, *command_line(config)]


def print_commands(suite, script, log):
    """One command per line, for any scheduler; those whose model others start from come first."""
    for config in suite.runs:
        log.say(shlex.join(run_command(config, script)))
    folders = {config.output_dir for config in suite.runs}
    waiting = sum(os.path.dirname(config.bert_model) in folders for config in suite.runs)
    if waiting:
        print(f"{waiting} of these start from the MNLI runs' models: those runs must be finished first", file=sys.stderr)


def describe_suite(suite, log):
    """Say what --dry_run asks: every run and whether it is done; writes nothing."""
    runs = _plan(suite)
    for run in runs:
        log.say(f"{run.name}: {run.state}{': ' + run.error if run.error else ''}")
    log.say(f"dry run:   {_counts(runs)}; nothing was started and nothing was written")


def run_suite(suite, script, log):
    """Make every run of the suite that is not finished; returns (name, error) of those that failed.

    InputError before anything is started where a run could not begin; Stopped where it was interrupted: then the runs under
    way have saved checkpoints.
    """
    stop = StopRequest(suite.max_minutes)
    with ExitStack() as stack:
        if not (suite.resume or suite.overwrite) and _names(suite.output_dir):
            raise InputError(
                f"--output_dir {suite.output_dir}: not empty; name another folder, or add --resume to go on with its runs "
                "or --overwrite to replace them"
            )
        lock = _wait_for_lock(suite.output_dir, stack, log)
        if suite.overwrite:
            _clear(suite)
        runs = _plan(suite)
        log.say(f"suite:     {len(runs)} runs, {_counts(runs)}; {suite.jobs} at a time; below {suite.output_dir}")
        stack.enter_context(stop.listening())
        try:
            _work(runs, suite, script, log, lock, stop)
        except (Stopped, KeyboardInterrupt) as reason:
            _end(runs, kill=isinstance(reason, KeyboardInterrupt))
            raise
        except BaseException:
            _end(runs, kill=False)
            raise
        finally:
            _write_record(suite, runs)
    stopped = [run.name for run in runs if run.state == "stopped"]
    if stopped:
        raise Stopped(f"somebody else stopped {', '.join(stopped)}")
    return [(run.name, run.error) for run in runs if run.state == "failed"]


def _names(path):
    try:
        return set(os.listdir(path)) - {LOCK}
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise InputError(f"--output_dir {path}: cannot be read: {error.strerror}") from None


def _wait_for_lock(path, stack, log):
    """The folder's lock; runs of a suite that was killed hold it until they have saved and ended."""
    deadline = None
    while True:
        try:
            return stack.enter_context(locked_folder(path))
        except InputError as error:
            if "in use" not in str(error) or (deadline and time.monotonic() > deadline):
                raise
            if deadline is None:
                log.say(f"suite:     {error}; waiting for up to {_PATIENCE:.0f} s")
                deadline = time.monotonic() + _PATIENCE
            time.sleep(0.5)


def _clear(suite):
    Path(suite.output_dir, _RECORD).unlink(missing_ok=True)
    for config in suite.runs:
        if is_there(config.output_dir):
            with claim_folder(config.output_dir, overwrite=True, resume=False):
                pass


def _plan(suite):
    """The runs with what is known of them; InputError where one could not begin, or would not go on as it began."""
    missing = {}
    for config in suite.runs:
        task = TASKS.get(config.task_name)
        for split in [] if task is None or config.download else map(task.splits.get, ("train", "dev", "dev_matched")):
            if split is not None and not any(is_there(os.path.join(config.data_dir, file)) for file in split.files):
                missing.setdefault(task.name, split.files[0])
    if missing:
        files = ", ".join(f"{name} ({file})" for name, file in missing.items())
        raise InputError(
            f"--data_dir {suite.runs[0].data_dir}: no files for {files}; leave these tasks out, or add --download"
        )
    record = Path(suite.output_dir) / _RECORD
    failed = read_json(record).get("failed", {}) if is_there(record) else {}
    runs = []
    for config in suite.runs:
        try:
            check_folder(config.output_dir, overwrite=False, resume=True, flags=asdict(config), sources=())
        except InputError as error:
            raise InputError(f"{config.output_dir}: {error}") from None
        run = _Run(config, _weight(config))
        if is_finished(config.output_dir):
            run.state, run.seconds = "finished", _seconds(run)
        elif run.name in failed and not suite.retry_failed:
            run.state, run.error = "failed", str(failed[run.name])
        runs.append(run)
    return runs


def _counts(runs):
    states = [run.state for run in runs]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def _write_record(suite, runs):
    failed = {run.name: run.error for run in runs if run.state == "failed"}
    write_json(Path(suite.output_dir) / _RECORD, {"runs": [run.name for run in runs], "failed": failed})


# Running


def _work(runs, suite, script, log, lock, stop):
    by_folder = {run.folder: run for run in runs}
    with _bar(runs, suite.jobs) as show:
        while any(run.state in ("waiting", "running") for run in runs):
            stop.check()
            free = suite.jobs - sum(run.state == "running" for run in runs)
            for run in runs:
                source = by_folder.get(Path(run.config.bert_model).parent)
                if run.state != "waiting":
                    continue
                if source is not None and source.state in ("failed", "stopped"):
                    run.state, run.error = "failed", f"it starts from {source.name}, which {source.state}"
                    log.say(f"{run.name}: FAILED: {run.error}")
                elif free and (source is None or source.state == "finished"):
                    _start(run, script, lock, suite.jobs)
                    free -= 1
            for run in runs:
                if run.state == "running" and run.process.poll() is not None:
                    _note_end(run)
                    _write_record(suite, runs)
                    log.say(f"{_outcome(run)} [{_place(runs, suite.jobs)}]")
            show()
            time.sleep(0.2)


def _start(run, script, lock, jobs):
    """Begin, or go on with, a run; what it prints goes to a file beside its folder."""
    threads = str(max(1, len(os.sched_getaffinity(0)) // jobs if hasattr(os, "sched_getaffinity") else 1))
    environment = {"OMP_NUM_THREADS": threads, "RAYON_NUM_THREADS": threads, **os.environ} if jobs > 1 else None
    run.done_before = _progress(run)
    with open(f"{run.folder}.txt", "ab") as console:
        run.process = subprocess.Popen(
            run_command(run.config, script),
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            env=environment,
            start_new_session=True,  # Ctrl-C is the suite's to pass on, once
            pass_fds=() if lock is None else (lock,),
            preexec_fn=_LIBC and _end_with_parent,
        )
    run.state, run.started = "running", time.monotonic()


def _end_with_parent():
    """Called in the new process: SIGTERM to it when the suite dies, so that nothing goes on unseen (Linux)."""
    _LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, linux/prctl.h


def _note_end(run):
    code = run.process.returncode
    if code == 0 and is_finished(run.folder):
        run.state, run.seconds = "finished", _seconds(run)
    elif code == 3:
        run.state = "stopped"
    else:
        run.state, run.error = "failed", _last_words(run, code)


def _last_words(run, code):
    """The run's own error line, or how it ended without one."""
    try:
        with open(f"{run.folder}.txt", "rb") as file:
            file.seek(max(0, os.path.getsize(file.name) - 4096))
            lines = file.read().decode(errors="replace").replace("\r", "\n").split("\n")
        errors = [line for line in lines if line.startswith("error: ")]
    except OSError:
        errors = []
    ended = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"{errors[-1].removeprefix('error: ') if errors else 'no message'} ({ended}; see {run.folder}.txt)"


def _end(runs, *, kill):
    """Ask the runs under way to save and end, or end them at once; returns when they have."""
    running = [run for run in runs if run.state == "running"]
    for run in running:
        (run.process.kill if kill else run.process.terminate)()
    try:
        for run in running:
            run.process.wait()
    except KeyboardInterrupt:
        _end(runs, kill=True)
    for run in running:
        _note_end(run)
        if run.state == "failed" and kill:
            run.state = "stopped"


# Telling


def _outcome(run):
    if run.state != "finished":
        return f"{run.name}: {run.state.upper()}: {run.error}" if run.error else f"{run.name}: {run.state}"
    results = read_json(run.folder / "results.json")
    scores = next(iter(results["scores"].get("last", {}).values()), {})
    told = ", ".join(f"{metric} {100 * value:.1f}" for metric, value in scores.items() if metric != "loss")
    return f"{run.name}: {told}, {run.seconds:.0f} s"


def _seconds(run):
    results = read_json(run.folder / "results.json")
    return results.get("train_seconds", 0.0) + results.get("eval_seconds", 0.0)


def _weight(config):
    """Bytes of text that the run learns from: what its time goes by, within one precision."""
    task = TASKS.get(config.task_name)
    names = [config.train_file] if task is None else [os.path.join(config.data_dir, f) for f in task.splits["train"].files]
    path = next(filter(os.path.isfile, filter(None, names)), None)
    if path is None:
        return 1.0
    size = os.path.getsize(path)
    if config.training_steps is None:
        return float(size * config.epochs)
    with open(path, "rb") as file:
        opening = file.read(2**16)
    return config.training_steps * config.batch_size * config.accumulate * len(opening) / max(1, opening.count(b"\n"))


def _progress(run):
    """Share of a run's updates that are logged, from 0 to 1."""
    try:
        total = read_json(run.folder / "config.json")["plan"]["total_updates"]
        with open(run.folder / "log.jsonl", "rb") as file:
            file.seek(max(0, os.path.getsize(file.name) - 4096))
            lines = file.read().splitlines()[-10:]
    except (OSError, InputError, KeyError, TypeError):
        return 0.0
    steps = []
    for line in lines:
        try:
            steps.append(json.loads(line).get("step", 0))
        except ValueError:  # the first of the lines is cut
            pass
    return min(1.0, max(steps, default=0) / total)


def _seconds_left(runs, jobs):
    """Estimate from the runs so far, each precision by its own; None while there is nothing to go by."""
    done = {}  # precision -> [seconds, weight]
    now = time.monotonic()
    left = []
    for run in runs:
        share = {"finished": 1.0, "running": _progress(run) if run.state == "running" else 0.0}.get(run.state, 0.0)
        seconds = now - run.started if run.state == "running" else run.seconds
        weight = run.weight * (share - (run.done_before if run.state == "running" else 0.0))
        if run.state in ("running", "finished") and weight > 0:
            total = done.setdefault(run.config.dtype, [0.0, 0.0])
            total[0] += seconds
            total[1] += weight
        if run.state in ("waiting", "running"):
            left.append((run.config.dtype, run.weight * (1 - share)))
    if not done:
        return None
    every = [sum(column) for column in zip(*done.values())]
    rates = {dtype: seconds / weight for dtype, (seconds, weight) in done.items()}
    work = [weight * rates.get(dtype, every[0] / every[1]) for dtype, weight in left]
    return max([sum(work) / jobs, *work]) if work else 0.0


def _place(runs, jobs):
    """How far the suite is, in words."""
    ended = sum(run.state in ("finished", "failed", "stopped") for run in runs)
    failed = sum(run.state == "failed" for run in runs)
    left = _seconds_left(runs, jobs)
    words = [f"{ended} of {len(runs)} runs"] + [f"{failed} failed"] * bool(failed)
    if left:
        words.append(
            f"about {time.strftime('%H:%M:%S', time.gmtime(left)) if left < 86400 else f'{left / 86400:.1f} days'} left"
        )
    return ", ".join(words)


@contextmanager
def _bar(runs, jobs):
    """A bar over all the work, on a terminal only; elsewhere the lines of the ended runs tell."""
    total = sum(run.weight for run in runs) or 1.0
    last = 0.0
    form = "{percentage:3.0f}%|{bar:20}| {desc}"
    with progress_bar(total=1.0, disable=None, leave=False, bar_format=form) as bar:

        def show():
            nonlocal last
            if bar.disable or time.monotonic() - last < 1:
                return
            last = time.monotonic()
            shares = {"finished": 1.0, "failed": 1.0, "stopped": 1.0}
            bar.n = sum(run.weight * shares.get(run.state, 0) for run in runs) / total
            bar.n += sum(run.weight * _progress(run) for run in runs if run.state == "running") / total
            running = ", ".join(f"{run.name} {_progress(run):.0%}" for run in runs if run.state == "running")
            bar.set_description_str(f"{_place(runs, jobs)}; {running}", refresh=True)

        yield show
