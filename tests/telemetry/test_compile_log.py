"""The compile log, against torch's own compiler with a backend that compiles nothing for real."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler
from torch._dynamo.utils import (
    CompilationMetrics,
    clear_compilation_metrics,
    counters,
    get_compilation_metrics,
)

from trueup.telemetry import CompileLog, MemorySink, Timeline


@pytest.fixture
def log() -> Iterator[tuple[CompileLog, Timeline, MemorySink]]:
    sink = MemorySink()
    timeline = Timeline(sink, time.perf_counter())
    log = CompileLog(timeline)
    yield log, timeline, sink
    log.close()


def compiled() -> object:
    torch._dynamo.reset()

    def double(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sum()

    return torch.compile(double, backend="aot_eager", dynamic=False)


def test_eager_counts_nothing(log: tuple[CompileLog, Timeline, MemorySink]) -> None:
    (torch.ones(3, requires_grad=True) * 2).sum().backward()
    assert log[0].poll() == ()
    assert log[2].events == []


def test_each_shape_is_a_compile_with_its_cause(log: tuple[CompileLog, Timeline, MemorySink]) -> None:
    compile_log, timeline, sink = log
    function = compiled()  # its reset clears torch's list of callbacks, so the log must come back by itself
    compile_log.poll()
    with timeline.span("step"):
        for length in (3, 3, 4):
            function(torch.ones(length, 2, requires_grad=True)).backward()  # type: ignore[operator]
    found = compile_log.poll()
    forward = [c for c in found if c.trigger == "dynamo"]
    assert len(forward) == 2
    assert "first compile of double" in forward[0].cause
    assert "expected 3, actual 4" in forward[1].cause
    assert all("backward of double" in c.cause for c in found if c.trigger == "lazy_backward")
    assert compile_log.poll() == ()
    timeline.close()
    total = {t.name: t for t in timeline.totals()}["compile"]
    assert total.count == len(found)
    assert total.seconds == pytest.approx(sum(c.seconds for c in found), rel=0.2)
    assert [e.data["cause"] for e in sink.events] == [c.cause for c in found]
    assert [e.at_s for e in sink.events] == [c.at_s for c in found]


def test_a_compile_on_another_thread_opens_no_span(log: tuple[CompileLog, Timeline, MemorySink]) -> None:
    compile_log, timeline, _ = log
    args = CallbackArgs(CallbackTrigger.LAZY_BACKWARD, "7/7")

    def elsewhere() -> None:
        callback_handler.run_start_callbacks(args)
        callback_handler.run_end_callbacks(args)

    compile_log.poll()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    (only,) = compile_log.poll()
    assert (only.in_span, only.compile_id) == (False, "7/7")
    timeline.close()
    assert "compile" not in {t.name for t in timeline.totals()}


def test_a_compile_after_the_timelines_end_is_harmless(log: tuple[CompileLog, Timeline, MemorySink]) -> None:
    compile_log, timeline, _ = log
    compile_log.poll()
    timeline.close()
    args = CallbackArgs(CallbackTrigger.DYNAMO, "8/8")
    callback_handler.run_start_callbacks(args)
    callback_handler.run_end_callbacks(args)
    assert [c.in_span for c in compile_log.poll()] == [False]


def test_events_are_as_many_as_torch_counts(log: tuple[CompileLog, Timeline, MemorySink]) -> None:
    compile_log, _, sink = log
    function: Any = compiled()
    before, graphs = get_compilation_metrics(), counters["stats"]["unique_graphs"]
    for length in (3, 4, 5, 4):
        function(torch.ones(length, requires_grad=True)).backward()
        with torch.no_grad():
            function(torch.ones(length, requires_grad=True))
        compile_log.poll()
    ours = [event.data for event in sink.events if event.kind == "compile"]
    theirs = [one for one in get_compilation_metrics() if not any(one is other for other in before)]
    assert [event["compile_id"] for event in ours] == [one.compile_id for one in theirs]
    assert len(ours) == 9  # three lengths: with gradient twice, without once
    forward = [event for event in ours if event["trigger"] == "dynamo"]
    assert len(forward) == counters["stats"]["unique_graphs"] - graphs == 6


def test_an_event_tells_what_was_worked_on_and_whether_it_is_late(
    log: tuple[CompileLog, Timeline, MemorySink],
) -> None:
    compile_log, _, sink = log
    function: Any = compiled()
    compile_log.working_on("training", (2, 3))
    function(torch.ones(2, 3))
    compile_log.poll()
    compile_log.warm()
    compile_log.working_on("evaluation", (4, 3))
    function(torch.ones(4, 3))
    compile_log.poll()
    early, late = (event for event in sink.events if event.kind == "compile")
    assert [one.compile_id for one in compile_log.late] == [late.data["compile_id"]]
    assert (early.data["phase"], early.data["shape"]) == ("training", [2, 3])
    assert early.data["after_warm_up"] is False
    assert "for training of 2 x 3" in early.message
    assert (late.data["phase"], late.data["shape"], late.data["after_warm_up"]) == (
        "evaluation",
        [4, 3],
        True,
    )


def test_a_recompile_limit_is_a_fallback_with_its_cause(
    log: tuple[CompileLog, Timeline, MemorySink],
) -> None:
    """torch logs a warning once and runs the code uncompiled from then on."""
    compile_log, _, sink = log
    torch._dynamo.reset()
    compile_: Any = torch.compile  # its annotations lack recompile_limit
    function = compile_(lambda x: x * 2, backend="aot_eager", dynamic=False, recompile_limit=2)
    for length in (3, 4, 5):
        function(torch.ones(length))
    found = compile_log.poll()
    assert [one.failed for one in found] == [False, False, True]
    assert [event.kind for event in sink.events] == ["compile", "compile", "compile_fallback"]
    assert "recompile limit" in found[-1].cause
    assert "expected 4, actual 5" in found[-1].cause


def test_a_graph_break_is_a_fallback_with_its_cause(log: tuple[CompileLog, Timeline, MemorySink]) -> None:
    compile_log, _, sink = log
    torch._dynamo.reset()

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    function = torch.compile(broken, backend="aot_eager", dynamic=False)
    function(torch.ones(3))
    compile_log.poll()
    function(torch.ones(3))
    compile_log.poll()
    (fallback,) = (event for event in sink.events if event.kind == "compile_fallback")
    assert "graph_break" in fallback.data["cause"]


def test_a_compiler_that_fails_is_a_fallback(log: tuple[CompileLog, Timeline, MemorySink]) -> None:
    compile_log, timeline, sink = log
    torch._dynamo.reset()
    compile_log.poll()

    def backend(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("the compiler is broken")

    with timeline.span("warm_up"), pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(3))
    (only,) = compile_log.poll()
    assert only.failed
    assert "BackendCompilerFailed" in only.cause
    assert "the compiler is broken" in only.cause
    assert only.in_span
    assert [event.kind for event in sink.events] == ["compile_fallback"]


def test_a_vendors_own_compiles_go_with_torchs_or_stand_alone() -> None:
    sink = MemorySink()
    records: list[SimpleNamespace] = []
    compile_log = CompileLog(Timeline(sink, time.perf_counter()), vendor=lambda: records)
    function: Any = compiled()
    records.append(SimpleNamespace(graph="7", seconds=0.5))
    function(torch.ones(3))
    (inside,) = compile_log.poll()
    assert inside.data["vendor_graphs"] == ["7"]
    assert inside.data["vendor_seconds"] == 0.5
    records.append(SimpleNamespace(graph="8", seconds=2.0))
    (alone,) = compile_log.poll()
    assert (alone.trigger, alone.seconds, alone.in_span) == ("vendor", 2.0, False)
    assert compile_log.poll() == ()
    compile_log.close()


def test_compiles_from_before_torch_was_listened_to_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {name: sys.modules[name] for name in ("torch._dynamo.callback", "torch._dynamo.utils")}
    for name in hidden:
        monkeypatch.delitem(sys.modules, name)
    compile_log = CompileLog(Timeline(MemorySink(), time.perf_counter()))
    assert compile_log.poll() == ()
    metric = CompilationMetrics(
        compile_id="0/0",
        is_forward=True,
        start_time_us=int((time.time() - 20) * 1e6),
        duration_us=1_500_000,
        co_name="f",
        co_filename="/x/model.py",
        co_firstlineno=3,
    )
    monkeypatch.setitem(sys.modules, "torch._dynamo.callback", hidden["torch._dynamo.callback"])
    monkeypatch.setitem(
        sys.modules, "torch._dynamo.utils", SimpleNamespace(get_compilation_metrics=lambda: [metric])
    )
    (only,) = compile_log.poll()
    assert (only.seconds, only.cause, only.in_span) == (1.5, "first compile of f (model.py:3)", False)
    compile_log.close()


def test_hits_and_misses_of_the_cache_go_with_the_event(
    log: tuple[CompileLog, Timeline, MemorySink], monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_log, _, sink = log
    compile_log.poll()
    found = [
        CompilationMetrics(
            compile_id=f"{n}/0",
            is_forward=n != 1,
            start_time_us=int(time.time() * 1e6),
            duration_us=1,
            inductor_fx_local_cache_hit_count=hits,
            aotautograd_local_cache_hit_count=hits,
            inductor_fx_local_cache_miss_count=misses,
        )
        for n, (hits, misses) in enumerate([(1, None), (None, 2), (None, None)])
    ]
    monkeypatch.setattr("torch._dynamo.utils.get_compilation_metrics", lambda: found)
    compile_log.poll()
    told = [(event.data["cache_hits"], event.data["cache_misses"]) for event in sink.events]
    assert told == [(2, 0), (0, 2), (0, 0)]


def test_what_is_left_to_the_interpreter_is_kept_in_words(
    log: tuple[CompileLog, Timeline, MemorySink],
) -> None:
    compile_log, _, sink = log
    torch._dynamo.reset()
    compile_: Any = torch.compile
    function = compile_(lambda x: x * 2, backend="aot_eager", dynamic=False, recompile_limit=1)
    for length in (3, 4):
        function(torch.ones(length))
    compile_log.poll()
    assert compile_log.fallbacks == [e.message for e in sink.events if e.kind == "compile_fallback"]
    assert "recompile limit" in compile_log.fallbacks[0]


def test_a_compiler_imported_after_the_log_is_listened_to_before_it_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hidden = {name: sys.modules[name] for name in ("torch._dynamo.callback", "torch._dynamo.utils")}
    for name in hidden:
        monkeypatch.delitem(sys.modules, name)
    timeline = Timeline(MemorySink(), time.perf_counter())
    compile_log = CompileLog(timeline)
    for name, module in hidden.items():
        monkeypatch.setitem(sys.modules, name, module)
    function: Any = compiled()
    clear_compilation_metrics()
    compile_log.working_on("training", (1, 3))
    function(torch.ones(3))
    (only,) = compile_log.poll()
    assert only.in_span
    compile_log.close()


def test_close_takes_its_callbacks_back() -> None:
    before = len(callback_handler.start_callbacks)
    compile_log = CompileLog(Timeline(MemorySink(), time.perf_counter()))
    assert len(callback_handler.start_callbacks) == before + 1
    compile_log.close()
    assert len(callback_handler.start_callbacks) == before


def test_neither_telemetry_nor_the_log_imports_torch() -> None:
    code = (
        "import sys, time\nfrom trueup.telemetry import CompileLog, MemorySink, Timeline\n"
        "log = CompileLog(Timeline(MemorySink(), time.perf_counter()))\nlog.poll()\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
