"""Plots are drawn where their numbers say, with round ticks, and whatever is written in them stays text."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_samples import make_record

from trueup.report import plots
from trueup.report.axis import Axis
from trueup.report.svg import ACCENT, HEIGHT, INK, SHAPES, SOFT, WIDTH, Canvas, width_of
from trueup.schema import Sample

FINITE = st.floats(-1e12, 1e12)
HOSTILE = "</text><script>alert(1)</script>\x1b[31m $x^2$ &"


def axis(*values: float, **settings: float | bool) -> Axis:
    made = Axis(0.05, **settings)  # type: ignore[arg-type]
    made.hold(values)
    return made


def texts(svg: str) -> list[str]:
    return [found.text or "" for found in ElementTree.fromstring(svg).iter("text")]


@given(FINITE, FINITE, st.integers(2, 9), st.booleans())
def test_ticks_are_round_within_the_limits_and_not_too_many(
    one: float, other: float, most: int, whole: bool
) -> None:
    found = axis(one, other, whole=whole)
    low, high = found.limits()
    ticks = found.ticks(most)
    assert len(ticks) <= most + 1
    slack = 1e-6 * (high - low)
    for value, _ in ticks:
        assert low - slack <= value <= high + slack
        assert not whole or value == round(value)
    steps = {round((b - a) / (high - low), 6) for (a, _), (b, _) in pairwise(ticks)}
    assert len(steps) <= 1


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_a_tick_says_the_number_it_stands_at(one: float, other: float) -> None:
    found = axis(one, other)
    low, high = found.limits()
    for value, text in found.ticks(6):
        assert float(text.replace(",", "").replace("−", "-")) == pytest.approx(value, abs=1e-6 * (high - low))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.0, 1.0), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ((0.0, 0.5), ["0.0", "0.1", "0.2", "0.3", "0.4", "0.5"]),
        ((-1.0, 1.0), ["−1.0", "−0.5", "0.0", "0.5", "1.0"]),
        ((0.0, 5000.0), ["0", "1,000", "2,000", "3,000", "4,000", "5,000"]),
        ((0.0, 1e9), ["0", "2e+08", "4e+08", "6e+08", "8e+08", "1e+09"]),
    ],
)
def test_ticks_are_written_alike(values: tuple[float, float], expected: list[str]) -> None:
    assert [text for _, text in axis(*values).ticks(6)] == expected


def test_a_logarithmic_axis_has_plain_numbers_and_even_decades() -> None:
    found = axis(0.3, 40.0, log=True)
    assert [text for _, text in found.ticks(5)] == ["0.5", "1", "2", "5", "10", "20", "50"]
    place = found.placing()
    assert place(10) - place(1) == pytest.approx(place(1) - place(0.1))


def test_many_decades_have_powers_of_ten_alone() -> None:
    assert [text for _, text in axis(1e-3, 1e4, log=True).ticks(5)][:3] == ["0.001", "0.01", "0.1"]


@pytest.mark.parametrize("value", [0.0, 7.5, -3.0])
def test_a_single_value_is_drawn_in_the_middle(value: float) -> None:
    assert axis(value).placing()(value) == pytest.approx(0.5)


def test_without_data_there_are_limits_all_the_same() -> None:
    assert axis().limits() == pytest.approx((-0.05, 1.05))


def test_limits_that_are_given_hold() -> None:
    assert axis(3.0, 9.0, low=0.0, high=20.0).limits() == (0.0, 20.0)


@given(st.lists(st.tuples(FINITE, FINITE), min_size=2, max_size=30))
def test_every_point_is_within_the_picture(points: list[tuple[float, float]]) -> None:
    canvas = Canvas("p")
    canvas.line([x for x, _ in points], [y for _, y in points], ACCENT)
    path = re.search(r'<path d="M ([^"]+)" fill="none" stroke="var\(--accent\)"', canvas.svg("a line"))
    assert path is not None
    drawn = [tuple(map(float, point.split())) for point in path[1].split(" L ")]
    assert len(drawn) == len(points)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in drawn)


def test_a_point_higher_up_in_the_data_is_higher_up_in_the_picture() -> None:
    canvas = Canvas("p")
    canvas.marks([1.0, 2.0], [5.0, 9.0], INK)
    low, high = re.findall(r'<circle cx="(\S+)" cy="(\S+)"', canvas.svg("two"))
    assert float(low[0]) < float(high[0])
    assert float(low[1]) > float(high[1])


def test_a_span_is_cut_at_the_edges_of_the_data() -> None:
    canvas = Canvas("p")
    canvas.line([0.0, 10.0], [0.0, 1.0], ACCENT)
    canvas.x.low, canvas.x.high = 0.0, 10.0
    canvas.span(-1e9, 1e9, SOFT)
    found = re.search(r'<rect x="(\S+)" y="\S+" width="(\S+)"', canvas.svg("a span"))
    assert found is not None
    assert 0 < float(found[1]) < 40
    assert float(found[1]) + float(found[2]) < WIDTH


def test_what_is_written_stays_text() -> None:
    canvas = Canvas("p")
    canvas.line([0.0, 1.0], [0.0, 1.0], ACCENT, label=HOSTILE)
    canvas.words(0.5, 0.5, HOSTILE, rise=4)
    canvas.x_name = HOSTILE
    svg = canvas.svg(HOSTILE)
    assert "<script" not in svg
    assert "\x1b" not in svg
    assert texts(svg).count("</text><script>alert(1)</script>[31m $x^2$ &") == 3


def test_a_long_legend_takes_rows_and_leaves_the_data_less_room() -> None:
    def places(names: int) -> tuple[set[str], float]:
        canvas = Canvas("p")
        for n in range(names):
            canvas.line([0.0, 1.0], [0.0, 1.0], ACCENT, label=f"a series named {n}")
        svg = canvas.svg("lines")
        first = re.search(r'd="M \S+ \S+ L \S+ (\S+)"', svg)
        assert first is not None
        return set(re.findall(r'<g transform="translate\(\S+ (\S+)\)"', svg)), float(first[1])

    one, many = places(1), places(7)
    assert len(one[0]) == 1
    assert len(many[0]) >= 2
    assert many[1] > one[1]


def test_long_labels_of_ticks_do_not_touch() -> None:
    canvas = Canvas("p")
    canvas.line([1_000_000.0, 9_000_000.0], [0.0, 1.0], ACCENT)
    root = ElementTree.fromstring(canvas.svg("far"))
    labels = [
        (float(found.get("x", "")), found.text or "")
        for found in root.iter("text")
        if found.get("text-anchor") == "middle"
    ]
    ends = [(x - width_of(text, 11) / 2, x + width_of(text, 11) / 2) for x, text in labels]
    assert len(ends) >= 3
    assert all(end < start for (_, end), (start, _) in pairwise(ends))


def test_words_at_the_edge_are_moved_into_the_picture() -> None:
    canvas = Canvas("p", x_margin=0.0)
    canvas.marks([0.0, 1.0], [0.0, 1.0], ACCENT)
    canvas.words(1.0, 1.0, "a group with a long name", rise=4)
    canvas.x_name = ""
    found = re.search(r'<text x="(\S+)"[^>]*>a group with', canvas.svg("an edge"))
    assert found is not None
    assert float(found[1]) + width_of("a group with a long name", 10.5) / 2 <= WIDTH


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_drawn_around_its_point(shape: str) -> None:
    canvas = Canvas("p")
    canvas.marks([1.0], [1.0], INK, shape=shape, size=6)
    root = ElementTree.fromstring(canvas.svg(shape))
    (group,) = [found for found in root.iter("g") if found.get("stroke") == INK]
    (mark,) = list(group)
    if shape == "circle":
        assert float(mark.get("r", "")) == 3
        return
    corners = [tuple(map(float, corner.split(","))) for corner in mark.get("points", "").split()]
    assert len(corners) >= 3
    for at in zip(*corners, strict=True):
        assert math.isclose(max(at) - min(at), 6, rel_tol=0.35)


def test_ids_are_the_plots_own() -> None:
    canvas = Canvas("run-1-loss")
    canvas.line([0.0, 1.0], [0.0, 1.0], ACCENT, name="line")
    assert set(re.findall(r' id="([^"]+)"', canvas.svg("one"))) == {"run-1-loss-title", "run-1-loss-line"}


def stretches(svg: str) -> list[int]:
    """Points in each stretch of the line."""
    paths = re.findall(r'<path d="(M [^"]+)" fill="none" stroke="var\(--accent\)"', svg)
    (path,) = (found for found in paths if " L " in found)  # not the legend's sample
    return [len(part.split(" L ")) for part in path.split("M ")[1:]]


def test_a_line_does_not_cross_a_gap_and_a_point_alone_is_a_dot() -> None:
    canvas = Canvas("p")
    canvas.line([0.0, 1.0, 8.0, 20.0, 21.0, 22.0], [1.0] * 6, ACCENT, gaps=[2, 3])
    svg = canvas.svg("three stretches")
    assert stretches(svg) == [2, 1, 3]
    assert " h 0 M " in svg  # with round ends a dot
    assert 'stroke-linecap="round"' in svg
    canvas = Canvas("p")
    canvas.line([0.0, 1.0, 8.0], [1.0] * 3, ACCENT)
    assert stretches(canvas.svg("one")) == [3]


def test_an_area_does_not_cross_a_gap() -> None:
    canvas = Canvas("p")
    canvas.between([0.0, 1.0, 8.0, 9.0], [0.0] * 4, [1.0] * 4, ACCENT, gaps=[2])
    path = re.search(r'<path d="([^"]+)" fill="var\(--accent\)"', canvas.svg("two areas"))
    assert path is not None
    assert [len(area.split(" L ")) for area in path[1].split(" Z")[:-1]] == [4, 4]


@pytest.mark.parametrize("count", [30, 3000])  # as they are, and binned
def test_a_sensors_line_breaks_where_it_was_not_read(count: int) -> None:
    """The record's integrals leave such a stretch out, too."""
    before, after = count // 3, count - count // 3
    times = [0.5 * n for n in range(before)] + [0.5 * before + 60 + 0.5 * n for n in range(after)]
    record = make_record().model_copy(
        update={"samples": tuple(Sample(at_s=at, values={"power_w": 10.0 + at % 7}) for at in times)}
    )
    svg = plots.power(record, "run")
    assert svg is not None
    parts = stretches(svg)
    assert len(parts) == 2
    assert sum(parts) <= max(count, 242) if count > plots.MOST_POINTS else parts == [before, after]
    assert parts[1] / parts[0] == pytest.approx(2, rel=0.1)


def test_no_bin_holds_readings_of_both_sides_of_a_gap() -> None:
    x = [float(n) for n in range(1500)]
    y = [1.0] * 700 + [100.0] * 800
    (_, low, mean, high), after = plots.binned_apart(x, y, [700])
    assert low == mean == high
    assert set(mean) == {1.0, 100.0}
    assert [n for n in range(1, len(mean)) if mean[n] != mean[n - 1]] == after


def test_readings_are_apart_from_where_an_integral_leaves_out_what_is_between() -> None:
    assert plots.gaps_in([0.0, 3.0, 6.5, 7.0, 70.0]) == [2, 4]
