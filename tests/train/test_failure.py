"""Rule 9: whatever ends a run is recorded with its cause, the last step and what to try next."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trueup.schema import InputError, Step, StorageError
from trueup.train.compiling import CompileError, LateCompileError, NotCompiledError
from trueup.train.divergence import DivergedError
from trueup.train.failure import NoMemoryError, explain, is_out_of_memory
from trueup.train.interruption import Interrupted
from trueup.train.session import Session
from trueup.train.stepper import NonFiniteError

RUN = "cafe0001"
ARGUMENTS = ("my recipes/a.yaml", "--set", "train.max_steps=9")
TRAIN = f"trueup train 'my recipes/a.yaml' --set train.max_steps=9 --resume {RUN}"


def step_number(step: int) -> Step:
    return Step.model_validate(
        {
            "step": step,
            "start_s": 0.0,
            "step_s": 1.0,
            "data_wait_s": 0.0,
            "loss": 1.0,
            "grad_norm": 1.0,
            "lr": 1e-3,
            "useful_tokens": 1,
            "supervised_tokens": 1,
            "processed_tokens": 1,
            "head_rows": 1,
            "attention_sum_sq": 1,
            "micro_batches": 1,
            "shape": (1, 1),
        }
    )


@pytest.fixture
def session(open_tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    from dataclasses import replace

    monkeypatch.setattr("trueup.train.session.CEILING_BUDGET_S", 0.01)
    opened: Session = open_tiny("compile.mode=none", "optimizer.lr=4e-4")
    return replace(opened, run_folder=tmp_path / RUN)


def save(session: Session, step: int) -> None:
    (session.run_folder / "checkpoints" / f"{step:08d}").mkdir(parents=True)


def dynamo_error() -> Exception:
    from torch._dynamo.exc import Unsupported

    return Unsupported("a thing", case_name="x")


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory", "shapes.tokens_per_microbatch=48"),
        (RuntimeError("can't allocate memory"), "out of memory", "train.activation_checkpointing=true"),
        (NoMemoryError("no memory", (1, 64)), "out of memory", "shapes.tokens_per_microbatch=32"),
        (MemoryError(), "out of memory", "out of memory after step 7"),
        (CompileError("it failed"), "CompileError", "compile.mode: none"),
        (LateCompileError("2 compiles"), "LateCompileError", "--strict-shapes"),
        (NotCompiledError("left alone"), "NotCompiledError", "--strict-shapes"),
        (NonFiniteError("the loss is nan"), "NonFiniteError", "try optimizer.lr=0.0002"),
        (DivergedError("it left", 2.0, (9.0,)), "DivergedError", "try optimizer.lr=0.0002"),
        (StorageError("the disk is full"), "StorageError", "start the run again"),
        (OSError(errno.ENOSPC, "No space left on device"), "OSError", "make room on the disk"),
        (InputError("data.source is not there"), "InputError", "correct what is named"),
        (KeyError("surprise"), "KeyError", "start the run again"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_every_failure_has_a_cause_a_last_step_and_advice(
    session: Session, error: Exception, cause: str, words: str
) -> None:
    failure = explain(error, session, [step_number(6), step_number(7)], ARGUMENTS)
    assert failure.state == "failed"
    assert failure.error is error
    assert failure.data["cause"] == cause
    assert failure.data["last_step"] == 7
    assert failure.data["try"] in failure.reason
    assert "after step 7" in failure.reason
    assert words in failure.reason
    json.dumps(failure.data, allow_nan=False)


def test_the_allocators_own_error_is_known() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_a_compiler_that_failed_says_how_to_do_without(session: Session) -> None:
    assert explain(dynamo_error(), session, [], ARGUMENTS).data["try"] == "set compile.mode: none"


@pytest.mark.parametrize(
    "error", [NonFiniteError("the loss is nan"), DivergedError("it left", 2.0, (9.0,)), KeyError("x")]
)
def test_where_there_is_a_checkpoint_the_advice_goes_on_from_it(session: Session, error: Exception) -> None:
    save(session, 3)
    save(session, 5)
    advice = explain(error, session, [step_number(7)], ARGUMENTS).data["try"]
    assert advice.startswith(f"go on from step 5: {TRAIN}")
    slower = "--set optimizer.lr=0.0002 --allow-change optimizer.lr"
    assert (slower in advice) == isinstance(error, NonFiniteError | DivergedError)


def test_a_signal_is_an_interruption_to_go_on_from(session: Session) -> None:
    save(session, 7)
    failure = explain(Interrupted("SIGTERM received", safe=True), session, [step_number(7)], ARGUMENTS)
    assert failure.state == "interrupted"
    assert failure.reason.startswith("SIGTERM received after step 7; what was measured is kept")
    assert failure.data["try"] == f"go on from step 7: {TRAIN}"


def test_memory_that_is_short_for_the_model_alone_says_so() -> None:
    failure = explain(MemoryError(), None, [], ARGUMENTS)
    assert "before the first step" in failure.reason
    assert "a smaller model" in failure.data["try"]


def test_where_the_policy_was_to_stop_the_other_one_is_named(open_tiny: Any) -> None:
    session = open_tiny("failure.out_of_memory=stop", "compile.mode=none", "tune.method=full")
    advice = explain(NoMemoryError("no memory", (2, 48)), session, [], ARGUMENTS).data["try"]
    assert "failure.out_of_memory=halve" in advice
    assert "tune.method: lora" in advice
