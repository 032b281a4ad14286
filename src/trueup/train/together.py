"""Work that every rank does and any of them may fail at: all go on, or all stop for the same cause."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from trueup.schema import TrueupError

from .failure import by_the_compiler, is_out_of_memory
from .world import World

Cause = Literal["other", "compiler", "memory"]
CAUSES: tuple[Cause, ...] = get_args(Cause)  # where ranks fail for several, the first counts: no plan helps
_WORDS: dict[Cause, str] = {
    "other": "failed, and its own output says why",
    "compiler": "could not compile the model",
    "memory": "ran out of memory",
}


class ElsewhereError(TrueupError):
    """Another rank failed at what this one has done, or is at fault for a graver cause than this one."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(f"another process {_WORDS[cause]}")
        self.cause = cause


def cause_of(error: Exception) -> Cause:
    if isinstance(error, ElsewhereError):
        return error.cause
    if is_out_of_memory(error):
        return "memory"
    return "compiler" if by_the_compiler(error) else "other"


@contextmanager
def together(world: World) -> Iterator[None]:
    """Where the block raises on any rank, raise on every one: its own error, or ElsewhereError. The block may
    wait for no other rank: one that failed never comes."""
    if world.size == 1:
        yield
        return
    failed: Exception | None = None
    try:
        try:
            yield
        except Exception as error:
            failed = error
        own = None if failed is None else cause_of(failed)
        counts = world.sum([float(cause == own) for cause in CAUSES])
        agreed = next((cause for cause, count in zip(CAUSES, counts, strict=True) if count), None)
        if agreed is not None:
            raise failed if failed is not None and own == agreed else ElsewhereError(agreed)
    finally:
        failed = None  # else it would keep its frames, and with them the memory that there was too little of
