"""The timeline: at every instant of a run exactly one span owns the clock, so the spans add up to it.

The innermost open span owns the clock; opening one suspends the span around it. Where none is open the time
is `other`; from the origin to the timeline's making it is `start`. Times are seconds since the origin.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from trueup.schema import Event, Segment, SpanName, SpanTotal
from trueup.schema.protocols import Sink


@dataclass(frozen=True)
class EarlierTime:
    """What earlier processes left of a run that this one goes on with, in seconds since the run's origin:
    segments up to `claimed_s`, a last sign of life at `until_s`, and then this process from `started_s`."""

    totals: dict[str, tuple[float, int]]  # seconds and count by span name
    claimed_s: float
    until_s: float
    started_s: float


class Span:
    """One use of a span name. After it has ended, `seconds` is its whole duration, nested spans included;
    `own_s` is the part of it in which no nested span owned the clock."""

    __slots__ = ("_timeline", "counted", "end_s", "name", "own_s", "start_s")

    def __init__(self, timeline: Timeline | None, name: str) -> None:
        self._timeline = timeline
        self.name = name
        self.start_s = 0.0
        self.end_s: float | None = None
        self.own_s = 0.0
        self.counted = False  # whether a segment of it was emitted

    @property
    def seconds(self) -> float:
        if self.end_s is None:
            raise RuntimeError(f"the span '{self.name}' has not ended, so it has no duration yet")
        return self.end_s - self.start_s

    def __enter__(self) -> Span:
        assert self._timeline is not None
        self._timeline._enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._timeline is not None
        self._timeline._exit(self)


class Timeline:
    """Spans of one run on one thread. Emits a Segment at each change of owner; `now` and `event` may be
    called from any thread.

    A KeyboardInterrupt that lands inside a change can cost that one segment: turn SIGINT into a flag.
    """

    def __init__(
        self,
        sink: Sink,
        origin_perf: float,
        clock: Callable[[], float] = time.perf_counter,
        *,
        earlier: EarlierTime | None = None,
    ) -> None:
        self._sink = sink
        self._origin = origin_perf
        self._clock = clock
        self._owner = threading.get_ident()
        self._since = 0.0  # where the running segment began
        self._totals: dict[str, tuple[float, int]] = {}
        self._open: list[Span] = [Span(None, SpanName.START)]
        self.overhead_s = 0.0  # this timeline's own time in changes of owner
        self.down_s = 0.0  # of the run so far, between its processes
        self.closed = False
        if self.now() < 0:
            raise ValueError("the origin of a timeline lies in the future")
        if earlier is not None:
            self._go_on_from(earlier)
        self._advance()
        self._open = [Span(None, SpanName.OTHER)]

    def now(self) -> float:
        """Seconds since the origin."""
        return self._clock() - self._origin

    def span(self, name: str) -> Span:
        """`with timeline.span(SpanName.STEP) as span: ...`; the name is the span's for its whole life."""
        return Span(self, name)

    def event(self, kind: str, message: str, *, at_s: float | None = None, **data: Any) -> None:
        """Say what happened, now or at `at_s`; `data` is JSON-able and goes with it."""
        at_s = self.now() if at_s is None else at_s
        self._sink.event(Event(at_s=at_s, kind=kind, message=message, data=data))

    def totals(self) -> tuple[SpanTotal, ...]:
        """Seconds and count of each span name so far, in order of appearance; of the whole run once closed.

        A count is the number of segments that open a span, as a reader of the segments finds it.
        """
        return tuple(SpanTotal(name=name, seconds=s, count=n) for name, (s, n) in self._totals.items())

    def close(self) -> float:
        """End every open span and return the wall clock in seconds. A second call returns the same."""
        if not self.closed:
            self._check_thread()
            end_s = self._advance()
            for span in self._open[1:]:
                span.end_s = end_s
            del self._open[1:]
            self.closed = True
        return self._since

    @property
    def on_owner_thread(self) -> bool:
        return threading.get_ident() == self._owner

    def _go_on_from(self, earlier: EarlierTime) -> None:
        """What the killed process did after its last segment is `other`; then nobody worked."""
        self._totals = dict(earlier.totals)
        self._since = earlier.claimed_s
        for name, end_s in (
            (SpanName.OTHER, earlier.until_s),
            (SpanName.DOWN_TIME, min(earlier.started_s, self.now())),
        ):
            self._open = [Span(None, name)]
            self._advance(end_s)
        self.down_s = self._totals.get(SpanName.DOWN_TIME, (0.0, 0))[0]
        self._open = [Span(None, SpanName.START)]

    def _enter(self, span: Span) -> None:
        self._check_thread()
        if self.closed:
            raise RuntimeError(f"the timeline is closed; the span '{span.name}' came too late")
        if span.end_s is not None or span in self._open:
            raise RuntimeError(f"the span '{span.name}' was used before; ask the timeline for a new one")
        span.start_s = self._advance()
        self._open.append(span)
        self._note_overhead(span.start_s)

    def _exit(self, span: Span) -> None:
        self._check_thread()
        if span not in self._open:  # close() ended it, or an enclosing span did
            return
        end_s = self._advance()
        # spans above it were entered but never left, as happens when an interrupt hits their entry
        place = self._open.index(span)
        for ended in self._open[place:]:
            ended.end_s = end_s
        del self._open[place:]
        self._note_overhead(end_s)

    def _advance(self, to_s: float | None = None) -> float:
        """End the running segment now, or at `to_s`, and start the next at the same float. Empty ones leave
        no trace."""
        now_s, span = self.now() if to_s is None else to_s, self._open[-1]
        start_s = self._since
        if now_s <= start_s:
            return start_s
        self._since = now_s
        opens, span.counted = not span.counted, True
        span.own_s += now_s - start_s
        seconds, count = self._totals.get(span.name, (0.0, 0))
        self._totals[span.name] = (seconds + now_s - start_s, count + opens)
        self._sink.segment(Segment(name=span.name, start_s=start_s, end_s=now_s, opens=opens))
        return now_s

    def _note_overhead(self, began_s: float) -> None:
        self.overhead_s += self.now() - began_s

    def _check_thread(self) -> None:
        if not self.on_owner_thread:
            raise RuntimeError("spans belong to the thread that made the timeline")
