"""The compile log, against torch's own compiler with a backend that compiles nothing for real."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo
from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler

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
    assert (log[0].count, log[0].seconds) == (0, 0.0)


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
    assert total.count == len(found) == compile_log.count
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


def test_compiles_from_before_torch_was_listened_to_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {name: sys.modules[name] for name in ("torch._dynamo.callback", "torch._dynamo.utils")}
    for name in hidden:
        monkeypatch.delitem(sys.modules, name)
    compile_log = CompileLog(Timeline(MemorySink(), time.perf_counter()))
    assert compile_log.poll() == ()
    metric = SimpleNamespace(
        compile_id="0/0",
        is_forward=True,
        duration_us=1_500_000,
        co_name="f",
        co_filename="/x/model.py",
        co_firstlineno=3,
        recompile_reason=None,
        fail_reason=None,
    )
    monkeypatch.setitem(sys.modules, "torch._dynamo.callback", hidden["torch._dynamo.callback"])
    monkeypatch.setitem(
        sys.modules, "torch._dynamo.utils", SimpleNamespace(get_compilation_metrics=lambda: [metric])
    )
    (only,) = compile_log.poll()
    assert (only.seconds, only.cause, only.in_span) == (1.5, "first compile of f (model.py:3)", False)
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
