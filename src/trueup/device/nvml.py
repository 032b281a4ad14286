"""Readings of one NVIDIA GPU through NVML (package nvidia-ml-py, module pynvml)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .protocol import Sensor

NAMES = (
    "energy_j",
    "power_w",
    "temperature_c",
    "clock_mhz",
    "memory_clock_mhz",
    "utilisation_share",
    "memory_utilisation_share",
    "throttle_power_share",
    "throttle_thermal_share",
)
# Bits of nvmlClocksEventReasons (nvml.h). A slowdown by hardware can be either; it counts as thermal only
# when the thermal bit is set beside it.
POWER_BITS = 0x04 | 0x80  # software power cap, hardware power brake
THERMAL_BITS = 0x20 | 0x40  # software thermal slowdown, hardware thermal slowdown

# A MIG slice shares its card with strangers: these readings would be theirs too.
WHOLE_CARD = ("energy_j", "power_w", "utilisation_share", "memory_utilisation_share")


class Nvml:
    """What NVML tells of one GPU. Each reading is tried once; `missing` holds those that failed, and why."""

    def __init__(self, uuid: str, *, module: Any | None = None) -> None:
        self.sensors: list[Sensor] = []
        self.missing: dict[str, str] = {}
        self.facts: dict[str, Any] = {}
        self._open = False
        try:
            self._nvml = importlib.import_module("pynvml") if module is None else module
        except ImportError:
            self._none("NVIDIA sensors need the package 'nvidia-ml-py': pip install 'trueup[cuda]'")
            return
        try:
            self._nvml.nvmlInit()
            self._open = True
            self._handle, self.mig = self._find(uuid)
        except self._nvml.NVMLError as error:
            self._none(f"NVML: {error}")
            return
        self._probe()
        self._describe()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._nvml.nvmlShutdown()

    def _none(self, reason: str) -> None:
        self.missing = dict.fromkeys(NAMES, reason)

    def _find(self, uuid: str) -> tuple[Any, bool]:
        """(handle of the card, whether the process has only a MIG slice of it)."""
        nvml = self._nvml
        bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{bare}")
            return handle, self._mig_mode(handle)
        except nvml.NVMLError:
            slice_ = nvml.nvmlDeviceGetHandleByUUID(f"MIG-{bare}")
            return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice_), True

    def _mig_mode(self, handle: Any) -> bool:
        try:
            return bool(self._nvml.nvmlDeviceGetMigMode(handle)[0])
        except self._nvml.NVMLError:  # cards without MIG answer "not supported"
            return False

    def _readers(self) -> dict[str, tuple[Callable[[], float | None], str]]:
        nvml, handle = self._nvml, self._handle
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or (
            nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        )
        first_mj: list[int] = []

        def energy_j() -> float:
            now_mj = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            if not first_mj:
                first_mj.append(now_mj)
            return float(now_mj - first_mj[0]) / 1e3

        def throttled(bits: int) -> Callable[[], float]:
            return lambda: float(bool(reasons(handle) & bits))

        return {
            "energy_j": (energy_j, "NVML total energy counter"),
            "power_w": (
                lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
                "NVML board power; a mean over 1 s on most GPUs since Ampere",
            ),
            "temperature_c": (
                lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
                "NVML GPU die temperature",
            ),
            "clock_mhz": (
                lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
                "NVML SM clock",
            ),
            "memory_clock_mhz": (
                lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
                "NVML memory clock",
            ),
            "utilisation_share": (
                lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
                "NVML: share of time in which any kernel ran, not how full the GPU was",
            ),
            "memory_utilisation_share": (
                lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory / 100,
                "NVML: share of time in which device memory was read or written",
            ),
            "throttle_power_share": (
                throttled(POWER_BITS),
                "NVML clock event reasons: 1 while power caps the clock",
            ),
            "throttle_thermal_share": (
                throttled(THERMAL_BITS),
                "NVML clock event reasons: 1 while heat caps the clock",
            ),
        }

    def _probe(self) -> None:
        for name, (read, method) in self._readers().items():
            if self.mig and name in WHOLE_CARD:
                self.missing[name] = (
                    "a MIG slice has no reading of its own; the card's is shared with other slices"
                )
                continue
            try:
                read()
            except self._nvml.NVMLError as error:
                self.missing[name] = f"NVML: {error}"
            else:
                self.sensors.append(Sensor(name, read, method))

    def _describe(self) -> None:
        nvml, handle = self._nvml, self._handle
        readers: dict[str, Callable[[], Any]] = {
            "driver": nvml.nvmlSystemGetDriverVersion,
            "uuid": lambda: nvml.nvmlDeviceGetUUID(handle),
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
            "max_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            "max_memory_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM),
        }
        self.facts["mig"] = self.mig
        for name, read in readers.items():
            try:
                value = read()
            except nvml.NVMLError:
                value = None
            self.facts[name] = value.decode() if isinstance(value, bytes) else value
