"""NVML readings against a stand-in for pynvml."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from vendor_stand_ins import FakeNvml

from trueup.device.cuda import CudaDevice
from trueup.device.nvml import NAMES, WHOLE_CARD, Nvml


def reading(nvml: Nvml, name: str) -> float | None:
    return next(sensor for sensor in nvml.sensors if sensor.name == name).read()


def test_units_are_converted() -> None:
    fake = FakeNvml()
    nvml = Nvml("1234", module=fake)
    assert reading(nvml, "power_w") == 350
    assert reading(nvml, "utilisation_share") == 0.8
    fake.energy_mj += 2500
    assert reading(nvml, "energy_j") == 2.5  # joules since opened, not since the driver was loaded
    assert nvml.facts["driver"] == "580.1"
    assert nvml.facts["power_limit_w"] == 700


@pytest.mark.parametrize(
    ("reasons", "power", "thermal"),
    [(0, 0, 0), (0x1, 0, 0), (0x4, 1, 0), (0x80, 1, 0), (0x20, 0, 1), (0x48, 0, 1)],
)
def test_throttle_bits(reasons: int, power: int, thermal: int) -> None:
    fake = FakeNvml()
    nvml = Nvml("1234", module=fake)
    fake.reasons = reasons
    assert reading(nvml, "throttle_power_share") == power
    assert reading(nvml, "throttle_thermal_share") == thermal


def test_an_unsupported_reading_is_missing_with_the_vendors_words() -> None:
    nvml = Nvml("1234", module=FakeNvml(unsupported=("nvmlDeviceGetTotalEnergyConsumption",)))
    assert nvml.missing == {"energy_j": "NVML: Not Supported"}
    assert {sensor.name for sensor in nvml.sensors} == set(NAMES) - {"energy_j"}


@pytest.mark.parametrize("fake", [FakeNvml(mig=True), FakeNvml(only_mig_uuid=True)])
def test_a_mig_slice_does_not_claim_the_cards_power(fake: FakeNvml) -> None:
    nvml = Nvml("1234", module=fake)
    assert set(nvml.missing) == set(WHOLE_CARD)
    assert reading(nvml, "temperature_c") == 61


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetHandleByUUID"])
def test_without_a_driver_everything_is_missing(call: str) -> None:
    unsupported = (call,)
    nvml = Nvml("1234", module=FakeNvml(unsupported=unsupported))
    assert set(nvml.missing) == set(NAMES)
    assert nvml.sensors == []
    nvml.close()


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    nvml = Nvml("1234")
    assert "trueup[cuda]" in nvml.missing["power_w"]


def test_close_gives_the_library_back() -> None:
    fake = FakeNvml()
    nvml = Nvml("1234", module=fake)
    assert fake.opened == 1
    nvml.close()
    nvml.close()
    assert fake.opened == 0


def test_memory_from_the_flat_statistics(fake_cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    stats = {
        f"{what}_bytes.all.{when}": value
        for what, values in {"requested": (1, 2), "allocated": (3, 4), "reserved": (5, 6)}.items()
        for when, value in zip(("current", "peak"), values, strict=True)
    }
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda index: stats)
    memory = CudaDevice().memory()
    assert memory is not None
    assert (memory.requested_bytes, memory.peak_requested_bytes) == (1, 2)
    assert (memory.allocated_bytes, memory.peak_allocated_bytes) == (3, 4)
    assert (memory.reserved_bytes, memory.peak_reserved_bytes) == (5, 6)
