"""Once warmed up, nothing is compiled: not by training, evaluation, a checkpoint, the short last batch or the
end, as torch itself counts. The backend traces and guards as the real compiler does, and compiles nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters, get_compilation_metrics

import trueup.model.compile as compile_module
from trueup.device import CpuDevice
from trueup.schema import InputError
from trueup.telemetry import MemorySink
from trueup.train import loop, recovery
from trueup.train.compiling import compile_modes

NO_COMPILER = (None, "there is no C++ compiler here")


@pytest.fixture(autouse=True)
def tracing_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(CpuDevice, "compile_backend", lambda self: ("eager", "a test"))
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compiles(sink: MemorySink) -> list[dict[str, Any]]:
    return [event.data for event in sink.events if event.kind == "compile"]


@pytest.mark.parametrize(
    ("mode", "method"),
    [
        ("layer", "lora"),
        ("layer", "full"),
        pytest.param("model", "lora", marks=pytest.mark.slow),
        pytest.param("model", "full", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_compiled_after_the_warm_up(
    run_tiny: Any, monkeypatch: pytest.MonkeyPatch, mode: str, method: str
) -> None:
    """optimum-neuron#216 (evaluation compiled anew), pytorch#188150 (each batch did)."""
    at_first_step: list[int] = []
    run_loop = loop._run_steps

    def counted(*arguments: Any) -> str:
        at_first_step.append(len(get_compilation_metrics()))
        return run_loop(*arguments)

    monkeypatch.setattr(loop, "_run_steps", counted)
    outcome, sink = run_tiny(
        *(f"compile.mode={mode}", f"tune.method={method}", "shapes.strategy=bucket"),
        *("train.epochs=2", "train.max_steps=null", "checkpoint.every=2"),
        strict_shapes=True,
    )
    assert outcome.header.state == "finished", outcome.header.reason
    plan = outcome.header.shape_plan
    assert plan is not None
    assert plan.compile == mode
    shapes = len(plan.training) + len(plan.evaluation)
    assert counters["stats"]["unique_graphs"] == shapes  # one graph for each
    assert at_first_step == [len(get_compilation_metrics())]
    assert len(compiles(sink)) == shapes
    assert not any(event.kind == "compile_fallback" for event in sink.events)
    assert outcome.measurements["compile_after_warm_up_count"].value == 0
    assert {(one["phase"], tuple(one["shape"])) for one in compiles(sink)} == {
        *(("training", shape) for shape in plan.training),
        *(("evaluation", shape) for shape in plan.evaluation),
    }


def test_it_trains_as_the_eager_run_does(run_tiny: Any) -> None:
    _, eager = run_tiny("compile.mode=none", "tune.method=full")
    _, compiled = run_tiny("compile.mode=layer", "tune.method=full")
    assert [step.loss for step in compiled.steps] == pytest.approx([s.loss for s in eager.steps], rel=1e-5)


@pytest.fixture
def late_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something is compiled inside the third training step."""
    train_step = recovery.train_step
    calls = iter(range(100))

    def step_and_compile(*arguments: Any) -> Any:
        if next(calls) == 2:
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
        return train_step(*arguments)

    monkeypatch.setattr(recovery, "train_step", step_and_compile)


def test_a_late_compile_is_an_event_and_not_in_the_steps_time(run_tiny: Any, late_compile: None) -> None:
    outcome, sink = run_tiny("compile.mode=none")
    assert outcome.header.state == "finished"
    (late,) = compiles(sink)
    assert late["after_warm_up"]
    assert outcome.measurements["compile_after_warm_up_count"].value == 1
    assert "compile" in sink.steps[2].labels
    spans = {span.name: span.seconds for span in outcome.record.spans}
    assert spans["compile"] > 0
    # the span `step` and the steps' own seconds are the same stretch of the clock
    assert sum(step.step_s for step in sink.steps) == pytest.approx(spans["step"], abs=1e-6)


def test_strict_shapes_end_the_run_with_the_cause(run_tiny: Any, late_compile: None) -> None:
    outcome, sink = run_tiny("compile.mode=none", strict_shapes=True)
    assert outcome.header.state == "failed"
    assert outcome.header.reason is not None
    assert "after the warm-up" in outcome.header.reason
    assert "first compile of <lambda>" in outcome.header.reason
    assert len(sink.steps) == 3  # the third, where it happened, is on record


@pytest.fixture
def too_low_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch leaves the plan's second shape to the interpreter, with a warning in a log."""
    real = compile_module.compile_model

    def lowered(model: Any, mode: Any, *, backend: Any, graphs: int) -> Any:
        return real(model, mode, backend=backend, graphs=1)

    monkeypatch.setattr(compile_module, "TORCHS_LIMIT", 1)
    monkeypatch.setattr(compile_module, "compile_model", lowered)


TWO_SHAPES = (
    "compile.mode=layer",
    "shapes.strategy=bucket",
    "shapes.buckets=[48, 96]",
    "evaluate.every=null",
)


def test_what_falls_back_to_eager_is_an_event_and_said(
    run_tiny: Any, too_low_a_limit: None, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome, sink = run_tiny(*TWO_SHAPES, stream=sys.stderr)
    assert outcome.header.state == "finished", outcome.header.reason
    fallbacks = [event for event in sink.events if event.kind == "compile_fallback"]
    assert fallbacks
    assert "recompile limit" in fallbacks[0].data["cause"]
    assert fallbacks[0].message in capsys.readouterr().err


def test_strict_shapes_take_no_shape_that_fell_back_to_eager(run_tiny: Any, too_low_a_limit: None) -> None:
    outcome, sink = run_tiny(*TWO_SHAPES, strict_shapes=True)
    assert outcome.header.state == "failed"
    assert "left to the interpreter" in str(outcome.header.reason)
    assert "recompile limit" in str(outcome.header.reason)
    assert "--strict-shapes" in str(outcome.header.reason)
    assert sink.steps == []


@pytest.fixture
def broken_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("g++ said no")

    monkeypatch.setattr(CpuDevice, "compile_backend", lambda self: (broken, "a test"))


def test_a_compiler_that_fails_ends_a_run_that_asked_for_it(run_tiny: Any, broken_compiler: None) -> None:
    outcome, sink = run_tiny("compile.mode=layer")
    assert outcome.header.state == "failed"
    assert outcome.header.reason is not None
    assert "g++ said no" in outcome.header.reason
    assert "compile.mode" in outcome.header.reason
    assert any(event.kind == "compile_fallback" for event in sink.events)


def test_under_auto_it_goes_on_without(
    run_tiny: Any, broken_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_layer(asked: str, device: Any) -> Any:
        return ("layer",), "a test"

    monkeypatch.setattr("trueup.train.session.compile_modes", only_layer)
    outcome, sink = run_tiny("compile.mode=auto")
    assert outcome.header.state == "finished", outcome.header.reason
    assert outcome.header.choices["compile"]["value"] == "none"
    assert "compiler failed" in outcome.header.choices["compile"]["reason"]
    fallbacks = [event for event in sink.events if event.kind == "compile_fallback"]
    assert any("g++ said no" in event.message for event in fallbacks)


def test_where_nothing_can_compile_auto_takes_none_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuDevice, "compile_backend", lambda self: NO_COMPILER)
    modes, reason = compile_modes("auto", CpuDevice())
    assert modes == ("none",)
    assert "C++ compiler" in reason
    assert compile_modes("none", CpuDevice())[0] == ("none",)


@pytest.mark.parametrize("asked", ["layer", "model"])
def test_where_nothing_can_compile_asking_for_it_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setattr(CpuDevice, "compile_backend", lambda self: NO_COMPILER)
    with pytest.raises(InputError, match=r"compile\.mode is .*C\+\+ compiler"):
        compile_modes(asked, CpuDevice())


def test_a_device_that_refuses_every_shape_ends_the_run_with_what_to_try(
    run_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(session: Any, batch: Any, phase: str) -> torch.Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")

    monkeypatch.setattr("trueup.train.warm_up.micro_batch_loss", no_memory)
    outcome, _ = run_tiny("compile.mode=none")
    assert outcome.header.state == "failed"
    assert "no memory for a micro-batch" in str(outcome.header.reason)
    assert "data.max_length" in str(outcome.header.reason)


def test_a_device_that_refuses_a_shape_gets_the_next_smaller_plan(
    run_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trueup.train import warm_up

    real = warm_up.micro_batch_loss

    def little_memory(session: Any, batch: Any, phase: str) -> torch.Tensor:
        if batch.processed_tokens > 100:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
        return real(session, batch, phase)  # type: ignore[arg-type]

    monkeypatch.setattr(warm_up, "micro_batch_loss", little_memory)
    overrides = ("compile.mode=none", "shapes.tokens_per_microbatch=192", "evaluate.every=null")
    outcome, sink = run_tiny(*overrides)
    assert outcome.header.state == "finished", outcome.header.reason
    assert outcome.header.shape_plan is not None
    assert all(rows * width <= 100 for rows, width in outcome.header.shape_plan.training)
    (event,) = (event for event in sink.events if event.kind == "smaller_plan")
    assert event.data["refused"]
    assert "no memory" in outcome.header.choices["shapes"]["reason"]
