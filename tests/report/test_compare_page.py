"""The comparison's page and its picture: one file, every group in it, nothing that runs."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from trueup.analysis.comparable import ComparedRun, Difference, Group
from trueup.analysis.compare import Comparison, compare
from trueup.analysis.compare_front import Point
from trueup.report.compare import comparison_text, verdict_text
from trueup.report.compare_page import comparison_page, pareto
from trueup.schema import Measurement, RunHeader

HOSTILE = "</title><script>alert(1)</script>[/red]\x1b[31m"


def run(run_id: str, usd: float, perplexity: float, minute: int) -> ComparedRun:
    header = RunHeader(
        id=run_id, name="demo", state="finished", trueup_version="0", recipe={"train": {"seed": minute}},
        recipe_digest="d", started_at=f"2026-11-01T10:{minute:02}:00+00:00", wall_s=30.0,
        environment={"host": {"hostname": "one"}, "device": {"kind": "cpu", "name": HOSTILE}},
    )  # fmt: skip
    figures = {"usd_per_million_useful_tokens": usd, "eval_perplexity_best": perplexity, "wall_s": 30.0 + usd}
    units = ("USD/million useful tokens", "1", "s")
    return ComparedRun(
        header,
        {
            name: Measurement(value=value, unit=unit, kind="measured")
            for (name, value), unit in zip(figures.items(), units, strict=True)
        },
    )


@pytest.fixture(scope="module")
def found() -> Comparison:
    """Two groups of three, by turns; the second one dearer and better; one with a hostile name."""
    first = Group("cheap", tuple(run(f"a{k}", 0.1 + 0.001 * k, 20.0 + k, 2 * k) for k in range(3)))
    second = Group(HOSTILE, tuple(run(f"b{k}", 0.2 + 0.001 * k, 15.0 + k, 2 * k + 1) for k in range(3)))
    return compare([first, second])


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)


def test_names_from_data_are_text_in_the_page(found: Comparison) -> None:
    page, tags = comparison_page(found), Tags()
    tags.feed(page)
    assert "script" not in tags.seen
    assert "svg" in tags.seen
    assert "\x1b" not in page


def test_the_page_asks_for_nothing_from_outside(found: Comparison) -> None:
    page = comparison_page(found)
    assert re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page) == []


def test_every_figure_verdict_and_difference_is_in_the_page(found: Comparison) -> None:
    page = comparison_page(found)
    for text in (*(row.label for row in found.rows), "dearer", "cheap", "a0 a1 a2"):
        assert text in page


def test_the_terminal_has_verdict_table_and_no_escape_from_data(found: Comparison) -> None:
    console = Console(width=110, file=None, record=True, highlight=False)
    with console.capture() as captured:
        console.print(comparison_text(found))
    text = captured.get()
    assert text.startswith("</title>")
    assert "is dearer than cheap" in " ".join(text.split())
    assert "\x1b[31m" not in text


def test_settings_that_older_runs_do_not_record_are_one_line(found: Comparison) -> None:
    later = [
        Difference(key=f"train.k{n}", values={"a": "not recorded", "b": "1"}, absent=("a",)) for n in range(6)
    ]
    rank = Difference(key="tune.rank", values={"a": "16", "b": "4"})
    compared = found.model_copy(update={"compared": (rank, *later)})
    console = Console(width=160)
    with console.capture() as captured:
        console.print(comparison_text(compared))
    line = "6 are not recorded in a: train.k0, train.k1, train.k2, train.k3 and 2 more"
    for text in (captured.get(), comparison_page(compared)):
        assert text.count("train.k0") == 1
        assert line in text
        assert "tune.rank" in text


def test_how_many_more_runs_would_decide_is_said_in_words(found: Comparison) -> None:
    one = found.findings[0].model_copy(update={"verdict": "no verdict", "more_runs": 27})
    assert verdict_text(one) == "no verdict: about 27 more runs of each"
    assert verdict_text(one.model_copy(update={"more_runs": 1})) == "no verdict: about 1 more run of each"


def test_a_picture_needs_a_group_with_all_three() -> None:
    assert pareto([]) is None


def test_a_group_that_is_beaten_is_drawn_hollow_and_said_to_be() -> None:
    fields = {"perplexity": 10.0, "wall_s": 60.0}
    points = [
        Point(group="a", usd_per_million_useful_tokens=0.1, **fields),
        Point(group="b", usd_per_million_useful_tokens=0.2, behind=("a",), **fields),
    ]
    svg = pareto(points)
    assert svg is not None
    assert (
        "a 0.1 dollars, perplexity 10, 1 min, on the front; b 0.2 dollars, perplexity 10, 1 min, behind a"
        in svg
    )
    assert "var(--paper)" in svg


def test_only_a_verdict_has_the_colour_of_one(found: Comparison) -> None:
    assert 'class="callout finished"' in comparison_page(found)
    single = [Group(name, (run(name, 0.1, 20.0, minute),)) for minute, name in enumerate(("a0", "b0"))]
    assert 'class="callout finished"' not in comparison_page(compare(single))
