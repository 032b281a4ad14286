"""Checkpoints made up for the tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from kept_checkpoints import ORIGIN
from trueup.checkpoint.folder import load_tensors, write_checkpoint
from trueup.checkpoint.snapshot import Snapshot


def tensors(value: float = 1.0, numbers: int = 6) -> dict[str, dict[str, torch.Tensor]]:
    """Every dtype that a run keeps."""
    return {
        "weights": {"layer.weight": torch.full((2, numbers // 2), value), "half": torch.ones(3).bfloat16()},
        "optimizer": {"layer.weight.exp_avg": torch.full((numbers,), value / 3), "step": torch.tensor(7)},
        "random": {"torch": torch.arange(16, dtype=torch.uint8), "cursor": torch.tensor([2**60])},
    }


def snapshot(step: int, *, value: float | None = None, **fields: Any) -> Snapshot:
    """Its weights tell the step, or `value`."""
    given: dict[str, Any] = {
        "origin": ORIGIN,
        "best_step": None,
        "eval_loss": None,
        "why": ("every",),
        "state": {"cursor": step, "loss_scale": 1.0},
        "tensors": tensors(float(step) if value is None else value),
    }
    return Snapshot(step=step, **(given | fields))


def write(root: Path, *steps: int, **fields: Any) -> None:
    for step in steps:
        write_checkpoint(root, snapshot(step, **fields))


def value_in(folder: Path) -> float:
    """What `snapshot` put into the weights."""
    return float(load_tensors(folder, "weights")["layer.weight"][0, 0])


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def make_run(folder: Path) -> Path:
    """A run folder with a record, as files of a run that goes on."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{\n "state": "running"\n}')
    (folder / "steps.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"ste')
    return folder


@contextmanager
def in_memory(name: str) -> Iterator[Path]:
    """A folder whose fsync costs nothing, where there is one."""
    shm = "/dev/shm"
    place = shm if os.path.isdir(shm) and os.access(shm, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=f"trueup-{name}-", dir=place) as folder:
        yield Path(folder)
