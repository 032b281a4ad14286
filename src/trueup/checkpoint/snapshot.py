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


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy in host memory, of the tensor's shape and dtype, that shares memory with nothing:
    tensors that are in host memory already are copied too, and of a view only what it shows."""
    source = tensor.detach()
    copy: torch.Tensor = source.new_empty(source.shape, device="cpu")
    return copy.copy_(source)
