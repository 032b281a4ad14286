"""What held memory, from when to when: the record of a profile of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HeldKind = Literal["weights", "kv_pool", "gradients", "optimizer", "activations"]


@dataclass(frozen=True, slots=True)
class Held:
    """One storage of tensors, however many views there are of it. `born` and `died` are numbers of events,
    one for each time a storage comes or goes; `died` None: it was there at the end. `module` and `operator`
    are where it was made, both empty for what was there before the first operator."""

    size_bytes: int
    kind: HeldKind
    module: str
    operator: str
    born: int
    died: int | None


@dataclass(frozen=True)
class MemoryTrace:
    """`marks`: number of the event with which each part of the work began, and its name. `rss`: resident
    bytes of the process, by event."""

    held: tuple[Held, ...]
    events: int
    operators: int
    marks: tuple[tuple[int, str], ...] = ()
    rss: tuple[tuple[int, int], ...] = ()
