"""What a guard watches, from a run's steps and samples: each gives one or two readings. Pure, and no numpy:
this runs beside every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from pydantic import Field

from trueup.schema import Frozen, Sample, Step
from trueup.schema.watched import STEP_VALUES

from .guard_history import Growth, History
from .guard_records import Reading

LATEST_STEPS = 50  # that running medians of loss and step time, and the recent rate, look back on
FEWEST_STEPS = 10  # before a median of steps means anything
CLOCK_PART_S, CLOCK_PARTS, FEWEST_CLOCK_PARTS = 5.0, 240, 6  # 20 minutes, at least 30 s
GROWTH_PART_S, GROWTH_PARTS, FEWEST_GROWTH_PARTS = 30.0, 31, 10  # 15 minutes, at least 5
MONTH_S = 30 * 86400.0
SPIKE_PARTS_S = 5.0
SPIKE_POWER_SHARE = 1.2  # of the running median
SPIKE_TEMPERATURE_C = 5.0  # over the running median
_DISTURBED = {"compile", "first_shape"}  # labels of steps whose time says nothing


class Facts(Frozen):
    """What derived values rest on; None: unknown, and what needs it is not there."""

    usd_per_hour: float | None = None
    down_s: float = 0.0  # of the run's clock, in which no process of it lived: nobody is billed for it
    total_steps: int | None = None
    host_memory_bytes: int | None = None  # of the machine
    container_memory_bytes: int | None = None
    device_memory_bytes: int | None = None
    power_limit_w: float | None = None

    def unknowable(self) -> dict[str, str]:
        """Values of which none will ever be known for want of these facts, and why."""
        if self.usd_per_hour is None:
            reason = "the run has no price: give price.usd_per_hour or platform.instance"
            return dict.fromkeys(("usd_spent", "usd_after_next_step", "usd_projected"), reason)
        if self.total_steps is None:
            return {"usd_projected": "how many steps the run will make is not known"}
        return {}


class Observed(Frozen):
    """What is remembered of a run's steps and samples. JSON-able, like the guard's state."""

    clock: History = History()
    power: History = History()
    temperature: History = History()
    host: Growth = Growth()
    device: Growth = Growth()
    step_s_per_token: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    interval_s: tuple[float, ...] = ()  # from the end of a step to the end of the next, pauses left out
    step: int = 0
    step_end_s: float | None = None
    heard: tuple[str, ...] = Field((), description="values that were there at least once")


def after_pause(observed: Observed, at_s: float) -> Observed:
    """The time up to now is no step's."""
    if observed.step_end_s is None:
        return observed
    return observed.model_copy(update={"step_end_s": max(at_s, observed.step_end_s)})


def after_restart(observed: Observed) -> Observed:
    """In a process that goes on with the run, on another machine maybe: what is remembered of steps holds, of
    sensors does not."""
    return Observed(
        step_s_per_token=observed.step_s_per_token,
        losses=observed.losses,
        interval_s=observed.interval_s,
        step=observed.step,
        heard=tuple(name for name in observed.heard if name in STEP_VALUES),
    )


def observe(
    facts: Facts, observed: Observed, record: Step | Sample, *, paused: bool = False
) -> tuple[Observed, tuple[Reading, ...]]:
    """The readings that one more record gives. Records come in order of time. `paused`: the device idles, so
    that its clock, power and temperature are no part of what is usual."""
    if isinstance(record, Step):
        after, readings = _of_step(facts, observed, record)
    else:
        after, readings = _of_sample(facts, observed, record, paused=paused)
    new = [name for one in readings for name in one.values if name not in observed.heard]
    if new:
        after = after.model_copy(update={"heard": (*observed.heard, *dict.fromkeys(new))})
    return after, readings


def end_of(record: Step | Sample) -> float:
    if isinstance(record, Sample):
        return record.at_s
    return record.start_s + record.step_s + record.communication_s


def spike(observed: Observed, sample: Sample) -> str | None:
    """In words, what of a sample lies far above its running median; for what is to blame something."""
    for name, usual, unit in (
        ("power_w", observed.power.median, "W"),
        ("temperature_c", observed.temperature.median, "°C"),
    ):
        value = sample.values.get(name)
        if value is None or usual is None:
            continue
        limit = usual * SPIKE_POWER_SHARE if name == "power_w" else usual + SPIKE_TEMPERATURE_C
        if value > limit:
            return f"{name} rose to {value:.4g} {unit}, from {usual:.4g} {unit} in the median before"
    return None


def _of_step(facts: Facts, observed: Observed, step: Step) -> tuple[Observed, tuple[Reading, ...]]:
    end_s, work_s = end_of(step), step.step_s + step.communication_s
    whole_s = work_s + step.data_wait_s
    since_s = observed.step_end_s if observed.step_end_s is not None else end_s - whole_s
    # not below the step's own time: the clock of a resumed run may stand behind
    interval_s = _latest(observed.interval_s, max(end_s - since_s, whole_s))
    values: dict[str, float] = {}
    times, losses = observed.step_s_per_token, observed.losses
    if whole_s > 0:
        values["data_wait_share"] = step.data_wait_s / whole_s
    if step.processed_tokens > 0 and not _DISTURBED & set(step.labels):
        per_token_s = work_s / step.processed_tokens
        if len(times) >= FEWEST_STEPS and (usual_s := median(times)) > 0:
            values["step_time_ratio"] = per_token_s / usual_s
        times = _latest(times, per_token_s)
    if math.isfinite(step.loss) and not step.skipped:
        values["loss"] = step.loss
        if len(losses) >= FEWEST_STEPS and (usual := median(losses)) > 0:
            values["loss_ratio"] = step.loss / usual
        losses = _latest(losses, step.loss)
    values |= _dollars(facts, step, end_s, interval_s)
    after = observed.model_copy(
        update={
            "step_s_per_token": times,
            "losses": losses,
            "interval_s": interval_s,
            "step": step.step,
            "step_end_s": end_s,
        }
    )
    return after, (Reading(at_s=end_s, values=values, holds_s=whole_s), *_spent(facts, end_s))


def _dollars(facts: Facts, step: Step, end_s: float, interval_s: Sequence[float]) -> dict[str, float]:
    if facts.usd_per_hour is None:
        return {}
    usd_per_s, recent_s = facts.usd_per_hour / 3600, sum(interval_s) / len(interval_s)
    lived_s = end_s - facts.down_s
    values = {"usd_after_next_step": (lived_s + recent_s) * usd_per_s}
    if facts.total_steps is not None:
        left = max(0, facts.total_steps - step.step)
        values["usd_projected"] = (lived_s + left * recent_s) * usd_per_s
    return values


def _spent(facts: Facts, at_s: float) -> tuple[Reading, ...]:
    if facts.usd_per_hour is None:
        return ()
    usd = (at_s - facts.down_s) * facts.usd_per_hour / 3600
    # a counter: what it shows is judged, not what it showed on average
    return (Reading(at_s=at_s, values={"usd_spent": usd}, holds_s=MONTH_S),)


def _of_sample(
    facts: Facts, observed: Observed, sample: Sample, *, paused: bool
) -> tuple[Observed, tuple[Reading, ...]]:
    at_s, given = sample.at_s, sample.values
    values = dict(given)
    clock, usual = given.get("clock_mhz"), observed.clock.median
    if clock is not None and usual and len(observed.clock.parts) >= FEWEST_CLOCK_PARTS and not paused:
        values["clock_share"] = clock / usual
    changes: dict[str, History | Growth] = {**({} if paused else _usual(observed, sample))}
    if facts.power_limit_w and (power := given.get("power_w")) is not None:
        values["power_share"] = power / facts.power_limit_w
    values |= memory_shares(facts, given)
    readings = [Reading(at_s=at_s, values=values), *_spent(facts, at_s)]
    grown = _grown(facts, observed, sample)
    changes |= grown
    # a part has just ended: only now is there something new to say of growth
    if any(grown[name].parts != getattr(observed, name).parts for name in grown):
        after = observed.model_copy(update=changes)
        if growth := _growth(facts, after, given):
            readings.append(Reading(at_s=at_s, values=growth, holds_s=GROWTH_PART_S))
        return after, tuple(readings)
    return observed.model_copy(update=changes), tuple(readings)


def _usual(observed: Observed, sample: Sample) -> dict[str, History]:
    """The histories of clock, power and temperature with one more reading."""
    found = {}
    for field, name, part_s in (
        ("clock", "clock_mhz", CLOCK_PART_S),
        ("power", "power_w", SPIKE_PARTS_S),
        ("temperature", "temperature_c", SPIKE_PARTS_S),
    ):
        if (value := sample.values.get(name)) is not None:
            history: History = getattr(observed, field)
            found[field] = history.with_value(sample.at_s, value, part_s, CLOCK_PARTS)
    return found


def memory_shares(facts: Facts, given: dict[str, float]) -> dict[str, float]:
    """How full memory is, of the machine or container and of the device, as far as both are known."""
    host = []
    if facts.host_memory_bytes and "host_available_bytes" in given:
        host.append(1 - given["host_available_bytes"] / facts.host_memory_bytes)
    if facts.container_memory_bytes and "host_rss_bytes" in given:
        host.append(given["host_rss_bytes"] / facts.container_memory_bytes)
    shares = {"host_memory_share": max(host)} if host else {}
    if facts.device_memory_bytes and (used := _device_bytes(given)) is not None:
        shares["device_memory_share"] = used / facts.device_memory_bytes
    return shares | ({"memory_share": max(shares.values())} if shares else {})


def _device_bytes(given: dict[str, float]) -> float | None:
    return given.get("device_allocated_bytes", given.get("device_used_bytes"))


def _grown(facts: Facts, observed: Observed, sample: Sample) -> dict[str, Growth]:
    used = {"host": sample.values.get("host_rss_bytes"), "device": _device_bytes(sample.values)}
    return {
        name: getattr(observed, name).with_value(sample.at_s, value, GROWTH_PART_S, GROWTH_PARTS)
        for name, value in used.items()
        if value is not None
    }


def _growth(facts: Facts, observed: Observed, given: dict[str, float]) -> dict[str, float]:
    """Growth of what is never given back, and when it will have filled the memory. A month where it will not,
    or not before the run's end."""
    per_s, full_s = [], []
    limit = min((b for b in (facts.container_memory_bytes, facts.host_memory_bytes) if b), default=None)
    free = {"host": _host_free(facts, given), "device": None}
    if facts.device_memory_bytes and (used := _device_bytes(given)) is not None:
        free["device"] = facts.device_memory_bytes - used
    for name, growth in (("host", observed.host), ("device", observed.device)):
        slope = growth.slope(FEWEST_GROWTH_PARTS)
        if slope is None:
            continue
        per_s.append(slope)
        if (left := free[name]) is not None and (name == "device" or limit):
            full_s.append(max(0.0, left) / slope if slope > 0 else MONTH_S)
    if not per_s:
        return {}
    values = {"memory_growth_bytes_per_hour": max(per_s) * 3600}
    if full_s:
        ends_s = _left_s(facts, observed)
        soonest_s = min(full_s)
        outlasts = ends_s is not None and ends_s < soonest_s
        values["memory_full_in_s"] = MONTH_S if outlasts else min(MONTH_S, soonest_s)
    return values


def _host_free(facts: Facts, given: dict[str, float]) -> float | None:
    free = []
    if "host_available_bytes" in given and facts.host_memory_bytes:
        free.append(given["host_available_bytes"])
    if facts.container_memory_bytes and "host_rss_bytes" in given:
        free.append(facts.container_memory_bytes - given["host_rss_bytes"])
    return min(free, default=None)


def _left_s(facts: Facts, observed: Observed) -> float | None:
    """Seconds to the last step at the recent rate."""
    if facts.total_steps is None or not observed.interval_s:
        return None
    recent_s = sum(observed.interval_s) / len(observed.interval_s)
    return max(0, facts.total_steps - observed.step) * recent_s


def _latest(values: tuple[float, ...], value: float) -> tuple[float, ...]:
    return (*values[-(LATEST_STEPS - 1) :], value)
