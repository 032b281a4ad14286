"""A run's whole state at one step, copied: nothing in it changes while it is being written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .manifest import Origin

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Snapshot:
    """`tensors` maps a stem (`weights`, `optimizer`, `random`) to named tensors in host memory that nobody
    else holds; `record` are files of the run folder to copy, gzipped, below `record/` as they are then;
    `attached` maps a path below the checkpoint to a file that is copied as it is (a compile cache)."""

    origin: Origin
    step: int
    best_step: int | None
    eval_loss: float | None
    why: tuple[str, ...]
    state: dict[str, Any]
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    record: tuple[Path, ...] = ()
    attached: Mapping[str, Path] = field(default_factory=dict)
