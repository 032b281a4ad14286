"""Every compile of a run, with its seconds and cause, through torch._dynamo's own callbacks.

Eager runs pay nothing: torch._dynamo (about a second to import) is never imported from here, only listened
to once something else has imported it. A listener may miss what no callback tells: on a warm cache the
backward of a compiled function fires none.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trueup.schema import SpanName

from .timeline import Span, Timeline

CALLBACK_MODULE = "torch._dynamo.callback"
METRICS_MODULE = "torch._dynamo.utils"


@dataclass(frozen=True)
class Compile:
    """One compile. `in_span`: its time is under a `compile` span of the timeline; otherwise, compiled on
    another thread or before anybody listened, it is inside whatever span was open."""

    at_s: float
    seconds: float
    compile_id: str
    trigger: str  # dynamo, lazy_backward, ...
    cause: str
    in_span: bool
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Running:
    began: float
    at_s: float
    span: Span | None


class CompileLog:
    """Listens from its making to `close`. `count` and `seconds` are of what `poll` has seen."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._handler: Any = None
        self._running: _Running | None = None
        self._ended: list[Compile] = []
        self._lock = threading.Lock()
        self._from_the_start = CALLBACK_MODULE not in sys.modules
        self.count = 0
        self.seconds = 0.0
        self._listen()

    def poll(self) -> tuple[Compile, ...]:
        """Compiles that ended since the last call, each also emitted as an event. Cheap when there are none:
        call it once a step."""
        self._listen()
        if not self._ended:
            return ()
        with self._lock:
            ended, self._ended = self._ended, []
        metrics = _metrics()
        explained = tuple(_explain(compile_, metrics) for compile_ in ended)
        for compile_ in explained:
            self.count += 1
            self.seconds += compile_.seconds
            self._timeline.event(
                "compile",
                f"compiled for {compile_.seconds:.2f} s: {compile_.cause}",
                at_s=compile_.at_s,
                seconds=compile_.seconds,
                compile_id=compile_.compile_id,
                trigger=compile_.trigger,
                cause=compile_.cause,
                in_span=compile_.in_span,
                **compile_.data,
            )
        return explained

    def close(self) -> None:
        self.poll()
        if self._handler is not None:
            _discard(self._handler.start_callbacks, self._start)
            _discard(self._handler.end_callbacks, self._end)
        self._handler = None

    def _listen(self) -> None:
        """Register with torch._dynamo once it is there, and again after its `reset` cleared the list."""
        handler = getattr(sys.modules.get(CALLBACK_MODULE), "callback_handler", None)
        if handler is None or self._start in handler.start_callbacks:
            return
        if self._handler is None and self._from_the_start:
            self._ended += [_unheard(metric, self._timeline.now()) for metric in _metrics().values()]
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
        compile_ = Compile(
            at_s=running.at_s,
            seconds=time.perf_counter() - running.began,
            compile_id=str(args.compile_id),
            trigger=str(args.callback_trigger.name).lower(),
            cause="",
            in_span=running.span is not None,
        )
        with self._lock:
            self._ended.append(compile_)


def _discard(callbacks: list[Callable[..., Any]], callback: Callable[..., Any]) -> None:
    if callback in callbacks:
        callbacks.remove(callback)


def _metrics() -> dict[tuple[str, bool], Any]:
    """torch's newest record of each (compile id, whether it is of the forward); it keeps the last 64."""
    get = getattr(sys.modules.get(METRICS_MODULE), "get_compilation_metrics", None)
    if get is None:
        return {}
    return {(str(metric.compile_id), metric.is_forward is not False): metric for metric in get()}


def _unheard(metric: Any, now_s: float) -> Compile:
    """A compile that ended before the log could listen; it is placed at its end as known now."""
    seconds = (metric.duration_us or 0) / 1e6
    trigger = "dynamo" if metric.is_forward is not False else "lazy_backward"
    return Compile(max(0.0, now_s - seconds), seconds, str(metric.compile_id), trigger, "", in_span=False)


def _explain(compile_: Compile, metrics: dict[tuple[str, bool], Any]) -> Compile:
    forward = compile_.trigger == "dynamo"
    metric = metrics.get((compile_.compile_id, forward))
    first = metrics.get((compile_.compile_id, True))
    if not forward:
        cause = f"backward of {_function(first)}"
    elif metric is None:
        cause = "torch kept no record of it"
    else:
        cause = metric.recompile_reason or f"first compile of {_function(metric)}"
    data: dict[str, Any] = {}
    if metric is not None:
        data["cache_hits"] = _sum(
            metric, "inductor_fx_local_cache_hit_count", "aotautograd_local_cache_hit_count"
        )
        data["cache_misses"] = _sum(
            metric, "inductor_fx_local_cache_miss_count", "aotautograd_local_cache_miss_count"
        )
        if metric.fail_reason:
            data["failed"] = str(metric.fail_reason)
    return Compile(
        compile_.at_s, compile_.seconds, compile_.compile_id, compile_.trigger, cause, compile_.in_span, data
    )


def _function(metric: Any) -> str:
    if metric is None or metric.co_name is None:
        return "a function torch no longer names"
    return f"{metric.co_name} ({str(metric.co_filename).rsplit('/', 1)[-1]}:{metric.co_firstlineno})"


def _sum(metric: Any, *names: str) -> int:
    return sum(getattr(metric, name, None) or 0 for name in names)
