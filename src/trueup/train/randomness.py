"""torch's random state, host and device, at one moment: what makes a step's dropout the same when the step is
done again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trueup.device import Device

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

        generator = device_generator(device)
        return cls(torch.get_rng_state(), None if generator is None else generator.get_state(), generator)

    def restore(self) -> None:
        import torch

        torch.set_rng_state(self.host)
        if self._generator is not None and self.device is not None:
            self._generator.set_state(self.device)


def device_generator(device: Device) -> torch.Generator | None:
    """The accelerator's own source of random numbers, where there is one."""
    import torch

    if device.kind == "cpu":
        return None
    module = torch.get_device_module(device.torch_device)
    generators = getattr(module, "default_generators", None)
    return generators[device.index] if generators else None
