"""The report's page in a browser: nothing is broken, hidden, too wide or too faint; tables sort by mouse and keyboard."""

import browser
import pytest
from run_folders import write_run

from bert.report import write_report
from bert.runs import gather

pytestmark = pytest.mark.skipif(not browser.installed(), reason="needs chromium and chromedriver")

#: [ratio, text] of every element with text of its own whose contrast with what is painted behind it is below `arguments[0]`
#: (WCAG 2.2, relative luminance).
FAINT = """
const parse = color => color.match(/[\\d.]+/g).map(Number);
const linear = value => value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4;
const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
const behind = element => {
  const color = parse(getComputedStyle(element).backgroundColor);
  return color.length < 4 || color[3] > 0 ? color : behind(element.parentElement);
};
const own = element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
document.querySelectorAll("details").forEach(details => { details.open = true; });
return [...document.querySelectorAll("body *:not(script)")].filter(own).map(element => {
  const style = getComputedStyle(element), color = parse(element.closest("svg") ? style.fill : style.color);
  const [a, b] = [luminance(color), luminance(behind(element))].sort((x, y) => y - x);
  return [(a + 0.05) / (b + 0.05), element.textContent.trim().slice(0, 40)];
}).filter(([ratio]) => !(ratio >= arguments[0]));
"""
UNSEEN = """
document.querySelectorAll("details").forEach(details => { details.open = true; });
return [...document.querySelectorAll("svg[role=img]")].filter(picture => {
  const box = picture.getBoundingClientRect();
  return !(box.width > 50 && box.height >= 10 && box.left >= 0 && picture.getAttribute("aria-label"));
}).length;
"""
COLUMN = "return [...document.querySelector('table').tBodies[0].rows].map(row => row.cells[arguments[0]].textContent);"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    for dtype in ("float32", "float16", "bfloat16"):
        for seed in range(2):
            write_run(folder / "runs" / f"MRPC-{dtype}-seed{seed}", "MRPC", dtype=dtype, seed=seed)
    write_run(folder / "runs/STS-B-float32-seed0", "STS-B")
    unfinished = folder / "runs" / f"a-long-name-{'of-a-folder-' * 5}0"
    write_run(unfinished, "RTE", finished=False)
    unfinished.with_name(unfinished.name + ".txt").write_text("error: the reason why, in " + "many words " * 15)
    return write_report(gather([folder / "runs"]), folder)[0]


@pytest.fixture(scope="module")
def window():
    with browser.browser() as window:
        yield window


@pytest.mark.parametrize("width", [320, 360, 1280, 1600])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_is_seen_and_nothing_is_too_wide(report, window, width, dark):
    window.open(report, width=width, dark=dark)
    assert window.console() == []
    assert window.run("return document.querySelectorAll('figure > svg').length") > 10
    assert window.run(UNSEEN) == 0
    assert window.run("return document.documentElement.scrollWidth") <= width
    assert window.run("return [...document.images].filter(image => !image.alt).length") == 0


def test_what_a_run_said_last_can_be_read_on_a_phone(report, window):
    window.open(report, width=360)
    seen = """
    const table = [...document.querySelectorAll("table")].find(table => table.caption.textContent.includes("not finished"));
    const scroller = table.parentElement, cell = table.tBodies[0].rows[0].cells[0];
    scroller.scrollLeft = 1e6;
    return scroller.getBoundingClientRect().right - cell.getBoundingClientRect().right;
    """
    assert window.run(seen) > 100


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_stands_out_from_its_ground(report, window, dark):
    window.open(report, dark=dark)
    background = window.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) == dark
    assert window.run(FAINT, 4.5) == []
    assert len(window.run(FAINT, 100)) > 200  # it does look at the page's texts


def test_a_click_on_a_header_sorts(report, window):
    window.open(report)
    before = [float(cell.split()[0]) for cell in window.run(COLUMN, 3)]
    for order, state in ((False, "ascending"), (True, "descending")):
        window.run("document.querySelector('table').tHead.rows[0].cells[3].querySelector('button').click()")
        assert [float(cell.split()[0]) for cell in window.run(COLUMN, 3)] == sorted(before, reverse=order)
        assert window.run("return document.querySelector('[aria-sort]').ariaSort") == state
    window.run("document.querySelector('table').tHead.rows[0].cells[2].querySelector('button').click()")
    assert window.run(COLUMN, 2) == sorted(window.run(COLUMN, 2))
    assert window.run("return document.querySelectorAll('[aria-sort]').length") == 1


def test_the_keyboard_reaches_and_sorts(report, window):
    window.open(report)
    window.press("\ue004")
    assert window.run("return document.activeElement.textContent") == "Skip to the content"
    assert window.run("return document.activeElement.getBoundingClientRect().left") >= 0
    window.run("document.querySelector('table').tHead.rows[0].cells[0].querySelector('button').focus()")
    window.press("\ue004\ue004")  # Task, Metric, Precision
    window.press("\ue007")
    assert window.run("return document.querySelector('[aria-sort]').cellIndex") == 2
    assert window.run(COLUMN, 2) == sorted(window.run(COLUMN, 2))
