"""Open the device a recipe asks for, or say what there is instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from trueup.schema import InputError
from trueup.schema.choices import AskedDevice, DeviceKind

from . import cuda, host, neuron
from .protocol import Device

WHY_ABSENT: dict[DeviceKind, Callable[[], str | None]] = {
    "cuda": cuda.why_absent,
    "neuron": neuron.why_absent,
}


def open_device(kind: AskedDevice, *, threads: int | None = None, index: int = 0) -> Device:
    """The device, ready for use, with torch's thread count set on it.

    `auto` takes an accelerator if there is one. `index` counts among the devices this process can see: a
    rank's own is its local rank. Raises InputError for a device that is not there, naming what is.
    """
    device = _construct(_choose() if kind == "auto" else kind, threads, index)
    _set_threads(device.choose_threads()[0])
    return device


def _choose() -> DeviceKind:
    return next((kind for kind, why_absent in WHY_ABSENT.items() if why_absent() is None), "cpu")


def _construct(kind: DeviceKind, threads: int | None, index: int) -> Device:
    import torch

    if kind == "cpu":
        from .cpu import CpuDevice

        return CpuDevice(threads=threads)
    if (reason := WHY_ABSENT[kind]()) is not None:
        raise InputError(
            f"the device '{kind}' was asked for, which is not here: {reason}. "
            f"This machine has: {'; '.join(_present())}. Set platform.device to one of these, or to auto."
        )
    _check_index(kind, index)
    torch.accelerator.set_device_index(index)  # collectives use the current device
    if kind == "cuda":
        return cuda.CudaDevice(index=index, threads=threads)
    if kind == "neuron":
        return neuron.NeuronDevice(index=index, threads=threads)
    assert_never(kind)


def _check_index(kind: DeviceKind, index: int) -> None:
    import torch

    count = torch.accelerator.device_count()
    if index >= count:
        raise InputError(
            f"device {index} of kind '{kind}' was asked for, but this process sees {count}, counted from 0; "
            "start no more ranks on this machine than it has devices"
        )


def _present() -> list[str]:
    cpu = f"cpu ({host.cpu_info().model}, {len(host.allowed_cpus())} logical cores)"
    return [cpu, *(kind for kind, why_absent in WHY_ABSENT.items() if why_absent() is None)]


def _set_threads(n: int) -> None:
    import torch

    torch.set_num_threads(n)
