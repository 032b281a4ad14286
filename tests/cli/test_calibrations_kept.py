"""Calibrations of one machine at several times are kept as their mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from trueup.cli.calibrations import keep, named
from trueup.schema import Calibration, ProductTime, StepRates


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUEUP_HOME", str(tmp_path / "home"))


def calibration(seconds: float, *, policy: str = "fp32", torch_version: str = "2") -> Calibration:
    rates = StepRates(
        attention="example",
        products=(ProductTime(m=16, k=16, n=16, seconds=seconds),),
        term_s={"steps": seconds},
        probes=9,
        error_median=0.1,
        error_worst=0.2,
    )
    return Calibration(
        name="here", device_kind="cpu", device_name="some CPU", threads=1, trueup_version="0",
        torch_version=torch_version, made_at="2026-11-29T00:00:00Z", seconds=1.0, measurements={},
        rates={policy: rates},
    )  # fmt: skip


def kept_step_s(policy: str = "fp32") -> float:
    found = named("here")
    assert found is not None
    return found.rates[policy].term_s["steps"]


def test_calibrating_again_keeps_the_mean() -> None:
    keep(calibration(1.0))
    keep(calibration(3.0))
    assert kept_step_s() == pytest.approx(2.0)


def test_calibrating_afresh_forgets_what_was_measured_before() -> None:
    keep(calibration(1.0))
    keep(calibration(3.0), afresh=True)
    assert kept_step_s() == 3.0


def test_another_precision_policy_stays_as_it_was() -> None:
    keep(calibration(1.0))
    keep(calibration(3.0, policy="bf16"))
    assert (kept_step_s(), kept_step_s("bf16")) == (1.0, 3.0)


def test_what_another_torch_measured_is_not_averaged_with() -> None:
    keep(calibration(1.0))
    keep(calibration(3.0, torch_version="3"))
    assert kept_step_s() == 3.0
