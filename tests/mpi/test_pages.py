"""Opens the pages that weir writes in headless Chromium, in a narrow and in a wide window."""

import json
import os

import browser
import launch
import pytest

WIDTHS = (400, 1400)
MIN_FONT_PIXELS = 9
SLOW = launch.ROOT / "tests" / "mpi" / "slow.c"
# Datagrams also between the ranks of one host. One rank sends those of all, and few may be under way.
NETWORK = ["--set", "FI_WEIR_LINK=udp", "--set", "FI_WEIR_ADMIT=proxy,token", "--set", "FI_WEIR_ADMIT_TOKENS=1"]
TINY = launch.ROOT / "tests" / "mpi" / "tiny.c"

# Opens all folded blocks and shows everything that selectors hide.
SHOW_ALL = """
for (const details of document.querySelectorAll('details')) details.open = true;
for (const select of document.querySelectorAll('select')) { select.value = ''; select.dispatchEvent(new Event('change')); }
"""

# For each chart: its caption, the smallest font in CSS pixels, and the number of marks inside. Axes, grid, unknown
# cells of heat maps and published limits are grey. Everything else is a mark.
CHARTS = """
(() => {
  const greys = ['none', '#3C3C3C', '#E4E4E4', '#F0F0F0', '#FFFFFF', '#000000', '#969696'];
  const overlaps = (one, other) =>
    one.right > other.left && one.left < other.right && one.bottom >= other.top && one.top <= other.bottom;
  const isMark = (shape, chart) => {
    const colours = ['fill', 'stroke'].map(name => shape.getAttribute(name)).filter(colour => colour !== null);
    return colours.some(colour => !greys.includes(colour.toUpperCase().replace('NONE', 'none')))
      && overlaps(shape.getBoundingClientRect(), chart.getBoundingClientRect());
  };
  return [...document.querySelectorAll('svg')].map(chart => {
    const texts = [...chart.querySelectorAll('text')];
    const scale = text => { const matrix = text.getScreenCTM(); return Math.hypot(matrix.a, matrix.b); };
    const fonts = texts.map(text => parseFloat(getComputedStyle(text).fontSize) * scale(text));
    const shapes = [...chart.querySelectorAll('polyline, polygon, path, rect, circle, line')];
    const caption = chart.closest('figure').querySelector('figcaption').textContent;
    const label = chart.closest('[role=img]')?.ariaLabel;
    return {caption, label, font: Math.min(...fonts), marks: shapes.filter(shape => isMark(shape, chart)).length};
  });
})()
"""

# Elements that are wider than the window and do not scroll.
TOO_WIDE = """
[...document.querySelectorAll('body *')]
  .filter(it => it.getBoundingClientRect().right > innerWidth + 0.5 && !it.parentElement.closest('.wide, pre, svg'))
  .map(it => `${it.tagName}.${it.className}: ${it.textContent.slice(0, 60)}`)
"""


@pytest.fixture(scope="module")
def chromium():
    program = browser.find()
    if program is None:
        assert "WEIR_REQUIRE_BROWSER" not in os.environ, "chromium is not installed: apt-get install chromium"
        pytest.skip("chromium is not installed (apt-get install chromium)")
    with browser.Browser(program) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Writes all kinds of pages, each by a small run of the command."""
    place = tmp_path_factory.mktemp("pages")

    def weir(*words):
        outcome = launch.run([launch.WEIR, *words], timeout=60)
        assert outcome.status == 0, outcome

    def report(name, ranks, *program, flags=("--flow", "static")):
        weir("run", "-n", ranks, "-q", "--mpi", "mpich", *flags, "--report", place / name, "--", *program)
        return place / name / "report.html"

    def bench(name, *flags):
        weir("bench", "--quick", "--only", "weir,mpich-shm", "--repeat", "1", "-q", "--out", place / name, *flags)
        return place / name / "bench.html"

    def reproduce(name, *words):
        weir("reproduce", *words, "--quick", "-q", "--out", place / name)
        return place / name / "reproduce.html"

    weir("sim", launch.ROOT / "experiments" / "e2.1.toml", "--quick", "-q", "--out", place / "sim")
    slow = (launch.compile_c(SLOW), "0.3", "500", "2000")
    return {
        "report of 3 ranks": report("few", 3, *slow),
        "report of 10 ranks": report("many", 10, *slow),
        "report of a network": report("network", 3, *slow, flags=NETWORK),
        "report of a short run": report("short", 2, launch.compile_c(TINY)),
        "reproduce": reproduce("reproduce", "E2.1"),
        "reproduce overheads and memory": reproduce("overheads", "E1.9", "E1.10", "--no-sweep"),
        "bench of times": bench("times", "--measure", "latency"),
        "bench of memory": bench("memory", "--measure", "flood,memory", "--ranks", "2,4"),
        "plan": place / "sim" / "e2.1.quick.html",
    }


KINDS = (
    "report of 3 ranks", "report of 10 ranks", "report of a network", "report of a short run", "reproduce", "reproduce overheads and memory",
    "bench of times", "bench of memory", "plan",
)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_readable_and_its_charts_have_marks(chromium, pages, kind, width):
    chromium.open(pages[kind], width)
    chromium.evaluate(SHOW_ALL)
    assert chromium.errors() == []
    charts = chromium.evaluate(CHARTS)
    assert charts, "the page has no chart"
    assert [chart["caption"] for chart in charts if chart["marks"] == 0] == [], "these charts are empty"
    assert [chart for chart in charts if not chart["label"]] == [], "a screen reader has no name for these charts"
    small = [(chart["caption"], chart["font"]) for chart in charts if chart["font"] < MIN_FONT_PIXELS]
    assert small == [], "the text of these charts is too small"
    assert chromium.evaluate("innerWidth") == width
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width, chromium.evaluate(TOO_WIDE)


def test_a_job_over_a_network_has_sections_about_it(chromium, pages):
    chromium.open(pages["report of a network"], 1400)
    headings = chromium.evaluate("[...document.querySelectorAll('h2')].map(it => it.textContent)")
    assert {"Network", "Admission"} < set(headings), headings
    captions = [chart["caption"] for chart in chromium.evaluate(CHARTS)]
    assert "Smoothed round trips of the paths of each rank at the end, in us." in captions, captions
    pairs = json.loads(chromium.evaluate("document.getElementById('weir-data').textContent"))["pairs"]
    measured = {(pair["sender"], pair["receiver"]) for pair in pairs if pair["round_trip_us"] > 0}
    assert {("1", "0"), ("2", "0")} <= measured, pairs


def test_a_selector_shows_one_rank(chromium, pages):
    chromium.open(pages["report of 10 ranks"], 1400)
    visible = "[...document.querySelectorAll('[data-rank]')].filter(it => !it.hidden).map(it => it.dataset.rank)"
    first = chromium.evaluate(visible)
    assert len(first) == 1, "a page of many ranks first shows one of them"
    choose = "const s = document.querySelector('select'); s.value = '%s'; s.dispatchEvent(new Event('change'))"
    other = "1" if first != ["1"] else "2"
    chromium.evaluate(choose % other)
    assert chromium.evaluate(visible) == [other]
    assert chromium.errors() == []
