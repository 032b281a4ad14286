"""What a run's energy cost: measured joules times a tariff, or why not; an estimate where one is asked for.

A cloud's price an hour has its electricity in it: the figure is shown beside a bill, never added to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

from trueup.catalog import accelerator_for_device_name
from trueup.schema import Frozen, Measurement, RunHeader, RunRecord, SpanName, unavailable
from trueup.schema.bounds import TARIFF

from .outcomes import span_seconds, wall_seconds
from .totals import world_size

J_PER_KWH = 3.6e6


class Tariff(Frozen):
    """Dollars per kilowatt-hour, and who says so."""

    usd_per_kwh: Annotated[float, AfterValidator(TARIFF.checked)]
    source: str


class EnergyCost(Frozen):
    """`energy` in kWh, `cost` in USD; each with its kind, or unavailable."""

    energy: Measurement
    tariff: Tariff | None
    cost: Measurement


def tariff_given(usd_per_kwh: float, source: str) -> Tariff:
    """InputError for dollars out of bounds."""
    TARIFF.require(usd_per_kwh, f"a tariff of {usd_per_kwh} USD per kWh ({source})")
    return Tariff(usd_per_kwh=usd_per_kwh, source=source)


def tariff_of(header: RunHeader) -> Tariff | None:
    """`price.usd_per_kwh` of the run's recipe, where it gives one."""
    section = header.recipe.get("price")
    found = section.get("usd_per_kwh") if isinstance(section, Mapping) else None
    return None if found is None else tariff_given(found, "price.usd_per_kwh of the recipe")


def energy_cost(record: RunRecord, tariff: Tariff | None = None, *, estimate: bool = False) -> EnergyCost:
    """At `tariff`, by default the recipe's. `estimate`: where there is no meter, by the chips' TDP."""
    tariff = tariff or tariff_of(record.header)
    energy = energy_used(record)
    if energy.value is None and estimate:
        energy = _by_tdp(record, why_not_measured=energy.reason or "")
    return EnergyCost(energy=energy, tariff=tariff, cost=_cost(energy, tariff))


def energy_used(record: RunRecord) -> Measurement:
    """The run's measured energy in kWh."""
    found = record.measurements.get("energy_j")
    if found is None:
        return unavailable("kWh", "energy_j was not recorded (a run that was cut off has no summary)")
    if found.value is None:
        return unavailable("kWh", found.reason or "no energy was measured", scope=found.scope)
    ranks = world_size(record)
    if found.scope == "device" and ranks > 1:
        reason = f"the meter read one device, and the run had {ranks}"
        return unavailable("kWh", reason, scope=found.scope)
    return found.model_copy(
        update={"value": found.value / J_PER_KWH, "unit": "kWh", "ci": None, "ci_method": None}
    )


def _by_tdp(record: RunRecord, *, why_not_measured: str) -> Measurement:
    """Every device at full power while the run was up: more than the chips took, and without the host."""
    device = record.header.environment.get("device")
    name = str(device.get("name", "")) if isinstance(device, Mapping) else ""
    chip = accelerator_for_device_name(name)
    if chip is None:
        reason = f"{why_not_measured}; the catalog has no power of '{name or 'an unnamed device'}'"
        return unavailable("kWh", reason, scope="device")
    if chip.power_w is None:
        reason = f"{why_not_measured}; the power of {chip.title} is not known: {chip.power.reason}"
        return unavailable("kWh", reason, scope="device")
    count = world_size(record)
    on_s = wall_seconds(record) - span_seconds(record.spans, SpanName.DOWN_TIME)
    return Measurement(
        value=count * chip.power_w * on_s / J_PER_KWH,
        unit="kWh",
        kind="estimated",
        method=f"{count} × {chip.power_w:g} W for {on_s:.6g} s, as if at full power throughout, host left "
        f"out; power {chip.power.kind}: {chip.power.source}, {chip.power.as_of}",
        scope="device",
    )


def _cost(energy: Measurement, tariff: Tariff | None) -> Measurement:
    if energy.value is None:
        return unavailable("USD", f"no energy to price: {energy.reason}", scope=energy.scope)
    if tariff is None:
        reason = "no tariff: give --tariff USD_PER_KWH, or price.usd_per_kwh in the recipe"
        return unavailable("USD", reason, scope=energy.scope)
    return Measurement(
        value=energy.value * tariff.usd_per_kwh,
        unit="USD",
        kind="estimated" if energy.kind == "estimated" else "derived",
        method=f"{energy.value:.6g} kWh × {tariff.usd_per_kwh:g} USD/kWh ({tariff.source}); energy "
        f"{energy.kind}: {energy.method}",
        scope=energy.scope,
        n=energy.n,
    )
