"""A stand-in for pynvml: it answers as the vendor's documentation says, with numbers made up here."""

from __future__ import annotations

import types
from typing import Any


class FakeNvmlError(Exception):
    pass


class FakeNvml:
    """One GPU as pynvml shows it. `unsupported` names calls that are refused; `mig` is its MIG mode."""

    NVMLError = FakeNvmlError
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2

    def __init__(
        self, *, unsupported: tuple[str, ...] = (), mig: bool = False, only_mig_uuid: bool = False
    ) -> None:
        self.unsupported = unsupported
        self.mig = mig
        self.only_mig_uuid = only_mig_uuid
        self.energy_mj = 5_000_000
        self.reasons = 0
        self.opened = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "unsupported"):

            def refuse(*_: Any) -> Any:
                raise FakeNvmlError("Not Supported")

            return refuse
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:  # noqa: N802
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid.startswith("GPU-") == self.only_mig_uuid:
            raise FakeNvmlError("Not Found")
        return uuid

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:  # noqa: N802
        return handle.replace("MIG-", "GPU-")

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        return [int(self.mig), int(self.mig)]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        return self.energy_mj

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        return 350_000

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:  # noqa: N802
        return 61

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:  # noqa: N802
        return {1: 1700, 2: 2600}[clock]

    def nvmlDeviceGetMaxClockInfo(self, handle: str, clock: int) -> int:  # noqa: N802
        return {1: 1980, 2: 2619}[clock]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:  # noqa: N802
        return self.reasons

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        return types.SimpleNamespace(gpu=80, memory=40)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:  # noqa: N802
        return 700_000

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"580.1"

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return handle
