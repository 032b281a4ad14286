"""Random states: torch's at one moment, which makes a step's dropout the same when the step is done again,
and a run's for a checkpoint: Python's, numpy's, and torch's of every rank."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trueup.device import Device
from trueup.schema import InputError

from .world import World

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RandomState:
    """Taken before every step: a copy of a few KB."""

    host: torch.Tensor
    device: torch.Tensor | None
    _generator: torch.Generator | None

    @classmethod
    def of(cls, device: Device) -> RandomState:
        import torch

        generator = _device_generator(device)
        return cls(torch.get_rng_state(), None if generator is None else generator.get_state(), generator)

    def restore(self) -> None:
        import torch

        torch.set_rng_state(self.host)
        if self._generator is not None and self.device is not None:
            self._generator.set_state(self.device)


def take_random(device: Device, world: World) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """(tensors, JSON) of every rank. Every rank calls this, and each gets all."""
    import numpy as np
    import torch

    own = RandomState.of(device)
    states = [own.host] if own.device is None else [own.host, own.device]
    sizes = torch.tensor([len(own.host), 0 if own.device is None else len(own.device)])
    of_ranks = {f"rank{n}": state for n, state in enumerate(_of_all(world, torch.cat(states)))}
    name, keys, position, has_gauss, cached = np.random.get_state()
    version, internal, gauss = random.getstate()
    return {"sizes": sizes, **of_ranks}, {
        "python": [version, list(internal), gauss],
        "numpy": [name, np.asarray(keys).tolist(), position, has_gauss, cached],
    }


def put_back_random(
    device: Device, world: World, tensors: Mapping[str, torch.Tensor], found: Mapping[str, Any]
) -> None:
    """As they were when `take_random` gave these."""
    import numpy as np

    state = tensors[f"rank{world.rank}"]
    host, of_device = (int(size) for size in tensors["sizes"])
    RandomState(
        state[:host].clone(),
        state[host:].clone() if of_device else None,
        _device_generator(device),
    ).restore()
    version, internal, gauss = found["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = found["numpy"]
    np.random.set_state((name, np.asarray(keys, dtype=np.uint32), position, has_gauss, cached))


def require_same_ranks(world: World, tensors: Mapping[str, torch.Tensor]) -> None:
    """InputError where these are of another number of processes."""
    ranks = sum(name.startswith("rank") for name in tensors)
    if ranks != world.size:
        raise InputError(
            f"the checkpoint is of {ranks} processes, this run has {world.size}; resume with as many"
        )


def _device_generator(device: Device) -> torch.Generator | None:
    """The accelerator's own source of random numbers, where there is one."""
    import torch

    if device.kind == "cpu":
        return None
    module = torch.get_device_module(device.torch_device)
    generators = getattr(module, "default_generators", None)
    return generators[device.index] if generators else None


def _of_all(world: World, own: torch.Tensor) -> list[torch.Tensor]:
    """Every rank's tensor. They are as long on every rank."""
    import torch
    import torch.distributed as dist

    if world.size == 1:
        return [own.clone()]
    found = [torch.empty_like(own) for _ in range(world.size)]
    dist.all_gather(found, own)
    return found
