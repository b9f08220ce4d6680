"""The report over many runs: tables, sentences and pictures of what their folders say, as a page, as Markdown and as CSV.

Statistics are made of the last epoch, which nobody chose on the dev split; the best epoch's scores stand beside them. How to
test (bert.statistics), judge (bert.verdict) and draw (bert.plots) is not known here.
"""

import csv
import functools
import re
import shlex
import warnings
from pathlib import Path

import numpy as np

from bert import __version__, plots, statistics, verdict
from bert.config import command_line
from bert.files import read_lines, whole_file, writing
from bert.logs import table
from bert.metrics import probabilities
from bert.page import (
    Cell,
    Code,
    Details,
    Gallery,
    Heading,
    Items,
    Picture,
    Strip,
    Table,
    Text,
    pictures,
    to_html,
    to_markdown,
)
from bert.runs import group_runs, setting_text, split_suffix
from bert.tasks import TASKS

#: Rows of the benchmark's dev splits (Wang et al. 2019, the data as downloaded): scores on other rows are not comparable.
DEV_ROWS = {"CoLA": 1043, "SST-2": 872, "MRPC": 408, "STS-B": 1500, "QQP": 40430, "MNLI": 9815 + 9832}
DEV_ROWS |= {"QNLI": 5463, "RTE": 277, "WNLI": 71}
_RECIPE = (
    "epochs",
    "training_steps",
    "lr",
    "batch_size",
    "accumulate",
    "warmup_ratio",
    "optimizer",
    "weight_decay",
    "max_len",
)
_COSTS = ("tokens_per_second", "train_seconds", "peak_memory_mib", "updates", "skipped_updates", "final_loss_scale")
_ONCE = {"resume": False, "overwrite": False, "max_minutes": None, "dry_run": False}  # no part of how a run is made
_NONE = Cell("–", None)


def table_lines(runs):
    """The console's table at the end of a suite: a line per task, group of runs and metric."""
    rows = [["task", "precision", "metric", "n", "mean", "sd", "min", "max", "best epoch", "unfinished", "degenerate"]]
    for group in _all_groups(group_runs(runs)):
        for measure in group.measures or ["-"]:
            numbers = [None] * 5
            values, best = (list(group.values(kind, measure).values()) if group.runs else [] for kind in ("last", "best"))
            if values:
                last = statistics.summarize(values)
                numbers = [last.mean, last.sd, last.low, last.high, statistics.summarize(best).mean]
            shown = ["-" if number is None else f"{number:.1f}" for number in numbers]
            rows.append(
                [group.task, group.label, measure, len(values), *shown, len(group.unfinished), len(_degenerate(group))]
            )
    return table(rows)


def write_report(runs, output_dir):
    """Write report.html, report.md with its pictures in report/, and results.csv into `output_dir`; returns the three paths.

    `runs` are bert.runs.gather's. Without matplotlib all but the pictures is there, and says so. RunError where the disk
    refuses.
    """
    title, subtitle, blocks = document(runs)
    output, svgs, images = Path(output_dir), {}, {}
    written = [output / name for name in ("report.html", "report.md", "results.csv")]
    drawn = pictures(blocks)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        missing = f"{len(drawn)} pictures are missing: they need matplotlib (pip install 'finetune-classifier[report]')."
        blocks, drawn = [Text(missing), *blocks], []
    with writing(output):
        (output / "report" if drawn else output).mkdir(parents=True, exist_ok=True)
    for picture in drawn:
        images[picture.name] = f"report/{picture.name}.png"
        path = output / images[picture.name]
        with warnings.catch_warnings(), writing(path):
            warnings.simplefilter("ignore", UserWarning)  # a label's characters that the PNG's font lacks
            figure = picture.draw()
            svgs[picture.name] = plots.to_svg(figure, picture.name, f"{picture.title}: {picture.finding}")
            plots.save_png(figure, path)
    for path, form, drawings in zip(written, (to_html, to_markdown), (svgs, images)):
        with whole_file(path) as file:
            file.write(form(title, subtitle, blocks, drawings))
    with whole_file(output / "results.csv") as file:
        _write_csv(file, runs)
    return written


def document(runs):
    """(title, subtitle, blocks) of the report over `runs`."""
    tasks = group_runs(runs)
    known = [run for run in runs if run.record]
    verdicts, parities = _verdicts(tasks), _parities(tasks)
    models = _listed(_unique(run.model for run in known if not run.from_mnli))
    title = f"{models} on {'GLUE' if tasks.keys() <= TASKS.keys() else 'own data'}"
    finished = [run for run in runs if run.results]
    days = [run.day for run in finished]
    when = f", finished {' to '.join(sorted({min(days), max(days)}))}" if days else ""
    engines = _listed(_unique(f"{run.record['engine']['name']} on {run.record['engine']['device']}" for run in known))
    subtitle = (
        f"{_count(len(tasks), 'task')}, {_count(len(finished), 'run')}{when}; {engines}; finetune_classifier {__version__}"
    )
    blocks = [_summary(runs, tasks, parities)]
    parts = {"Scores": _score_table(tasks), "Not finished": _unfinished_table(runs), "Cost": _cost_table(tasks)}
    for heading, part in parts.items():
        blocks += [Heading(heading), *part] if part else []
    if verdicts:
        blocks += [Heading("Against published figures"), *_verdict_table(verdicts)]
    if parities:
        blocks += [Heading("Precision"), *_parity_table(parities)]
    certainty = _certainty_table(tasks)
    if certainty:
        blocks += [Heading("One seed, one dev split"), *certainty]
    for task, groups in tasks.items():
        sentences = [text for group, _, text in verdicts if group.task == task]
        sentences += [text for group, _, _, text in parities if group.task == task]
        blocks += _task_section(task, [group for group in groups if group.runs], sentences)
    return title, subtitle, [*blocks, Heading("How it was made"), *_commands(tasks), *_provenance(tasks, known)]


# Numbers and words


def _score(value):
    return Cell(f"{value:.1f}", float(value))


def _interval(ends, form="{:.1f}"):
    """low to high, or one number; sorted by the first."""
    if ends is None:
        return _NONE
    return Cell(" to ".join(form.format(end) for end in ends).replace("-", "−"), float(ends[0]))


def _range(values, form="{:,.0f}"):
    """The least and the greatest, where they differ; sorted by the mean."""
    return Cell(" to ".join(_unique(form.format(end) for end in (min(values), max(values)))), float(np.mean(values)))


def _duration(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}" if minutes >= 60 else f"{minutes}:{seconds:02}"


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
    """a, b and c."""
    words = list(words)
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _count(number, word):
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _sentence(text):
    return f"{text[:1].upper()}{text[1:]}."


def _unique(values):
    return list(dict.fromkeys(values))


def _all_groups(tasks):
    return [group for groups in tasks.values() for group in groups]


def _series(group):
    return plots.Series(group.label, group.dtype, group.variant)


def _degenerate(group):
    """Seeds of the runs that learned nothing, by their last epoch."""
    found = []
    for run in group.runs:
        judged = [
            statistics.degenerate(one.labels, one.predictions, next(iter(run.splits("last")[name])))
            for name, one in run.outputs.items()
        ]
        found += [run.seed] if judged and all(judged) else []
    return found


# Tables over all tasks


def _summary(runs, tasks, parities):
    """What a reader should know first."""
    groups = _all_groups(tasks)
    finished = [run for run in runs if run.results]
    seeds, dtypes = {run.seed for run in runs if run.record}, _unique(group.dtype for group in groups)
    items = [f"{len(finished)} of {_count(len(runs), 'run')} finished: {', '.join(tasks)} in {_listed(dtypes)}, "]
    items[0] += f"seed{'s' * (len(seeds) > 1)} {_seed_list(seeds)}"
    items[0] += "." if len(runs) >= len(tasks) * len(dtypes) * len(seeds) else " (not every combination)."
    failed = {f"{group.task} {group.label}": seeds for group in groups if (seeds := _degenerate(group))}
    if failed:
        words = "; ".join(f"{name} seed{'s' * (len(seeds) > 1)} {_seed_list(seeds)}" for name, seeds in failed.items())
        items.append(
            "No better than the majority class, or than a correlation of 0 "
            f"({_count(sum(map(len, failed.values())), 'run')}, counted in every mean): {words}."
        )
    elif finished and all(run.outputs for run in finished):
        items.append("Every finished run scores above the majority class, or above a correlation of 0.")
    outcomes = {}
    for group, measure, parity, _ in parities:
        if measure == group.measures[0]:
            outcomes.setdefault(group.dtype, {}).setdefault(parity.outcome, {})[group.task] = None
    for dtype, found in outcomes.items():
        words = "; ".join(f"{outcome} on {_listed(where)}" for outcome, where in found.items())
        pairs = {group.task: parity.n for group, _, parity, _ in parities if group.dtype == dtype}
        few = [task for task, n in pairs.items() if n < 5]
        early = (
            f"; preliminary, with fewer than five{'' if len(few) == len(pairs) else f', on {_listed(few)}'}" if few else ""
        )
        items.append(f"{dtype} against float32 ({_range(list(pairs.values())).text} pairs of runs a task{early}): {words}.")
    scaled = [run.results for run in finished if run.dtype == "float16" and run.trained]
    if scaled:
        skipped, updates = (sum(results[name] for results in scaled) for name in ("skipped_updates", "updates"))
        if skipped:
            found = f"{skipped:,} of {updates:,} updates ({skipped / updates:.2%}): a gradient overflowed"
        else:
            found = f"none of {updates:,} updates: no gradient overflowed"
        items.append(f"float16 skipped {found}.")
    doubles = [str(run.folder) for group in groups for run in group.doubles]
    if doubles:
        items.append(f"Not counted, as the same settings and seed are there already: {', '.join(doubles)}.")
    return Items(items)


def _score_table(tasks):
    rows = []
    for task, groups in tasks.items():
        for measure in _unique(measure for group in groups for measure in group.measures):
            members = [group for group in groups if measure in group.measures]
            everything = [value for group in members for value in group.values("last", measure).values()]
            for group in members:
                values, best = (list(group.values(kind, measure).values()) for kind in ("last", "best"))
                last = statistics.summarize(values)
                row = {"Task": task, "Metric": measure, "Precision": group.label}
                row["Mean ± sd"] = Cell(f"{last.mean:.1f}" + (f" ± {last.sd:.1f}" if last.n > 1 else ""), last.mean)
                row["Runs"] = Cell(str(last.n), last.n)
                row["95% interval"] = _interval(statistics.mean_interval(values))
                row["Seeds"] = Strip(values, min(everything), max(everything), group.dtype)
                row |= {"Median": _score(last.median), "Min": _score(last.low), "Max": _score(last.high)}
                rows.append(row | {"Best epoch": _score(np.mean(best))})
    note = "Dev scores × 100 after the last epoch; the interval is the mean's (t). A strip of seeds runs from the task's "
    note += (
        "lowest score to its highest. The best epoch is chosen on the dev split itself: its mean is too high by that choice."
    )
    if all(row["Runs"].value == 1 for row in rows):  # then one number says it all
        kept = ("Task", "Metric", "Precision", "Mean ± sd", "Runs", "Best epoch")
        rows = [{"Score" if name == "Mean ± sd" else name: row[name] for name in kept} for row in rows]
        note = "Dev scores × 100 after the last epoch, of one seed: another seed may differ by points."
    return [Table("Scores", rows, note)] if rows else []


def _unfinished_table(runs):
    rows = [{"Folder": str(run.folder), "The last that it said": run.last_words or "–"} for run in runs if not run.results]
    return [Table("Runs that are not finished", rows)] if rows else []


def _cost_table(tasks):
    speeds, rows = {}, []
    for group in _all_groups(tasks):
        results = [run.results for run in group.runs if run.trained]
        if results:
            column = {name: [result[name] for result in results] for name in _COSTS}
            speed, seconds = (float(np.mean(column[name])) for name in ("tokens_per_second", "train_seconds"))
            speeds[group.task, group.family, group.dtype] = speed
            whole = speeds.get((group.task, group.family, "float32"))  # float32 comes first
            row = {"Task": group.task, "Precision": group.label, "Training time": Cell(_duration(seconds), seconds)}
            row |= {"Tokens/s": Cell(f"{speed:,.0f}", speed)}
            row["× float32's"] = Cell(f"{speed / whole:.2f}", speed / whole) if whole else _NONE
            row |= {"Peak memory, MiB": _range(column["peak_memory_mib"]), "Updates": _range(column["updates"])}
            row["Skipped"] = _range(column["skipped_updates"])
            row["Final loss scale"] = _range(column["final_loss_scale"]) if group.dtype == "float16" else _NONE
            rows.append(row)
    note = (
        "Means over seeds, or the least and the greatest. Tokens are real ones, without padding. Runs that shared a machine "
    )
    return [Table("Cost of a run", rows, note + "with other work took longer than they need.")] if rows else []


def _verdicts(tasks):
    """(group, Verdict or None, sentence): what the published figures say of these runs."""
    found, quoted = [], set()
    for group in _all_groups(tasks):
        if not group.runs:
            continue
        rows, usual = sum(len(one.labels) for one in group.runs[0].outputs.values()), DEV_ROWS.get(group.task)
        if rows != usual:
            why = f"these dev data have {rows:,} rows, GLUE's have {usual:,}" if usual else "none are known for this task"
            why = why if rows else "the runs' folders hold no dev predictions"
            found.append((group, None, f"{group.label}: not compared with published figures, {why}."))
            continue
        scores = [{measure: group.values(kind, measure) for measure in group.measures} for kind in ("last", "best")]
        for one in verdict.verdicts(group.task, verdict.canonical(group.first.settings), *scores):
            if (
                one.same_checkpoint or (group.task, group.family) not in quoted
            ):  # others are no verdict: one precision will do
                found.append((group, one, f"{group.label}, {one.text}."))
        quoted.add((group.task, group.family))
    return found


def _verdict_table(verdicts):
    """The figures that are published for the same checkpoint; the tasks' sections quote others."""
    rows = []
    for group, one, _ in verdicts:
        if one is not None and one.same_checkpoint:
            ours = list(group.values(one.published.epoch, one.published.metric).values())
            row = {"Task": group.task, "Metric": one.published.metric, "Precision": group.label}
            row |= {"Here": _score(np.mean(ours)), "Runs": Cell(str(len(ours)), len(ours))}
            row |= {"Published": _score(one.published.value), "By": one.published.origin}
            rows.append(row | {"Outcome": one.comparison.outcome if one.comparison else "no verdict"})
    if not rows:
        return [
            Text("None is known for this checkpoint on these dev data. What comes nearest is quoted in the tasks' sections.")
        ]
    note = (
        "Here: the mean over seeds, of the last epochs against a mean or a single run, of the best epochs against a best. A "
    )
    note += "checkpoint is the same by its name. The tasks' sections say it in words, with intervals and margins. "
    return [Table("Published figures of the same checkpoint", rows, note + _by_chance(len(rows)))]


def _by_chance(comparisons):
    return (
        f"{_count(comparisons, 'comparison')}, of which chance alone decides about one in twenty wrongly."
        if comparisons > 1
        else ""
    )


def _parities(tasks):
    """(group, measure, Parity, sentence) of each precision against its siblings in float32."""
    found = []
    for task, groups in tasks.items():
        for family in _unique(group.family for group in groups):
            siblings = {group.dtype: group for group in groups if group.family == family and group.runs}
            if "float32" in siblings and len(siblings) > 1:
                scores = {dtype: {m: group.values("last", m) for m in group.measures} for dtype, group in siblings.items()}
                for measure, dtype, parity, text in verdict.precision_parity(task, scores):
                    found.append((siblings[dtype], measure, parity, f"{text}."))
    return found


def _parity_table(parities):
    rows = []
    for group, measure, parity, _ in parities:
        row = {"Task": group.task, "Metric": measure, "Precision": group.label}
        row["Minus float32"] = _interval(None if parity.difference is None else [parity.difference], "{:+.2f}")
        row |= {"Pairs": Cell(str(parity.n), parity.n), "90% interval": _interval(parity.interval90, "{:+.2f}")}
        row |= {"Outcome": parity.outcome, "Chance": _NONE}
        if parity.chance is not None:
            row["Chance"] = Cell(f"{parity.chance:.0%}", parity.chance)
        rows.append(row)
    note = (
        "Pairs share the seed, and with it initial head, batches and learning rates. Equal: two one-sided t tests put the "
    )
    note += "difference inside the task's margin. Chance: were there no difference, and the spread as it is here, how often "
    note += f"so many pairs would show that. {_by_chance(len(rows))}"
    return [Table("Each precision against float32", rows, note)]


def _certainty_table(tasks):
    """What the dev split's size leaves open, and how far confidence can be believed."""
    rows = []
    for group in _all_groups(tasks):
        for name, split in group.median.outputs.items() if group.runs else ():
            metric = next(iter(group.median.splits("last")[name]))
            score = statistics.row_score(metric, split.labels, split.predictions)
            low, high = statistics.bootstrap_interval(score, len(split.labels), seed=0)
            found = _reliability((group.median,), name)
            row = {"Task": group.task, "Precision": group.label, "Metric": metric + split_suffix(name)}
            row |= {"Score": _score(100 * score(slice(None))), "95% interval": _interval((100 * low, 100 * high))}
            row |= {"Seed": Cell(str(group.median.seed), group.median.seed), "Dev rows": _range([len(split.labels)])}
            rows.append(row | {"Calibration error": _score(100 * found[0]) if found else _NONE})
    note = (
        "Of the run with the median score. The interval comes from drawing the dev rows anew (2000 bootstrap samples): what "
    )
    note += "other rows of the same kind could have said of this one model. Calibration error: the mean gap between "
    note += "confidence and accuracy in 15 bins, × 100 (ECE, Guo et al. 2017)."
    return [Table("How sure the score of one seed is", rows, note)] if rows else []


@functools.cache
def _reliability(runs, split):
    """(ECE, bins) over the rows of all `runs`, a tuple, together; None for scores instead of classes."""
    kept = [run.outputs[split] for run in runs if split in run.outputs and np.isfinite(run.outputs[split].logits).all()]
    if not kept or not runs[0].record["labels"]:
        return None
    logits, labels = (np.concatenate([getattr(one, name) for one in kept]) for name in ("logits", "labels"))
    return statistics.calibration_error(probabilities(logits), labels)


# A task's section


def _task_section(task, groups, sentences):
    if not groups:
        return []
    settings = [group.first.settings for group in groups]
    shared = {name: settings[0][name] for name in _RECIPE if len({repr(one[name]) for one in settings}) == 1}
    recipe = ", ".join(f"{name} {setting_text(value)}" for name, value in shared.items() if value is not None)
    drawn = [*_score_pictures(groups), *_training_pictures(groups)]
    for name in groups[0].median.outputs:
        drawn += _row_pictures(groups, name)
    drawn += _length_picture(groups[0].first.record.get("lengths") or {})
    drawn = [Picture(re.sub(r"[^a-z0-9]+", "-", f"{task}-{picture.name}".lower()), *picture[1:]) for picture in drawn]
    text = Text(f"{_listed(_unique(group.first.model for group in groups))}; {recipe}.")
    return [Heading(task), text, *([Items(sentences)] if sentences else []), Gallery(drawn), *_mistakes(task, groups[0])]


def _picture(name, title, finding, how, draw, *arguments, **options):
    return Picture(name, title, _sentence(finding), how, functools.partial(draw, *arguments, **options))


def _score_pictures(groups):
    scored = [(group, values) for group in groups if (values := group.values("last"))]
    if not scored:
        return
    metric = scored[0][0].measures[0].split(",")[0]
    rows, words = [], []
    for group, values in scored:
        mean, interval = statistics.summarize(list(values.values())).mean, statistics.mean_interval(list(values.values()))
        rows.append((_series(group), values, mean, interval))
        words.append(f"{group.label} {mean:.1f}" + (" ({:.1f} to {:.1f})".format(*interval) if interval else ""))
    many = max(len(values) for _, values in scored) > 1
    how = "A mark per seed; below, their mean and its 95% interval." if many else ""
    finding = f"{'mean' if many else 'one seed'}: {'; '.join(words)}"
    yield _picture("seeds", f"Dev {metric}", finding, how, plots.seeds, rows, metric=metric)
    curves = [(_series(g), [tuple(zip(*run.log[1])) for run in g.runs if run.log[1]]) for g, _ in scored]
    curves = [(series, kept) for series, kept in curves if kept]
    if max((len(epochs) for _, kept in curves for epochs, _ in kept), default=0) > 1:
        first, last = ([np.mean([scores[end] for _, scores in kept]) for _, kept in curves] for end in (0, -1))
        words = "; ".join(f"from {first[i]:.1f} to {last[i]:.1f} in {curves[i][0].label}" for i in range(len(curves)))
        how = "Thick: mean over seeds; thin: each seed." if many else ""
        yield _picture("epochs", f"Dev {metric} by epoch", words, how, plots.dev_scores, curves, metric=metric)


def _training_pictures(groups):
    logged = [(g, [run.log[0] for run in [g.median, *g.runs] if np.isfinite(run.log[0]["grad_norm"]).any()]) for g in groups]
    logged = [(g, [logs[0], *(log for log in logs[1:] if log is not logs[0])]) for g, logs in logged if logs]
    if not logged:
        return
    curves = [(_series(group), [(log["step"], log["loss"]) for log in logs]) for group, logs in logged]
    smooth = [(series.label, plots.thin(*kept[0], 60)[1]) for series, kept in curves]
    words = "; ".join(f"from {loss[0]:.2f} to {loss[-1]:.2f} in {label}" for label, loss in smooth)
    how = "Thick: the median seed, in means over sixtieths of its updates; thin: the other seeds; faint: single updates."
    yield _picture("loss", "Training loss", words, how, plots.training_loss, curves)

    norms = [(_series(group), logs[0]["step"], logs[0]["grad_norm"]) for group, logs in logged]
    clips = {group.first.settings["max_grad_norm"] for group, _ in logged}
    clip = clips.pop() if len(clips) == 1 else 0
    words = [
        f"{series.label} {np.nanmedian(norm):.2f}" + (f" ({np.mean(norm > clip):.0%} of updates clipped)" if clip else "")
        for series, _, norm in norms
    ]
    how = "Unscaled, of the median seed: means over sixtieths of its updates, shaded from the least to the greatest."
    yield _picture("gradient", "Gradient norm", f"median: {'; '.join(words)}", how, plots.gradient_norm, norms, clip=clip)

    scaled = [(group, logs) for group, logs in logged if group.dtype == "float16"]
    if scaled:
        rows = [(_series(g), [(log["step"], log["loss_scale"], log["skipped"]) for log in logs]) for g, logs in scaled]
        begin, end, overflows = zip(*[(scale[0], scale[-1], skip.sum()) for _, kept in rows for _, scale, skip in kept])
        words = f"from {_range(begin).text} to {_range(end).text}; overflows in a run: {_range(overflows).text}"
        how = "Every seed; a cross is an update that overflowed and was skipped."
        yield _picture("scale", "Loss scale in float16", words, how, plots.loss_scale, rows)

    rates = {
        tuple(log["learning_rate"]): (_series(g), log["step"], log["learning_rate"]) for g, (log, *_) in reversed(logged)
    }
    rates = list(rates.values())[::-1]
    words = "; ".join(
        f"{series.label + ': ' if len(rates) > 1 else ''}rises to {setting_text(float(f'{values.max():.3g}'))} at update "
        f"{steps[values.argmax()]:.0f}, ends at {setting_text(float(f'{values[-1]:.1g}'))} after {len(steps):,} updates"
        for series, steps, values in rates
    )
    how = "The same in every run." if len(rates) == 1 else "A line per schedule, by the first group that has it."
    yield _picture("rate", "Learning rate", words, how, plots.learning_rate, rates)


def _row_pictures(groups, name):
    """Pictures of a dev split's rows."""
    main, where = groups[0], split_suffix(name)
    labels, split = main.first.record["labels"], main.median.outputs[name]
    if not labels:
        gap = np.abs(split.predictions - split.labels)
        near, far = np.quantile(gap, (0.5, 0.9))
        words = f"half of the rows are within {near:.2f} of their label, nine tenths within {far:.2f}"
        how = f"{main.label}, seed {main.median.seed} (the median); at most 500 of {len(gap):,} rows."
        data = (split.labels, split.predictions, _series(main))
        yield _picture(name + "-scores", f"Predicted and given scores{where}", words, how, plots.predicted_scores, *data)
        return
    kept = [run.outputs[name] for run in main.runs if name in run.outputs]
    cells = np.concatenate([one.labels * len(labels) + one.predictions for one in kept])
    counts = np.bincount(cells, minlength=len(labels) ** 2).reshape(len(labels), -1)
    recall = counts.diagonal() / np.maximum(counts.sum(axis=1), 1)
    shown = range(len(labels)) if len(labels) <= 6 else np.argsort(recall)[:3]
    words = f"right of each label's rows{' (the three worst)' * (len(labels) > 6)}: "
    words += ", ".join(f"{recall[i]:.0%} of {labels[i]}" for i in shown)
    how = f"{main.label}, {_count(len(kept), 'seed')} together: share of the label's rows, and their number."
    yield _picture(
        name + "-confusion", f"Confusion matrix{where}", words, how, plots.confusion, counts, labels, _series(main)
    )
    found = [(_series(group), reliability) for group in groups if (reliability := _reliability(tuple(group.runs), name))]
    if found:
        rows = [(series, bins["confidence"], bins["accuracy"], bins["count"]) for series, (_, bins) in found]
        words = []
        for (series, (error, _)), (_, confidence, accuracy, count) in zip(found, rows):
            surer = np.nansum((confidence - accuracy) * count) > 0
            words.append(f"{series.label} {100 * error:.1f}, {'surer than right' if surer else 'less sure than right'}")
        how = "Over all seeds, in 15 bins; a mark's size is its share of the rows. Below the diagonal: too sure."
        finding = f"calibration error: {'; '.join(words)}"
        yield _picture(
            name + "-reliability", f"Reliability{where}", finding, how, plots.reliability, rows, classes=len(labels)
        )


def _length_picture(lengths):
    lengths = {name: split for name, split in lengths.items() if not name.startswith("test")}
    if lengths:
        words = "; ".join(
            f"{name}: {split['mean']:.0f} tokens on average, {split['max']} at most, {split['padding']:.0%} padding"
            for name, split in lengths.items()
        )
        histograms = {name: split["histogram"] for name, split in lengths.items()}
        how = "Padding: the share of a batch's places that hold no token."
        yield _picture("lengths", "Row lengths", words, how, plots.lengths, histograms)


def _mistakes(task, group, count=10):
    """The surest mistakes of the median run, without the texts: a page may be published, the data may not."""
    for name in group.median.outputs:
        path = group.median.folder / "predictions" / f"{name}.mistakes.tsv"
        lines = [line.split("\t")[:4] for number, line in read_lines(path) if number <= count + 1] if path.is_file() else []
        if lines[1:] and lines[0][2:] == ["label", "prediction"] and all(len(line) == 4 for line in lines):
            kind = "largest errors" if lines[0][1] == "error" else "surest mistakes"
            rows = [
                {
                    "Row": Cell(row, number + 1),
                    "Label": label,
                    "Prediction": found,
                    lines[0][1].capitalize(): Cell(value, -number),
                }
                for number, (row, value, label, found) in enumerate(lines[1:])
            ]
            note = f"{group.label}, seed {group.median.seed} (the median), best epoch. All of them, with their texts: {path}"
            title = f"The {len(rows)} {kind}{split_suffix(name)}"
            yield Details(title, [Table(f"{task}: {title[0].lower()}{title[1:]}", rows, note)])


# How it was made


def _commands(tasks):
    """Shell lines that make every finished run again, a loop over its seeds for each group."""
    lines = {}
    for group in _all_groups(tasks):
        for run in group.runs:
            config = {**run.record["config"], **_ONCE}
            if len(group.runs) > 1:  # the seed stands in the names of folders, too
                mark = re.compile(rf"(?<=seed){run.seed}(?!\d)")
                config = {
                    name: mark.sub("$seed", value) if isinstance(value, str) else value for name, value in config.items()
                }
                config["seed"] = "$seed"
            words = ["python", "finetune_classifier.py", *command_line(config)]
            line = " ".join(f'"{word}"' if "$seed" in word else shlex.quote(word) for word in words)
            lines.setdefault(line, []).append(str(run.seed))
    loops = [
        f"for seed in {' '.join(seeds)}; do\n  {line}\ndone" if "$seed" in line else line for line, seeds in lines.items()
    ]
    return [Code("\n".join(loops))] if loops else []


def _provenance(tasks, runs):
    """Versions, digests, and every run."""
    found = {}
    for run in runs:
        for name, version in run.record["versions"].items():
            found.setdefault(name, {})[str(version)] = None
    versions = [{"Package": name, "Version": ", ".join(values)} for name, values in found.items()]
    digests = [(run.model, "weights", run.record["model"]["sha256"]) for run in runs]
    digests += [
        (task, *item) for task, groups in tasks.items() for g in groups for item in g.first.record["data_sha256"].items()
    ]
    files = [dict(zip(("Of", "File", "sha256"), digest)) for digest in _unique(digests)]
    rows = []
    for run in [run for run in runs if run.results]:
        scores = {f"{kind.capitalize()} epoch": run.primary(kind) for kind in ("last", "best")}
        row = {"Folder": str(run.folder), "Task": run.task, "Precision": run.dtype, "Seed": Cell(str(run.seed), run.seed)}
        rows.append(row | {name: _NONE if value is None else _score(value) for name, value in scores.items()})
    parts = (("Versions", versions), ("Data and weights", files), (_sentence(_count(len(rows), "run"))[:-1], rows))
    return [Details(title, [Table(title, content)]) for title, content in parts if content]


def _write_csv(file, runs):
    """One line per run: where, what, with which settings, and every number."""
    rows = []
    for run in runs:
        row = {"folder": run.folder, "finished": run.results is not None}
        if run.record:
            row |= {"task": run.task, "engine": run.record["engine"]["name"], "dtype": run.dtype, "seed": run.seed}
            row |= {"model": run.model, "model_sha256": run.record["model"]["sha256"]}
            row |= {name: run.settings[name] for name in _RECIPE}
        if run.results is not None:
            row |= {"primary_last": run.primary("last"), "primary_best": run.primary("best")}
            row |= {f"{kind} {measure}": value for kind in ("last", "best") for measure, value in run.scores(kind).items()}
            row |= {key: value for key, value in run.results.items() if isinstance(value, (int, float)) and key not in row}
        rows.append(row)
    writer = csv.DictWriter(file, _unique(name for row in rows for name in row), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
