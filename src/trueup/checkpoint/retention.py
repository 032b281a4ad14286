"""Which checkpoints go when a new one is whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from trueup.schema import Frozen


@dataclass(frozen=True)
class Saved:
    """A checkpoint on disk. `best_step` is what its manifest says; None too where that cannot be read."""

    step: int
    bytes: int
    best_step: int | None = None


class Retention(Frozen):
    """The newest `keep`, the best, for good every one whose step is a multiple of `keep_every`, and one to go
    back to at least `keep_before` steps before the newest; of these, where all together are more than
    `disk_bytes`, the oldest go. The newest, the best and what is to go back to stay always."""

    keep: int = Field(2, ge=1)
    keep_every: int | None = Field(None, ge=1)
    keep_before: int | None = Field(None, ge=1)
    disk_bytes: int | None = Field(None, gt=0)

    def to_remove(self, saved: Sequence[Saved]) -> list[int]:
        """Steps to remove, in ascending order. `saved`, in any order, has each step once; the newest of them
        must be whole: what it says is the best is kept."""
        if not saved:
            return []
        by_step = sorted(saved, key=lambda one: one.step)
        newest = by_step[-1]
        untouchable = {newest.step, newest.best_step, *self._to_go_back_to([one.step for one in by_step])}
        kept = [*filter(self._lasts, by_step[: -self.keep]), *by_step[-self.keep :]]
        kept += [one for one in by_step if one.step in untouchable and one not in kept]
        left_bytes = sum(one.bytes for one in kept)
        for one in sorted(kept, key=lambda one: one.step):
            if self.disk_bytes is None or left_bytes <= self.disk_bytes:
                break
            if one.step not in untouchable:
                kept.remove(one)
                left_bytes -= one.bytes
        return [one.step for one in by_step if one not in kept]

    def _to_go_back_to(self, steps: list[int]) -> list[int]:
        """Of ascending steps the last that is old enough, and the first that is not: it takes the other's
        place when it is. Without it there would never be one, where saves are frequent."""
        if self.keep_before is None:
            return []
        old = [step for step in steps if step <= steps[-1] - self.keep_before]
        return [*old[-1:], steps[len(old)]]

    def _lasts(self, one: Saved) -> bool:
        return self.keep_every is not None and one.step % self.keep_every == 0
