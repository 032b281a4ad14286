"""Which compile modes a run may choose from, the model compiled in the chosen one, and what to do when that
fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from trueup.device import Device
from trueup.schema import CompileMode, InputError, ShapePlan, TrueupError

from .shapes import shared_plan
from .together import cause_of

if TYPE_CHECKING:
    from trueup.model.compile import Compiled

    from .session import Session

MODES: tuple[CompileMode, ...] = get_args(CompileMode)


class CompileError(TrueupError):
    """The compiler failed on this model. The run ended before its first step."""


class LateCompileError(TrueupError):
    """Something was compiled after the warm-up, and the run was to end then (--strict-shapes)."""


class NotCompiledError(TrueupError):
    """The compiler left a shape of the plan to the interpreter, and the run was to end then
    (--strict-shapes)."""


def compile_modes(asked: str, device: Device) -> tuple[tuple[CompileMode, ...], str]:
    """The modes to choose from under `compile.mode`, and why these.

    Raises InputError where a mode is asked for and this machine cannot compile."""
    if asked == "none":
        return ("none",), "asked for by the recipe"
    backend, why = device.compile_backend()
    if asked == "auto":
        if backend is None:
            return ("none",), f"nothing can be compiled: {why}"
        return MODES, f"chosen with the shapes; there is {why}"
    if backend is None:
        raise InputError(
            f"compile.mode is {asked}, and this machine cannot compile: {why}; install what is missing, or "
            "set compile.mode to auto or none"
        )
    return tuple(mode for mode in MODES if mode == asked), "asked for by the recipe"


def compile_for(session: Session) -> Compiled | None:
    """Make the model compile as the plan says: a graph for each shape, with gradients and without."""
    plan = session.plan
    if plan.compile == "none":
        return None
    from trueup.model.compile import compile_model

    backend, why = session.device.compile_backend()
    if backend is None:
        raise InputError(f"the shape plan compiles ({plan.compile}), and this machine cannot: {why}")
    graphs = len(plan.training) + len(plan.evaluation)
    return compile_model(session.model, plan.compile, backend=backend, graphs=graphs)


def undo_compile(session: Session) -> None:
    """Leave the model, and torch's own settings, as they were before it was compiled."""
    if session.compiled is not None:
        session.compiled.undo()


def other_plan(session: Session, error: Exception) -> ShapePlan:
    """The plan to go on with after the warm-up failed; an event says which and why. Raises what ends the run
    where there is none.

    After out-of-memory it is the next smaller one; after a compiler that failed the same shapes uncompiled,
    where the mode was ours to choose. Called on every rank, for the same cause (together.py)."""
    cause, world = cause_of(error), session.world
    if cause == "memory":
        refused = session.plan.largest
        plan = shared_plan(lambda: session.planner.smaller(session.plan, refused), world)
        facts: dict[str, Any] = {"refused": list(refused), "at_most": plan.tokens_per_microbatch}
        session.timeline.event("smaller_plan", plan.reason, cause=str(error), **facts)
        return plan
    if session.plan.compile == "none" or cause != "compiler":
        raise error
    failed = f"compiling ({session.plan.compile}) failed: {type(error).__name__}: {error}"
    if session.recipe.compile.mode != "auto":
        raise CompileError(f"{failed}. Set compile.mode to auto or none") from error
    plan = shared_plan(replace(session.planner, modes=("none",)).plan, world)
    session.timeline.event("compile_fallback", f"{failed}; the run goes on without", cause=str(error))
    return plan.model_copy(update={"reason": f"the compiler failed, so nothing is compiled; {plan.reason}"})


def tell_fallbacks(session: Session, since: int, say: Callable[[str], None]) -> None:
    """Say what the warm-up could not compile, after the first `since` of the log's: steps of these shapes are
    as slow as eager ones. Raises NotCompiledError where the run is strict."""
    session.compiles.poll()
    found = session.compiles.fallbacks[since:]
    if found and session.strict_shapes:
        raise NotCompiledError(f"{len(found)} times the warm-up did not compile; first, {found[0]}")
    for message in found:
        say(message)


def stop_if_compiled(session: Session) -> None:
    """Raise LateCompileError where the run is strict and something was compiled since the warm-up."""
    session.compiles.poll()
    late = session.compiles.late
    if late and session.strict_shapes:
        first = late[0]
        shape = first.data.get("shape")
        where = f" for {first.data['phase']} of {shape[0]} x {shape[1]}" if shape else ""
        raise LateCompileError(
            f"{len(late)} compiles after the warm-up{where}, the first because: {first.cause}. Every shape "
            "was to be compiled before; leave out --strict-shapes to go on after one"
        )
