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
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from tqdm import tqdm

from bert import InputError, RunError, Stopped
from bert.config import PATHS, command_line, mnli_run, run_name
from bert.data import split_path
from bert.download import download_task
from bert.files import is_there, read_json, read_tail, writing
from bert.folder import FolderInUse, check_folder, claim_folder, is_finished, locked_folder, names_in
from bert.logs import progress_bar, write_json
from bert.stop import StopRequest
from bert.tasks import TASKS
from bert.weights import file_digest

_RECORD = "suite.json"  # which runs failed, and with what words: no more than a memo
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PATIENCE = 60.0  # seconds for the runs of a suite that was killed to save and end


@dataclass
class _Run:
    """One run of the suite."""

    config: object
    weight: float  # its expected share of the work: bytes of text to learn from
    source: object = None  # the run whose model it starts from
    state: str = "waiting"  # running, finished, failed, stopped
    error: str = ""
    remembered: bool = False  # a failure that another attempt would most likely meet again
    process: object = None
    started: float = 0.0
    printed: int = 0  # bytes that earlier sessions printed
    seconds: float = 0.0  # that it took
    done: float = 0.0  # share of its updates, from 0 to 1
    done_before: float = 0.0  # in earlier sessions

    @property
    def name(self):
        return run_name(self.config)

    @property
    def folder(self):
        return Path(self.config.output_dir)

    @property
    def console(self):
        """The file that takes what the run prints."""
        return Path(f"{self.folder}.txt")


def run_command(config, script):
    """The shell words that make one run, and go on with it when it is there already."""
    return [sys.executable, script, *command_line(config)]


def print_commands(suite, script, log):
    """One command per line, for any scheduler and from any folder; those whose model others start from come first."""
    for config in suite.runs:
        paths = {name: getattr(config, name) for name in (*PATHS, "data_dir")}
        there = {name: os.path.abspath(path) for name, path in paths.items() if path and os.path.exists(path)}
        if mnli_run(config, suite):
            there["bert_model"] = os.path.abspath(config.bert_model)
        log.say(shlex.join(run_command(replace(config, output_dir=os.path.abspath(config.output_dir), **there), script)))
    waiting = sum(mnli_run(config, suite) is not None for config in suite.runs)
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

    InputError before anything is started or removed where a run could not begin; Stopped where it was interrupted: then the
    runs under way have saved checkpoints.
    """
    stop = StopRequest(suite.max_minutes)
    with ExitStack() as stack:
        if not (suite.resume or suite.overwrite) and names_in(suite.output_dir):
            raise InputError(
                f"--output_dir {suite.output_dir}: not empty; name another folder, or add --resume to go on with its runs "
                "or --overwrite to replace them"
            )
        lock = _wait_for_lock(suite.output_dir, stack, log)
        runs = _plan(suite)
        if suite.overwrite:
            _clear(suite, runs)
        log.say(f"suite:     {_counts(runs)}; {suite.jobs} at a time; below {suite.output_dir}")
        for task in dict.fromkeys(run.config.task_name for run in runs if run.config.download and run.config.task_name):
            download_task(TASKS[task], suite.runs[0].data_dir, log)  # once, not by several runs at a time
        stack.enter_context(stop.listening())
        try:
            _work(runs, suite, script, log, lock, stop)
        except BaseException as reason:
            _end(runs, kill=isinstance(reason, KeyboardInterrupt))
            raise
        finally:
            _remember(suite, runs, log)
    failed = [(run.name, run.error) for run in runs if run.state == "failed"]
    stopped = [run.name for run in runs if run.state == "stopped"]
    if stopped:
        others = f"; {len(failed)} failed, among them {failed[0][0]}: {failed[0][1]}" if failed else ""
        raise Stopped(f"{', '.join(stopped)} by somebody else{others}")
    return failed


# Before anything is started


def _wait_for_lock(path, stack, log):
    """The folder's lock; runs of a suite that was killed hold it until they have saved and ended."""
    deadline = None
    while True:
        try:
            return stack.enter_context(locked_folder(path))
        except FolderInUse as error:
            if deadline is None:
                log.say(f"suite:     {error}; waiting for up to {_PATIENCE:.0f} s")
                deadline = time.monotonic() + _PATIENCE
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _plan(suite):
    """The runs with what is known of them; InputError where one could not begin, or would not go on as it began."""
    _check_inputs(suite.runs)
    failed = _read_record(suite)
    runs = {}
    for config in suite.runs:
        source = mnli_run(config, suite)
        read = [getattr(config, name) for name in PATHS if source is None or name != "bert_model"]
        claim = {"overwrite": suite.overwrite, "resume": not suite.overwrite}
        try:
            earlier = check_folder(config.output_dir, flags=asdict(config), sources=read, **claim)
            if earlier is not None:
                _check_start(earlier, config)
        except InputError as error:
            where = "" if config.output_dir in str(error) else f"{config.output_dir}: "
            raise type(error)(f"{where}{error}") from None
        run = runs[run_name(config)] = _Run(config, _weight(config), source=runs.get(source))
        if suite.overwrite:
            continue
        if is_finished(config.output_dir):
            run.state, run.seconds, run.done = "finished", _seconds(run), 1.0
        elif run.name in failed and not suite.retry_failed:
            run.state, run.error, run.remembered = "failed", str(failed[run.name]), True
    return list(runs.values())


def _check_inputs(configs):
    """InputError for files that are not there: every run would only find it out for itself."""
    missing = {}
    for config in configs:
        task = TASKS.get(config.task_name)
        for split in [] if task is None or config.download else map(task.splits.get, ("train", "dev", "dev_matched")):
            if split is not None and split_path(split, config.data_dir) is None:
                missing.setdefault(task.name, split.files[0])
    if missing:
        files = ", ".join(f"{name} ({file})" for name, file in missing.items())
        raise InputError(f"--data_dir {configs[0].data_dir}: no files for {files}; leave these tasks out, or add --download")
    for name in set(PATHS) - {"bert_model"}:  # which may be a hub id
        path = getattr(configs[0], name)
        if path and not is_there(path):
            raise InputError(f"--{name} {path}: no such file or folder")


def _check_start(earlier, config):
    """InputError where a run that is there, finished or not, was begun from something else than this suite would.

    (A run that goes on compares more, by digest; one that is finished is not asked again.)
    """
    before = earlier["config"]
    found = []
    for name in (*PATHS, "bert_dataset"):
        ours, theirs = getattr(config, name), before.get(name)
        if ours != theirs and not (ours and theirs and name in PATHS and os.path.realpath(ours) == os.path.realpath(theirs)):
            found.append((f"--{name}", theirs, ours))
    engine = earlier["engine"].get("name")
    if config.engine not in ("auto", engine):
        found.append(("--engine", engine, config.engine))
    for name, split in TASKS[config.task_name].splits.items() if config.task_name in TASKS else ():
        path = split_path(split, config.data_dir)
        digest = (earlier.get("data_sha256") or {}).get(name)
        if digest and path is not None and path.is_file() and file_digest(path) != digest:
            found.append((f"the {name} data", f"{digest[:12]}...", f"{file_digest(path)[:12]}... ({path})"))
    if found:
        text = "; ".join(f"{name} was {theirs}, is {ours}" for name, theirs, ours in found)
        raise InputError(f"this run was begun with something else: {text}")


def _clear(suite, runs):
    Path(suite.output_dir, _RECORD).unlink(missing_ok=True)
    for run in runs:
        run.console.unlink(missing_ok=True)
        if is_there(run.folder):
            with claim_folder(run.folder, overwrite=True, resume=False):
                pass


def _read_record(suite):
    path = Path(suite.output_dir) / _RECORD
    failed = read_json(path).get("failed", {}) if is_there(path) else {}
    if not isinstance(failed, dict):
        raise InputError(f"{path}: found {json.dumps(failed)[:60]} for failed, expected an object")
    return failed


def _remember(suite, runs, log):
    """Write which runs failed, those of other suites in this folder too. A memo: a disk that is full may do without."""
    failed = {} if suite.overwrite else _read_record(suite)
    for run in runs:
        failed.pop(run.name, None)
        if run.state == "failed" and run.remembered:
            failed[run.name] = run.error
    try:
        write_json(Path(suite.output_dir) / _RECORD, {"failed": failed})
    except RunError as error:
        log.say(f"WARNING: {error}")


def _counts(runs):
    states = [run.state for run in runs]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"{len(runs)} run{'s' * (len(runs) > 1)}, {counted}"


# Running


def _work(runs, suite, script, log, lock, stop):
    with _bar(runs, suite.jobs) as show:
        while any(run.state in ("waiting", "running") for run in runs):
            stop.check()
            free = suite.jobs - sum(run.state == "running" for run in runs)
            for run in [run for run in runs if run.state == "waiting"]:
                source = run.source
                if source is not None and source.state in ("failed", "stopped"):
                    run.state, run.error = source.state, f"it starts from {source.name}, which {source.state}"
                    log.say(_outcome(run))
                elif free and (source is None or source.state == "finished"):
                    _start(run, script, lock, suite.jobs)
                    free -= 1
            ended = [run for run in runs if run.state == "running" and run.process.poll() is not None]
            for run in ended:
                _note_end(run)
                _remember(suite, runs, log)
                log.say(f"{_outcome(run)} [{_place(runs, suite.jobs)}]")
            show(now=bool(ended))
            time.sleep(0.2)


def _start(run, script, lock, jobs):
    """Begin, or go on with, a run; what it prints goes to a file beside its folder."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = str(max(1, cores // jobs))  # by --jobs, not by the runs left: the number of threads decides last digits
    shares = {"OMP_NUM_THREADS": threads, "RAYON_NUM_THREADS": threads} if jobs > 1 else {}
    environment = {"TQDM_MININTERVAL": "30", **shares, **os.environ}  # bars fill a file at ten lines a second
    run.done = run.done_before = _progress(run)
    with writing(run.console), open(run.console, "ab") as console:
        run.printed = console.tell()
        run.process = subprocess.Popen(
            run_command(run.config, script),
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            env=environment,
            start_new_session=True,  # Ctrl-C is the suite's to pass on, once
            pass_fds=() if lock is None else (lock,),
            preexec_fn=_LIBC and partial(_end_with, os.getpid()),
        )
    run.state, run.started = "running", time.monotonic()


def _end_with(parent):
    """Called in the new process: SIGTERM to it when the suite dies, so that nothing goes on unseen (Linux)."""
    _LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, linux/prctl.h
    if os.getppid() != parent:  # it has died already
        os.kill(os.getpid(), signal.SIGTERM)


def _note_end(run):
    code = run.process.returncode
    if code == 0 and is_finished(run.folder):
        run.state, run.seconds, run.done = "finished", _seconds(run), 1.0
    elif code == 3:
        run.state = "stopped"
    else:
        run.state, run.error = "failed", _last_words(run, code)
        run.remembered = code != 2  # wrong input may be right by the next time


def _last_words(run, code):
    """The run's own error line, or else its last line, and how it ended."""
    lines = read_tail(run.console, start=run.printed).decode(errors="replace").replace("\r", "\n").split("\n")
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    words = [*(line.strip() for line in lines if line.strip()), *errors] or ["no message"]
    ended = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"{words[-1]} ({ended}; see {run.console})"


def _end(runs, *, kill):
    """Ask the runs under way to save and end, or end them at once; returns when they have."""
    running = [run for run in runs if run.state == "running"]
    for run in running:
        (run.process.kill if kill else run.process.terminate)()
    try:
        for run in running:
            run.process.wait()
    except KeyboardInterrupt:
        return _end(runs, kill=True)
    for run in running:
        _note_end(run)
        if run.process.returncode in (-signal.SIGTERM, -signal.SIGKILL):  # it had not begun to listen, or was killed
            run.state, run.error = "stopped", ""
    return None


# Telling


def _outcome(run):
    if run.state != "finished":
        return f"{run.name}: {run.state.upper()}{': ' + run.error if run.error else ''}"
    results = read_json(run.folder / "results.json")
    scores = next(iter(results["scores"].get("last", {}).values()), {})
    told = ", ".join(f"{metric} {100 * value:.1f}" for metric, value in scores.items() if metric != "loss")
    return f"{run.name}: {told}, {run.seconds:.0f} s"


def _seconds(run):
    results = read_json(run.folder / "results.json")
    found = [results.get(name) for name in ("train_seconds", "eval_seconds")]
    return sum(value for value in found if isinstance(value, (int, float)))


def _weight(config):
    """Bytes of text that the run learns from: what its time goes by, within one precision."""
    task = TASKS.get(config.task_name)
    path = config.train_file if task is None else split_path(task.splits["train"], config.data_dir)
    if path is None or not os.path.isfile(path):
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
    except (InputError, KeyError, TypeError):
        return 0.0
    steps = [0]
    for line in read_tail(run.folder / "log.jsonl").splitlines()[-10:]:
        try:
            steps.append(json.loads(line).get("step", 0))
        except ValueError:  # the first of the lines is cut
            pass
    return min(1.0, max(steps) / total)


def _seconds_left(runs, jobs):
    """Estimate from the runs so far, each precision by its own; None while there is nothing to go by."""
    rates, left = {}, []  # rates: precision -> [seconds, weight that they took]
    for run in runs:
        if run.state in ("running", "finished"):
            seconds = time.monotonic() - run.started if run.state == "running" else run.seconds
            total = rates.setdefault(run.config.dtype, [0.0, 0.0])
            total[0] += seconds
            total[1] += run.weight * (run.done - (run.done_before if run.state == "running" else 0))
        if run.state in ("running", "waiting"):
            left.append((run.config.dtype, run.weight * (1 - run.done)))
    seconds, weight = map(sum, zip(*rates.values())) if rates else (0.0, 0.0)
    if not weight:
        return None
    rates = {dtype: took / done if done else seconds / weight for dtype, (took, done) in rates.items()}
    work = [weight_left * rates.get(dtype, seconds / weight) for dtype, weight_left in left]
    return max([sum(work) / jobs, *work]) if work else 0.0


def _place(runs, jobs):
    """How far the suite is, in words."""
    states = [run.state for run in runs]
    words = [f"{states.count('finished')} of {len(runs)} runs finished"]
    words += [f"{states.count(state)} {state}" for state in ("failed", "stopped") if state in states]
    left = _seconds_left(runs, jobs)
    return ", ".join([*words, f"about {tqdm.format_interval(left)} left"] if left else words)


@contextmanager
def _bar(runs, jobs):
    """A bar over all the work, on a terminal only; elsewhere the lines of the ended runs tell."""
    total = sum(run.weight for run in runs) or 1.0
    last = 0.0
    tqdm.monitor_interval = 0  # no thread of tqdm's: processes are forked here
    with progress_bar(total=1.0, disable=None, leave=False, bar_format="{percentage:3.0f}%|{bar:20}| {desc}") as bar:

        def show(*, now):
            nonlocal last
            if not now and time.monotonic() - last < 1:
                return
            last = time.monotonic()
            running = [run for run in runs if run.state == "running"]
            for run in running:
                run.done = _progress(run)
            ended = {"failed": 1.0, "stopped": 1.0}
            bar.n = sum(run.weight * ended.get(run.state, run.done) for run in runs) / total
            bar.set_description_str("; ".join([_place(runs, jobs), *(f"{run.name} {run.done:.0%}" for run in running)]))

        yield show
