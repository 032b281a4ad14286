"""Ready-made rules. docs/guard.md says why each level is where it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .guard_records import Rule
from .guard_values import Facts

PRESETS = ("thermal", "power", "budget", "leak")
NO_PRICE = "the preset budget has no price to go by: give price.usd_per_hour or platform.instance"
NO_BUDGET = "the preset budget has no budget to go by: give train.stop.usd"
NO_POWER_LIMIT = (
    "the preset power knows no power limit of this device, so of its rules only those on the device's own "
    "flags can act"
)
NO_MEMORY = "the preset leak does not know how much memory there is, so it cannot say when it is full"


def expanded(
    presets: Sequence[str], facts: Facts, stop_usd: float | None
) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    """The rules of these presets, each preset's once and nameless yet, and what they lack."""
    chosen = [name for name in PRESETS if name in presets or "all" in presets]
    rules: list[Rule] = []
    notes: list[str] = []
    for name in chosen:
        rules += _RULES[name](facts, stop_usd)
        notes += _lacks(name, facts, stop_usd)
    if "all" in presets:
        rules += _beside()
    return tuple(rules), tuple(notes)


def _thermal(facts: Facts, stop_usd: float | None) -> Iterator[Rule]:
    yield Rule(watch="temperature_c", action="warn", above=85, window_s=30)
    yield Rule(watch="temperature_c", action="pause", above=92, resume=80, window_s=30)
    yield Rule(
        watch="throttle_thermal_share", action="warn", above=0.5, window_s=30, advice="the chip is too hot"
    )
    yield Rule(watch="clock_share", action="warn", below=0.85, window_s=30)


def _power(facts: Facts, stop_usd: float | None) -> Iterator[Rule]:
    yield Rule(
        watch="throttle_power_share",
        action="warn",
        above=0.5,
        window_s=60,
        advice="the power cap slows the chip",
    )
    # a share given by the device itself is watched even where its limit in watts is unknown
    yield Rule(watch="power_share", action="warn", above=0.98, window_s=60)
    yield Rule(watch="power_share", action="pause", above=1.05, resume=0.9, window_s=10)


def _budget(facts: Facts, stop_usd: float | None) -> Iterator[Rule]:
    if facts.usd_per_hour is None or stop_usd is None:
        return
    yield Rule(watch="usd_projected", action="warn", above=stop_usd, window_s=60, cooldown_s=600)
    yield Rule(watch="usd_spent", action="checkpoint", above=0.9 * stop_usd, window_s=1)
    yield Rule(watch="usd_after_next_step", action="stop", above=stop_usd, window_s=1e-3)
    yield Rule(watch="usd_spent", action="stop", above=stop_usd, window_s=1)


def _leak(facts: Facts, stop_usd: float | None) -> Iterator[Rule]:
    yield Rule(watch="memory_share", action="warn", above=0.8, window_s=30, cooldown_s=600)
    yield Rule(watch="memory_full_in_s", action="warn", below=3600, window_s=60, cooldown_s=600)
    yield Rule(watch="memory_full_in_s", action="stop", below=300, window_s=60)


def _beside() -> Iterator[Rule]:
    """What `all` has beside the four."""
    yield Rule(watch="disk_free_bytes", action="warn", below=5e9, window_s=10, cooldown_s=600)
    yield Rule(watch="others_cpu_share", action="warn", above=0.25, window_s=60, cooldown_s=600)
    yield Rule(watch="data_wait_share", action="warn", above=0.25, window_s=60, cooldown_s=600)
    yield Rule(watch="step_time_ratio", action="warn", above=1.5, window_s=60, cooldown_s=600)


_RULES = {"thermal": _thermal, "power": _power, "budget": _budget, "leak": _leak}


def _lacks(preset: str, facts: Facts, stop_usd: float | None) -> Iterator[str]:
    if preset == "budget" and stop_usd is None:
        yield NO_BUDGET
    elif preset == "budget" and facts.usd_per_hour is None:
        yield NO_PRICE
    if preset == "power" and facts.power_limit_w is None:
        yield NO_POWER_LIMIT
    sizes = (facts.host_memory_bytes, facts.container_memory_bytes, facts.device_memory_bytes)
    if preset == "leak" and not any(sizes):
        yield NO_MEMORY


def named(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Each with a name of its own, 'temperature_c above 85: warn'; a rule that is there word for word already
    is left out."""
    kept: dict[str, Rule] = {}
    for rule in dict.fromkeys(rules):
        side = "above" if rule.above is not None else "below"
        name = first = f"{rule.watch} {side} {rule.level:g}: {rule.action}"
        nth = 2
        while name in kept:
            name, nth = f"{first} ({nth})", nth + 1
        kept[name] = rule.model_copy(update={"name": name})
    return tuple(kept.values())
