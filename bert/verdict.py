"""What scores mean, in sentences: against published figures, in another precision, and of two models row by row.

Knows the published figures (published.json) and names of checkpoints. The tests are bert.statistics'; folders of runs are
the report's business.
"""

import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Optional, Union

import numpy as np

from bert import InputError
from bert.files import read_json, read_lines
from bert.logs import table
from bert.statistics import (
    DRAWS,
    BestComparison,
    MeanComparison,
    best_of_seeds,
    bootstrap_interval,
    non_inferior,
    paired_permutation,
    paired_test,
    parity,
    row_score,
    summarize,
)
from bert.submission import read_dev_predictions
from bert.tasks import TASKS
from bert.weights import GLUON_MODELS, HUB_IDS, MINILM

_MINILM_HUB = "sentence-transformers/all-MiniLM-L6-v2"
_MINILM_L6 = "microsoft/MiniLM-L6-H384-uncased"
#: Checkpoint without figures of its own -> the nearest that has some, and what sets the two apart (their model cards).
_KIN = {
    _MINILM_HUB: (
        _MINILM_L6,
        "all-MiniLM-L6-v2 has its shape, but is every second layer of MiniLM-L12-H384, trained on as a sentence encoder",
    ),
    "nreimers/MiniLM-L6-H384-uncased": (_MINILM_L6, "this one has its shape, but is every second layer of MiniLM-L12-H384"),
}


@dataclass(frozen=True)
class Published:
    """A published score x 100; `runs` is None, or one, where it may have been chosen from more than the source says."""

    task: str
    metric: str  # as the report names it: "accuracy", or "accuracy, matched" where a task has two dev splits
    value: float
    sd: Optional[float]
    kind: str  # "mean", "median", "single" or "best" (of several epochs, and perhaps seeds)
    runs: Optional[int]
    checkpoint: str
    split: str
    title: str
    source: str
    recipe: str

    @property
    def epoch(self):
        """Which of our scores it is compared with: "best" or "last"."""
        return "best" if self.kind == "best" else "last"

    def __str__(self):
        return f"{self.value:.1f} ({self.origin})"

    @property
    def origin(self):
        """Whose it is, and of how many runs."""
        kind = {"single": "one run", "best": "best epoch"}.get(self.kind, f"{self.kind} of {self.runs} runs")
        return f"{self.title}, {kind}" + (f", sd {self.sd:.1f}" if self.sd else "")


@dataclass(frozen=True)
class Verdict:
    """What one published figure says of our scores; `comparison` is None where it says nothing."""

    published: Published
    same_checkpoint: bool
    comparison: Optional[Union[MeanComparison, BestComparison]]
    text: str


def load_published():
    """Every Published of published.json, in the file's order."""
    found = []
    for entry in _published()["sources"]:
        common = {name: entry[name] for name in ("kind", "runs", "checkpoint", "split", "title", "source", "recipe")}
        for task, values in entry["figures"].items():
            spreads = entry.get("sd", {}).get(task, {})
            found += [Published(task, name, value, spreads.get(name), **common) for name, value in values.items()]
    return found


def margin(task, metric):
    """Percent points within which two means of a task's metric count as the same; None where none is set, as for WNLI."""
    return _published()["margins"].get(task, {}).get(metric.partition(",")[0])


def _published():
    return json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))


def canonical(flags):
    """The hub id of the checkpoint that a run's flags (config.json's "config") name; None where they do not tell.

    Takes GluonNLP's names with their dataset, minilm_6_384_12, hub ids with or without their owner, and a folder that is
    called as a checkpoint is.
    """
    if flags.get("pretrained_bert_parameters") or flags.get("model_parameters"):
        return None  # the weights are a file's
    name, dataset = str(flags.get("bert_model")), str(flags.get("bert_dataset") or "")
    if name == MINILM:
        return _MINILM_HUB
    if name in GLUON_MODELS:
        return HUB_IDS.get((name, dataset or GLUON_MODELS[name][0]))
    known = {*HUB_IDS.values(), *_KIN, *(figure.checkpoint for figure in load_published())}
    if name in known:
        return name
    found = [checkpoint for checkpoint in known if Path(checkpoint).name == Path(name).name]
    return found[0] if len(found) == 1 else None


def verdicts(task, checkpoint, last_scores, best_scores):
    """A Verdict for each published figure of a task that our scores have to do with.

    `checkpoint` is canonical()'s; the scores are metric -> seed -> score x 100 of the last and of the best epoch. Judged
    are figures of the same checkpoint; those of its nearest kin are quoted.
    """
    kin, why = _KIN.get(checkpoint, (None, ""))
    found = []
    for figure in load_published():
        scores = list((best_scores if figure.epoch == "best" else last_scores).get(figure.metric, {}).values())
        if figure.task != task or not scores or figure.checkpoint not in (checkpoint, kin):
            continue
        comparison = None
        if figure.checkpoint == kin:
            ours = summarize(scores).mean
            text = f"another checkpoint: {figure.value:.1f} there, {ours:.1f} here, {_signed(ours - figure.value)} "
            text += f"({Path(kin).name}, {figure.origin}; {why})"
        else:
            comparison, text = _judge(figure, scores)
        found.append(Verdict(figure, figure.checkpoint == checkpoint, comparison, f"{figure.metric}: {text}"))
    return found


def _judge(figure, scores):
    """(comparison or None, sentence) of our scores with a figure of the same checkpoint."""
    ours, allowed = summarize(scores), margin(figure.task, figure.metric)
    here = f"{ours.mean:.1f} here ({_count(ours.n, 'run')})"
    if figure.split != "dev":
        return None, f"no verdict: {here}, published {figure} on {figure.split}: not the same rows"
    if allowed is None:
        majority = ", what always guessing the more frequent label has" if figure.task == "WNLI" else ""
        return None, f"no verdict: {here}, published {figure}{majority}; there is no margin for {figure.task}"
    if figure.kind in ("mean", "median"):
        # Of normal scores a median of k says as much as a mean of 2k/pi: its asymptotic efficiency.
        runs = figure.runs if figure.kind == "mean" else figure.runs * 2 / math.pi
        comparison = non_inferior(scores, figure.value, runs, allowed)
        side = "above" if comparison.difference >= 0 else "below"
        text = f"{abs(comparison.difference):.1f} {side} the published {figure}"
        if comparison.interval:
            low, high = comparison.interval
            text += f"; 95% interval of the difference {_signed(low)} to {_signed(high)}, "
            text += f"one-sided from {_signed(comparison.lower_bound)}; margin {allowed:g}"
        preliminary = _preliminary(ours.n)
    else:
        comparison = best_of_seeds(scores, figure.value)
        text = f"the published {figure}"
        if comparison.z is not None:
            text += f" is {_signed(comparison.z)} sd from that, {_place(comparison)}"
        # The bands take the sd as known; of ten runs it is, nearly.
        preliminary = f"; preliminary: the sd of {ours.n} runs is itself uncertain" if comparison.z and ours.n < 10 else ""
    return comparison, f"{comparison.outcome}: {here}, {text}{preliminary} (their recipe: {figure.recipe})"


def _place(comparison):
    """Where a BestComparison's figure lies, in words. The numbers of runs that `holds` names have no gaps."""
    if not comparison.holds:
        return (
            f"higher than the best of {DRAWS[-1]} such runs would be"
            if comparison.z > 0
            else "lower than one such run would be"
        )
    fewest, most = comparison.holds[0], comparison.holds[-1]
    if fewest == 1:
        return "as one such run may be" + (f", or the best of up to {most}" if most > 1 else "")
    return f"as the best of {fewest if fewest == most else f'{fewest} to {most}'} such runs may be"


def precision_parity(task, scores):
    """[(metric, dtype, Parity, sentence)]: every other dtype against float32; `scores`: dtype -> metric -> seed -> x 100."""
    found = []
    for dtype, by_metric in scores.items():
        for metric, ours in by_metric.items() if dtype != "float32" else ():
            allowed = margin(task, metric)
            result = parity(scores.get("float32", {}).get(metric, {}), ours, allowed)
            text = f"{metric}, {dtype} against float32: {result.outcome}"
            if result.difference is not None:
                text += f": {_signed(result.difference)} over {_count(result.n, 'seed')}"
            if result.interval90:
                low, high = result.interval90
                text += f", 90% interval {_signed(low)} to {_signed(high)}"
                text += f", p = {result.p:.2g}" if result.outcome == "different" else ""
                text += f", margin {allowed:g}" if allowed else f"; there is no margin for {task}"
            if result.chance is not None:
                text += f"; were there none, with a spread as here (sd {result.sd:.1f}), so many seeds would show equality "
                text += f"in {result.chance:.0%} of cases"
            if result.interval90:
                text += _preliminary(result.n)
            found.append((metric, dtype, result, text))
    return found


def compare_predictions(path_a, path_b):
    """Lines for the person: two models' scores on the same dev rows, and whether chance explains the difference.

    The files are two runs' dev.last.tsv or the like. InputError where rows or labels are not the same.
    """
    a, b = _same_rows(path_a, path_b)
    rows, classes = a.logits.shape
    metrics = _metrics(path_a, classes)
    lines, differences, p = [["metric", "first", "95% interval", "second", "95% interval", "difference", "p"]], [], []
    for metric in metrics:
        scores = [row_score(metric, a.labels, one.predictions) for one in (a, b)]
        first, second = (100 * score(slice(None)) for score in scores)
        intervals = ["{:.1f} to {:.1f}".format(*(100 * end for end in bootstrap_interval(score, rows))) for score in scores]
        if metric == "accuracy":
            test = paired_test(a.predictions == a.labels, b.predictions == b.labels)
            p.append(test.p)
        else:
            p.append(paired_permutation(partial(_score, metric, a.labels), a.predictions, b.predictions))
        differences.append(second - first)
        shown = [f"{first:.1f}", intervals[0], f"{second:.1f}", intervals[1], _signed(second - first), f"{p[-1]:.2g}"]
        lines.append([metric, *shown])
    how = []
    if "accuracy" in metrics:
        how.append(
            f"McNemar's exact test for accuracy, only the first right {test.only_a} times, only the second {test.only_b}"
        )
    if set(metrics) - {"accuracy"}:
        how.append("2000 random swaps of a row's two predictions")
    conclusion = f"The difference in {metrics[0]} may well be chance: these {rows} rows do not show which model is better."
    if np.array_equal(a.predictions, b.predictions):
        conclusion = f"Both predict the same on each of the {rows} rows."
    elif p[0] < 0.05:
        by = f"better in {metrics[0]} by {abs(differences[0]):.1f}"
        conclusion = (
            f"The {'second' if differences[0] > 0 else 'first'} is {by}, on these {rows} rows more than chance explains."
        )
    return [
        f"first: {path_a}",
        f"second: {path_b}",
        *table(lines),
        f"intervals: 2000 bootstrap samples of the rows; p: {'; '.join(how)}",
        f"{conclusion} Other seeds may say otherwise: --report shows the mean over seeds.",
    ]


def _score(metric, labels, predictions):
    return row_score(metric, labels, predictions)(slice(None))


def _same_rows(path_a, path_b):
    """Both files' DevPredictions."""
    a, b = read_dev_predictions(path_a), read_dev_predictions(path_b)
    classes, others = (next(read_lines(path))[1].split("\t")[3:] for path in (path_a, path_b))

    def refuse(where, found, expected):
        raise InputError(f"{path_b}{where}: found {str(found)[:200]}, expected {str(expected)[:200]} as in {path_a}")

    if others != classes:
        refuse(":1", ", ".join(others), ", ".join(classes))
    if len(a.labels) != len(b.labels):
        refuse("", f"{len(b.labels)} rows", len(a.labels))
    for row in np.flatnonzero(a.labels != b.labels)[:1]:
        found, expected = (one.labels[row] for one in (b, a))
        if len(classes) > 1:
            found, expected = (classes[label].removeprefix("logit:") for label in (found, expected))
        refuse(f":{row + 2}", f"label {found}", expected)
    return a, b


def _metrics(path, classes):
    """Names of the metrics of the task in the config.json of the run whose predictions/ hold the file, or the usual ones."""
    record = Path(path).absolute().parent.parent / "config.json"
    task = TASKS.get(str(read_json(record).get("task"))) if record.is_file() else None
    if task and task.num_labels == classes:
        return task.metrics
    return (
        ("pearson", "spearman") if classes == 1 else ("accuracy", "f1", "mcc") if classes == 2 else ("accuracy", "f1_macro")
    )


def _count(number, word):
    return f"{number} {word}{'' if number == 1 else 's'}"


def _signed(value):
    """One decimal and a sign; what rounds to nothing is no minus."""
    return f"{round(value, 1) + 0.0:+.1f}"


def _preliminary(runs):
    """Five seeds are the least that a claim is made of."""
    return "; preliminary, with fewer than 5 seeds" if 1 < runs < 5 else ""
