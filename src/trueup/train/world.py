"""The processes that train together. Of size one when alone; the loop never asks which."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from trueup.schema import InputError, TrueupError

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")

GLOO_LETS_GO_S = 0.2
BUCKET_BYTES = 25 << 20  # reduced at a time: full fine-tuning needs no second copy of all its gradients


@dataclass(frozen=True)
class World:
    """Rank and size of the group this process belongs to."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """The leading rank keeps the record and prints."""
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """This rank's part of a list that every rank knows: every size-th item."""
        return items[self.rank :: self.size]

    def leader_first(self, work: Callable[[], Item]) -> Item:
        """Work whose result is kept on disk: the leading rank does it, then the others find it done."""
        if self.size == 1:
            return work()
        if self.leads:
            result = work()
            self.wait_for_all()
            return result
        self.wait_for_all()
        return work()

    def sum(self, values: list[float]) -> list[float]:
        """Elementwise sum over ranks, in double precision."""
        if self.size == 1:
            return values
        import torch
        import torch.distributed as dist

        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor)
        return [float(value) for value in tensor]

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace each gradient by its sum over ranks. A rank that had no micro-batch contributes zeros."""
        if self.size == 1:
            return
        import torch

        bucket: list[torch.Tensor] = []
        held_bytes = 0
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            bucket.append(parameter.grad)
            held_bytes += parameter.grad.nbytes
            if held_bytes >= BUCKET_BYTES:
                _reduce(bucket)
                bucket, held_bytes = [], 0
        if bucket:
            _reduce(bucket)

    def agree(self, decision: bool) -> bool:
        """The leading rank's decision, on every rank: clocks differ between processes."""
        if self.size == 1:
            return decision
        import torch
        import torch.distributed as dist

        flag = torch.tensor([int(decision)])
        dist.broadcast(flag, src=0)
        return bool(flag.item())

    def from_leader(self, text: str) -> str:
        """The leading rank's text, on every rank."""
        if self.size == 1:
            return text
        import torch
        import torch.distributed as dist

        own = torch.tensor(list(text.encode()), dtype=torch.uint8)
        length = torch.tensor([len(own)])
        dist.broadcast(length, src=0)
        found = own if self.leads else torch.empty(int(length.item()), dtype=torch.uint8)
        dist.broadcast(found, src=0)
        return bytes(found.tolist()).decode()

    def wait_for_all(self) -> None:
        """A barrier over host memory, which every backend offers."""
        self.sum([0.0])

    def close(self) -> None:
        """Leave together; nothing if that is done. Raises TrueupError where another is gone. Not for after a
        failure: the others may never come, and the launcher ends them.
        """
        if self.size == 1:
            return
        import torch.distributed as dist

        if not dist.is_initialized():
            return
        try:
            self.wait_for_all()
        except RuntimeError as error:
            raise TrueupError(f"another process of the run was gone before all had left ({error})") from error
        # gloo's own thread still holds the last tensor and needs the interpreter's lock to let go of it. If
        # the interpreter is ending by then, the process aborts ("terminate called without an active
        # exception") and the launcher takes a finished run for a failed one.
        time.sleep(GLOO_LETS_GO_S)
        dist.destroy_process_group()


def _reduce(gradients: list[torch.Tensor]) -> None:
    import torch
    import torch.distributed as dist

    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    offset = 0
    for gradient in gradients:
        gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
        offset += gradient.numel()


def join_world(backend: str) -> World:
    """The world torchrun describes in this process's environment, or a world of one.

    `backend` is the device's own: gloo for what lies in host memory, the vendor's for the device's.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World()
    import torch.distributed as dist

    if not dist.is_available():
        raise InputError(f"WORLD_SIZE is {size}, and this build of torch has no distributed support")
    dist.init_process_group(backend)
    return World(rank=dist.get_rank(), size=dist.get_world_size())
