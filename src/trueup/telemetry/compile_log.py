"""Every compile of a run, with its seconds and cause: torch._dynamo's own records, timed by its callbacks.

torch's records (`get_compilation_metrics`) are the list: each becomes one event, so the two can be
reconciled. Its callbacks say when a compile began and ended, and put it under a `compile` span. What torch
gave up and left to the interpreter is an event too, `compile_fallback`, never silence.

Eager runs pay nothing: torch._dynamo (about a second to import) is never imported from here, only listened
to once something else has imported it. On a warm cache the backward of a compiled function comes out of the
cache with its forward: torch has one record of both.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trueup.device import CompileRecord
from trueup.schema import Shape, SpanName

from .timeline import Span, Timeline

CALLBACK_MODULE = "torch._dynamo.callback"
METRICS_MODULE = "torch._dynamo.utils"
RECORDS_KEPT = 4096  # by torch; its own 64 are fewer than a model in many pieces compiles at once


@dataclass(frozen=True)
class Compile:
    """One compile. `in_span`: its time is under a `compile` span of the timeline; otherwise, compiled on
    another thread or before anybody listened, it is inside whatever span was open. `data` goes with the
    event: phase and shape that were being worked on, cache hits and misses, `after_warm_up`.
    """

    at_s: float
    seconds: float
    compile_id: str
    trigger: str  # dynamo, lazy_backward, ...; vendor: outside of torch.compile
    cause: str
    in_span: bool
    failed: bool = False  # torch gave up and left the code to the interpreter
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Running:
    began: float
    at_s: float
    span: Span | None


class CompileLog:
    """Listens from its making to `close`."""

    def __init__(
        self, timeline: Timeline, vendor: Callable[[], Sequence[CompileRecord]] = lambda: ()
    ) -> None:
        self._timeline = timeline
        self._vendor = vendor
        self._vendor_seen = 0
        self._handler: Any = None
        self._running: _Running | None = None
        self._timed: list[Compile] = []
        self._lock = threading.Lock()
        self._last_record: Any = None
        self._breaks: dict[str, int] = {}
        self._about: dict[str, Any] = {}
        self._warm = False
        self.late: list[Compile] = []  # what was compiled after the warm-up
        self.fallbacks: list[str] = []  # what was left to the interpreter, in words
        if CALLBACK_MODULE in sys.modules:
            self._last_record = next(reversed(_records()), None)  # what was compiled before is not the run's
            self._breaks = _graph_breaks()
        self._listen()

    def working_on(self, phase: str, shape: Shape) -> None:
        """What is run from now on: compiles are told with it. Also where torch's compiler, imported since
        the last call, is begun to be listened to: before it compiles."""
        self._listen()
        self._about = {"phase": phase, "shape": list(shape)}

    def warm(self) -> None:
        """From now on nothing more should be compiled; what is, is `after_warm_up`."""
        self._warm = True

    def poll(self) -> tuple[Compile, ...]:
        """What was compiled since the last call, each also emitted as an event. Cheap when there is nothing:
        call it once a step."""
        self._listen()
        if METRICS_MODULE not in sys.modules:
            return ()
        with self._lock:
            timed, self._timed = self._timed, []
        compiles = self._joined(self._new_records(), timed)
        compiles = self._with_vendor(compiles)
        if not compiles and _graph_breaks() == self._breaks:
            return ()
        explained = tuple(replace(one, data=one.data | self._told()) for one in compiles)
        for one in explained:
            self._emit(one)
        if self._warm:
            self.late += explained
        self._emit_graph_breaks()
        return explained

    def close(self) -> None:
        self.poll()
        if self._handler is not None:
            _discard(self._handler.start_callbacks, self._start)
            _discard(self._handler.end_callbacks, self._end)
        self._handler = None

    def _told(self) -> dict[str, Any]:
        return self._about | {"after_warm_up": self._warm}

    def _emit(self, one: Compile) -> None:
        said = "left to the interpreter" if one.failed else "compiled"
        message = f"{said}{_of(one.data)} after {one.seconds:.2f} s: {one.cause}"
        if one.failed:
            self.fallbacks.append(message)
        self._timeline.event(
            "compile_fallback" if one.failed else "compile",
            message,
            at_s=one.at_s,
            seconds=one.seconds,
            compile_id=one.compile_id,
            trigger=one.trigger,
            cause=one.cause,
            in_span=one.in_span,
            **one.data,
        )

    def _emit_graph_breaks(self) -> None:
        breaks = _graph_breaks()
        for reason, times in breaks.items():
            if times > self._breaks.get(reason, 0):
                told = self._told()
                message = f"a part is left to the interpreter{_of(told)}: graph break: {_first_line(reason)}"
                self.fallbacks.append(message)
                self._timeline.event("compile_fallback", message, cause=_first_line(reason), **told)
        self._breaks = breaks

    def _listen(self) -> None:
        """Register with torch._dynamo once it is there, and again after its `reset` cleared the list."""
        handler = getattr(sys.modules.get(CALLBACK_MODULE), "callback_handler", None)
        if handler is None or self._start in handler.start_callbacks:
            return
        if self._handler is None:
            more_records = getattr(sys.modules.get(METRICS_MODULE), "set_compilation_metrics_limit", None)
            if more_records is not None:
                more_records(RECORDS_KEPT)
        self._handler = handler
        handler.register_start_callback(self._start)
        handler.register_end_callback(self._end)

    def _start(self, args: Any) -> None:
        span = None
        if self._timeline.on_owner_thread and not self._timeline.closed:
            span = self._timeline.span(SpanName.COMPILE)
            span.__enter__()
        self._running = _Running(time.perf_counter(), self._timeline.now(), span)

    def _end(self, args: Any) -> None:
        running, self._running = self._running, None
        if running is None:  # it began before anybody listened
            return
        if running.span is not None and self._timeline.on_owner_thread:
            running.span.__exit__(None, None, None)
        timed = Compile(
            at_s=running.at_s,
            seconds=time.perf_counter() - running.began,
            compile_id=str(args.compile_id),
            trigger=str(args.callback_trigger.name).lower(),
            cause="torch kept no record of it",
            in_span=running.span is not None,
        )
        with self._lock:
            self._timed.append(timed)

    def _new_records(self) -> list[Any]:
        """torch's records since the last call, told apart by identity: ids start again at a reset."""
        new = []
        for record in reversed(_records()):
            if record is self._last_record:
                break
            new.append(record)
        if new:
            self._last_record = new[0]
        return [record for record in reversed(new) if not record.is_runtime]

    def _joined(self, records: Sequence[Any], timed: list[Compile]) -> list[Compile]:
        """torch's records, each with the time its callbacks took; then what was timed without a record."""
        found = []
        kept = _records() if records else []
        names = {str(record.compile_id): record for record in kept if record.is_forward is not False}
        for record in records:
            forward = record.is_forward is not False
            mine = (c for c in timed if c.compile_id == str(record.compile_id) and _is_forward(c) == forward)
            clock = next(mine, None)
            if clock is not None:
                timed.remove(clock)
            else:
                clock = self._untimed(record)
            found.append(_explained(clock, record, names.get(clock.compile_id)))
        return found + timed

    def _untimed(self, record: Any) -> Compile:
        """A compile that no callback told of, by torch's own clock."""
        seconds = (record.duration_us or 0) / 1e6
        since_s = time.time() - (record.start_time_us or time.time() * 1e6) / 1e6
        trigger = "dynamo" if record.is_forward is not False else "lazy_backward"
        at_s = max(0.0, self._timeline.now() - since_s)
        return Compile(at_s, seconds, str(record.compile_id), trigger, "", in_span=False)

    def _with_vendor(self, compiles: list[Compile]) -> list[Compile]:
        """The seconds of the vendor's own compiler, inside torch's; alone where torch compiled nothing."""
        records = self._vendor()
        new, self._vendor_seen = records[self._vendor_seen :], len(records)
        if not new:
            return compiles
        graphs = {"vendor_graphs": [record.graph for record in new]}
        seconds = sum(record.seconds for record in new)
        if compiles:
            more = graphs | {"vendor_seconds": seconds}
            return [*compiles[:-1], replace(compiles[-1], data=compiles[-1].data | more)]
        at_s = max(0.0, self._timeline.now() - seconds)
        cause = "the device's own compiler, outside of torch.compile"
        return [Compile(at_s, seconds, new[0].graph, "vendor", cause, in_span=False, data=graphs)]


def _discard(callbacks: list[Callable[..., Any]], callback: Callable[..., Any]) -> None:
    if callback in callbacks:
        callbacks.remove(callback)


def _records() -> list[Any]:
    get = getattr(sys.modules.get(METRICS_MODULE), "get_compilation_metrics", None)
    return [] if get is None else list(get())


def _graph_breaks() -> dict[str, int]:
    """Reason -> how often, since torch was imported or its counters cleared."""
    counters = getattr(sys.modules.get(METRICS_MODULE), "counters", None)
    return {} if counters is None else dict(counters.get("graph_break", {}))


def _is_forward(one: Compile) -> bool:
    return one.trigger != "lazy_backward"


def _explained(clock: Compile, record: Any, first: Any) -> Compile:
    if record.fail_type:
        cause = _first_line(f"{record.fail_type}: {record.fail_reason}")
        if record.recompile_reason:
            cause += f" (compiled again because {record.recompile_reason})"
    elif not _is_forward(clock):
        cause = f"backward of {_function(first)}"
    else:
        cause = record.recompile_reason or f"first compile of {_function(record)}"
    return replace(clock, cause=cause.strip(), failed=bool(record.fail_type), data=_cache(record))


def _cache(record: Any) -> dict[str, Any]:
    hits = _sum(record, "inductor_fx_local_cache_hit_count", "aotautograd_local_cache_hit_count")
    misses = _sum(record, "inductor_fx_local_cache_miss_count", "aotautograd_local_cache_miss_count")
    return {"cache_hits": hits, "cache_misses": misses}


def _sum(record: Any, *names: str) -> int:
    return sum(getattr(record, name, None) or 0 for name in names)


def _function(record: Any) -> str:
    if record is None or record.co_name is None:
        return "a function torch no longer names"
    return f"{record.co_name} ({str(record.co_filename).rsplit('/', 1)[-1]}:{record.co_firstlineno})"


def _first_line(text: str) -> str:
    """The first, with the second where the first only announces it."""
    lines = text.strip().splitlines()
    return " ".join(lines[:2] if lines[0].endswith(":") else lines[:1])


def _of(data: dict[str, Any]) -> str:
    if "shape" not in data:
        return ""
    rows, width = data["shape"]
    return f" for {data['phase']} of {rows} x {width}"
