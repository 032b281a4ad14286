"""The timeline's spans partition the wall clock, whatever is nested and whatever is thrown."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.schema import SpanName
from trueup.telemetry import MemorySink, Timeline, process_origin
from trueup.telemetry import origin as origin_module

NAMES = st.sampled_from([SpanName.STEP, SpanName.EVALUATE, SpanName.COMPILE, SpanName.DATA_WAIT])
TICKS = st.sampled_from([0.0, 1e-9, 0.001, 0.1, 7.3])


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


# A tree of spans: (name, time before, children, time after, whether its body raises at the end)
TREES = st.recursive(
    st.tuples(NAMES, TICKS, st.just([]), TICKS, st.booleans()),
    lambda inner: st.tuples(NAMES, TICKS, st.lists(inner, max_size=3), TICKS, st.booleans()),
    max_leaves=12,
)


Own = dict[str, list[float]]  # span name -> seconds in which each of its uses owned the clock


class BodyError(Exception):
    pass


def walk(
    timeline: Timeline,
    clock: Clock,
    tree: tuple,  # type: ignore[type-arg]
    durations: list[tuple[float, float]],
    own: Own,
) -> None:
    name, before, children, after, raises = tree
    entered = clock.now
    span = timeline.span(name)
    try:
        with span:
            clock.now += before
            for child in children:
                walk(timeline, clock, child, durations, own)
            clock.now += after
            if raises:
                raise BodyError
    except BodyError:
        pass
    durations.append((span.seconds, clock.now - entered))
    own.setdefault(name, []).append(span.own_s)


@given(trees=st.lists(st.tuples(TICKS, TREES), max_size=5), start=TICKS, end=TICKS)
def test_segments_partition_the_wall_clock(trees: list, start: float, end: float) -> None:  # type: ignore[type-arg]
    clock, sink = Clock(100.0 + start), MemorySink()
    timeline = Timeline(sink, 100.0, clock=clock)
    durations: list[tuple[float, float]] = []
    own: Own = {}
    for gap, tree in trees:
        clock.now += gap
        walk(timeline, clock, tree, durations, own)
    clock.now += end
    wall_s = timeline.close()

    assert wall_s == pytest.approx(clock.now - 100.0, abs=1e-9)
    edges = [0.0, *(segment.end_s for segment in sink.segments)]
    assert [segment.start_s for segment in sink.segments] == edges[:-1]  # the same floats, not just near
    assert edges[-1] == wall_s
    assert all(segment.end_s > segment.start_s for segment in sink.segments)

    totals = {total.name: total for total in timeline.totals()}
    assert sum(total.seconds for total in totals.values()) == pytest.approx(wall_s, abs=1e-6)
    for name, total in totals.items():
        mine = [segment for segment in sink.segments if segment.name == name]
        assert total.count == sum(segment.opens for segment in mine)
        assert total.seconds == pytest.approx(sum(s.end_s - s.start_s for s in mine), abs=1e-6)
        if name in own:
            assert total.seconds == pytest.approx(sum(own[name]), abs=1e-6)
    for told, true in durations:
        assert told == pytest.approx(true, abs=1e-9)


def test_the_innermost_span_owns_the_clock() -> None:
    clock, sink = Clock(0.0), MemorySink()
    clock.now = 2.0
    timeline = Timeline(sink, 0.0, clock=clock)
    clock.now = 3.0
    with timeline.span("step") as step:
        clock.now = 4.0
        with timeline.span("communication"):
            clock.now = 6.0
        clock.now = 7.0
    clock.now = 8.0
    timeline.close()
    rows = [(s.name, s.start_s, s.end_s, s.opens) for s in sink.segments]
    assert rows == [
        ("start", 0, 2, True),
        ("other", 2, 3, True),
        ("step", 3, 4, True),
        ("communication", 4, 6, True),
        ("step", 6, 7, False),
        ("other", 7, 8, False),
    ]
    assert (step.start_s, step.seconds) == (3, 4)
    assert {t.name: (t.seconds, t.count) for t in timeline.totals()}["step"] == (2, 1)


def test_a_span_that_opens_with_another_is_still_counted_once() -> None:
    clock, sink = Clock(0.0), MemorySink()
    timeline = Timeline(sink, 0.0, clock=clock)
    with timeline.span("step"):
        with timeline.span("compile"):
            clock.now = 1.0
        clock.now = 2.0
    timeline.close()
    assert [(s.name, s.opens) for s in sink.segments] == [("compile", True), ("step", True)]


def test_close_inside_open_spans() -> None:
    clock, sink = Clock(0.0), MemorySink()
    timeline = Timeline(sink, 0.0, clock=clock)
    with timeline.span("step") as step:
        clock.now = 1.0
        assert timeline.close() == 1.0
        clock.now = 2.0
    assert step.seconds == 1.0
    assert timeline.close() == 1.0
    with pytest.raises(RuntimeError, match="closed"), timeline.span("step"):
        pass
    assert len(sink.segments) == 1


def test_a_span_left_by_an_interrupted_entry_does_not_stay() -> None:
    clock, sink = Clock(0.0), MemorySink()
    timeline = Timeline(sink, 0.0, clock=clock)
    with timeline.span("step"):
        timeline.span("compile").__enter__()
        clock.now = 1.0
    clock.now = 2.0
    timeline.close()
    assert [(s.name, s.end_s) for s in sink.segments] == [("compile", 1.0), ("other", 2.0)]


def test_misuse_raises() -> None:
    timeline = Timeline(MemorySink(), time.perf_counter())
    span = timeline.span("step")
    with pytest.raises(RuntimeError, match="not ended"):
        _ = span.seconds
    with span:
        pass
    with pytest.raises(RuntimeError, match="used before"), span:
        pass
    with pytest.raises(ValueError, match="future"):
        Timeline(MemorySink(), time.perf_counter() + 100)


def test_another_thread_may_tell_the_time_but_not_open_spans() -> None:
    sink = MemorySink()
    timeline = Timeline(sink, time.perf_counter())
    caught: list[BaseException] = []

    def elsewhere() -> None:
        timeline.event("note", "from elsewhere", answer=42)
        try:
            with timeline.span("step"):
                pass
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "thread" in str(caught[0])
    assert (sink.events[0].kind, sink.events[0].data) == ("note", {"answer": 42})


def test_overhead_is_counted() -> None:
    timeline = Timeline(MemorySink(), time.perf_counter())
    for _ in range(100):
        with timeline.span("step"):
            pass
    assert 0 < timeline.overhead_s < timeline.close()


def test_the_origin_is_this_processs_start() -> None:
    code = (
        "import time; time.sleep(0.3); from trueup.telemetry.origin import process_origin; "
        "a = process_origin(); print(time.perf_counter() - a[0], a[1])"
    )
    before = time.time()
    age, started = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert 0.3 <= float(age) <= time.time() - before + 0.02
    assert before - 0.05 <= datetime.fromisoformat(started).timestamp() <= time.time()


def test_a_clock_without_sense_gives_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin_module, "_age_from_kernel", lambda: None)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    origin, _ = process_origin()
    assert origin == pytest.approx(time.perf_counter(), abs=5)
