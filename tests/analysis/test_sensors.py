"""What samples say, and that what they do not say is not made up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_records import make_record

from trueup.analysis.measure import summarize
from trueup.analysis.sensors import integrate
from trueup.schema import Measurement, Sample

SENSOR_NAMES = (
    "power_mean_w", "power_peak_w", "energy_j", "energy_per_useful_token_j", "temperature_min_c",
    "temperature_max_c", "clock_min_mhz", "clock_max_mhz", "throttle_s", "peak_host_bytes",
    "own_cpu_share", "others_cpu_share_steady", "utilisation_share",
)  # fmt: skip


def at(times_s: list[float], **sensors: list[float]) -> list[Sample]:
    """Samples at the times given, with one list of readings per sensor."""
    return [
        Sample(at_s=time_s, values={name: readings[k] for name, readings in sensors.items()})
        for k, time_s in enumerate(times_s)
    ]


def found(samples: list[Sample], **environment: object) -> dict[str, Measurement]:
    device = {"kind": "cuda", "name": "x"}
    header = {"environment": {"device": device, **environment}}
    return summarize(make_record(samples=samples, header=header))[0]


def test_without_samples_nothing_is_made_up() -> None:
    measurements = found([])
    for name in SENSOR_NAMES:
        assert measurements[name].value is None
        assert measurements[name].reason == "no samples were taken"


def test_an_absent_sensor_gives_the_devices_own_reason() -> None:
    why = "this machine has no readable sensor"
    measurements = found(at([0, 1], cpu_share=[0.5, 0.5]), missing_sensors={"power_w": why, "energy_j": why})
    for name in ("power_mean_w", "power_peak_w", "energy_j", "energy_per_useful_token_j"):
        assert measurements[name].reason == why


def test_energy_is_the_integral_of_power() -> None:
    measurements = found(at([0, 1, 2, 3], power_w=[100, 200, 200, 100]))
    assert measurements["energy_j"].value == 500
    assert measurements["energy_j"].kind == "derived"
    assert measurements["power_mean_w"].value == pytest.approx(500 / 3)
    assert measurements["power_peak_w"].value == 200
    assert measurements["energy_per_useful_token_j"].value == pytest.approx(500 / (40 * 480))


def test_a_gap_is_left_out_and_makes_a_lower_bound() -> None:
    energy = found(at([0, 1, 11, 12], power_w=[100] * 4))["energy_j"]
    assert energy.value == 200
    assert "10.0 s in gaps" in energy.method
    assert "lower bound" in energy.method


def test_readings_too_far_apart_say_so_and_make_no_zero() -> None:
    measurements = found(at([0, 10], power_w=[100, 100], throttle_thermal_share=[0, 0]))
    for name, sensor in (
        ("power_mean_w", "power_w"),
        ("energy_j", "power_w"),
        ("throttle_s", "throttle_thermal_share"),
    ):
        assert measurements[name].value is None
        assert measurements[name].reason == f"no two readings of {sensor} lie within 3 s of each other"
    assert measurements["power_peak_w"].value == 100


def test_one_devices_energy_is_not_spread_over_the_tokens_of_all_ranks() -> None:
    """Ranks count their tokens together; each reads the meter of its own device."""
    samples = at([0, 1], power_w=[100, 100])
    measurements = found(samples, world={"size": 4})
    assert measurements["energy_j"].value == 100
    assert measurements["energy_per_useful_token_j"].value is None
    assert "of one device, and 4 trained" in (measurements["energy_per_useful_token_j"].reason or "")
    on_cpu = found(samples, world={"size": 4}, device={"kind": "cpu", "name": "x"})
    assert on_cpu["energy_per_useful_token_j"].value == pytest.approx(100 / (40 * 480))


def test_the_devices_counter_is_preferred_and_checked() -> None:
    energy = found(at([0, 1, 2], energy_j=[50, 140, 250], power_w=[100, 100, 100]))["energy_j"]
    assert energy.value == 200
    assert energy.kind == "measured"
    assert "integral of power differs by +0.0%" in energy.method


def test_a_counter_that_falls_back_gives_a_lower_bound() -> None:
    energy = found(at([0, 1, 2], energy_j=[50, 140, 10]))["energy_j"]
    assert energy.value == 90
    assert "lower bound" in energy.method


def test_extremes_throttling_and_memory() -> None:
    samples = at(
        [0, 1, 2, 3],
        temperature_c=[40, 70, 65, 60],
        clock_mhz=[1900, 1500, 1980, 1980],
        throttle_thermal_share=[0, 1, 1, 0],
        throttle_power_share=[0, 0, 1, 0],
        host_rss_bytes=[1e9, 3e9, 2e9, 2e9],
        device_allocated_bytes=[1e9, 4e9, 2e9, 2e9],
    )
    measurements = found(samples)
    values = {name: one.value for name, one in measurements.items()}
    assert (values["temperature_min_c"], values["temperature_max_c"]) == (40, 70)
    assert (values["clock_min_mhz"], values["clock_max_mhz"]) == (1500, 1980)
    assert values["throttle_s"] == 2
    assert values["peak_host_bytes"] == 3e9
    assert values["peak_device_bytes"] == 4e9
    assert values["peak_device_requested_bytes"] is None


def test_neighbours_are_counted_while_training_only() -> None:
    """Steps run from 12.1 s to about 96 s; what happens before and after is another matter."""
    samples = at([1, 50, 60, 500], others_cpu_share=[0.9, 0.1, 0.3, 0.9], cpu_share=[0.2, 0.8, 0.6, 0.2])
    measurements = found(samples)
    assert measurements["others_cpu_share"].value == pytest.approx(0.2)
    assert measurements["others_cpu_share_steady"].value == pytest.approx(0.2)
    assert measurements["own_cpu_share"].value == pytest.approx(0.7)
    outside = found(at([1, 500], others_cpu_share=[0.9, 0.9]))["others_cpu_share"]
    assert outside.value is None
    assert "no sample lies in the training part" in (outside.reason or "")


def test_meters_of_a_processor_count_the_node() -> None:
    header = {"environment": {"device": {"kind": "cpu", "name": "x"}}}
    record = make_record(samples=at([0, 1], power_w=[10, 10]), header=header)
    measurements = summarize(record)[0]
    assert measurements["energy_j"].scope == "node"
    assert "own memory" in (measurements["peak_device_bytes"].reason or "")


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e3)), unique_by=lambda one: one[0], max_size=30))
def test_integral_and_gaps_cover_the_time(readings: list[tuple[float, float]]) -> None:
    readings.sort()
    area = integrate(readings)
    whole = readings[-1][0] - readings[0][0] if readings else 0.0
    assert area.covered_s + area.gap_s == pytest.approx(whole, abs=1e-6)
    assert 0 <= area.value <= area.covered_s * 1e3 + 1e-6
