"""What ended a run, in words a person can act on: the cause, the last step, what to try next."""

from __future__ import annotations

import errno
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from trueup.device import memory_errors
from trueup.schema import InputError, Shape, Step, StorageError, TrueupError

from .interruption import Interrupted

if TYPE_CHECKING:
    from .session import Session


class NoMemoryError(TrueupError):
    """Memory ran out for a micro-batch of this shape (rows, width), before the weights were touched."""

    def __init__(self, message: str, shape: Shape) -> None:
        super().__init__(message)
        self.shape = shape


@dataclass(frozen=True)
class Failure:
    """`state` as the run is recorded; `data` goes with the event."""

    state: Literal["failed", "interrupted", "finished"]  # finished: long before, and this changed nothing
    reason: str
    error: BaseException
    data: dict[str, Any] = field(default_factory=dict)


def explain(
    error: BaseException, session: Session | None, steps: Sequence[Step], arguments: Sequence[str]
) -> Failure:
    """The failure behind an exception that reached the top of a run. `arguments`: those that `trueup train`
    was given for the recipe. `data` has its `cause`, the `last_step` and what to `try` next."""
    last = steps[-1].step if steps else 0
    where = f"after step {last}" if session is not None else "before the first step"
    advice = _advice(error, session, arguments)
    data: dict[str, Any] = {"last_step": last, "cause": type(error).__name__, "try": advice}
    if isinstance(error, Interrupted):
        return Failure("interrupted", f"{error} {where}; what was measured is kept; {advice}", error, data)
    if is_out_of_memory(error):
        data["cause"] = "out of memory"
        data["largest_shape"] = session.plan.largest if session is not None else None
        which = f": {error}" if isinstance(error, NoMemoryError) else ""
        return Failure("failed", f"out of memory {where}{which}; {advice}", error, data)
    what = (
        f"{where}: {error}" if isinstance(error, TrueupError) else f"{type(error).__name__} {where}: {error}"
    )
    return Failure("failed", f"{what}; {advice}", error, data)


def by_the_compiler(error: BaseException) -> bool:
    """Whether torch's compiler failed. Its module, slow to import, is only asked once it is there."""
    exceptions = sys.modules.get("torch._dynamo.exc")
    return exceptions is not None and isinstance(error, exceptions.TorchDynamoException)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, NoMemoryError) or memory_errors.is_out_of_memory(error)


def _advice(error: BaseException, session: Session | None, arguments: Sequence[str]) -> str:
    """What to try next."""
    from .compiling import CompileError, LateCompileError, NotCompiledError
    from .divergence import DivergedError
    from .stepper import NonFiniteError

    if is_out_of_memory(error):
        return _smaller(error, session)
    if isinstance(error, NonFiniteError | DivergedError) and session is not None:
        return _slower(session, arguments)
    if isinstance(error, LateCompileError | NotCompiledError):
        return "leave out --strict-shapes, or set compile.mode: none"
    if isinstance(error, CompileError) or by_the_compiler(error):
        return "set compile.mode: none"
    if isinstance(error, InputError):
        return "correct what is named, and start the run again"
    full = isinstance(error, OSError) and error.errno == errno.ENOSPC
    return ("make room on the disk, and " if full else "") + _again(session, arguments)


def _smaller(error: BaseException, session: Session | None) -> str:
    if session is None:
        return "try a smaller model, or a machine with more memory"
    tokens = session.recipe.shapes.tokens_per_microbatch
    if isinstance(error, NoMemoryError):
        tokens = min(tokens, error.shape[0] * error.shape[1])
    stop = session.recipe.failure.out_of_memory == "stop"
    return (
        f"micro-batches of {tokens} tokens were too large: try "
        + ("failure.out_of_memory=halve, " if stop else "")
        + f"shapes.tokens_per_microbatch={max(2, tokens // 2)} (and data.max_length no larger), "
        + ("train.activation_checkpointing=true" if _is_lora(session) else "tune.method: lora")
    )


def _is_lora(session: Session) -> bool:
    return session.recipe.tune.method == "lora"


def _slower(session: Session, arguments: Sequence[str]) -> str:
    """A learning rate half as large, from the last checkpoint where there is one."""
    rate = f"optimizer.lr={session.recipe.optimizer.lr / 2:g}"
    if saved_step(session) is None:
        return f"try {rate}"
    return f"{_again(session, arguments)} --set {rate} --allow-change optimizer.lr"


def _again(session: Session | None, arguments: Sequence[str]) -> str:
    """As a shell takes it; without what was set on the command line it would be another recipe."""
    step = None if session is None else saved_step(session)
    if session is None or step is None:
        return "start the run again"
    return f"go on from step {step}: trueup train {shlex.join(arguments)} --resume {session.run_folder.name}"


def saved_step(session: Session) -> int | None:
    """The last step that has a checkpoint; None where none has, or the folder cannot be read."""
    from trueup.checkpoint.folder import checkpoints_of, steps

    try:
        found = steps(checkpoints_of(session.run_folder))
    except StorageError:
        return None
    return found[-1] if found else None
