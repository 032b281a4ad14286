"""The page in a real browser: plots are drawn, nothing complains, nothing overflows, dark and print work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Chromium, executable
from dataset_samples import TEMPLATE, make_example, make_report, more_facts
from load_samples import make_load
from report_samples import make_record, make_sample_bill

from trueup.analysis.comparable import ComparedRun
from trueup.analysis.compare import compare, group_of
from trueup.analysis.load_bill import make_load_bill
from trueup.report import dataset, html
from trueup.report.compare_page import comparison_page
from trueup.report.load_page import load_page
from trueup.schema import Event, RunRecord

HOSTILE = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>' + "W" * 300


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    if executable() is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is not on PATH; .ci/run is to install Debian's package")
        pytest.skip("chromium is not on PATH: install it to run the browser test (apt install chromium)")
    opened = Chromium(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: a finished one, a long one with hostile, endless texts, a failed one without price."""
    long = make_record(
        run_id="feed" * 16,
        name=HOSTILE,
        steps=1500,
        step_s=0.3,
        environment={HOSTILE: HOSTILE},
        reason=HOSTILE,
        choices={"device": {"value": HOSTILE, "reason": HOSTILE}},
        state="stopped",
    )
    event = Event(at_s=3.0, kind="model_output", message=HOSTILE, data={"text": HOSTILE})
    long = long.model_copy(update={"events": (*long.events[:3], event)})
    failed = make_record(
        run_id="dead", name="too big", state="failed", reason="out of memory", steps=0, priced=False
    )
    done = make_record()
    path = tmp_path_factory.mktemp("page") / "report.html"
    html.write(
        path,
        html.render([done, long, failed], bills={r.header.id: make_sample_bill(r) for r in (done, long)}),
    )
    return path


@pytest.fixture(scope="module")
def data_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set with hostile, endless texts everywhere."""
    report = make_report(
        source=HOSTILE,
        dropped={"too_long": 31, HOSTILE: 3},
        first={HOSTILE: [{"where": HOSTILE, "what": HOSTILE}] * 5},
        messages=[HOSTILE],
        **{**more_facts(), "redacted": {"email": 3, HOSTILE: 1}, "scripts": {HOSTILE: 1}},
        pad={"id": 0, "token": HOSTILE, "reason": HOSTILE},
        settings={"max_length": 512, HOSTILE: HOSTILE},
    )
    examples = [make_example(HOSTILE, HOSTILE), make_example("لماذا؟", "漢字 👩\u200d👧 " * 40)]
    path = tmp_path_factory.mktemp("data") / "data.html"
    html.write(path, dataset.render(report, examples, template=TEMPLATE + HOSTILE))
    return path


@pytest.fixture(scope="module")
def loads() -> list[RunRecord]:
    """Nine loads, more than there are columns, one with an endless name."""
    return [make_load(f"{n:08x}", name=HOSTILE if n == 1 else f"load-{n}") for n in range(9)]


@pytest.fixture(scope="module")
def loads_page(loads: list[RunRecord], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loads") / "loads.html"
    html.write(path, load_page(loads, {one.id: make_load_bill(one) for one in loads[:8]}))
    return path


@pytest.fixture(scope="module")
def loads_compared(loads: list[RunRecord], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of them, which have columns."""
    groups = [group_of(one.name, [ComparedRun.of(one)]) for one in loads[:2]]
    path = tmp_path_factory.mktemp("compared") / "compared.html"
    html.write(path, comparison_page(compare(groups)))
    return path


PLOTS = """[...document.querySelectorAll('svg.plot')].map(svg => {
  const box = svg.getBBox(), seen = svg.getBoundingClientRect();
  const lines = [...svg.querySelectorAll('path')].filter(path => {
    const style = getComputedStyle(path), size = path.getBBox();
    return size.width > 50 && (style.stroke !== 'none' || style.fill !== 'none');
  });
  return {title: svg.querySelector('title').textContent, width: box.width, height: box.height,
          shown: seen.width, lines: lines.length,
          texts: svg.querySelectorAll('text').length};
})"""


def test_plots_are_drawn_and_nothing_complains(browser: Chromium, page: Path) -> None:
    browser.open(page, width=1280)
    plots = browser.value(PLOTS)
    assert len(plots) == 5 + 5 + 4  # the failed run has no step time; its first evaluation is its loss
    for plot in plots:
        assert plot["width"] > 100, plot
        assert plot["height"] > 100, plot
        assert plot["shown"] > 300, plot
        assert plot["lines"] >= 1, plot
        assert plot["texts"] >= 5, plot
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [page.as_uri()]


def test_text_from_data_stays_text(browser: Chromium, page: Path) -> None:
    browser.open(page, width=1280)
    assert browser.value("typeof window.pwned") == "undefined"
    assert browser.value("document.querySelectorAll('script, img, iframe, object').length") == 0
    assert "window.pwned=1" in browser.value("document.body.textContent")


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
@pytest.mark.parametrize("name", ["page", "data_page", "loads_page", "loads_compared"])
def test_the_page_never_scrolls_sideways(
    browser: Chromium, name: str, width: int, request: pytest.FixtureRequest
) -> None:
    browser.open(request.getfixturevalue(name), width=width)
    browser.value("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.value("document.documentElement.scrollWidth") <= width
    # What is wider than the screen is inside a box that scrolls by itself, or is cut in its own box.
    sticking_out = browser.value("""[...document.querySelectorAll('main *')].filter(node =>
        !node.closest('.scroll, .strip, svg') && node.getBoundingClientRect().right > innerWidth + 1
    ).map(node => node.outerHTML.slice(0, 120))""")
    assert sticking_out == []


def test_on_a_phone_text_in_plots_is_legible(browser: Chromium, page: Path) -> None:
    browser.open(page, width=390)
    smallest = browser.value("""Math.min(...[...document.querySelectorAll('svg.plot text')].map(text =>
        parseFloat(getComputedStyle(text).fontSize)
        * text.ownerSVGElement.getBoundingClientRect().width / 400))""")
    assert smallest >= 8


def test_light_and_dark_follow_the_reader(browser: Chromium, page: Path) -> None:
    lightness = """(() => {
      const rgb = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(Number).reduce((a, b) => a + b) / 765;
      const text = document.querySelector('svg.plot text');
      const page = getComputedStyle(document.body);
      return [rgb(page.backgroundColor), rgb(page.color),
              rgb(getComputedStyle(text).fill)];
    })()"""
    browser.open(page, width=1280)
    paper, ink, label = browser.value(lightness)
    assert paper > 0.9 > 0.5 > label > ink
    browser.open(page, width=1280, dark=True)
    paper, ink, label = browser.value(lightness)
    assert paper < 0.2 < 0.5 < label < ink


def test_print_unfolds_lists_and_cuts_no_plot(browser: Chromium, page: Path) -> None:
    browser.open(page, width=700, media="print")
    folded = browser.value("""[...document.querySelectorAll('details:not([open]) > *:not(summary)')]
        .map(node => node.getBoundingClientRect().height)""")
    assert len(folded) >= 6
    assert min(folded) > 10
    assert browser.value("getComputedStyle(document.querySelector('figure')).breakInside") == "avoid"
    assert browser.pdf().startswith(b"%PDF")


def test_the_page_of_a_data_set_is_drawn_and_nothing_complains(browser: Chromium, data_page: Path) -> None:
    browser.open(data_page, width=1280)
    (plot,) = browser.value(PLOTS)
    assert plot["lines"] >= 1
    assert plot["texts"] >= 5
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [data_page.as_uri()]
    assert browser.value("typeof window.pwned") == "undefined"
    assert browser.value("document.querySelectorAll('script, img, iframe, object').length") == 0
    assert "window.pwned=1" in browser.value("document.body.textContent")


@pytest.mark.parametrize("dark", [False, True])
def test_what_is_learned_stands_out(browser: Chromium, data_page: Path, dark: bool) -> None:
    browser.open(data_page, width=390, dark=dark)
    learned, context, paper = browser.value("""(() => {
      const token = document.querySelector('.tokens mark i'), other = document.querySelector('.tokens > i');
      return [getComputedStyle(token).color, getComputedStyle(other).color,
              getComputedStyle(token.parentElement).backgroundColor];
    })()""")
    assert learned != context
    assert paper not in ("rgba(0, 0, 0, 0)", learned)
    assert browser.value("document.querySelectorAll('.tokens mark').length") == 2


def test_a_data_set_in_print_is_unfolded(browser: Chromium, data_page: Path) -> None:
    browser.open(data_page, width=700, media="print")
    folded = browser.value("""[...document.querySelectorAll('details:not([open]) > *:not(summary)')]
        .map(node => node.getBoundingClientRect().height)""")
    assert len(folded) == 2
    assert min(folded) > 10
    assert browser.pdf().startswith(b"%PDF")
