"""What ended a run, in words a person can act on: the cause, the last step, what to try next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from trueup.schema import Shape, Step, TrueupError

from .interruption import Interrupted

if TYPE_CHECKING:
    from .session import Session

# How torch's allocators say that there is no memory left; the CPU's raises a plain RuntimeError.
OUT_OF_MEMORY_WORDS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
)


class NoMemoryError(TrueupError):
    """Memory ran out for a micro-batch of this shape (rows, width), before the weights were touched."""

    def __init__(self, message: str, shape: Shape) -> None:
        super().__init__(message)
        self.shape = shape


@dataclass(frozen=True)
class Failure:
    """`state` as the run is recorded; `data` goes with the event."""

    state: Literal["failed", "interrupted"]
    reason: str
    error: BaseException
    data: dict[str, Any] = field(default_factory=dict)


def explain(error: BaseException, session: Session | None, steps: Sequence[Step]) -> Failure:
    """The failure behind an exception that reached the top of a run."""
    last = steps[-1].step if steps else 0
    where = f"after step {last}" if session is not None else "before the first step"
    data: dict[str, Any] = {"last_step": last, "cause": type(error).__name__}
    if isinstance(error, Interrupted):
        return Failure("interrupted", f"{error} {where}; what was measured is kept", error, data)
    if is_out_of_memory(error):
        if session is not None:
            data["largest_shape"] = session.plan.largest
        return Failure("failed", f"out of memory {where}; {_smaller(session)}", error, data)
    if isinstance(error, TrueupError):
        return Failure("failed", f"{where}: {error}", error, data)
    return Failure("failed", f"{type(error).__name__} {where}: {error}", error, data)


def is_out_of_memory(error: BaseException) -> bool:
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError | NoMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in OUT_OF_MEMORY_WORDS)


def _smaller(session: Session | None) -> str:
    if session is None:
        return "try a smaller model, or a machine with more memory"
    tokens = session.recipe.shapes.tokens_per_microbatch
    return (
        f"micro-batches of {tokens} tokens were too large: try shapes.tokens_per_microbatch={tokens // 2} "
        "(and data.max_length no larger), or tune.method: lora"
    )
