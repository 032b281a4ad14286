"""AWS Trainium through TorchNeuron's native device `neuron` (torch-neuronx 2.13 and later, Trn2 and Trn3).

Written from the vendor's published interface (awsdocs-neuron.readthedocs-hosted.com, SDK 2.33) and tested
against stand-ins: no Trainium machine was at hand.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trueup.schema.choices import DeviceKind

from . import host
from .compiler import INDUCTOR_CACHES
from .neuron_monitor import NEURON_SYSFS, NeuronMonitor, find_power_file, parse_neuron_ls, parse_power
from .protocol import CompileRecord, DeviceMemory, Sensor

if TYPE_CHECKING:
    import torch

MONITOR_METHODS = {
    "utilisation_share": "neuron-monitor: mean over the NeuronCores in use, every 5 s",
    "device_used_bytes": "neuron-monitor: device memory of all runtimes, every 5 s",
    "ecc_corrected_count": "neuron-monitor: corrected ECC errors, all devices",
    "ecc_uncorrected_count": "neuron-monitor: uncorrected ECC errors, all devices",
}
# Microseconds of the three stages in a record of torch.neuron.get_dynamo_metrics()
COMPILE_STAGES = ("torch_neuronx_fx_passes_us", "torch_neuronx_lower_us", "torch_neuronx_compile_us")
NO_WATTS = "Neuron publishes no watts: only percent of an unpublished maximum, once a minute"


def why_absent() -> str | None:
    """Why torch cannot use a Neuron device here; None if it can."""
    try:
        version = metadata.version("torch-neuronx")
    except metadata.PackageNotFoundError:
        return "the package torch-neuronx is not installed"
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < (2, 13):
        return f"torch-neuronx {version} is the XLA one; 2.13 or later has the native device"
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type != "neuron":
        return "torch-neuronx is installed but finds no Neuron device"
    return None


class NeuronDevice:
    """One logical NeuronCore, by its index among those this process can see."""

    kind: ClassVar[DeviceKind] = "neuron"
    collective_backend: ClassVar[str] = "cpu:gloo,neuron:neuron"
    static_shapes_only: ClassVar[bool] = True
    compile_caches: ClassVar[tuple[str, ...]] = ("TORCH_NEURONX_NEFF_CACHE_DIR", *INDUCTOR_CACHES)

    def __init__(
        self,
        *,
        index: int = 0,
        threads: int | None = None,
        sysfs: Path = NEURON_SYSFS,
        monitor: NeuronMonitor | None = None,
    ) -> None:
        import torch

        self._torch = torch
        self.index = index
        self._threads = threads
        self._hardware = _neuron_ls()
        self._sensors: list[Sensor] = []
        self._missing = {
            "power_w": NO_WATTS,
            "energy_j": NO_WATTS,
            "temperature_c": "Neuron publishes no temperature",
            "clock_mhz": "Neuron publishes no clock",
        }
        self._find_power(sysfs)
        self._monitor = monitor or self._start_monitor()
        if self._monitor is not None:
            self._use_monitor(self._monitor)
        self._sensors.append(
            Sensor("device_allocated_bytes", self._allocated, "torch.neuron allocator: allocated", "process")
        )

    @property
    def name(self) -> str:
        return (
            f"AWS Neuron device ({self._hardware[0]['nc_count']} cores)"
            if self._hardware
            else "AWS Neuron device"
        )

    @property
    def count(self) -> int:
        return self._torch.accelerator.device_count()

    @property
    def torch_device(self) -> torch.device:
        return self._torch.device("neuron", self.index)

    def synchronize(self) -> None:
        self._torch.accelerator.synchronize(self.index)

    def describe(self) -> dict[str, Any]:
        threads, reason = self.choose_threads()
        return {
            "kind": self.kind,
            "name": self.name,
            "index": self.index,
            "count": self.count,
            "driver": host.read_text(Path("/sys/module/neuron/version")),
            "devices": self._hardware,
            "host_cpu": host.cpu_info().model,
            "threads": threads,
            "threads_reason": reason,
        }

    def fast_bf16(self) -> tuple[bool, str]:
        return True, "bf16 is what NeuronCores multiply fastest"

    def compile_backend(self) -> tuple[str | None, str]:
        return "neuron", "TorchNeuron's own compiler"

    def compiled_for(self) -> dict[str, Any]:
        described = self.describe()
        facts = {fact: described[fact] for fact in ("kind", "name", "driver", "host_cpu")}
        return facts | {package: _version(package) for package in ("torch-neuronx", "neuronx-cc")}

    def compile_records(self) -> list[CompileRecord]:
        neuron: Any = getattr(self._torch, "neuron")  # noqa: B009 (torch has it only with torch-neuronx)
        return [_compile_record(record) for record in neuron.get_dynamo_metrics()]

    def memory(self) -> DeviceMemory | None:
        """The allocator works behind the program's back, so the device is synchronised before it is asked."""
        self.synchronize()
        stats = self._stats()
        allocated = stats.get("allocated_bytes") or {}
        requested, reserved = stats.get("requested_bytes") or {}, stats.get("reserved_bytes") or {}
        return DeviceMemory(
            allocated_bytes=allocated["current"],
            peak_allocated_bytes=allocated["peak"],
            requested_bytes=requested.get("current"),
            peak_requested_bytes=requested.get("peak"),
            reserved_bytes=reserved.get("current"),
            peak_reserved_bytes=reserved.get("peak"),
        )

    @property
    def memory_reason(self) -> str | None:
        return None

    def reset_peak(self) -> None:
        neuron: Any = getattr(self._torch, "neuron")  # noqa: B009 (torch has it only with torch-neuronx)
        neuron.reset_peak_memory_stats(self.index)

    def sensors(self) -> list[Sensor]:
        return self._sensors

    def missing(self) -> dict[str, str]:
        return dict(self._missing)

    def choose_threads(self) -> tuple[int, str]:
        if self._threads is not None:
            return self._threads, "asked for"
        return host.choose_threads()

    def close(self) -> None:
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None

    def _stats(self) -> dict[str, Any]:
        neuron: Any = getattr(self._torch, "neuron")  # noqa: B009
        stats: dict[str, Any] = neuron.memory_stats()
        return stats

    def _allocated(self) -> float | None:
        current = (self._stats().get("allocated_bytes") or {}).get("current")
        return None if current is None else float(current)

    def _find_power(self, sysfs: Path) -> None:
        file = find_power_file(self.index, sysfs)
        if file is None:
            self._missing["power_share"] = f"no power file of neuron{self.index} under {sysfs}"
            return
        method = "driver: mean of the last minute, share of the maximum above idle"
        self._sensors.append(Sensor("power_share", lambda: parse_power(file.read_text()), method))

    def _start_monitor(self) -> NeuronMonitor | None:
        if shutil.which("neuron-monitor") is None:
            self._missing |= dict.fromkeys(MONITOR_METHODS, "the program neuron-monitor is not installed")
            return None
        return NeuronMonitor()

    def _use_monitor(self, monitor: NeuronMonitor) -> None:
        for name, method in MONITOR_METHODS.items():
            self._sensors.append(Sensor(name, _reader(monitor, name), method, "node"))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _reader(monitor: NeuronMonitor, name: str) -> Any:
    return lambda: monitor.read(name)


def _compile_record(record: Any) -> CompileRecord:
    """From one of the vendor's records, a mapping or an object with the same names."""
    fields = record if isinstance(record, Mapping) else vars(record)
    microseconds = sum(fields.get(stage) or 0 for stage in COMPILE_STAGES)
    return CompileRecord(graph=str(fields["graph_id"]), seconds=microseconds / 1e6)


def _neuron_ls() -> list[dict[str, Any]]:
    """Devices as neuron-ls lists them; empty where it is absent or fails under both its options."""
    if shutil.which("neuron-ls") is None:
        return []
    for options in (["--output-format", "json"], ["-j"]):
        try:
            done = subprocess.run(
                ["neuron-ls", *options],
                capture_output=True,
                text=True,
                timeout=5,
                check=True,
                stdin=subprocess.DEVNULL,
            )
            return parse_neuron_ls(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            continue
    return []
