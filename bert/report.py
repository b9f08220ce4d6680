"""The report over many runs: what their folders say, gathered, counted and drawn, as a page, as Markdown and as CSV.

Statistics are made of the last epoch, which nobody chose on the dev split; the best epoch's scores stand beside them.
Knows what a run's folder holds; how to test (bert.statistics), judge (bert.verdict) and draw (bert.plots) is theirs.
"""

import csv
import functools
import json
import os
import re
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np

from bert import InputError, __version__
from bert import plots, statistics, verdict
from bert.config import build_parser
from bert.files import read_json, read_lines, whole_file, writing
from bert.folder import MAY_CHANGE
from bert.logs import table
from bert.metrics import predictions, probabilities
from bert.page import Cell, Code, Details, Gallery, Heading, Items, Picture, Strip, Table, Text, to_html, to_markdown
from bert.precision import DTYPES
from bert.submission import read_dev_predictions
from bert.tasks import TASKS

#: Rows of the benchmark's dev splits: scores on other rows are not comparable with published ones. GLUE, Wang et al. 2019
#: (its data as downloaded).
DEV_ROWS = {"CoLA": 1043, "SST-2": 872, "MRPC": 408, "STS-B": 1500, "QQP": 40430, "QNLI": 5463, "RTE": 277, "WNLI": 71}
DEV_ROWS["MNLI"] = 9815 + 9832
#: What two runs of one group may differ in, beside what --resume lets change: the seed, and flags that bend no curve.
_APART = {"seed", "dtype", "only_calibration", "deploy", "model_prefix", "num_calib_batches", "quantized_dtype", "calib_mode"}
_SCALING = {name for name in vars(build_parser().parse_args([])) if "loss_scale" in name}  # compared where there is scaling
_RECIPE = ("epochs", "training_steps", "lr", "batch_size", "accumulate", "warmup_ratio", "optimizer", "weight_decay", "max_len")
_NO_COMMAND = {"output_dir", "seed", "resume", "overwrite", "max_minutes", "dry_run"}
_NUMBER = (int, float)
_RECORD = {  # what is read of config.json, and its type
    **{("task",): str, ("labels",): list, ("config",): dict, ("data_sha256",): dict, ("versions",): dict},
    **{("engine", "name"): str, ("engine", "device"): str, ("precision", "dtype"): str, ("config", "seed"): int},
    **{("model", "source"): str, ("model", "sha256"): str},
}
_RESULTS = {("scores",): dict, ("peak_memory_mib",): _NUMBER, ("wall_seconds",): _NUMBER}
_TRAINED = dict.fromkeys(
    [(name,) for name in ("updates", "skipped_updates", "final_loss_scale", "train_seconds", "tokens_per_second", "epochs")]
    + [(name,) for name in ("examples_per_second", "best_epoch", "eval_seconds")],
    _NUMBER,
)


@dataclass(frozen=True)
class Run:
    """A run's folder, read: `record` is config.json, `results` is results.json or None where the run is not finished."""

    folder: Path
    record: dict
    results: Optional[dict]
    last_words: str = ""  # of an unfinished run's console, where that was kept beside its folder

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

    def scores(self, kind):
        """Measure -> score x 100 on dev: "accuracy", or "accuracy, matched" where a task has two dev splits.

        `kind` is "last" or "best"; a run that only predicted has one kind of scores, which is both.
        """
        splits = self._splits(kind)
        return {
            metric + (f", {name.partition('_')[2] or name}" if len(splits) > 1 else ""): 100 * value
            for name, values in splits.items()
            for metric, value in values.items()
            if metric != "loss"
        }

    def primary(self, kind):
        """The task's first metric x 100, mean over its dev splits; None without one."""
        firsts = [100 * next(iter(values.values())) for values in self._splits(kind).values()]
        return float(np.mean(firsts)) if firsts else None

    def _splits(self, kind):
        scores = self.results["scores"]
        return scores.get(kind, scores.get("saved", {}))


def gather(folders):
    """Every run in `folders` and anywhere below them, finished or not, ordered by folder.

    InputError names a folder that is not there or holds no run, and a file that is not a run's. The same folder counts once.
    """
    found = {}
    for folder in folders:
        if not os.path.isdir(folder):
            raise InputError(f"{folder}: found {'a file' if os.path.exists(folder) else 'nothing'}, expected a folder of runs")
        before = len(found)
        for path, below, files in os.walk(folder):
            below.sort()
            run = _read_run(Path(path)) if "config.json" in files else None
            if run is not None:
                found.setdefault(os.path.realpath(path), run)
                below.clear()
            elif len(found) == before and path == str(folder) and not below:
                raise InputError(f"{folder}: found no run, expected config.json and results.json in it or below")
    if not found:
        raise InputError(f"{', '.join(map(str, folders))}: found no run, expected folders with config.json and results.json")
    return sorted(found.values(), key=lambda run: str(run.folder))


def _read_run(folder):
    """The Run in a folder that holds a config.json; None where that is, say, a model's."""
    record = read_json(folder / "config.json")
    finished = (folder / "results.json").is_file()
    if not finished and not {"config", "engine", "versions"} <= record.keys():
        return None
    _check(folder / "config.json", record, _RECORD)
    if not finished:
        return Run(folder, record, None, _last_words(folder.with_name(folder.name + ".txt")))
    results = read_json(folder / "results.json")
    _check(folder / "results.json", results, _RESULTS | (_TRAINED if record.get("plan") else {}))
    for kind, splits in results["scores"].items():
        _check(folder / "results.json", results, {("scores", kind): dict})
        for split, values in splits.items():
            _check(folder / "results.json", results, {("scores", kind, split): dict})
            metrics = [name for name in values if name != "loss"]
            _check(folder / "results.json", results, {("scores", kind, split, name): _NUMBER for name in metrics})
    return Run(folder, record, results)


def _check(path, content, kinds):
    """InputError for the first key (a tuple of names) of `kinds` whose value in `content` is not of its type."""
    for keys, kind in kinds.items():
        value = content
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            expected = "a number" if kind is _NUMBER else {str: "a text", dict: "an object", list: "a list", int: "an integer"}[kind]
            raise InputError(f"{path}: found {json.dumps(value)[:60]} for {'.'.join(keys)}, expected {expected}")


def _last_words(path):
    """The last line that a run said into the console file at `path`, "" where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - 4096))
            text = file.read(4096).decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line.strip() for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text))]
    return next((line[:200] for line in reversed(lines) if line), "")


@functools.lru_cache(maxsize=1)
def _defaults():
    return vars(build_parser().parse_args([]))


# Groups: the runs that differ in nothing but their seed.


@dataclass
class Group:
    """Runs of one task, engine, precision, checkpoint, data and recipe; `runs` are finished, one per seed, in their order."""

    task: str
    dtype: str
    family: tuple  # what it shares with its siblings in other precisions
    label: str = ""  # the precision, and what else sets it apart from the task's other groups
    variant: int = 0
    runs: list = field(default_factory=list)
    unfinished: list = field(default_factory=list)
    doubles: list = field(default_factory=list)  # finished runs whose seed is there already

    @property
    def first(self):
        return (self.runs or self.unfinished)[0]

    @property
    def series(self):
        return plots.Series(self.label, self.dtype, self.variant)

    @property
    def measures(self):
        return list(self.runs[0].scores("last")) if self.runs else []

    def values(self, kind, measure=None):
        """Seed -> score x 100; of the primary metric without a `measure`."""
        scores = {run.seed: run.scores(kind).get(measure) if measure else run.primary(kind) for run in self.runs}
        return {seed: score for seed, score in scores.items() if score is not None}

    @functools.cached_property
    def median(self):
        """The run with the median score (the lower one of two)."""
        return sorted(self.runs, key=lambda run: (run.primary("last") or 0, run.seed))[(len(self.runs) - 1) // 2]

    @functools.cached_property
    def outputs(self):
        """For each run: dev split -> DevPredictions of the last epoch; splits whose file is missing are left out."""
        splits = [name for name in self.first.record["data_sha256"] if name.split("_")[0] == "dev"]
        paths = {name: f"predictions/{name}.{'last' if self.first.record.get('plan') else 'saved'}.tsv" for name in splits}
        return [
            {name: read_dev_predictions(run.folder / path) for name, path in paths.items() if (run.folder / path).is_file()}
            for run in self.runs
        ]

    @functools.cached_property
    def degenerate(self):
        """Seeds of runs that learned nothing."""
        return [run.seed for run, outputs in zip(self.runs, self.outputs) if _is_degenerate(run, outputs)]


def group_runs(runs):
    """Task -> its groups: tasks in GLUE's order, groups in float32, float16, bfloat16."""
    groups = {}
    for run in runs:
        settings = {name: value for name, value in run.settings.items() if name not in MAY_CHANGE | _APART}
        scaling = {name: settings.pop(name) for name in _SCALING}
        data = tuple(sorted((name, digest) for name, digest in run.record["data_sha256"].items() if not name.startswith("test")))
        family = (run.record["engine"]["name"], run.record["model"]["sha256"], data, _frozen(settings))
        key = (run.task, run.dtype, family, _frozen(scaling) if run.dtype == "float16" else ())
        group = groups.setdefault(key, Group(run.task, run.dtype, family))
        seeds = {earlier.seed for earlier in group.runs}
        (group.unfinished if run.results is None else group.doubles if run.seed in seeds else group.runs).append(run)
    tasks = {}
    for task in sorted({group.task for group in groups.values()}, key=lambda name: ([*TASKS, name].index(name), name)):
        members = [group for group in groups.values() if group.task == task]
        members.sort(key=lambda group: (DTYPES.index(group.dtype) if group.dtype in DTYPES else 9, group.family[0]))
        differing = _differences(members)
        for group in members:
            group.runs.sort(key=lambda run: run.seed)
            group.variant = sum(other.dtype == group.dtype for other in members[: members.index(group)])
            group.label = ", ".join([group.dtype, *differing(group)])
        tasks[task] = members
    return tasks


def _frozen(settings):
    return tuple(sorted((name, repr(value)) for name, value in settings.items()))


def _differences(groups):
    """A function that names what sets a group apart from the others, beside its precision."""

    def describe(group):
        run = group.first
        data = sorted(run.record["data_sha256"].items())
        named = {"engine": run.record["engine"]["name"], "model": _model_name(run), "weights": run.record["model"]["sha256"][:8]}
        named["data"] = next((digest[:8] for name, digest in data if not name.startswith("test")), "none")
        settings = {name: value for name, value in run.settings.items() if name not in MAY_CHANGE | _APART}
        return {**named, **{name: value for name, value in settings.items() if name not in _SCALING or group.dtype == "float16"}}

    described = [describe(group) for group in groups]
    names = [name for name in described[0] if len({repr(one[name]) for one in described if name in one}) > 1]
    names += [name for name in _SCALING - described[0].keys() if len({repr(one[name]) for one in described if name in one}) > 1]
    if "model" in names and "weights" in names:
        names.remove("weights")
    plain = ("engine", "model")
    return lambda group: [
        f"{value}" if name in plain else f"{name} {value}" for name, value in describe(group).items() if name in names
    ]


def _model_name(run):
    return run.record["model"]["source"].split(" (")[0]


def _is_degenerate(run, outputs):
    """Whether a finished run learned nothing, by its last epoch."""
    found = []
    for name, (labels, predicted, _) in outputs.items():
        metric = next(iter(run.results["scores"].get("last", run.results["scores"].get("saved"))[name]))
        found.append(statistics.degenerate(labels, predicted, metric))
    return bool(found) and all(found)
