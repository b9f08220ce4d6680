"""A run's folder: which of its files are the run's, who may write into it now, and which run --resume would continue.

Knows the settings in config.json, and of the other files only their names.
"""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

from bert import InputError
from bert.files import read_json

try:
    import fcntl
except ImportError:  # Windows: two runs on one folder are not noticed there
    fcntl = None

#: Everything that a run writes into its folder; --overwrite clears these and nothing else. The order is that of clearing:
#: a folder that is half cleared must not pass for a finished run, nor for one that could be continued.
RUN_FILES = (
    *("results.json", "results.json.partial", "checkpoints", "log.jsonl", "tensorboard", "predictions"),
    *("model", "model.partial", "model.old", "config.json.partial", "config.json"),
)
LOCK = ".lock"

#: Flags that may change when a run is resumed: no update depends on them. What a path leads to is compared by digest,
#: and the engine and the task as they were resolved, by `check_same_inputs`.
MAY_CHANGE = {
    *("output_dir", "overwrite", "resume", "log_interval", "tensorboard", "save_steps", "max_minutes"),
    *("dev_batch_size", "dry_run", "download", "data_dir", "train_file", "dev_file", "test_file", "task_name", "engine"),
    *("checkpoint_activations", "bert_model", "bert_dataset", "pretrained_bert_parameters", "model_parameters"),
}


class FolderInUse(InputError):
    """Another process has the folder."""


def check_folder(path, *, overwrite, resume, flags, sources):
    """Refuse, by InputError, to write into `path` where something would be lost; changes nothing.

    It may hold nothing, unless --overwrite or --resume was given; no other run may be in it, nor any of `sources`, the
    files that the run is going to read. Returns what config.json says of the run that --resume would continue, None where
    there is none; `flags` (name -> value) must then be that run's, but for those that bend no curve.
    """
    folder = Path(path)
    for source in filter(None, sources):
        real = Path(os.path.realpath(source))  # (unlike Path.resolve it takes any name, and links that go in circles)
        if Path(os.path.realpath(folder)) in (real, *real.parents):
            raise InputError(f"--output_dir {path}: holds {source}, which this run reads; name another folder")
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"--output_dir {path}: is a file, expected a folder")
        if (folder / LOCK).exists():
            _unlock(_lock(folder, path), folder, remove=False)
        names = names_in(folder)
    except OSError as error:
        raise InputError(f"--output_dir {path}: cannot be read: {error.strerror}") from None
    if names and not (overwrite or resume):
        raise InputError(
            f"--output_dir {path}: not empty; name another folder, or add --resume to continue that run "
            "or --overwrite to replace it"
        )
    earlier = _earlier_run(folder, names) if resume else None
    if earlier is not None:
        before = earlier["config"]
        changed = [name for name in flags if name not in MAY_CHANGE and before.get(name) != flags[name]]
        _refuse([(f"--{name}", before.get(name), flags[name]) for name in changed])
    return earlier


def names_in(path):
    """What is in a folder beside its lock; nothing where there is no folder. InputError where it cannot be listed."""
    try:
        return set(os.listdir(path)) - {LOCK}
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise InputError(f"--output_dir {path}: cannot be read: {error.strerror}") from None


def _earlier_run(folder, names):
    """Content of config.json; None in an empty folder, or with no more than is left of a run that was stopped early."""
    if "config.json" in names:
        record = read_json(folder / "config.json")
        if isinstance(record.get("config"), dict) and {"engine", "plan", "versions"} <= record.keys():
            return record
        raise InputError(f"--resume: {folder / 'config.json'} is not a run's; name another folder")
    others = sorted(names - set(RUN_FILES))
    if others:
        raise InputError(f"--resume: {folder} holds no run, but {others[0]}; name another folder")
    if is_finished(folder) or any(folder.glob("checkpoints/step-*")):
        raise InputError(
            f"--resume: {folder} has lost its config.json, which says what it was begun with; "
            "remove it, or begin anew with --overwrite"
        )
    return None


def is_finished(path):
    """Whether the run in this folder came to its end: its results are what it writes last."""
    return (Path(path) / "results.json").is_file()


def check_same_inputs(earlier, record):
    """InputError that names whatever the flags lead to now, and did not then: engine, task, data, model.

    Both arguments are contents of config.json. Returns lines on what changes no more than last digits: device and versions.
    """
    found = [(name, _look_up(earlier, keys), _look_up(record, keys)) for name, keys in _INPUTS]
    # Other data have other tokens and another plan: the cause is enough.
    for kinds in (("data_sha256",), ("tokens_sha256", "plan")):
        for kind in kinds:
            parts = {**(earlier.get(kind) or {}), **(record[kind] or {})}
            found += [
                (f"{kind} of {part}", _look_up(earlier, (kind, part)), _look_up(record, (kind, part))) for part in parts
            ]
        _refuse([(name, before, now) for name, before, now in found if before != now])
    what = [("the device", ("engine", "device")), *((name, ("versions", name)) for name in record["versions"])]
    differences = [(name, _look_up(earlier, keys), _look_up(record, keys)) for name, keys in what]
    return [
        f"WARNING: {name} was {before}, is {now}: the resumed run may differ in its last digits"
        for name, before, now in differences
        if before != now
    ]


_INPUTS = [
    ("--engine", ("engine", "name")),
    ("--task_name", ("task",)),
    ("labels", ("labels",)),
    ("sha256 of the model's weights", ("model", "sha256")),
    ("architecture of the model", ("model", "architecture")),
    ("padding", ("batching",)),
]


def _look_up(record, keys):
    for key in keys:
        record = record.get(key) if isinstance(record, dict) else None
    return list(record) if isinstance(record, tuple) else record  # JSON knows no tuples


def _refuse(changes):
    if changes:
        text = "; ".join(f"{name} was {_short(before)}, is {_short(now)}" for name, before, now in changes)
        raise InputError(f"--resume continues a run exactly, so these must not change: {text}")


def _short(value):
    """A digest is known by its beginning."""
    return f"{value[:12]}..." if isinstance(value, str) and len(value) == 64 else value


@contextmanager
def claim_folder(path, *, overwrite, resume):
    """The run's folder, made, and this process's alone while the context lasts; InputError where another has it.

    Unless there is a checkpoint to --resume from, it is rid of an earlier run's files, and of nothing else.
    """
    folder = Path(path)
    with locked_folder(folder):
        try:
            # Another run may have come and gone since check_folder.
            taken = is_finished(folder) if resume else not overwrite and bool(set(os.listdir(folder)) - {LOCK})
            if not taken and not (resume and any(folder.glob("checkpoints/step-*"))):
                for target in (folder / name for name in RUN_FILES):
                    if target.is_dir():
                        shutil.rmtree(target)
                    else:
                        target.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"--output_dir {path}: cannot be written: {error.strerror}") from None
        if taken:
            raise InputError(f"--output_dir {path}: another run has just been in it")
        yield folder


@contextmanager
def locked_folder(path):
    """A folder, made, and this process's alone while the context lasts; InputError where another has it.

    Yields the lock's descriptor (None where locks are not known): a process that inherits it holds the lock too.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder, path)
    except OSError as error:
        raise InputError(f"--output_dir {path}: cannot be written: {error.strerror}") from None
    try:
        yield lock
    finally:
        _unlock(lock, folder)


def _lock(folder, path):
    """Descriptor of the folder's lock file, locked and holding this process's number; None where locks are not known.

    The lock goes with the process, however that ends; the file may stay behind and means nothing.
    """
    if fcntl is None:
        return None
    while True:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(folder / LOCK)):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
                return descriptor
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise FolderInUse(f"--output_dir {path}: in use by another run, process {holder}") from None
        except FileNotFoundError:
            pass  # its holder has just removed it, and with it the meaning of our lock
        except OSError:
            return descriptor  # a full disk, or a file system without locks: no reason not to run
        os.close(descriptor)


def _unlock(descriptor, folder, *, remove=True):
    if descriptor is not None:
        if remove:
            (folder / LOCK).unlink(missing_ok=True)
        os.close(descriptor)
