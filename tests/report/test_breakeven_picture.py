"""The break-even as it is shown: the crossing that is drawn is the number, and data is never markup."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from trueup.analysis.breakeven import BreakEven, SideCost, break_even
from trueup.report.breakeven import breakeven_text, page, picture, verdict_text

HOSTILE = "[red]x[/red]\x1b[31m</title><script>alert(1)</script>"
Point = tuple[float, float]


def moved(a: list[float], b: list[float], one_off: float, label: str = "here") -> BreakEven:
    return break_even(SideCost(label, a), SideCost("there", b), one_off)


def drawn(svg: str, name: str) -> list[Point]:
    """The points of a line, in the picture's own units."""
    path = re.search(rf'<path id="breakeven-{name}" d="([^"]+)"', svg)
    assert path is not None, name
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path[1])]


def marked(svg: str) -> Point:
    mark = re.search(r'<g id="breakeven-crossing"[^>]*><circle cx="(\S+)" cy="(\S+)"', svg)
    assert mark is not None
    return float(mark[1]), float(mark[2])


def crossing(one: list[Point], other: list[Point]) -> Point:
    """Where two straight lines meet."""
    (x_0, y_0), (x_1, y_1) = one
    (_, v_0), (_, v_1) = other
    part = (v_0 - y_0) / ((v_0 - y_0) - (v_1 - y_1))
    return x_0 + part * (x_1 - x_0), y_0 + part * (y_1 - y_0)


@settings(max_examples=8)
@given(st.floats(1.5, 20), st.floats(0.1, 1.0), st.floats(1, 1e4))
def test_the_lines_that_are_drawn_cross_at_the_number(a: float, b: float, one_off: float) -> None:
    found = moved([a], [b], one_off)
    svg = picture(found)
    stay, move = drawn(svg, "stay"), drawn(svg, "move")
    x, y = crossing(stay, move)
    # Ends are drawn to a hundredth; lines that cross at a narrow angle carry it on several times as far.
    assert marked(svg) == pytest.approx((x, y), abs=0.1)
    (left, _), (right, _) = stay
    assert found.runs.value is not None
    runs_at_the_right = max(2 * found.runs.value, 4.0)
    shown = (x - left) / (right - left) * runs_at_the_right
    assert shown == pytest.approx(found.runs.value, abs=1e-3 * runs_at_the_right)


def test_where_it_does_not_pay_nothing_is_marked() -> None:
    svg = picture(moved([4.0], [5.0], 100.0))
    assert "breakeven-crossing" not in svg
    assert "does not pay" in svg


def text_of(found: BreakEven) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(breakeven_text(found))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_the_verdict_names_the_run_and_the_interval() -> None:
    text = text_of(moved([10.0, 10.4, 9.6, 10.0], [8.0, 8.2, 7.8, 8.0], 50.0))
    assert "moving from here to there pays from run 25 on" in text
    assert "95% interval" in text
    assert "$50.00" in text


def test_without_an_interval_the_verdict_says_so() -> None:
    text = verdict_text(moved([10.0], [8.0], 50.0))
    assert text.startswith(
        "no verdict on moving from here to there: 1 and 1 runs; an interval needs 3 of each;"
    )
    assert "by the means alone it pays from run 25 on" in text


def test_a_move_that_never_pays_says_why() -> None:
    found = moved([4.0, 4.1, 4.05], [5.0, 5.1, 5.2], 1.0)
    assert "never pays: there is not cheaper: 5.1 USD a run" in text_of(found)


def test_that_it_never_pays_is_said_only_where_that_is_sure() -> None:
    for found in (moved([4.0], [5.0], 1.0), moved([4.0, 6.0, 5.0], [5.0, 6.0, 4.5], 1.0)):
        assert "does not pay" in text_of(found)
        assert "never" not in text_of(found)


def test_a_saving_that_may_be_none_is_not_sure() -> None:
    text = verdict_text(moved([10.0, 14.0, 6.5], [9.0, 12.0, 6.0], 50.0))
    assert text.startswith("not sure whether moving from here to there pays: by the means it pays from run ")
    assert "it may never pay" in text


def test_another_currency_is_named() -> None:
    found = break_even(SideCost("a", [5.0], currency="EUR"), SideCost("b", [4.0], currency="EUR"), 10.0)
    assert "10.00 EUR" in text_of(found)
    assert "$" not in text_of(found)


def test_names_are_text_wherever_they_are_shown() -> None:
    found = moved([10.0], [8.0], 50.0, label=HOSTILE)
    assert "\x1b" not in text_of(found)
    assert "[red]x[/red]" in text_of(found)
    html = page(found)
    assert "<script>" not in html
    assert "\x1b" not in html


def test_the_page_needs_nothing_else() -> None:
    html = page(moved([10.0], [8.0], 50.0))
    assert html.count("<svg") == 1
    assert "default-src 'none'" in html
    assert not re.search(r'(?:src|href)="(?!data:|#)', html)


def test_a_move_that_costs_nothing_pays_from_the_first_run_on() -> None:
    assert "pays from the first run on" in verdict_text(moved([5.0], [4.0], one_off=0.0))
    assert "pays from run 1 on" in verdict_text(moved([5.0], [4.0], one_off=1.0))
