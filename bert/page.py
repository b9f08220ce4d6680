"""A document of headings, sentences, tables and pictures, and its two forms: one self-contained HTML page, and Markdown.

Everything that is not markup of this file or of report.html is escaped: names and labels are other people's. Knows nothing
of runs.
"""

import html
import re
from collections.abc import Callable
from importlib.resources import files
from string import Template
from typing import NamedTuple, Optional

from bert import plots


class Heading(NamedTuple):
    text: str

    @property
    def anchor(self):
        return re.sub(r"[^a-z0-9]+", "-", self.text.lower()).strip("-") or "part"


class Text(NamedTuple):
    text: str


class Items(NamedTuple):
    texts: list


class Code(NamedTuple):
    text: str


class Cell(NamedTuple):
    """A table's cell that is sorted by a number (None: last)."""

    text: str
    value: Optional[float]


class Strip(NamedTuple):
    """A table's cell of numbers as dots on a scale that its column shares by rows of a kind."""

    values: list
    low: float
    high: float
    dtype: str


class Table(NamedTuple):
    """`rows` are dicts from a column's title to a text, Cell or Strip, all with the same keys; the first names the row."""

    title: str
    rows: list
    note: str = ""

    def columns(self):
        """(title, cells) of each column."""
        return [(name, [row[name] for row in self.rows]) for name in self.rows[0]]


class Picture(NamedTuple):
    """`draw()` returns a Figure; `finding` is what it shows in a sentence, `how` what its marks are."""

    name: str
    title: str
    finding: str
    how: str
    draw: Callable


class Gallery(NamedTuple):
    pictures: list


class Details(NamedTuple):
    """Blocks that the page shows when asked to."""

    summary: str
    blocks: list


def to_html(title, subtitle, blocks, svgs):
    """The page. `svgs`: name of a picture -> its <svg> element; a picture without one is told in words."""
    links = [f'<a href="#{block.anchor}">{_escape(block.text)}</a>' for block in flat(blocks) if isinstance(block, Heading)]
    template = Template(files("bert").joinpath("report.html").read_text(encoding="utf-8"))
    body = "\n".join(_html(block, svgs) for block in blocks)
    return template.substitute(title=_escape(title), subtitle=_escape(subtitle), contents=" ".join(links), body=body)


def to_markdown(title, subtitle, blocks, images):
    """The same in Markdown. `images`: name of a picture -> path of its file."""
    parts = [f"# {_plain(title)}", _plain(subtitle), *(part for block in blocks for part in _markdown(block, images))]
    return "\n\n".join(parts) + "\n"


def pictures(blocks):
    """All Pictures of a document, a list."""
    return [picture for block in flat(blocks) if isinstance(block, Gallery) for picture in block.pictures]


def flat(blocks):
    for block in blocks:
        yield from flat(block.blocks) if isinstance(block, Details) else (block,)


def _escape(text):
    return html.escape(str(text), quote=True)


def _html(block, svgs):
    match block:
        case Heading(text):
            return f'<h2 id="{block.anchor}">{_escape(text)}</h2>'
        case Text(text):
            return f"<p>{_escape(text)}</p>"
        case Items(texts):
            return "<ul>" + "".join(f"<li>{_escape(text)}</li>" for text in texts) + "</ul>"
        case Code(text):
            return f"<pre><code>{_escape(text)}</code></pre>"
        case Details(summary, blocks):
            inner = "\n".join(_html(inner, svgs) for inner in blocks)
            return f"<details><summary>{_escape(summary)}</summary>\n{inner}\n</details>"
        case Gallery(shown):
            return '<div class="gallery">' + "\n".join(_html_picture(picture, svgs) for picture in shown) + "</div>"
        case Table():
            return _html_table(block)


def _html_picture(picture, svgs):
    caption = f"<figcaption><strong>{_escape(picture.title)}.</strong> {_escape(picture.finding)}</figcaption>"
    return f'<figure>{caption}\n{svgs.get(picture.name, "<div></div>")}\n<p class="how">{_escape(picture.how)}</p></figure>'


def _html_table(block):
    styles = {}
    for name, cells in block.columns():
        prose = any(len(cell_text(cell)) > 60 for cell in cells)
        styles[name] = ' class="number"' if _numbers(cells) else ' class="prose"' if prose else ""
    head = "".join(f'<th scope="col"{styles[name]}>{_escape(name)}</th>' for name in styles)
    rows = []
    for row in block.rows:
        (_, first), *cells = row.items()
        inner = "".join(f"<td{styles[name]}{_html_cell(cell)}</td>" for name, cell in cells)
        rows.append(f'<tr><th scope="row">{_escape(cell_text(first))}</th>{inner}</tr>\n')
    title = _escape(block.title)
    note = f'<p class="how">{_escape(block.note)}</p>' if block.note else ""
    table = f"<caption>{title}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{''.join(rows)}</tbody>"
    return f'<div class="scroll" role="region" aria-label="{title}" tabindex="0"><table>{table}</table></div>{note}'


def _html_cell(cell):
    """The rest of a cell's tag, and what is in it."""
    text = _escape(cell_text(cell))
    if isinstance(cell, Strip):
        return f">{_html_strip(cell)}"
    if isinstance(cell, Cell):
        return f">{text}" if cell.value is None else f' data-value="{cell.value!r}">{text}'
    precision = cell.split(",")[0]
    return f'><span class="{precision}">{text}</span>' if precision in plots.LOOKS else f">{text}"


def _numbers(cells):
    return all(isinstance(cell, Cell) for cell in cells)


def _html_strip(strip):
    """A tiny chart, 110 x 16: a line from the least to the greatest value of the task, and a dot for each value."""
    width = (strip.high - strip.low) or 1.0
    places = [6 + 98 * (value - strip.low) / width if strip.high > strip.low else 55 for value in strip.values]
    dots = "".join(f'<circle cx="{place:.1f}" cy="8" r="3.2"/>' for place in places)
    color = strip.dtype if strip.dtype in plots.LOOKS else "muted"
    return (
        f'<svg class="strip" viewBox="0 0 110 16" width="110" height="16" role="img" aria-label="{cell_text(strip)}">'
        f'<line x1="2" x2="108" y1="8" y2="8"/><g style="fill: var(--{color})">{dots}</g></svg>'
    )


def cell_text(cell):
    if isinstance(cell, Strip):
        return " ".join(f"{value:.1f}" for value in cell.values)
    return cell.text if isinstance(cell, Cell) else str(cell)


def _markdown(block, images):
    """Paragraphs of Markdown."""
    match block:
        case Heading(text):
            yield f"## {_plain(text)}"
        case Text(text):
            yield _plain(text)
        case Items(texts):
            yield "\n".join(f"- {_plain(text)}" for text in texts)
        case Code(text):
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
            yield f"{fence}sh\n{text}\n{fence}"
        case Details(_, blocks):
            for inner in blocks:
                yield from _markdown(inner, images)
        case Gallery(shown):
            for name, title, finding, how, _ in shown:
                yield f"**{_plain(title)}.** {_plain(finding)} {_plain(how)}".rstrip()
                if name in images:
                    yield f"![{_plain(title)}: {_plain(finding)}]({images[name]})"
        case Table(title, rows, note):
            columns = block.columns()
            lines = [[name for name, _ in columns], ["---:" if _numbers(cells) else "---" for _, cells in columns]]
            lines += [[_plain(cell_text(cell)).replace("|", "\\|") for cell in row.values()] for row in rows]
            yield f"**{_plain(title)}**"
            yield "\n".join(f"| {' | '.join(line)} |" for line in lines)
            if note:
                yield _plain(note)


def _plain(text):
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_\[\]<>#$&~])", r"\\\1", str(text)).replace("\n", " ")
