"""Runs' folders, read: their settings, results, logs and dev predictions, and which of them differ in nothing but the seed.

Knows what a run writes; nothing of statistics, sentences or pictures.
"""

import json
import os
import re
import time
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Optional

import numpy as np

from bert import InputError
from bert.config import PATHS, FinetuneConfig, build_parser
from bert.files import read_json, read_lines, read_tail
from bert.folder import MAY_CHANGE
from bert.precision import DTYPES
from bert.submission import read_dev_predictions
from bert.tasks import TASKS

#: What two runs of a group may differ in, beside what --resume lets change: the seed, how the settings were named, and flags
#: that bend no curve. Loss scales are compared where there is scaling.
_APART = {"seed", "dtype", "recipe", "only_calibration", "deploy", "model_prefix", "num_calib_batches", "quantized_dtype"}
_APART |= {"calib_mode", *MAY_CHANGE}
_SCALING = {item.name for item in fields(FinetuneConfig) if "loss_scale" in item.name}
_LOGGED = ("step", "loss", "learning_rate", "grad_norm", "loss_scale", "skipped")
_NUMBER = (int, float)
_KINDS = {str: "a text", int: "an integer", list: "a list", dict: "an object", _NUMBER: "a number"}
_RECORD = {("task",): str, ("labels",): list, ("config",): dict, ("data_sha256",): dict, ("versions",): dict}
_RECORD |= {("engine", "name"): str, ("engine", "device"): str, ("precision", "dtype"): str, ("config", "seed"): int}
_RECORD |= {("model", "source"): str, ("model", "sha256"): str}
_LENGTHS = {"rows": int, "max": int, "mean": _NUMBER, "padding": _NUMBER, "histogram": list}
_RESULTS = {("scores",): dict} | {(name,): _NUMBER for name in ("peak_memory_mib", "wall_seconds")}
_TRAINED = ("updates", "skipped_updates", "final_loss_scale", "epochs", "best_epoch", "train_seconds", "eval_seconds")
_TRAINED = {(name,): _NUMBER for name in (*_TRAINED, "examples_per_second", "tokens_per_second")}


@dataclass(frozen=True, eq=False)
class Run:
    """A run's folder: `record` is config.json, {} where a suite says that the run failed before it wrote one; `results` is
    results.json, None where the run is not finished."""

    folder: Path
    record: dict
    results: Optional[dict] = None
    last_words: str = ""  # of an unfinished run, by suite.json or the console's file beside its folder

    @property
    def task(self):
        return self.record["task"]

    @property
    def seed(self):
        return self.record["config"]["seed"]

    @property
    def dtype(self):
        return self.record["precision"]["dtype"]

    @property
    def settings(self):
        """Every flag's value; a flag that an older program did not know has its default."""
        return {**_defaults(), **self.record["config"]}

    @property
    def model(self):
        """What the run started from, in words."""
        return "the MNLI run's model" if self.from_mnli else self.record["model"]["source"].split(" (")[0]

    @property
    def from_mnli(self):
        """Whether it started from the model of its suite's MNLI run with the same precision and seed."""
        folder = os.path.basename(os.path.dirname(self.settings["bert_model"] or ""))
        return folder == f"MNLI-{self.dtype}-seed{self.seed}"

    @property
    def day(self):
        """The date of a finished run's results.json, UTC; a copy may have its own."""
        return time.strftime("%Y-%m-%d", time.gmtime(os.path.getmtime(self.folder / "results.json")))

    @property
    def trained(self):
        return self.results is not None and "updates" in self.results

    def splits(self, kind):
        """Dev split -> metric -> score, with the loss. `kind`: "last" or "best"; a run that only predicted has one kind."""
        scores = self.results["scores"]
        return scores.get(kind, scores.get("saved", {}))

    def scores(self, kind):
        """Measure -> score x 100 on dev: "accuracy", or "accuracy, matched" where a task has two dev splits."""
        splits = self.splits(kind)
        return {
            metric + (split_suffix(name) if len(splits) > 1 else ""): 100 * value
            for name, values in splits.items()
            for metric, value in values.items()
            if metric != "loss"
        }

    def primary(self, kind):
        """The task's first metric x 100, mean over its dev splits; None without one."""
        firsts = [100 * next(iter(values.values())) for values in self.splits(kind).values()]
        return float(np.mean(firsts)) if firsts else None

    @cached_property
    def outputs(self):
        """Dev split -> DevPredictions of the last epoch; a split whose file is missing is left out."""
        kind = "last" if self.trained else "saved"
        paths = {name: self.folder / f"predictions/{name}.{kind}.tsv" for name in self.splits("last")}
        return {name: read_dev_predictions(path) for name, path in paths.items() if path.is_file()}

    @cached_property
    def log(self):
        """(column -> array over updates, [(epoch, primary score x 100)]) of log.jsonl; both empty without it.

        Columns: step, loss, learning_rate, grad_norm, loss_scale, skipped; NaN is what was not finite. InputError for a
        broken line.
        """
        path, updates, evaluations = self.folder / "log.jsonl", [], []
        for number, line in read_lines(path) if path.is_file() else ():
            try:
                record = json.loads(line)
                if "evaluation" in record:
                    evaluations.append((int(record["evaluation"]["epoch"]), 100 * float(record["evaluation"]["primary"])))
                else:
                    updates.append([float("nan") if record[name] is None else float(record[name]) for name in _LOGGED])
            except (ValueError, TypeError, KeyError, RecursionError):
                raise InputError(f"{path}:{number}: found {line[:60]!r}, expected a record of a run's log") from None
        return dict(zip(_LOGGED, np.array(updates, np.float64).reshape(-1, len(_LOGGED)).T)), evaluations


def split_suffix(name):
    """What sets a dev split apart from others: "dev_matched" -> ", matched", "dev" -> ""."""
    return name.replace("dev_", ", ").removeprefix("dev")


@lru_cache(maxsize=1)
def _defaults():
    parser = build_parser()
    return {item.name: parser.get_default(item.name) for item in fields(FinetuneConfig)}


def gather(folders):
    """Every Run in `folders` and anywhere below them, finished or not, ordered by folder.

    InputError names a folder that is not there or holds no run, and a file that is not a run's. A folder counts once.
    """
    found, failed = {}, {}
    for folder in folders:
        if not os.path.isdir(folder):
            raise InputError(
                f"{folder}: found {'a file' if os.path.exists(folder) else 'nothing'}, expected a folder of runs"
            )
        runs = {}
        for path, below, files in os.walk(folder):
            below.sort()
            if "suite.json" in files:
                failed |= _failed_runs(Path(path))
            run = _read_run(Path(path)) if "config.json" in files else None
            if run is not None:
                runs[os.path.realpath(path)] = run
                below.clear()
        if not runs:
            raise InputError(f"{folder}: found no run, expected folders with config.json and results.json in it or below")
        found = runs | found
    for path, (folder, words) in failed.items():
        run = found.get(path) or Run(folder, {})
        found[path] = run if run.results else replace(run, last_words=words)
    return sorted(found.values(), key=lambda run: str(run.folder))


def _failed_runs(folder):
    """Real path -> (folder, last words) of each run that a suite's record says failed."""
    failed = read_json(folder / "suite.json").get("failed")
    failed = failed if isinstance(failed, dict) else {}
    return {os.path.realpath(folder / name): (folder / name, str(words)[:300]) for name, words in failed.items()}


def _read_run(folder):
    """The Run in a folder that holds a config.json; None where that is, say, a model's."""
    record = read_json(folder / "config.json")
    finished = (folder / "results.json").is_file()
    if not finished and not {"config", "engine", "versions"} <= record.keys():
        return None
    _check(folder / "config.json", record, _RECORD)
    _check_parts(folder / "config.json", record)
    if not finished:
        return Run(folder, record, last_words=_last_words(folder.with_name(folder.name + ".txt")))
    path, results = folder / "results.json", read_json(folder / "results.json")
    _check(path, results, _RESULTS | (_TRAINED if record.get("plan") else {}))
    for kind, splits in results["scores"].items():
        _check(path, results, {("scores", kind): dict})
        _check(path, results, {("scores", kind, split): dict for split in splits})
        metrics = [
            (split, metric) for split, values in splits.items() for metric in values or ["metric"] if metric != "loss"
        ]
        _check(path, results, {("scores", kind, *names): _NUMBER for names in metrics})
    return Run(folder, record, results)


def _check_parts(path, record):
    """InputError for a value inside of config.json's lists and objects that is not of its type."""
    kinds = {("data_sha256", name): str for name in record["data_sha256"]}
    for name, value in record["config"].items():
        if name in PATHS and value is not None:
            kinds["config", name] = str
    lengths = record.get("lengths") or {}
    kinds |= {("lengths",): dict} if lengths else {}
    for name in lengths if isinstance(lengths, dict) else ():
        kinds |= {("lengths", name, part): kind for part, kind in _LENGTHS.items()}
    _check(path, record, kinds)
    for name, parts in (("labels", record["labels"]), *((f"lengths.{n}", v["histogram"]) for n, v in lengths.items())):
        kind = str if name == "labels" else int
        for part in parts:
            _check(path, {name: part}, {(name,): kind})


def _check(path, content, kinds):
    """InputError for the first key (a tuple of names) of `kinds` whose value in `content` is not of its type."""
    for keys, kind in kinds.items():
        value = content
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(f"{path}: found {json.dumps(value)[:60]} for {'.'.join(keys)}, expected {_KINDS[kind]}")


def _last_words(path):
    """The last line that a run said into the console file at `path`, "" where there is none."""
    text = read_tail(path).decode("utf-8", "replace")
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]|\|[\u2580-\u259f ]*\|", " ", text)  # a terminal's codes, a progress bar's blocks
    lines = [" ".join(line.split()) for line in re.split(r"[\r\n]+", text)]
    return next((line[:200] for line in reversed(lines) if line), "")


@dataclass
class Group:
    """Runs of one task, engine, precision, checkpoint, data and recipe; `runs` are finished, one per seed, in order."""

    task: str
    dtype: str
    family: tuple  # what it shares with its siblings in other precisions
    label: str = ""  # the precision, and what else sets it apart from the task's other groups
    variant: int = 0  # its place among the task's groups of the same precision
    runs: list = field(default_factory=list)
    unfinished: list = field(default_factory=list)
    doubles: list = field(default_factory=list)  # finished runs whose seed is there already

    @property
    def first(self):
        return (self.runs or self.unfinished)[0]

    @property
    def measures(self):
        return list(self.runs[0].scores("last")) if self.runs else []

    def values(self, kind, measure=None):
        """Seed -> score x 100; of the primary metric without a `measure`."""
        scores = {run.seed: run.scores(kind).get(measure) if measure else run.primary(kind) for run in self.runs}
        return {seed: score for seed, score in scores.items() if score is not None}

    @cached_property
    def median(self):
        """The run with the median score (the lower one of two)."""
        return sorted(self.runs, key=lambda run: (run.primary("last") or 0, run.seed))[(len(self.runs) - 1) // 2]


def group_runs(runs):
    """Task -> its Groups: tasks in GLUE's order, groups in that of the precisions. Runs without a record are left out."""
    groups = {}
    for run in runs:
        if run.record:
            traits = _traits(run)
            family = tuple((name, repr(value)) for name, value in sorted(traits.items()) if name not in _SCALING)
            scaling = tuple((name, repr(traits[name])) for name in sorted(_SCALING & traits.keys()))
            group = groups.setdefault((run.task, run.dtype, family, scaling), Group(run.task, run.dtype, family))
            known = any(earlier.seed == run.seed for earlier in group.runs)
            (group.unfinished if run.results is None else group.doubles if known else group.runs).append(run)
    tasks = {}
    for task in sorted({group.task for group in groups.values()}, key=lambda name: ([*TASKS, name].index(name), name)):
        members = [group for group in groups.values() if group.task == task]
        members.sort(key=lambda group: [*DTYPES, group.dtype].index(group.dtype))
        traits = [_traits(group.first) for group in members]
        names = {name for one in traits for name in one}
        differing = [name for name in sorted(names) if len({repr(one[name]) for one in traits if name in one}) > 1]
        if "model" in differing:
            differing = [name for name in differing if name != "weights"]
        for group, own in zip(members, traits):
            group.runs.sort(key=lambda run: run.seed)
            group.variant = sum(other.dtype == group.dtype for other in members[: members.index(group)])
            group.label = ", ".join([group.dtype, *(_trait(name, own[name]) for name in differing if name in own)])
        tasks[task] = members
    return tasks


def _traits(run):
    """Name -> value of all that a run shares with the others of its group."""
    record = run.record
    data = sorted((name, digest) for name, digest in record["data_sha256"].items() if not name.startswith("test"))
    weights = "the MNLI run's" if run.from_mnli else record["model"]["sha256"]  # --from_mnli: another for each seed
    traits = {"engine": record["engine"]["name"], "model": run.model, "weights": weights, "data": data}
    settings = {name: value for name, value in run.settings.items() if name not in _APART and value is not None}
    return traits | {name: value for name, value in settings.items() if name not in _SCALING or run.dtype == "float16"}


def _trait(name, value):
    if name in ("data", "weights"):
        return f"{name} {value[:8] if name == 'weights' else '-'.join(digest[:6] for _, digest in value)}"
    return str(value) if name in ("engine", "model") else f"{name} {setting_text(value)}"


def setting_text(value):
    """A flag's value as people write it: 3e-05 is 3e-5."""
    return re.sub(r"e-0(\d)$", r"e-\1", f"{value:g}") if isinstance(value, float) else str(value)
