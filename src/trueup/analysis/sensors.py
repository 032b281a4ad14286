"""What a run's samples say: energy, power, heat, clocks, memory, and who used the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import fsum
from typing import NamedTuple

from trueup.schema import Measurement, RunRecord, Sample, Scope, Step

from .names import figure, missing
from .totals import world_size

Found = dict[str, Measurement]
Series = list[tuple[float, float]]  # (time in s, value), in order of time

LONGEST_GAP_S = 3.0  # longer stretches without a reading are not filled
NO_SAMPLES = "no samples were taken"
_ON_CPU = "on a CPU tensors are in the process's own memory: see peak_host_bytes"


class Integral(NamedTuple):
    """∫ value dt over the stretches without a gap; `gap_s` is what the gaps leave out."""

    value: float
    covered_s: float
    gap_s: float


def series(samples: Sequence[Sample], sensor: str) -> Series:
    """Readings of one sensor in order of time."""
    return sorted((sample.at_s, sample.values[sensor]) for sample in samples if sensor in sample.values)


def integrate(readings: Series) -> Integral:
    """Trapezoid rule; a stretch longer than LONGEST_GAP_S between two readings is a gap."""
    parts, covered, gaps = [], [], []
    for (t0, v0), (t1, v1) in pairwise(readings):
        if t1 - t0 > LONGEST_GAP_S:
            gaps.append(t1 - t0)
        else:
            parts.append((v0 + v1) / 2 * (t1 - t0))
            covered.append(t1 - t0)
    return Integral(fsum(parts), fsum(covered), fsum(gaps))


def of_samples(record: RunRecord, steady_steps: Sequence[Step], useful_tokens: float) -> Found:
    """Every measurement that rests on samples. `steady_steps` are the steps of the steady part."""
    sight = _Sight.of(record)
    found = _energy(sight, useful_tokens)
    found |= _extremes(sight)
    found["throttle_s"] = _throttle(sight)
    found["utilisation_share"] = sight.mean("utilisation_share", "utilisation_share", "mean over the samples")
    found |= _memory(sight)
    found |= _load(sight, record.steps, steady_steps)
    return found


class _Sight(NamedTuple):
    """The samples, and what is known of absent sensors."""

    samples: Sequence[Sample]
    absent: Mapping[str, str]
    on_cpu: bool
    ranks: int

    @classmethod
    def of(cls, record: RunRecord) -> _Sight:
        environment = record.header.environment
        absent = environment.get("missing_sensors")
        device = environment.get("device")
        on_cpu = isinstance(device, Mapping) and device.get("kind") == "cpu"
        reasons = (
            {str(key): str(value) for key, value in absent.items()} if isinstance(absent, Mapping) else {}
        )
        return cls(record.samples, reasons, on_cpu, world_size(record))

    @property
    def sensor_scope(self) -> Scope:
        """A processor's meters count the whole node."""
        return "node" if self.on_cpu else "device"

    def series(self, sensor: str) -> Series:
        return series(self.samples, sensor)

    def why_absent(self, sensor: str) -> str:
        if sensor in self.absent:
            return self.absent[sensor]
        if any(sensor in sample.values for sample in self.samples):
            return f"no two readings of {sensor} lie within {LONGEST_GAP_S:g} s of each other"
        return f"no reading of {sensor} was taken" if self.samples else NO_SAMPLES

    def none(self, name: str, sensor: str) -> Measurement:
        return missing(name, self.why_absent(sensor), scope=self.sensor_scope)

    def mean(self, name: str, sensor: str, method: str) -> Measurement:
        values = [value for _, value in self.series(sensor)]
        if not values:
            return self.none(name, sensor)
        scope = self.sensor_scope
        return figure(name, fsum(values) / len(values), "measured", method, n=len(values), scope=scope)


def _energy(sight: _Sight, useful_tokens: float) -> Found:
    power = sight.series("power_w")
    area = integrate(power)
    scope = sight.sensor_scope
    found: Found = {}
    if area.covered_s > 0:
        method = f"time-weighted mean over {area.covered_s:.1f} s of samples"
        found["power_mean_w"] = figure(
            "power_mean_w", area.value / area.covered_s, "measured", method, n=len(power), scope=scope
        )
    else:
        found["power_mean_w"] = sight.none("power_mean_w", "power_w")
    if power:
        highest = max(value for _, value in power)
        found["power_peak_w"] = figure(
            "power_peak_w", highest, "measured", "highest sample", n=len(power), scope=scope
        )
    else:
        found["power_peak_w"] = sight.none("power_peak_w", "power_w")
    found["energy_j"] = _total_energy(sight, area, len(power))
    found["energy_per_useful_token_j"] = energy_per_token(found["energy_j"], useful_tokens, sight.ranks)
    return found


def _total_energy(sight: _Sight, area: Integral, power_n: int) -> Measurement:
    """The device's own counter, checked against the integral of power; else that integral."""
    scope = sight.sensor_scope
    counter = sight.series("energy_j")
    if len(counter) >= 2:
        rises = [later - earlier for (_, earlier), (_, later) in pairwise(counter)]
        total = fsum(rise for rise in rises if rise > 0)
        method = (
            f"the device's energy counter, from {counter[0][0]:.1f} s to {counter[-1][0]:.1f} s of the run"
        )
        if any(rise < 0 for rise in rises):
            method += "; the counter fell back on the way: a lower bound"
        if area.value > 0 and area.gap_s == 0:
            method += f"; the integral of power differs by {100 * (area.value - total) / area.value:+.1f}%"
        return figure("energy_j", total, "measured", method, n=len(counter), scope=scope)
    if area.covered_s <= 0:
        return sight.none("energy_j", "energy_j" if not power_n else "power_w")
    method = f"integral of power over {area.covered_s:.1f} s of samples"
    if area.gap_s > 0:
        method += f"; {area.gap_s:.1f} s in gaps without a sample are left out: a lower bound"
    return figure("energy_j", area.value, "derived", method, n=power_n, scope=scope)


def energy_per_token(energy: Measurement, useful_tokens: float, ranks: int) -> Measurement:
    """J per useful token. The tokens are of all ranks, the leading rank's device has but its own energy."""
    name = "energy_per_useful_token_j"
    if energy.value is None:
        return missing(name, energy.reason or NO_SAMPLES, scope=energy.scope)
    if useful_tokens <= 0:
        return missing(name, "no useful token was trained", scope=energy.scope)
    if ranks > 1 and energy.scope == "device":
        reason = f"the energy is of one device, and {ranks} trained the tokens"
        return missing(name, reason, scope=energy.scope)
    method = f"energy over useful tokens; {energy.method}"
    return figure(name, energy.value / useful_tokens, "derived", method, n=energy.n, scope=energy.scope)


def _extremes(sight: _Sight) -> Found:
    found: Found = {}
    for stem, sensor, unit in (("temperature", "temperature_c", "c"), ("clock", "clock_mhz", "mhz")):
        values = [value for _, value in sight.series(sensor)]
        for which, pick in (("min", min), ("max", max)):
            name = f"{stem}_{which}_{unit}"
            if values:
                method = f"{'lowest' if which == 'min' else 'highest'} sample"
                found[name] = figure(
                    name, pick(values), "measured", method, n=len(values), scope=sight.sensor_scope
                )
            else:
                found[name] = sight.none(name, sensor)
    return found


def _throttle(sight: _Sight) -> Measurement:
    """Seconds in which a throttle flag was up; the flags are 0 or 1."""
    flags: dict[float, float] = {}
    for sensor in ("throttle_power_share", "throttle_thermal_share"):
        for at_s, value in sight.series(sensor):
            flags[at_s] = max(value, flags.get(at_s, 0.0))
    area = integrate(sorted(flags.items()))
    if area.covered_s <= 0:
        return sight.none("throttle_s", "throttle_thermal_share")
    method = f"integral of the device's clock-cap flags over {area.covered_s:.1f} s of samples"
    return figure("throttle_s", area.value, "measured", method, n=len(flags), scope=sight.sensor_scope)


def _memory(sight: _Sight) -> Found:
    """Peaks as sampled: a short peak between two samples is missed, so a counter from the run is better."""
    found: Found = {}
    for name, sensor in (
        ("peak_host_bytes", "host_rss_bytes"),
        ("peak_device_bytes", "device_allocated_bytes"),
        ("peak_device_allocated_bytes", "device_allocated_bytes"),
        ("peak_device_reserved_bytes", "device_reserved_bytes"),
    ):
        values = [value for _, value in sight.series(sensor)]
        if values:
            found[name] = figure(name, max(values), "measured", "highest sample", n=len(values))
        elif sight.on_cpu and sensor.startswith("device_"):
            found[name] = missing(name, _ON_CPU)
        else:
            found[name] = missing(name, sight.why_absent(sensor))
    reason = _ON_CPU if sight.on_cpu else "the device reports no requested bytes"
    found["peak_device_requested_bytes"] = missing("peak_device_requested_bytes", reason)
    return found


def _load(sight: _Sight, steps: Sequence[Step], steady_steps: Sequence[Step]) -> Found:
    found: Found = {}
    for name, sensor, part, what in (
        ("others_cpu_share_steady", "others_cpu_share", steady_steps, "the steady part"),
        ("others_cpu_share", "others_cpu_share", steps, "the training part"),
        ("own_cpu_share", "cpu_share", steps, "the training part"),
    ):
        readings = sight.series(sensor)
        if not readings:
            found[name] = missing(name, sight.why_absent(sensor))
            continue
        begin = part[0].start_s if part else 0.0
        end = part[-1].start_s + part[-1].step_s if part else 0.0
        values = [value for at_s, value in readings if begin <= at_s <= end]
        if values:
            method = f"mean of the samples in {what}"
            found[name] = figure(name, fsum(values) / len(values), "measured", method, n=len(values))
        else:
            found[name] = missing(
                name, f"no sample lies in {what}" if part else f"there is no step in {what}"
            )
    return found
