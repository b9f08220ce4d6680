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
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Optional

import numpy as np

from bert import InputError, __version__, plots, statistics, verdict
from bert.config import FinetuneConfig, build_parser, command_line
from bert.files import read_json, read_lines, whole_file, writing
from bert.folder import MAY_CHANGE
from bert.logs import table
from bert.metrics import predictions, probabilities
from bert.page import Cell, Code, Details, Gallery, Heading, Items, Picture, Strip, Table, Text, pictures, to_html, to_markdown
from bert.precision import DTYPES
from bert.submission import read_dev_predictions
from bert.tasks import TASKS

#: Rows of the benchmark's dev splits: scores on other rows are not comparable with published ones. GLUE, Wang et al. 2019
#: (its data as downloaded).
DEV_ROWS = {"CoLA": 1043, "SST-2": 872, "MRPC": 408, "STS-B": 1500, "QQP": 40430, "QNLI": 5463, "RTE": 277, "WNLI": 71}
DEV_ROWS["MNLI"] = 9815 + 9832
#: What two runs of one group may differ in, beside what --resume lets change: the seed, and flags that bend no curve.
_APART = {"seed", "dtype", "recipe", "only_calibration", "deploy", "model_prefix", "num_calib_batches", "quantized_dtype", "calib_mode"}
_SCALING = {item.name for item in fields(FinetuneConfig) if "loss_scale" in item.name}  # compared where there is scaling
_RECIPE = ("epochs", "training_steps", "lr", "batch_size", "accumulate", "warmup_ratio", "optimizer", "weight_decay", "max_len")
_ONCE = {"resume": False, "overwrite": False, "max_minutes": None, "dry_run": False}  # not part of how a run is made
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
    """A run's folder, read: `record` is config.json, {} where a suite says that the run failed before it wrote one;
    `results` is results.json, None where the run is not finished."""

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
    found, failed = {}, {}
    for folder in folders:
        if not os.path.isdir(folder):
            raise InputError(f"{folder}: found {'a file' if os.path.exists(folder) else 'nothing'}, expected a folder of runs")
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
    if not finished:
        return Run(folder, record, last_words=_last_words(folder.with_name(folder.name + ".txt")))
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
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]|\|[\u2580-\u259f ]*\|", " ", text)  # colours, and what a progress bar is made of
    lines = [" ".join(line.split()) for line in re.split(r"[\r\n]+", text)]
    return next((line[:200] for line in reversed(lines) if line), "")


@functools.lru_cache(maxsize=1)
def _defaults():
    parser = build_parser()
    return {item.name: parser.get_default(item.name) for item in fields(FinetuneConfig)}


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
    for run in filter(lambda run: run.record, runs):
        settings = {name: value for name, value in run.settings.items() if name not in MAY_CHANGE | _APART}
        scaling = {name: settings.pop(name) for name in _SCALING}
        data = tuple(sorted((name, digest) for name, digest in run.record["data_sha256"].items() if not name.startswith("test")))
        family = (run.record["engine"]["name"], _weights(run), data, _frozen(settings))
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
    return tuple(sorted((name, repr(value)) for name, value in settings.items() if value is not None))


def _differences(groups):
    """A function that names what sets a group apart from the others, beside its precision."""

    def describe(group):
        run = group.first
        data = sorted(run.record["data_sha256"].items())
        named = {"engine": run.record["engine"]["name"], "model": _model_name(run), "weights": _weights(run)[:8]}
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
        str(value) if name in plain else f"{name} {_setting(value)}" for name, value in describe(group).items() if name in names
    ]


def _from_mnli(run):
    """Whether a run starts from the model of its suite's MNLI run with the same precision and seed."""
    return os.path.basename(os.path.dirname(run.settings["bert_model"] or "")) == f"MNLI-{run.dtype}-seed{run.seed}"


def _weights(run):
    """What a run starts from: another file for each seed, where that is what --from_mnli means."""
    return "MNLI run" if _from_mnli(run) else run.record["model"]["sha256"]


def _model_name(run):
    return "the MNLI run's model" if _from_mnli(run) else run.record["model"]["source"].split(" (")[0]


def _is_degenerate(run, outputs):
    """Whether a finished run learned nothing, by its last epoch."""
    found = []
    for name, (labels, predicted, _) in outputs.items():
        metric = next(iter(run.results["scores"].get("last", run.results["scores"].get("saved"))[name]))
        found.append(statistics.degenerate(labels, predicted, metric))
    return bool(found) and all(found)


# Numbers and words.


def _score(value):
    return Cell("–", None) if value is None else Cell(f"{value:.1f}", round(float(value), 6))


def _setting(value):
    """3e-05 -> 3e-5; the rest as it is."""
    return re.sub(r"e-0(\d)$", r"e-\1", f"{value:g}") if isinstance(value, float) else str(value)


def _range(values, form="{:g}"):
    """One number for all runs, or the least and the greatest, sorted by their mean."""
    low, high = form.format(min(values)), form.format(max(values))
    return Cell(low if low == high else f"{low} to {high}", float(np.mean(values)))


def _duration(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _seed_list(seeds):
    """0, 1, 2, 4 -> "0 to 2, 4"."""
    parts = []
    for seed in sorted(seeds):
        if parts and parts[-1][1] == seed - 1:
            parts[-1][1] = seed
        else:
            parts.append([seed, seed])
    return ", ".join(f"{a}" if a == b else f"{a}, {b}" if b == a + 1 else f"{a} to {b}" for a, b in parts)


def _listed(words):
    words = list(words)
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _count(number, word):
    return f"{number} {word}{'' if number == 1 else 's'}"


def _unique(values):
    return list(dict.fromkeys(values))


def _spread(values):
    """(mean, sd or None, 95% interval or None) of scores."""
    summary = statistics.summarize(list(values))
    return summary.mean, summary.sd, statistics.mean_interval(list(values)) if summary.n > 1 else None


def table_lines(runs):
    """The console's table at the end of a suite: a line per task, precision and metric."""
    rows = [["task", "runs of", "metric", "n", "mean", "sd", "min", "max", "best epoch", "unfinished", "degenerate"]]
    for groups in group_runs(runs).values():
        for group in groups:
            for measure in group.measures or ["-"]:
                values = list(group.values("last", measure).values()) if group.runs else []
                best = list(group.values("best", measure).values()) if group.runs else []
                mean, sd, _ = _spread(values) if values else (None, None, None)
                numbers = [mean, sd, min(values, default=None), max(values, default=None), float(np.mean(best)) if best else None]
                shown = ["-" if number is None else f"{number:.1f}" for number in numbers]
                rows.append([group.task, group.label, measure, len(values), *shown, len(group.unfinished), len(group.degenerate)])
    return table(rows)


# The report's parts. Each takes task -> groups, and returns blocks.


def _summary(every, tasks, parities):
    """What a reader should know first."""
    groups = [group for members in tasks.values() for group in members]
    runs = [run for group in groups for run in group.runs]
    unfinished = [run for run in every if run.results is None]
    tasks_named = f"{', '.join(tasks)} in {_listed(_unique(group.dtype for group in groups))}"
    items = [f"{len(runs)} of {_count(len(runs) + len(unfinished), 'run')} finished: {tasks_named}, seeds {_seed_list({run.seed for run in runs})}."]
    failed = {f"{group.task} {group.label}": group.degenerate for group in groups if group.degenerate}
    if failed:
        number = _count(sum(map(len, failed.values())), "run")
        words = "; ".join(f"{name} {_count(len(seeds), 'seed').split()[1]} {_seed_list(seeds)}" for name, seeds in failed.items())
        items.append(f"Learned nothing ({number}, counted in every mean): {words}.")
    elif runs:
        items.append("No finished run is degenerate: each beats what needs no learning (the majority class, a correlation of 0).")
    outcomes = {}
    for group, measure, parity, _ in parities:
        if measure == group.measures[0]:
            outcomes.setdefault(group.dtype, {}).setdefault(parity.outcome, {})[group.task] = None
    for dtype, found in outcomes.items():
        words = "; ".join(f"{outcome} on {_listed(where)}" for outcome, where in found.items())
        items.append(f"{dtype} against float32: {words}.")
    scaled = [run for run in runs if run.dtype == "float16" and "updates" in run.results]
    if scaled:
        skipped, updates = (sum(run.results[name] for run in scaled) for name in ("skipped_updates", "updates"))
        items.append(f"float16 skipped {skipped} of {updates:,} updates ({skipped / updates:.2%}) because a gradient overflowed.")
    doubles = [str(run.folder) for group in groups for run in group.doubles]
    if doubles:
        items.append(f"Not counted, as the same settings and seed are there already: {', '.join(doubles)}.")
    return [Items(items)]


def _score_table(tasks):
    """Means over seeds of the last epoch, per task, precision and metric."""
    rows = []
    for groups in tasks.values():
        everything = {m: [v for g in groups if g.runs for v in g.values("last", m).values()] for g in groups for m in g.measures}
        for measure, scores in everything.items():
            for group in [group for group in groups if measure in group.measures]:
                values, best = group.values("last", measure), group.values("best", measure)
                mean, sd, interval = _spread(values.values())
                strip = Strip(list(values.values()), min(scores), max(scores), group.dtype)
                rows.append(
                    [group.task, measure, group.label, Cell(f"{mean:.1f}" + ("" if sd is None else f" ± {sd:.1f}"), mean)]
                    + [Cell(str(len(values)), len(values))]
                    + [f"{interval[0]:.1f} to {interval[1]:.1f}" if interval else "–", strip, _score(np.median(list(values.values())))]
                    + [_score(min(values.values())), _score(max(values.values())), _score(np.mean(list(best.values())))]
                )
    header = ["Task", "Metric", "Precision", "Mean ± sd", "Runs", "95% interval", "Seeds", "Median", "Min", "Max", "Best epoch"]
    if all(row[4].value == 1 for row in rows):  # then one number says it all
        header, rows = header[:5] + header[10:], [row[:5] + row[10:] for row in rows]
        header[3] = "Score"
    note = "Dev scores × 100 after the last epoch; the interval is the mean's (t). A strip of seeds runs from the task's lowest "
    note += "score to its highest. The best epoch is chosen on the dev split itself, so its mean is too high by what that gains."
    return Table("Scores", header, rows, note)


def _cost_table(tasks):
    rows = []
    for groups in tasks.values():
        for group in groups:
            results = [run.results for run in group.runs if "updates" in run.results]
            if not results:
                continue
            column = {name: [result[name] for result in results] for name in results[0] if isinstance(results[0][name], _NUMBER)}
            rows.append(
                [group.task, group.label, Cell(_duration(np.mean(column["train_seconds"])), float(np.mean(column["train_seconds"])))]
                + [Cell(f"{np.mean(column['tokens_per_second']):,.0f}", float(np.mean(column["tokens_per_second"])))]
                + [_range(column["peak_memory_mib"], "{:,.0f}"), _range(column["updates"], "{:,.0f}"), _range(column["skipped_updates"])]
                + [_range(column["final_loss_scale"], "{:,.0f}") if group.dtype == "float16" else Cell("–", None)]
            )
    header = ["Task", "Precision", "Training time", "Tokens/s", "Peak memory, MiB", "Updates", "Skipped", "Final loss scale"]
    note = "Means over seeds, or the least and the greatest. Tokens are real ones, without padding. Runs that shared a machine "
    return Table("Cost of a run", header, rows, note + "with other work took longer than they need.")


def _unfinished_table(runs):
    rows = [[str(run.folder), run.last_words or "–"] for run in runs if run.results is None]
    return [Table("Runs that are not finished", ["Folder", "The last that it said"], rows)] if rows else []


def _comparable(group):
    """None where the group's dev splits have the benchmark's rows, else why its scores cannot be compared with published ones."""
    if group.task not in DEV_ROWS:
        return f"{group.task} is not a GLUE task with published dev scores"
    rows = sum(len(split.labels) for split in group.outputs[0].values())
    if rows != DEV_ROWS[group.task]:
        return f"these dev data have {rows:,} rows, GLUE's have {DEV_ROWS[group.task]:,}"
    return None


def _verdicts(tasks):
    """(group, Verdict or None, sentence): what the published figures say of these runs."""
    found = []
    for task, groups in tasks.items():
        for group in [group for group in groups if group.runs]:
            why = _comparable(group)
            if why:
                found.append((group, None, f"{group.label}: not compared with published figures, {why}."))
                continue
            scores = [{measure: group.values(kind, measure) for measure in group.measures} for kind in ("last", "best")]
            for one in verdict.verdicts(task, verdict.canonical(group.first.record["config"]), *scores):
                found.append((group, one, f"{group.label}, {one.text}"))
    return found


def _verdict_table(verdicts):
    """The figures that are published for the same checkpoint; what there is of others, the tasks' sections name."""
    rows = []
    for group, one, _ in verdicts:
        if one is not None and one.same_checkpoint:
            published = f"{one.published.value:.1f}, {one.published.kind}"
            published += f" of {one.published.runs} runs" if one.published.runs else ""
            ours = group.values("last" if one.published.kind in ("mean", "median") else "best", one.published.metric)
            rows.append(
                [group.task, one.published.metric, group.label, _score(np.mean(list(ours.values())) if ours else None)]
                + [Cell(published, one.published.value), one.published.title, getattr(one.comparison, "outcome", "–")]
            )
    header = ["Task", "Metric", "Precision", "Mean here", "Published", "By", "Outcome"]
    note = "A published mean is met by the mean of the last epochs; a best or single run by the best epochs. In words, with "
    note += "intervals and margins, in the tasks' sections."
    if rows:
        return [Table("Published figures of the same checkpoint", header, rows, note)]
    return [Text("None is published for this checkpoint on these dev data. What is nearest stands in the tasks' sections.")]


def _parities(tasks):
    """(group, metric, Parity, sentence) of each precision against its siblings in float32."""
    found = []
    for task, groups in tasks.items():
        for family in _unique(group.family for group in groups if group.runs):
            siblings = {group.dtype: group for group in groups if group.family == family and group.runs}
            if "float32" in siblings and len(siblings) > 1:
                scores = {dtype: {m: group.values("last", m) for m in group.measures} for dtype, group in siblings.items()}
                for measure, dtype, parity, text in verdict.precision_parity(task, scores):
                    found.append((siblings[dtype], measure, parity, text))
    return found


def _parity_table(parities):
    signed = lambda value: "–" if value is None or not np.isfinite(value) else f"{value:+.2f}".replace("-", "−")
    rows = [
        [group.task, measure, group.label, Cell(str(parity.n), parity.n), Cell(signed(parity.difference), parity.difference)]
        + [" to ".join(map(signed, parity.interval90)) if parity.interval90 else "–", parity.outcome]
        + [Cell("–", None) if parity.chance is None else Cell(f"{parity.chance:.0%}", parity.chance)]
        for group, measure, parity, _ in parities
    ]
    header = ["Task", "Metric", "Precision", "Pairs", "Minus float32", "90% interval", "Outcome", "Chance to show equality"]
    note = "Pairs share the seed, and with it initial head, batches and learning rates. Equal: two one-sided t tests put the "
    note += "difference inside the margin. The chance is that of so many pairs with this spread, were there no difference at all."
    return Table("Each precision against float32", header, rows, note)


def _certainty_table(tasks):
    """What the dev split's size leaves open, and how far probabilities can be believed."""
    rows = []
    for task, groups in tasks.items():
        for group in groups:
            for name, split in (group.outputs[group.runs.index(group.median)] if group.runs else {}).items():
                metric = next(iter(group.median.results["scores"].get("last", group.median.results["scores"].get("saved"))[name]))
                score = statistics.row_score(metric, split.labels, split.predictions)
                low, high = statistics.bootstrap_interval(score, len(split.labels), seed=0)
                rows.append(
                    [task, group.label, metric + ("" if name == "dev" else f", {name.partition('_')[2]}"), str(group.median.seed)]
                    + [Cell(f"{len(split.labels):,}", len(split.labels)), _score(100 * score(np.arange(len(split.labels))))]
                    + [f"{100 * low:.1f} to {100 * high:.1f}", _calibration(group, name)]
                )
    header = ["Task", "Precision", "Metric", "Seed", "Dev rows", "Score", "95% interval", "Calibration error"]
    note = "The interval comes from drawing the dev rows anew (2000 bootstrap samples) for the run with the median score: what other "
    note += "rows of the same kind could have said of this one model. Calibration error: the mean gap between confidence and "
    note += "accuracy in 15 bins, × 100, over all seeds (ECE, Guo et al. 2017)."
    return [Table("How sure the score of one seed is", header, rows, note)] if rows else []


def _reliability(group, split):
    """(ECE, bins, classes) over the rows of all seeds; None for regression."""
    if not group.first.record["labels"]:
        return None
    kept = [outputs[split] for outputs in group.outputs if split in outputs]
    logits = np.concatenate([one.logits for one in kept])
    return (*statistics.calibration_error(probabilities(logits), np.concatenate([one.labels for one in kept])), logits.shape[1])


def _calibration(group, split):
    found = _reliability(group, split)
    return _score(None) if found is None else _score(100 * found[0])


# A task's section.


@functools.lru_cache(maxsize=256)
def _log(folder):
    """(column -> array over updates, evaluations) of a run's log.jsonl; both empty where there is none. NaN: not finite."""
    path, updates, evaluations = folder / "log.jsonl", [], []
    if path.is_file():
        for number, line in read_lines(path):
            try:
                record = json.loads(line)
                if "evaluation" in record:
                    evaluations.append((int(record["evaluation"]["epoch"]), 100 * float(record["evaluation"]["primary"])))
                else:
                    updates.append([float("nan") if record[name] is None else float(record[name]) for name in _LOGGED])
            except (ValueError, TypeError, KeyError, RecursionError):
                raise InputError(f"{path}:{number}: found {line[:60]!r}, expected a record of a run's log") from None
    columns = np.array(updates, np.float64).reshape(-1, len(_LOGGED)).T
    return dict(zip(_LOGGED, columns)), evaluations


_LOGGED = ("step", "loss", "learning_rate", "grad_norm", "loss_scale", "skipped")


def _task_section(task, groups, sentences):
    groups = [group for group in groups if group.runs]
    if not groups:
        return []
    record = groups[0].first.record
    shared = [name for name in _RECIPE if len({repr(group.first.settings[name]) for group in groups}) == 1]
    recipe = ", ".join(f"{name} {_setting(groups[0].first.settings[name])}" for name in shared if groups[0].first.settings[name] is not None)
    blocks = [Heading(2, task), Text(f"{_model_name(groups[0].first)}; {recipe}.")]
    drawn = [*_score_pictures(task, groups), *_training_pictures(task, groups), *_row_pictures(task, groups, record)]
    blocks += [Items(sentences)] if sentences else []
    return [*blocks, Gallery(drawn), *_mistakes(task, groups)]


def _picture(task, kind, title, finding, how, draw, *arguments, **options):
    name = re.sub(r"[^a-z0-9]+", "-", f"{task}-{kind}".lower())
    return Picture(name, title, finding, how, functools.partial(draw, *arguments, **options))


def _score_pictures(task, groups):
    scored = [group for group in groups if group.values("last")]
    if not scored:
        return
    metric = "score" if len(scored[0].measures) == 0 else scored[0].measures[0].split(",")[0]
    rows = [(group.series, group.values("last"), *_spread(group.values("last").values())[::2]) for group in scored]
    finding = "; ".join(
        f"{series.label} {mean:.1f}" + (f" ({interval[0]:.1f} to {interval[1]:.1f})" if interval else "") for series, _, mean, interval in rows
    )
    how = "A mark per seed; below, their mean and its 95% interval." if any(len(row[1]) > 1 for row in rows) else "One seed each."
    yield _picture(task, "seeds", f"Dev {metric} by precision", f"Mean: {finding}.", how, plots.seeds, rows, metric=metric)
    curves = [(group.series, [tuple(zip(*_log(run.folder)[1])) for run in group.runs if _log(run.folder)[1]]) for group in scored]
    curves = [(series, kept) for series, kept in curves if kept]
    if curves and max(len(epochs) for _, kept in curves for epochs, _ in kept) > 1:
        ends = [(series.label, np.mean([s[0] for _, s in kept]), np.mean([s[-1] for _, s in kept])) for series, kept in curves]
        finding = "; ".join(f"{label} from {first:.1f} to {last:.1f}" for label, first, last in ends)
        yield _picture(
            task, "epochs", f"Dev {metric} by epoch", f"First to last epoch: {finding}.", "Thick: mean over seeds; thin: each seed.",
            plots.dev_scores, curves, metric=metric,
        )  # fmt: skip


def _training_pictures(task, groups):
    logged = [(group, [run for run in (group.median, *group.runs) if len(_log(run.folder)[0]["step"])]) for group in groups]
    logged = [(group, _unique_runs(runs)) for group, runs in logged if runs]
    if not logged:
        return
    column = lambda run, name: _log(run.folder)[0][name]
    curves = [(group.series, [(column(run, "step"), column(run, "loss")) for run in runs]) for group, runs in logged]
    ends = [(series.label, plots.thin(*kept[0], 60)[1]) for series, kept in curves]
    finding = "; ".join(f"{label} from {loss[0]:.2f} to {loss[-1]:.2f}" for label, loss in ends)
    how = "Thick: the median seed, smoothed over sixtieths of its updates; thin: the other seeds; faint: single updates."
    yield _picture(task, "loss", "Training loss", f"The median seed's falls in {finding}.", how, plots.training_loss, curves)

    norms = [(group.series, column(runs[0], "step"), column(runs[0], "grad_norm")) for group, runs in logged]
    clip = logged[0][0].first.settings["max_grad_norm"] if len({g.first.settings["max_grad_norm"] for g, _ in logged}) == 1 else 0
    middle = "; ".join(
        f"{series.label} {np.nanmedian(norm):.2f}" + (f" ({np.mean(norm > clip):.0%} clipped)" if clip else "") for series, _, norm in norms
    )
    how = "Norm of the unscaled gradient of the median seed: mean over sixtieths of its updates, shaded from least to greatest."
    yield _picture(task, "gradient", "Gradient norm", f"Median: {middle}.", how, plots.gradient_norm, norms, clip=clip)

    scaled = [(group, runs) for group, runs in logged if group.dtype == "float16"]
    if scaled:
        rows = [
            (group.series, [(column(run, "step"), column(run, "loss_scale"), column(run, "skipped")) for run in runs]) for group, runs in scaled
        ]
        overflows = [int(run[2].sum()) for _, kept in rows for run in kept]
        ends = _range([run[1][-1] for _, kept in rows for run in kept], "{:,.0f}").text
        begins = _range([run[1][0] for _, kept in rows for run in kept], "{:,.0f}").text
        finding = f"From {begins} to {ends}; overflows per run: {_range(overflows).text}."
        how = "Every seed; a cross is an update that overflowed and was skipped."
        yield _picture(task, "scale", "Loss scale in float16", finding, how, plots.loss_scale, rows)

    rates = [(group.series, column(runs[0], "step"), column(runs[0], "learning_rate")) for group, runs in logged]
    rates = list({tuple(rate[2]): rate for rate in rates}.values())
    peaks = [(series.label, steps, values, int(np.argmax(values))) for series, steps, values in rates]
    finding = "; ".join(
        ("" if len(rates) == 1 else f"{label}: ") + f"highest, {_setting(float(f'{values[peak]:.3g}'))}, at update {steps[peak]:.0f}, "
        f"{_setting(float(f'{values[-1]:.1g}'))} at update {steps[-1]:.0f}"
        for label, steps, values, peak in peaks
    )
    how = "The same in every run." if len(rates) == 1 else "A line per schedule, named after the first precision that has it."
    yield _picture(task, "rate", "Learning rate", f"{finding[0].upper()}{finding[1:]}.", how, plots.learning_rate, rates)


def _unique_runs(runs):
    return list({run.folder: run for run in runs}.values())


def _row_pictures(task, groups, record):
    """Pictures of the dev rows, split by split, and of the rows' lengths."""
    labels, main = record["labels"], groups[0]
    for name in main.outputs[0]:
        where = "" if name == "dev" else f", {name.partition('_')[2]}"
        kept = [outputs[name] for outputs in main.outputs if name in outputs]
        if not labels:
            split = main.outputs[main.runs.index(main.median)].get(name)
            if split is not None:
                gap = np.abs(split.predictions - split.labels)
                finding = f"Half of the rows are within {np.median(gap):.2f} of their label, nine tenths within {np.quantile(gap, 0.9):.2f}."
                how = f"{main.label}, seed {main.median.seed} (the median); at most 500 of {len(gap):,} rows."
                title = f"Predicted and given scores{where}"
                yield _picture(task, name + "-scores", title, finding, how, plots.predicted_scores, split.labels, split.predictions, main.series)
            continue
        counts = sum(_confusion(one.labels, one.predictions, len(labels)) for one in kept)
        recall = counts.diagonal() / np.maximum(counts.sum(axis=1), 1)
        shown = list(zip(labels, recall)) if len(labels) <= 6 else [(labels[i], recall[i]) for i in np.argsort(recall)[:3]]
        finding = "Found of each label" + ("" if len(labels) <= 6 else " (the three worst)") + ": "
        finding += ", ".join(f"{label} {share:.0%}" for label, share in shown) + "."
        how = f"{main.label}, {_count(len(kept), 'seed')} together: share of the label's rows, and their number."
        yield _picture(task, name + "-confusion", f"Confusion matrix{where}", finding, how, plots.confusion, counts, labels, main.series)
        bins = [(group.series, _reliability(group, name)) for group in groups if any(name in outputs for outputs in group.outputs)]
        rows = [(series, table["confidence"], table["accuracy"], table["count"]) for series, (_, table, _) in bins]
        surer = {series.label: np.average(np.nan_to_num(c) - np.nan_to_num(a), weights=n) for series, c, a, n in rows}
        finding = "; ".join(
            f"{series.label} {100 * found[0]:.1f} ({'surer than right' if surer[series.label] > 0 else 'less sure than right'})"
            for series, found in bins
        )
        how = "Over all seeds, in 15 bins; a mark's size is its share of the rows. Below the diagonal: too sure."
        title = f"Reliability{where}"
        yield _picture(task, name + "-reliability", title, f"Calibration error: {finding}.", how, plots.reliability, rows, bins[0][1][2])
    lengths = {name: split for name, split in (record.get("lengths") or {}).items() if not name.startswith("test")}
    if lengths:
        finding = "; ".join(f"{name}: {v['mean']:.0f} tokens on average, {v['max']} at most, {v['padding']:.0%} padding" for name, v in lengths.items())
        how = "Padding: the share of a batch's places that hold no token."
        histograms = {name: split["histogram"] for name, split in lengths.items()}
        yield _picture(task, "lengths", "Row lengths", f"{finding[0].upper()}{finding[1:]}.", how, plots.lengths, histograms)


def _confusion(labels, predictions, classes):
    return np.bincount(labels * classes + predictions, minlength=classes * classes).reshape(classes, classes)


def _mistakes(task, groups, count=10):
    """The surest mistakes of the median run, without the texts: a page may be published, the data may not."""
    run = groups[0].median
    for name in groups[0].outputs[0]:
        path = run.folder / "predictions" / f"{name}.mistakes.tsv"
        if not path.is_file():
            continue
        lines = [line.split("\t")[:4] for number, line in read_lines(path) if number <= count + 1]
        header, rows = lines[0], [line for line in lines[1:] if len(line) == 4]
        if header[2:] != ["label", "prediction"] or not rows:
            continue
        rows = [[row[0], row[2], row[3], Cell(row[1], _float(row[1]))] for row in rows]
        where = "" if name == "dev" else f", {name.partition('_')[2]}"
        summary = "largest errors" if header[1] == "error" else "surest mistakes"
        note = f"{groups[0].label}, seed {run.seed} (the median), best epoch. All of them, with their texts: {path}"
        shown = Table(f"{task}: the {len(rows)} {summary}{where}", ["Row", "Label", "Prediction", header[1].capitalize()], rows, note)
        yield Details(f"The {len(rows)} {summary}{where}", [shown])


def _float(text):
    try:
        return float(text)
    except ValueError:
        return None


# How it was made.


def _commands(tasks):
    """Shell lines that make every finished run again, a loop over its seeds for each group."""
    lines = []
    for group in [group for groups in tasks.values() for group in groups]:
        commands = {}
        for run in group.runs:
            words = ["python", "finetune_classifier.py", *command_line({**run.record["config"], **_ONCE})]
            if len(group.runs) > 1:  # the seed stands in the names of folders, too
                mark = re.compile(rf"(?<=seed){run.seed}(?!\d)")
                words = [words[i] if words[i - 1] != "--seed" else "$seed" for i in range(len(words))]
                words = [mark.sub("$seed", word) for word in words]
                words += [] if "--seed" in words else ["--seed", "$seed"]
            line = " ".join(f'"{word}"' if "$seed" in word else shlex.quote(word) for word in words)
            commands.setdefault(line, []).append(run.seed)
        for line, seeds in commands.items():
            lines.append(f"for seed in {' '.join(map(str, seeds))}; do\n  {line}\ndone" if "$seed" in line else line)
    return [Code("\n".join(lines))] if lines else []


def _provenance(tasks, runs):
    rows = []
    for task, groups in tasks.items():
        for name, digest in _unique((n, d) for group in groups for n, d in group.first.record["data_sha256"].items()):
            rows.append([task, name, digest])
    models = _unique((_model_name(run), run.record["model"]["sha256"]) for run in runs)
    rows = [[name, "weights", digest] for name, digest in models] + rows
    found = {}
    for run in runs:
        for name, version in run.record["versions"].items():
            found.setdefault(name, {})[str(version)] = None
    versions = Table("Versions", ["Package", "Version"], [[name, ", ".join(values)] for name, values in found.items()])
    files = Table("Files, by sha256", ["Of", "File", "sha256"], rows)
    listed = [
        [str(run.folder), run.task, run.dtype, Cell(str(run.seed), run.seed), _score(run.primary("last")), _score(run.primary("best"))]
        for run in runs
        if run.results
    ]
    every = Table("Every run", ["Folder", "Task", "Precision", "Seed", "Last epoch", "Best epoch"], listed)
    return [Details("Versions", [versions]), Details("Data and weights", [files]), Details(f"All {len(listed)} runs", [every])]


def document(runs):
    """(title, subtitle, blocks) of the report over `runs`."""
    tasks = group_runs(runs)
    finished, known = [run for run in runs if run.results], [run for run in runs if run.record]
    parities = _parities(tasks)
    engines = _listed(_unique(f"{run.record['engine']['name']} on {run.record['engine']['device']}" for run in known))
    days = sorted({time.strftime("%Y-%m-%d", time.gmtime((run.folder / "results.json").stat().st_mtime)) for run in finished})
    when = f", finished {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "") if days else ""
    title = f"{_listed(_unique(_model_name(run) for run in known if not _from_mnli(run)))} on {'GLUE' if all(t in TASKS for t in tasks) else 'own data'}"
    subtitle = f"{_count(len(tasks), 'task')}, {_count(len(finished), 'run')}{when}; {engines}; finetune_classifier {__version__}"
    blocks = [*_summary(runs, tasks, parities), _score_table(tasks), *_unfinished_table(runs), _cost_table(tasks)]
    verdicts = _verdicts(tasks)
    if verdicts:
        blocks += [Heading(2, "Against published figures"), *_verdict_table(verdicts)]
    if parities:
        blocks += [Heading(2, "Precision"), _parity_table(parities)]
    certainty = _certainty_table(tasks)
    if certainty:
        blocks += [Heading(2, "One seed, one dev split"), *certainty]
    for task, groups in tasks.items():
        sentences = [text for group, _, text in verdicts if group.task == task]
        sentences += [text for group, _, _, text in parities if group.task == task]
        blocks += _task_section(task, groups, sentences)
    return title, subtitle, [*blocks, Heading(2, "How it was made"), *_commands(tasks), *_provenance(tasks, known)]


def write_report(runs, output_dir):
    """Write report.html, report.md with its pictures in report/, and results.csv into `output_dir`; returns their paths.

    Without matplotlib all but the pictures is there, and says what is missing. RunError where the disk refuses.
    """
    title, subtitle, blocks = document(runs)
    output = Path(output_dir)
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
    svgs, images, written = {}, {}, [output / "report.html", output / "report.md", output / "results.csv"]
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        count = len(list(pictures(blocks)))
        blocks.insert(0, Text(f"{count} pictures are missing: matplotlib is not installed (pip install 'finetune-classifier[report]')."))
    else:
        with writing(output / "report"):
            (output / "report").mkdir(exist_ok=True)
        for picture in pictures(blocks):
            figure = picture.draw()
            svgs[picture.name] = plots.to_svg(figure, picture.name, f"{picture.title}: {picture.finding}")
            images[picture.name] = f"report/{picture.name}.png"
            written.append(output / images[picture.name])
            with writing(written[-1]):
                plots.save_png(figure, written[-1])
    for path, text in zip(written, (to_html(title, subtitle, blocks, svgs), to_markdown(title, subtitle, blocks, images))):
        with whole_file(path) as file:
            file.write(text)
    with whole_file(output / "results.csv") as file:
        _write_csv(file, runs)
    return written


def _write_csv(file, runs):
    """One line per run: where, what, with which settings, and every number."""
    rows = []
    for run in runs:
        row = {"folder": run.folder, "finished": run.results is not None}
        rows.append(row)
        if not run.record:
            continue
        row |= {"task": run.task, "engine": run.record["engine"]["name"]}
        row |= {"dtype": run.dtype, "model": _model_name(run), "model_sha256": run.record["model"]["sha256"], "seed": run.seed}
        row |= {name: run.settings[name] for name in _RECIPE}
        if run.results is not None:
            row |= {"primary_last": run.primary("last"), "primary_best": run.primary("best")}
            row |= {f"{kind} {measure}": value for kind in ("last", "best") for measure, value in run.scores(kind).items()}
            row |= {key: value for key, value in run.results.items() if isinstance(value, _NUMBER) and key not in row}
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
