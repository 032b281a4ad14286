"""What the guard derives from steps and samples, and the rules made of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from trueup.analysis.guard import advance
from trueup.analysis.guard_presets import NO_BUDGET, NO_PRICE, PRESETS, expanded, named
from trueup.analysis.guard_records import GuardState, Policy, Reading
from trueup.analysis.guard_values import (
    MONTH_S,
    Facts,
    Observed,
    after_pause,
    after_restart,
    observe,
    spike,
)
from trueup.analysis.guard_words import not_watched
from trueup.schema import Sample, Step
from trueup.schema.watched import DERIVED_VALUES, STEP_VALUES

GB = 1e9
KNOWN = Facts(
    usd_per_hour=3.6,
    total_steps=100,
    host_memory_bytes=int(100 * GB),
    device_memory_bytes=int(80 * GB),
    power_limit_w=500,
)


def step(n: int, **fields: Any) -> Step:
    """Ten seconds each, one of them waiting for data."""
    given: dict[str, Any] = {
        "step": n, "start_s": 10 * n - 9, "step_s": 9, "data_wait_s": 1, "loss": 2.0, "grad_norm": 1, "lr": 1,
        "useful_tokens": 1, "supervised_tokens": 1, "processed_tokens": 100, "head_rows": 1,
        "attention_sum_sq": 1, "micro_batches": 1, "shape": (1, 1),
    }  # fmt: skip
    return Step(**(given | fields))


def sample(at_s: float, **values: float) -> Sample:
    return Sample(at_s=at_s, values=values)


def watched(records: Iterable[Step | Sample], facts: Facts = KNOWN) -> tuple[Observed, list[Reading]]:
    observed, readings = Observed(), []
    for record in records:
        observed, new = observe(facts, observed, record)
        readings += new
    return observed, readings


def last(readings: list[Reading], name: str) -> float | None:
    return next((r.values[name] for r in reversed(readings) if name in r.values), None)


def test_every_derived_value_is_named_and_every_name_is_derived() -> None:
    """But the free disk, which the run asks its file system for."""
    steps = [step(n) for n in range(1, 20)]
    samples = [
        sample(
            t,
            clock_mhz=1000,
            power_w=400,
            host_available_bytes=50 * GB,
            host_rss_bytes=1e9 + t * 1e6,
            device_allocated_bytes=2e9,
        )
        for t in range(700)
    ]
    sensors = {"clock_mhz", "power_w", "host_available_bytes", "host_rss_bytes", "device_allocated_bytes"}
    _, readings = watched([*steps, *samples])
    assert {name for r in readings for name in r.values} - sensors == set(DERIVED_VALUES) - {
        "disk_free_bytes"
    }
    _, of_steps = watched(steps)
    assert {name for r in of_steps for name in r.values} - {"usd_spent"} == set(STEP_VALUES)


def test_without_facts_what_needs_them_is_not_there() -> None:
    _, readings = watched(
        [*(step(n) for n in range(1, 20)), sample(5, power_w=400, host_rss_bytes=1)], Facts()
    )
    names = {name for r in readings for name in r.values}
    assert not {n for n in names if n.startswith("usd") or n.endswith("memory_share")}
    assert "power_share" not in names


def test_dollars_at_the_recent_rate() -> None:
    """3.60 an hour are 0.001 a second; a hundred steps of ten seconds come to one dollar."""
    _, readings = watched(step(n) for n in range(1, 41))
    assert last(readings, "usd_spent") == pytest.approx(0.4)
    assert last(readings, "usd_projected") == pytest.approx(1.0)
    assert last(readings, "usd_after_next_step") == pytest.approx(0.41)
    # what lies between the steps, an evaluation say, is part of the rate; a pause is not
    slow = [step(n, start_s=20 * n - 9) for n in range(1, 41)]
    _, readings = watched(slow)
    assert last(readings, "usd_projected") == pytest.approx(0.8 + 60 * 0.02, rel=0.02)
    observed, _ = watched(step(n) for n in range(1, 41))
    observed = after_pause(observed, 5000)
    _, (reading, *_) = observe(KNOWN, observed, step(41, start_s=5001))
    assert reading.values["usd_projected"] == pytest.approx(5.01 + 0.59)
    down = KNOWN.model_copy(update={"down_s": 100.0})
    assert last(watched([step(20)], down)[1], "usd_spent") == pytest.approx(0.1)


def test_ratios_are_to_running_medians_and_wait_until_there_is_one() -> None:
    steps = [step(n, processed_tokens=100 + 100 * (n % 2), step_s=9 + 9 * (n % 2)) for n in range(1, 21)]
    _, readings = watched(steps)
    assert sum("step_time_ratio" in r.values for r in readings) == 10
    # twice the tokens in twice the time is no slow step
    assert last(readings, "step_time_ratio") == pytest.approx(1)
    _, readings = watched([*steps, step(21, step_s=27, loss=8.0)])
    assert last(readings, "step_time_ratio") == pytest.approx(3)
    assert last(readings, "loss_ratio") == pytest.approx(4)
    assert last(readings, "data_wait_share") == pytest.approx(1 / 28)


def test_steps_that_say_nothing_are_left_out() -> None:
    before = [step(n) for n in range(1, 21)]
    _, usual = watched(before)
    odd = [
        step(21, step_s=90, labels=("compile",)),
        step(22, loss=float("nan")),
        step(23, loss=9.0, skipped=True),
    ]
    _, readings = watched([*before, *odd])
    assert (
        sum("step_time_ratio" in r.values for r in readings)
        == sum("step_time_ratio" in r.values for r in usual) + 2
    )
    assert last(readings, "loss") == 2.0


def test_a_clock_is_measured_by_what_it_was() -> None:
    cool = [sample(t / 2, clock_mhz=2000) for t in range(200)]
    _, readings = watched([*cool, sample(100, clock_mhz=1500)])
    assert last(readings, "clock_share") == pytest.approx(0.75)
    assert "clock_share" not in {n for r in watched(cool[:50])[1] for n in r.values}


def test_a_pause_is_neither_throttling_nor_what_is_usual() -> None:
    """An idle chip clocks down and cools: no throttle is to be seen in it, nor in what follows."""
    observed, _ = watched(sample(t / 2, clock_mhz=2000, power_w=400, temperature_c=70) for t in range(200))
    before = observed
    for t in range(100, 2000):
        idle = sample(t, clock_mhz=300, power_w=50, temperature_c=30)
        observed, readings = observe(KNOWN, observed, idle, paused=True)
        assert "clock_share" not in {name for reading in readings for name in reading.values}
    assert observed.model_copy(update={"heard": before.heard}) == before
    again = sample(2000, clock_mhz=1500, power_w=400, temperature_c=70)
    assert spike(observed, again) is None
    assert last([*observe(KNOWN, observed, again)[1]], "clock_share") == pytest.approx(0.75)


def test_the_fuller_memory_counts() -> None:
    _, readings = watched([sample(1, host_available_bytes=40 * GB, device_allocated_bytes=20 * GB)])
    assert last(readings, "host_memory_share") == pytest.approx(0.6)
    assert last(readings, "device_memory_share") == pytest.approx(0.25)
    assert last(readings, "memory_share") == pytest.approx(0.6)
    box = KNOWN.model_copy(update={"container_memory_bytes": int(10 * GB)})
    _, readings = watched([sample(1, host_available_bytes=40 * GB, host_rss_bytes=9 * GB)], box)
    assert last(readings, "memory_share") == pytest.approx(0.9)


def memory(seconds: int, used: Any, start_s: int = 0) -> list[Sample]:
    return [
        sample(t, host_rss_bytes=used(t), host_available_bytes=90 * GB - used(t))
        for t in range(start_s, start_s + seconds)
    ]


def test_a_leak_is_steady_growth_and_neither_a_saw_nor_a_step() -> None:
    facts = KNOWN.model_copy(update={"total_steps": None})
    leak = memory(900, lambda t: 10 * GB + 1e6 * t + 5 * GB * (t % 10 > 4))  # activations come and go
    _, readings = watched(leak, facts)
    assert last(readings, "memory_growth_bytes_per_hour") == pytest.approx(3.6e9, rel=0.05)
    left = 90 * GB - leak[-1].values["host_rss_bytes"]
    assert last(readings, "memory_full_in_s") == pytest.approx(left / 1e6, rel=0.1)
    for harmless in (lambda t: 10 * GB, lambda t: (10 + 30 * (t > 400)) * GB, lambda t: (10 + t % 7) * GB):
        _, readings = watched(memory(900, harmless), facts)
        assert last(readings, "memory_growth_bytes_per_hour") == 0
        assert last(readings, "memory_full_in_s") == MONTH_S


def test_a_leak_that_the_run_outlives_is_none() -> None:
    observed, _ = watched(step(n) for n in range(1, 100))  # one step of ten seconds is left
    for one in memory(900, lambda t: 10 * GB + 1e6 * t):
        observed, new = observe(KNOWN, observed, one)
        full = [r.values["memory_full_in_s"] for r in new if "memory_full_in_s" in r.values]
        assert all(value == MONTH_S for value in full)
    assert "memory_full_in_s" in observed.heard


def test_growth_begins_anew_after_a_gap() -> None:
    samples = [*memory(600, lambda t: 10 * GB + 1e6 * t), *memory(200, lambda t: 50 * GB, 5000)]
    observed, _ = watched(samples)
    assert len(observed.host.parts) == 200 // 30


def test_what_is_remembered_survives_json_and_a_restart() -> None:
    records = [*(step(n) for n in range(1, 30)), *memory(400, lambda t: GB * t), sample(500, clock_mhz=5)]
    observed, _ = watched(records)
    kept = Observed.model_validate(json.loads(json.dumps(observed.model_dump(mode="json"), allow_nan=False)))
    assert kept == observed
    fresh = after_restart(kept)
    assert (fresh.losses, fresh.step) == (observed.losses, 29)
    assert fresh.host.parts == ()


def test_a_sensor_that_another_machine_had_has_yet_to_be_heard_here() -> None:
    observed, _ = watched([step(1), sample(5, temperature_c=60)])
    fresh = after_restart(observed)
    found = not_watched({"temperature_c", "loss"}, fresh.heard, {"temperature_c": "no sensor"}, 0)
    assert found == {"temperature_c": "rules on temperature_c cannot act: no sensor"}


def test_a_spike_is_far_above_the_median_before() -> None:
    observed, _ = watched(sample(t, power_w=100, temperature_c=60) for t in range(30))
    assert spike(observed, sample(31, power_w=110, temperature_c=64)) is None
    assert "power_w rose to 150 W, from 100 W" in (spike(observed, sample(31, power_w=150)) or "")
    assert "temperature_c" in (spike(observed, sample(31, temperature_c=66)) or "")
    assert spike(Observed(), sample(1, power_w=1e6)) is None


# --- presets ----------------------------------------------------------------------------------------------


def test_a_preset_without_a_number_to_go_by_says_so_and_does_nothing() -> None:
    assert expanded(["budget"], KNOWN, None) == ((), (NO_BUDGET,))
    assert expanded(["budget"], Facts(), 5.0) == ((), (NO_PRICE,))
    assert len(expanded(["power", "leak"], Facts(), None)[1]) == 2
    assert expanded(["budget", "power", "leak", "thermal"], KNOWN, 5.0)[1] == ()


def test_all_is_the_four_and_more_and_names_are_unique() -> None:
    every, _ = expanded(["all"], KNOWN, 5.0)
    four, _ = expanded(PRESETS, KNOWN, 5.0)
    assert set(four) < set(every)
    assert expanded(["all", "leak"], KNOWN, 5.0)[0] == every
    rules = named([*every, every[0], every[0].model_copy(update={"window_s": 77.0})])
    assert len({rule.name for rule in rules}) == len(rules) == len(every) + 1
    assert rules[0].name == "temperature_c above 85: warn"


def test_no_preset_pauses_on_what_cannot_come_back() -> None:
    for rule in expanded(["all"], KNOWN, 5.0)[0]:
        assert rule.action != "pause" or rule.watch not in {*STEP_VALUES, "usd_spent"}


def test_the_budget_warns_early_saves_and_stops_before_it_is_passed() -> None:
    """One dollar would be spent; seventy cents and a half are allowed."""
    policy = Policy(rules=named(expanded(["budget"], KNOWN, 0.705)[0]))
    observed, state, done = Observed(), GuardState(), []
    for n in range(1, 101):
        observed, readings = observe(KNOWN, observed, step(n))
        state, actions = advance(policy, state, readings, 10.0 * n)
        done += [(action.kind, n) for action in actions]
    assert [kind for kind, _ in done] == ["warn", "checkpoint", "stop"]
    (_, warned), (_, saved), (_, stopped) = done
    assert warned <= 10
    assert saved == 64
    assert stopped == 70  # 0.70 is spent: one more step would pass it


def test_what_cannot_be_watched_is_said_with_the_reason() -> None:
    missing = {"temperature_c": "no sensor here", "clock_mhz": "a virtual machine"}
    at_once = not_watched({"temperature_c", "clock_share", "power_w"}, (), missing, 0)
    assert set(at_once) == {"temperature_c", "clock_share"}
    assert at_once["clock_share"] == "rules on clock_share cannot act: a virtual machine"
    later = not_watched({"temprature_c", "loss", "power_w"}, {"temperature_c"}, {}, 130)
    assert set(later) == {"temprature_c", "power_w"}
    assert "did you mean temperature_c?" in later["temprature_c"]
    assert not_watched({"memory_full_in_s"}, (), {}, 130) == {}
    # a rule of one's own on dollars, where nobody knows the price
    dollars = not_watched({"usd_projected", "usd_spent"}, (), Facts().unknowable(), 0)
    assert set(dollars) == {"usd_projected", "usd_spent"}
    assert "give price.usd_per_hour" in dollars["usd_projected"]
    assert KNOWN.unknowable() == {}
    assert "memory_full_in_s" in not_watched({"memory_full_in_s"}, (), {}, 1000)
