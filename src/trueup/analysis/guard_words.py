"""What the guard says, in words that a person can act on."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence

from trueup.schema.watched import DERIVED_VALUES, ONLY_TRAINING, STEP_VALUES

from .guard_records import Rule

ADVICE = {
    "temperature_c": "look at fans, air flow and what else heats this machine",
    "clock_share": "the chip is slowed down: look at its temperature and power cap",
    "power_w": "look at the device's power cap and what else runs on it",
    "power_share": "the device is at its power cap",
    "memory_share": "make shapes.tokens_per_microbatch smaller, or end what else uses memory",
    "host_memory_share": "end what else uses memory, or take a machine with more",
    "device_memory_share": "make shapes.tokens_per_microbatch smaller",
    "memory_full_in_s": "memory grows and is not given back; a resumed run starts with it empty",
    "memory_growth_bytes_per_hour": "memory grows and is not given back",
    "others_cpu_share": "something else uses this machine's processors: `top` shows what",
    "disk_free_bytes": "make room where the run folder is; older checkpoints can be removed",
    "data_wait_share": "the device waits for data: look at the disk and the processors",
    "step_time_ratio": "steps have become slow: look at clocks, temperature and other load",
    "loss_ratio": "the loss rises: lower optimizer.lr, or go back to an earlier checkpoint",
    "usd_projected": "lower train.max_steps or train.epochs, or raise the budget",
    "usd_after_next_step": "raise train.stop.usd to go on from the checkpoint",
    "usd_spent": "raise train.stop.usd to go on from the checkpoint",
}


def over_level(rule: Rule, mean: float, *, acts: bool = True) -> str:
    """What crossed its level, what follows where the rule acts on it, and what to do."""
    side = "above" if rule.above is not None else "below"
    found = f"{rule.watch} is {mean:.4g} on average over {rule.window_s:g} s, {side} {rule.level:.4g}"
    does = {
        "checkpoint": "a checkpoint is saved",
        "pause": f"the run pauses until it is back at {rule.resume_level:.4g}",
        "stop": "the run ends, saved",
    }.get(rule.action, "")
    parts = (does if acts else "", rule.advice or ADVICE.get(rule.watch, ""))
    rest = "; ".join(part for part in parts if part)
    return f"{found}: {rest}" if rest else found


def too_many_pauses(why: str, count: int) -> str:
    times = "1 pause" if count == 1 else f"{count} pauses"
    return f"{why}; but {times} in an hour are the most allowed (guard.max_pauses_per_hour), so the run ends"


def past_longest_pause(rules: Sequence[str], longest_s: float) -> str:
    return (
        f"paused for {longest_s:g} s (guard.max_pause_s), and this has not come back or is no longer read: "
        f"{' and '.join(rules)}; the run ends, saved: resume it when the cause is gone"
    )


def resumed(rules: Sequence[str], paused_s: float) -> str:
    return f"back to normal after {paused_s:.0f} s ({' and '.join(rules)}): the run goes on"


def worded(who: str, why: str) -> str:
    return f"{who}, {why}" if why else who


# What a derived value is derived from, where that can be absent.
_NEEDS = {
    "clock_share": "clock_mhz",
    "power_share": "power_w",
    "device_memory_share": "device_allocated_bytes",
}
_SLOW = {"memory_growth_bytes_per_hour", "memory_full_in_s"}
QUIET_S, QUIET_SLOW_S = 120.0, 900.0  # without a reading for this long since the start, a value is missing


def not_watched(
    watched: Collection[str], heard: Collection[str], missing: Mapping[str, str], since_s: float
) -> dict[str, str]:
    """Of what rules watch and never read, `since_s` after the start: why not, in words. Those of which the
    machine says itself that it has none are there at once."""
    found = {}
    for name in sorted(set(watched) - set(heard)):
        reason = missing.get(name) or missing.get(_NEEDS.get(name, ""))
        limit_s = QUIET_SLOW_S if name in _SLOW else QUIET_S
        if reason is None and (name in STEP_VALUES or since_s < limit_s):
            continue
        if reason is None:
            reason = f"no reading of it in {since_s:.0f} s"
            near = difflib.get_close_matches(name, {*heard, *missing, *DERIVED_VALUES} - {name}, n=1)
            if name not in DERIVED_VALUES and near:
                reason += f"; did you mean {near[0]}?"
        found[name] = f"rules on {name} cannot act: {reason}"
    return found


def fallen_silent(read_s: Mapping[str, float], now_s: float) -> dict[str, str]:
    """Of what rules watch, by when it was last read: what is read no more, in words. Left out is what a
    paused run does not have: of a clock's share the sensor itself is said to be silent."""
    found = {}
    for name, last_s in sorted(read_s.items()):
        silent_s = now_s - last_s
        if name not in ONLY_TRAINING and silent_s >= (QUIET_SLOW_S if name in _SLOW else QUIET_S):
            found[name] = f"rules on {name} cannot act now: no reading of it in the last {silent_s:.0f} s"
    return found


def heard_again(name: str) -> str:
    return f"rules on {name} can act: it is read now"
