"""The report's pictures, by matplotlib: arrays in, a Figure out, which becomes an SVG for the page or a PNG.

In an SVG every colour is a variable of the page's style sheet, so that one picture serves light and dark, and text is text
in the page's font. A precision has one colour and one marker everywhere. Knows no file, no task and no statistics.
"""

import html
import io
import re
from typing import NamedTuple

import numpy as np

INK, MUTED, RULE, PAGE = "#1b1f24", "#59626e", "#d4d9df", "#fefefe"
#: dtype -> colour on white and marker: blue, vermilion and green after Okabe and Ito's palette, which the colour-blind can
#: tell apart, darkened to 4.5:1 against white.
LOOKS = {"float32": ("#0b66a8", "o"), "float16": ("#b34a00", "^"), "bfloat16": ("#00735a", "s")}
_VARIABLES = {INK: "ink", MUTED: "muted", RULE: "rule", PAGE: "page", **{LOOKS[name][0]: name for name in LOOKS}}
_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))  # of groups that differ in more than their precision
_WIDTH = 4.4  # inches, of every picture: its text then has the size of the page's on a telephone too
_STYLE = {"font.size": 10.5, "font.family": "DejaVu Sans", "text.color": INK, "text.parse_math": False}
_STYLE |= {"svg.fonttype": "none", "savefig.facecolor": "white", "axes.facecolor": "none"}
_STYLE |= {"axes.edgecolor": MUTED, "axes.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False}
_STYLE |= {"axes.linewidth": 0.7, "axes.grid": True, "axes.axisbelow": True, "grid.color": RULE, "grid.linewidth": 0.6}
_STYLE |= {"xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK, "ytick.labelcolor": INK}
_STYLE |= {"xtick.major.width": 0.7, "ytick.major.width": 0.7, "xtick.major.size": 3, "ytick.major.size": 0}
_STYLE |= {"lines.linewidth": 1.5, "lines.markersize": 4.5, "legend.frameon": False, "legend.fontsize": 10.5}
_STYLE |= {"legend.handlelength": 1.4, "legend.columnspacing": 1.2, "legend.handletextpad": 0.5, "legend.borderpad": 0}


class Series(NamedTuple):
    """How a group of runs is called and drawn; `variant` counts the groups of one precision in a picture, from 0."""

    label: str
    dtype: str
    variant: int = 0

    @property
    def line(self):
        return {"color": self.color, "linestyle": _DASHES[self.variant % len(_DASHES)]}

    @property
    def color(self):
        return LOOKS.get(self.dtype, (MUTED, "D"))[0]

    @property
    def marker(self):
        return LOOKS.get(self.dtype, (MUTED, "D"))[1]


def thin(steps, values, points=300):
    """(steps, mean, low, high), each of at most `points`, over equal slices of a curve; NaN is left out."""
    steps, values = np.asarray(steps), np.asarray(values, np.float64)
    starts = np.linspace(0, len(values), min(points, len(values)), endpoint=False).astype(int)
    known = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        mean = np.add.reduceat(np.where(known, values, 0), starts) / np.add.reduceat(known, starts, dtype=float)
    return steps[starts], mean, np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)


def seeds(rows, *, metric):
    """Every seed's score as a dot, a row per group, above its mean and the mean's interval.

    `rows`: (Series, {seed: score}, mean, interval or None) of each group, in percent points.
    """
    with _style() as style:
        figure, axes = style(height=0.75 + 0.62 * len(rows))
        values = np.concatenate([list(scores.values()) for _, scores, _, _ in rows])
        apart = max(np.ptp(values), 0.5) / 45  # dots that are nearer than this go beside each other
        for row, (series, scores, mean, interval) in enumerate(rows):
            ends = []
            for value in sorted(scores.values()):
                lane = next((lane for lane, end in enumerate(ends) if value - end > apart), len(ends))
                ends[lane : lane + 1] = [value]
                axes.plot(value, row - 0.1 * lane, marker=series.marker, color=series.color, alpha=0.75, mew=0)
            if interval:
                axes.plot(interval, [row + 0.27] * 2, color=series.color, lw=1.2, solid_capstyle="butt")
            if len(scores) > 1:
                axes.plot(mean, row + 0.27, marker="|", color=series.color, ms=9, mew=2)
        axes.set_yticks(range(len(rows)), [series.label for series, *_ in rows])
        for label, (series, *_) in zip(axes.get_yticklabels(), rows):
            label.set_color(series.color)
        axes.set_ylim(len(rows) - 0.5, -0.6)
        axes.margins(x=0.08)
        if np.ptp(axes.get_xlim()) < 1:  # a single score would stand in an axis of thousandths
            middle = np.mean(axes.get_xlim())
            axes.set_xlim(middle - 0.5, middle + 0.5)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(f"dev {metric} after the last epoch, × 100")
        return figure


def training_loss(groups):
    """Loss by update. `groups`: (Series, curves), a curve is (steps, losses) of a seed, the median seed's first."""
    with _style() as style:
        figure, axes = style()
        for place, (series, curves) in enumerate(groups):
            for number, (steps, values) in enumerate(curves):
                smooth = thin(steps, values, 60)[:2]
                if number:
                    axes.plot(*smooth, **series.line, lw=0.6, alpha=0.4)
                else:
                    axes.plot(*thin(steps, values)[:2], color=series.color, lw=0.4, alpha=0.3)
                    axes.plot(*smooth, **series.line, **_markers(series, place), zorder=3)
        _legend(axes, [series for series, _ in groups])
        axes.set(xlabel="update", ylabel="training loss", xlim=(0, None), ylim=(0, None))
        return figure


def dev_scores(groups, *, metric):
    """Score by epoch. `groups`: (Series, curves), a curve is (epochs, scores) of a seed; the thick line is their mean."""
    with _style() as style:
        figure, axes = style()
        last = 1
        for series, curves in groups:
            for epochs, scores in curves if len(curves) > 1 else ():
                axes.plot(epochs, scores, **series.line, lw=0.6, alpha=0.4)
            longest = max((epochs for epochs, _ in curves), key=len)
            last = max(last, longest[-1])
            mean = [np.mean([scores[place] for _, scores in curves if place < len(scores)]) for place in range(len(longest))]
            axes.plot(longest, mean, **series.line, marker=series.marker, zorder=3)
        _legend(axes, [series for series, _ in groups])
        axes.set_xticks(sorted({int(tick) for tick in np.linspace(1, last, min(last, 10)).round()}))
        axes.set(xlabel="epoch", ylabel=f"dev {metric}, × 100")
        return figure


def learning_rate(groups):
    """The schedule. `groups`: (Series, steps, rates)."""
    with _style() as style:
        figure, axes = style()
        for series, steps, rates in groups:
            axes.plot(steps, np.asarray(rates) * 1e5, **{**series.line, "color": series.color if len(groups) > 1 else MUTED})
        if len(groups) > 1:
            _legend(axes, [series for series, *_ in groups])
        axes.set(xlabel="update", ylabel="learning rate, × 1e-5", xlim=(0, None), ylim=(0, None))
        return figure


def gradient_norm(groups, *, clip):
    """Norm of the unscaled gradient: means over slices of a run, shaded from least to largest, and the clip (0: none).

    `groups`: (Series, steps, norms) of each group's median seed; what overflowed is NaN.
    """
    from matplotlib.ticker import LogLocator

    with _style() as style:
        figure, axes = style()
        for place, (series, steps, norms) in enumerate(groups):
            x, mean, low, high = thin(steps, norms, 60)
            axes.fill_between(x, low, high, color=series.color, alpha=0.13, lw=0)
            axes.plot(x, mean, **series.line, **_markers(series, place))
        axes.set_yscale("log")
        if clip:
            axes.axhline(clip, color=INK, lw=0.8, linestyle=(0, (4, 2)))
            where = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "ha": "right", "va": "top"}
            axes.annotate(f"clipped to {clip:g}", (1, clip), (0, -3), **where)
        axes.yaxis.set_major_formatter(_plain)
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axes.yaxis.set_minor_formatter(_plain)
        _legend(axes, [series for series, *_ in groups])
        axes.set(xlabel="update", ylabel="gradient norm", xlim=(0, None))
        return figure


def loss_scale(groups):
    """The dynamic loss scale, and a cross for every update that overflowed.

    `groups`: (Series, runs), a run is (steps, scales, overflowed: bools) of a seed.
    """
    with _style() as style:
        figure, axes = style()
        for series, runs in groups:
            for steps, scales, overflowed in runs:
                steps, scales, overflowed = np.asarray(steps), np.asarray(scales, float), np.asarray(overflowed, bool)
                changes = np.flatnonzero(np.diff(scales)) + 1
                kept = np.unique([0, *changes, len(scales) - 1])
                axes.step(
                    steps[kept], scales[kept], where="post", **series.line, lw=1.1, alpha=0.8 if len(runs) < 3 else 0.5
                )
                marked = np.flatnonzero(overflowed)[:300]
                axes.plot(steps[marked], scales[marked], "x", color=series.color, ms=5.5, mew=1.4)
        axes.set_yscale("log", base=2)
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 2.0 ** (np.log2(high) - 4)), high * 1.4)
        axes.yaxis.set_major_formatter(_plain)
        axes.minorticks_off()
        axes.set(xlabel="update", ylabel="loss scale", xlim=(0, None))
        return figure


def confusion(counts, labels, series):
    """A matrix of `counts` (true class, predicted class): each cell's share of its row, and the count."""
    with _style() as style:
        figure, axes = style(height=min(1.2 + 0.62 * len(labels), 4.2))
        share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        for row, column in np.ndindex(*counts.shape):
            box = (column - 0.48, row - 0.47)
            axes.add_patch(_rectangle(box, 0.96, 0.94, facecolor=series.color, alpha=0.04 + 0.46 * share[row, column], lw=0))
            if len(labels) <= 6:
                axes.text(
                    column, row, f"{share[row, column]:.0%}", ha="center", va="bottom", fontsize=11.5, fontweight="bold"
                )
                axes.text(column, row + 0.07, f"{counts[row, column]}", ha="center", va="top", fontsize=9.5)
        short = [label if len(label) <= 14 else label[:13] + "…" for label in labels]
        axes.set_xticks(range(len(labels)), short)
        axes.set_yticks(range(len(labels)), short)
        axes.set(xlim=(-0.5, len(labels) - 0.5), ylim=(len(labels) - 0.5, -0.5), xlabel="predicted", ylabel="label")
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        return figure


def predicted_scores(labels, predictions, series, points=500):
    """Regression: prediction against label of at most `points` rows, evenly taken, and the line where they agree."""
    with _style() as style:
        figure, axes = style(height=3.2)
        rows = np.linspace(0, len(labels) - 1, min(points, len(labels))).astype(int)
        axes.plot(labels[rows], predictions[rows], linestyle="", marker=".", color=series.color, alpha=0.45, ms=5, mew=0)
        ends = [min(labels.min(), predictions.min()), max(labels.max(), predictions.max())]
        axes.plot(ends, ends, color=INK, lw=0.8, linestyle=(0, (4, 2)))
        axes.set(xlabel="label", ylabel="prediction")
        return figure


def reliability(groups, *, classes):
    """Accuracy of the rows by their confidence. `groups`: (Series, confidence, accuracy, counts), a value per bin."""
    with _style() as style:
        figure, axes = style(height=3.2)
        low = 1 / classes
        axes.plot([low, 1], [low, 1], color=INK, lw=0.8, linestyle=(0, (4, 2)))
        for series, confidence, accuracy, counts in groups:
            seen = np.asarray(counts) > 0
            axes.plot(np.asarray(confidence)[seen], np.asarray(accuracy)[seen], **series.line, alpha=0.6)
            sizes = 8 + 70 * np.asarray(counts)[seen] / np.sum(counts)
            axes.scatter(
                np.asarray(confidence)[seen],
                np.asarray(accuracy)[seen],
                s=sizes,
                marker=series.marker,
                color=series.color,
                lw=0,
                zorder=3,
            )
        middle = low + 0.55 * (1 - low)
        axes.annotate("as sure as right", (middle, middle), (-6, 4), textcoords="offset points", ha="right", color=MUTED)
        _legend(axes, [series for series, *_ in groups])
        axes.set(xlabel="confidence (probability of the predicted class)", ylabel="share that is right", ylim=(-0.02, 1.03))
        return figure


def lengths(splits):
    """Histograms of row lengths. `splits`: name -> counts of rows with 1 to 8 tokens, 9 to 16, ..."""
    with _style() as style:
        figure, axes = style(height=2.5)
        for number, (name, counts) in enumerate(splits.items()):
            share = 100 * np.asarray(counts) / max(np.sum(counts), 1)
            edges = np.arange(len(share) + 1) * 8
            if number:
                axes.stairs(share, edges, color=INK, lw=1, linestyle=_DASHES[(number - 1) % len(_DASHES)], label=name)
            else:
                axes.stairs(share, edges, color=MUTED, fill=True, alpha=0.35, lw=0, label=name)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
        axes.set(xlabel="tokens in a row", ylabel="% of the split's rows", xlim=(0, None))
        return figure


def to_svg(figure, name, alt):
    """The <svg> element of a figure for an HTML page: scales, follows the page's colours and font, and says `alt`.

    The same figure and name give the same bytes, and ids of two names never meet.
    """
    import matplotlib

    file = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    figure.set_layout_engine("none")  # it is made, and takes as long as the drawing
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.S)  # its style would be the page's
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r"(font: )?((?:bold |\d+ )*[\d.]+px) '[^;\"]*", r"font-size: \2", svg)
    svg = re.sub(r"font-size: (bold|700) ", "font-weight: 700; font-size: ", svg)
    used = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: f' id="{name}-{match[1]}"' if match[1] in used else "", svg)
    svg = re.sub(r"(url\(|href=\")#", rf"\1#{name}-", svg)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, f"var(--{variable})")
    view, width = re.search(r'viewBox="[^"]+"', svg)[0], figure.get_size_inches()[0] * 72
    head = f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {view} role="img" '
    label = html.escape(alt, quote=False).replace('"', "&quot;")
    head += f'aria-label="{label}" style="max-width: {1.4 * width:.0f}px" stroke-linejoin="round">'
    svg = head + svg[svg.index(">") + 1 :]
    return re.sub(r"\n\s*", "\n", svg).strip()


def save_png(figure, path):
    """Write a figure at 150 dots per inch on white."""
    figure.savefig(path, format="png", dpi=150, metadata={"Software": None})


class _style:
    """Within it, style(height=inches) is a new (figure, axes) in the report's style; nothing global changes."""

    def __enter__(self):
        import matplotlib

        self._context = matplotlib.rc_context(_STYLE)
        self._context.__enter__()
        return self

    def __call__(self, height=2.9):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        return figure, figure.add_subplot()

    def __exit__(self, *failure):
        return self._context.__exit__(*failure)


def _markers(series, place):
    """Marks along a line, each group's at places of its own: curves that lie on each other are then seen as two."""
    return {"marker": series.marker, "markevery": (3 + 4 * place, 14), "ms": 4}


def _legend(axes, series):
    """Colour, dash and marker of each group, in a line above the axes."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **each.line, marker=each.marker, label=each.label) for each in series]
    stacked = max(len(each.label) for each in series) > 12
    if stacked:
        axes.figure.set_figheight(axes.figure.get_figheight() + 0.17 * (len(series) - 1))
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=1 if stacked else 3)


def _rectangle(*arguments, **options):
    from matplotlib.patches import Rectangle

    return Rectangle(*arguments, **options)


def _plain(value, _):
    """Tick labels of logarithmic axes without powers, which would be drawn as formulas."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
