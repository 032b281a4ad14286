"""What every device offers, whoever made it. The rest of the house speaks this and nothing of vendors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from trueup.schema import Frozen, Scope
from trueup.schema.choices import DeviceKind

if TYPE_CHECKING:
    import torch


class DeviceMemory(Frozen):
    """Bytes of device memory, now and at their highest since `reset_peak`.

    Requested is what tensors asked for, allocated adds the allocator's rounding, reserved is what the
    allocator holds from the driver. None where the vendor does not say.
    """

    allocated_bytes: int
    peak_allocated_bytes: int
    requested_bytes: int | None = None
    peak_requested_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    total_bytes: int | None = None


@dataclass(frozen=True)
class CompileRecord:
    """One graph compiled by the vendor's own compiler, as the vendor counts it."""

    graph: str
    seconds: float


@dataclass(frozen=True)
class Sensor:
    """One reading of the device. `name` ends in its unit, as in `schema.Sample`.

    `read` gives None when there is no reading yet; it raises when the sensor has failed. `energy_j` is a
    counter: joules since its first reading. Every other sensor gives the state of now.
    """

    name: str
    read: Callable[[], float | None]
    method: str
    scope: Scope = "device"


class Device(Protocol):
    """An opened device: where tensors live, what it can do, what it can tell about itself."""

    @property
    def kind(self) -> DeviceKind: ...

    @property
    def index(self) -> int:
        """Which one of its kind, counted among those this process can see."""

    @property
    def name(self) -> str:
        """Model name as the machine gives it."""

    @property
    def count(self) -> int:
        """Devices of this kind that this process can see."""

    @property
    def collective_backend(self) -> str:
        """For `init_process_group`: gloo for host memory, the vendor's beside it."""

    @property
    def torch_device(self) -> torch.device: ...

    def synchronize(self) -> None:
        """Wait until everything queued on the device is done."""

    def describe(self) -> dict[str, Any]:
        """What could explain a run: model, cores, flags, driver, memory, clocks, ids. JSON-able."""

    def fast_bf16(self) -> tuple[bool, str]:
        """Whether bf16 matmuls run in hardware here, and how that is known."""

    @property
    def static_shapes_only(self) -> bool:
        """Whether each new shape is compiled anew, so that only a finite set of shapes may be shown to it."""

    def compile_backend(self) -> tuple[str | None, str]:
        """Which backend `torch.compile` takes here, and how that is known; None where it cannot compile."""

    @property
    def compile_caches(self) -> tuple[str, ...]:
        """Environment variables that name the folders where the compilers of this device keep their work."""

    def compiled_for(self) -> dict[str, Any]:
        """What must be the same for compiled code to serve again: chip, driver, compilers. JSON-able."""

    def compile_records(self) -> list[CompileRecord]:
        """What the vendor's own compiler has compiled in this process, in order. Empty where it keeps no
        such list: `torch`'s own log is then the whole truth."""

    def memory(self) -> DeviceMemory | None:
        """Device memory, or None with the reason in `memory_reason`."""

    @property
    def memory_reason(self) -> str | None: ...

    def reset_peak(self) -> None:
        """Peaks of `memory` count from now on."""

    def sensors(self) -> list[Sensor]:
        """What can be read on this machine; each was tried once. The same list at every call."""

    def missing(self) -> dict[str, str]:
        """Sensors that this machine does not have: name -> reason."""

    def choose_threads(self) -> tuple[int, str]:
        """Host threads for compute, and why that many."""

    def close(self) -> None:
        """End what the device started (vendor monitors, library handles). May be called twice."""
