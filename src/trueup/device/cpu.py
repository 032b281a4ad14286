"""The processor as a device: always there, and honest about what it cannot tell."""

from __future__ import annotations

import math
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psutil

from trueup.schema.choices import DeviceKind

from . import host
from .compiler import INDUCTOR_CACHES, inductor_for_cpu
from .protocol import CompileRecord, DeviceMemory, Sensor
from .rapl import POWERCAP, Rapl

if TYPE_CHECKING:
    import torch

# Chips whose temperature is the processor's, by the kernel driver's name.
CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal")


PRODUCT = (512, 576, 1536)  # rows, inputs and outputs: of the demo's model
PRODUCTS = 25  # of each dtype: 0.1 s in all on two cores


class CpuDevice:
    """All the processors of this machine as one device."""

    kind: ClassVar[DeviceKind] = "cpu"
    collective_backend: ClassVar[str] = "gloo"
    static_shapes_only: ClassVar[bool] = False
    compile_caches: ClassVar[tuple[str, ...]] = INDUCTOR_CACHES
    index = 0
    count = 1

    def __init__(self, *, threads: int | None = None, powercap: Path = POWERCAP) -> None:
        self._cpu = host.cpu_info()
        self._threads = threads
        self._rapl = Rapl.find(powercap)
        self._sensors: list[Sensor] = []
        self._missing: dict[str, str] = {"utilisation_share": "a CPU's load is sampled as cpu_share"}
        self._find_energy()
        self._find_temperature()
        self._find_clock()

    @property
    def name(self) -> str:
        return self._cpu.model

    @property
    def torch_device(self) -> torch.device:
        import torch

        return torch.device("cpu")

    def synchronize(self) -> None:
        """Nothing is queued on a CPU: work is done when the call returns."""

    def describe(self) -> dict[str, Any]:
        limits = host.cgroup_limits()
        threads, reason = self.choose_threads()
        flags = self._cpu.flags
        frequency = _cpu_freq()
        return {
            "kind": self.kind,
            "name": self.name,
            "cores_physical": psutil.cpu_count(logical=False),
            "cores_logical": psutil.cpu_count(),
            "cores_allowed": len(host.allowed_cpus()),
            "container_cpus": limits.cpus,
            "container_memory_bytes": limits.memory_bytes,
            "threads": threads,
            "threads_reason": reason,
            "flags": None if flags is None else [f for f in host.FLAGS_THAT_MATTER if f in flags],
            "virtual": self._cpu.virtual,
            "memory_bytes": psutil.virtual_memory().total,
            "nominal_mhz": frequency[0] if frequency else None,
            "max_mhz": frequency[1] if frequency else None,
            "rapl_domains": [domain.name for domain in self._rapl.domains],
        }

    def fast_bf16(self) -> tuple[bool, str]:
        """Without these units bf16 matmuls were measured about 100 times slower than fp32 ones (AVX2); with
        AVX-512-BF16 alone at half their rate. So where there are units both are timed."""
        flags = self._cpu.flags
        if flags is None:
            return False, "this system does not tell the CPU's flags"
        have = [flag for flag in ("amx_bf16", "avx512_bf16") if flag in flags]
        if not have:
            return False, "the CPU has neither AVX-512-BF16 nor AMX"
        bf16, fp32 = self._product_rates
        units = " and ".join(have)
        return bf16 > fp32, (
            f"the CPU has {units}; a product of a step runs at {bf16 / 1e9:.0f} GFLOP/s in bf16, at "
            f"{fp32 / 1e9:.0f} in fp32"
        )

    @cached_property
    def _product_rates(self) -> tuple[float, float]:
        """FLOP/s of a linear layer over a micro-batch, in bf16 and in fp32: the best of some, in turn."""
        import torch

        best = {torch.bfloat16: math.inf, torch.float32: math.inf}
        m, k, n = PRODUCT
        made = {dtype: (torch.ones(m, k, dtype=dtype), torch.ones(n, k, dtype=dtype)) for dtype in best}
        for _ in range(PRODUCTS):
            for dtype, (rows, weight) in made.items():
                began = time.perf_counter()
                torch.nn.functional.linear(rows, weight)
                best[dtype] = min(best[dtype], time.perf_counter() - began)
        bf16_s, fp32_s = best.values()
        return 2 * m * k * n / bf16_s, 2 * m * k * n / fp32_s

    def compile_backend(self) -> tuple[str | None, str]:
        return inductor_for_cpu()

    def compiled_for(self) -> dict[str, Any]:
        import torch

        capability = torch.backends.cpu.get_cpu_capability()
        return {"kind": self.kind, "name": self.name, "vector_units": capability}

    def compile_records(self) -> list[CompileRecord]:
        return []

    def memory(self) -> DeviceMemory | None:
        return None

    @property
    def memory_reason(self) -> str | None:
        return "on a CPU tensors are in the process's own memory: see host memory"

    def reset_peak(self) -> None:
        """There is no device memory to count."""

    def sensors(self) -> list[Sensor]:
        return self._sensors

    def missing(self) -> dict[str, str]:
        return dict(self._missing)

    def choose_threads(self) -> tuple[int, str]:
        if self._threads is not None:
            return self._threads, "asked for"
        return host.choose_threads()

    def close(self) -> None:
        """Nothing was started."""

    def _find_energy(self) -> None:
        if not self._rapl.domains:
            self._missing |= dict.fromkeys(("power_w", "energy_j"), self._rapl.reason)
            return
        domains = ", ".join(domain.name for domain in self._rapl.domains)
        self._sensors += [
            Sensor("energy_j", self._rapl.energy_j, f"RAPL counters: {domains}", "node"),
            Sensor("power_w", self._rapl.power_w, f"RAPL counters between readings: {domains}", "node"),
        ]

    def _find_temperature(self) -> None:
        if read_temperature_c() is None:
            self._missing["temperature_c"] = "this machine shows no CPU temperature sensor"
        else:
            self._sensors.append(
                Sensor("temperature_c", read_temperature_c, "hottest CPU sensor (hwmon)", "node")
            )

    def _find_clock(self) -> None:
        # A virtual machine without cpufreq shows one constant, the counter's rate: not a clock reading.
        if self._cpu.virtual and not (host.CPU_TREE / "cpu0" / "cpufreq").is_dir():
            self._missing["clock_mhz"] = "this virtual machine shows only its nominal frequency"
        elif read_clock_mhz() is None:
            self._missing["clock_mhz"] = "this system does not tell the CPU's frequency"
        else:
            self._sensors.append(Sensor("clock_mhz", read_clock_mhz, "mean over cores (cpufreq)", "node"))


def read_temperature_c() -> float | None:
    """The hottest of the processor's sensors in degrees Celsius; None without one."""
    if not hasattr(psutil, "sensors_temperatures"):
        return None
    chips = psutil.sensors_temperatures()
    readings = [entry.current for chip in CPU_CHIPS for entry in chips.get(chip, ()) if entry.current > 0]
    return max(readings, default=None)


def read_clock_mhz() -> float | None:
    """The mean clock over the cores in MHz, never 0."""
    frequency = _cpu_freq()
    return frequency[0] if frequency else None


def _cpu_freq() -> tuple[float, float | None] | None:
    """(current, maximum) in MHz; the system writes an unknown one as 0."""
    try:
        frequency = psutil.cpu_freq()
    except (AttributeError, OSError, NotImplementedError, RuntimeError):  # absent on some systems
        return None
    if not frequency or not frequency.current:
        return None
    return float(frequency.current), float(frequency.max) or None
