"""What the energy cost: metered joules times the tariff, or an estimate that says so, or a reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_records import make_record

from trueup.analysis.bill import make_bill
from trueup.analysis.energy_cost import Tariff, energy_cost, tariff_given
from trueup.catalog import accelerator
from trueup.schema import InputError, Measurement, RunRecord, SpanTotal, unavailable

TARIFF = Tariff(usd_per_kwh=0.12, source="a test")


def metered(joules: float | None, *, ranks: int = 1, device: str = "some CPU", **fields: Any) -> RunRecord:
    """A run of 1 h whose meter read so many joules; None: there is no meter."""
    found = (
        unavailable("J", "this machine has no readable sensor", scope="device")
        if joules is None
        else Measurement(
            value=joules, unit="J", kind="measured", method="the counter", scope="device", **fields
        )
    )
    environment = {"device": {"kind": "cuda", "name": device}, "world": {"size": ranks}}
    record = make_record(steps=[], header={"environment": environment, "wall_s": 3600.0})
    return record.model_copy(update={"measurements": {"energy_j": found}})


def test_metered_energy_times_the_tariff() -> None:
    """3127 W for 0.787 h are 2.46 kWh."""
    found = energy_cost(metered(3127 * 0.787 * 3600), TARIFF)
    assert found.energy.value == pytest.approx(2.46, abs=0.005)
    assert found.cost.value == pytest.approx(3.127 * 0.787 * 0.12)
    assert (found.energy.kind, found.cost.kind) == ("measured", "derived")
    assert "kWh × 0.12 USD/kWh (a test)" in found.cost.method


@given(st.floats(0, 1e12), st.floats(1e-3, 1e3))
def test_twice_the_tariff_is_twice_the_cost(joules: float, usd_per_kwh: float) -> None:
    one, two = (
        energy_cost(metered(joules), Tariff(usd_per_kwh=times * usd_per_kwh, source="a test")).cost.value
        for times in (1, 2)
    )
    assert one is not None
    assert two == pytest.approx(2 * one)


def test_without_a_meter_there_is_no_cost_and_the_reason_is_the_meters() -> None:
    found = energy_cost(metered(None, device="NVIDIA H100 80GB HBM3"), TARIFF)
    assert found.energy.kind == found.cost.kind == "unavailable"
    assert "no readable sensor" in (found.cost.reason or "")


def test_an_estimate_by_tdp_is_made_when_asked_for_and_is_labelled() -> None:
    record = metered(None, device="NVIDIA H100 80GB HBM3", ranks=8)
    found = energy_cost(record, TARIFF, estimate=True)
    power_w = accelerator("h100").power_w
    assert power_w is not None
    assert found.energy.value == pytest.approx(8 * power_w / 1000)
    assert found.energy.kind == found.cost.kind == "estimated"
    assert "as if at full power" in found.energy.method


def test_an_estimate_leaves_out_the_time_the_machine_was_down() -> None:
    record = metered(None, device="NVIDIA H100 80GB HBM3")
    down = SpanTotal(name="down_time", seconds=1800.0, count=1)
    half, whole = (
        energy_cost(one, TARIFF, estimate=True).energy.value
        for one in (record.model_copy(update={"spans": (*record.spans, down)}), record)
    )
    assert whole is not None
    assert half == pytest.approx(whole / 2)


def test_a_meter_is_believed_rather_than_an_estimate() -> None:
    record = metered(7200.0, device="NVIDIA H100 80GB HBM3")
    assert energy_cost(record, TARIFF, estimate=True) == energy_cost(record, TARIFF)


def test_a_chip_whose_power_nobody_knows_is_not_estimated() -> None:
    found = energy_cost(metered(None, device="some CPU"), TARIFF, estimate=True)
    assert found.energy.value is None
    assert "the catalog has no power of 'some CPU'" in (found.energy.reason or "")


def test_one_devices_meter_is_not_the_energy_of_several() -> None:
    found = energy_cost(metered(7200.0, ranks=2), TARIFF)
    assert found.energy.value is None
    assert "one device, and the run had 2" in (found.energy.reason or "")


def test_without_a_tariff_the_energy_is_known_and_its_cost_is_not() -> None:
    found = energy_cost(metered(3.6e6))
    assert found.energy.value == 1.0
    assert "--tariff" in (found.cost.reason or "")


def test_the_recipe_may_give_the_tariff() -> None:
    record = metered(3.6e6)
    header = record.header.model_copy(update={"recipe": {"price": {"usd_per_kwh": 0.25}}})
    found = energy_cost(record.model_copy(update={"header": header}))
    assert found.cost.value == 0.25
    assert "price.usd_per_kwh of the recipe" in found.cost.method


def test_electricity_is_beside_the_bill_and_not_in_its_total() -> None:
    record = metered(3.6e6)
    bill = make_bill(record, tariff=TARIFF)
    assert bill.energy.cost.value == pytest.approx(0.12)
    assert bill.total_usd == make_bill(record).total_usd


@pytest.mark.parametrize("usd_per_kwh", [0.0, -0.1, float("nan"), float("inf"), 1e300])
def test_a_tariff_that_is_none_is_refused(usd_per_kwh: float) -> None:
    with pytest.raises(InputError, match="expected a number from"):
        tariff_given(usd_per_kwh, "a test")
