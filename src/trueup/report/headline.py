"""What a run is in a line: its model and tuning, its device, how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trueup.analysis.totals import steps_of
from trueup.schema.counting import counted

from .wording import clean, dollars, duration, number, plain, share

if TYPE_CHECKING:
    from trueup.schema import Measurement, RunHeader, RunRecord

    from .views import BudgetView, EnergyView


def dig(tree: Mapping[str, Any], *keys: str) -> Any:
    """The value at a path of keys, or None where the path ends early."""
    value: Any = tree
    for key in keys:
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def model_text(header: RunHeader) -> str:
    """SmolLM2-135M, LoRA r16; of a load SmolLM2-135M at http://127.0.0.1:8000."""
    path = clean(dig(header.recipe, "model", "path") or "model not recorded").rstrip("/").rsplit("/", 1)[-1]
    if header.kind == "load":
        return f"{path} at {clean(dig(header.recipe, 'server', 'address') or 'an address not recorded')}"
    return f"{path}, {tuning_text(header)}"


def tuning_text(header: RunHeader) -> str:
    method = dig(header.recipe, "tune", "method")
    if method == "lora":
        return f"LoRA r{plain(dig(header.recipe, 'tune', 'rank'))}"
    return "full" if method == "full" else clean(method or "tuning not recorded")


def device_text(header: RunHeader) -> str:
    """The device the run chose: cpu, 2 threads; of a load what the server runs on, where that is known."""
    if header.kind == "load":
        device = dig(header.environment, "device", "name")
        return clean(dig(header.recipe, "platform", "instance") or device or "machine not recorded")
    chosen = dig(header.choices, "device", "value") or dig(header.recipe, "platform", "device")
    cores = dig(header.choices, "threads", "value")
    if chosen == "cpu" and cores:
        return f"cpu, {plain(cores)} threads"
    return clean(chosen or "device not recorded")


def steps_text(record: RunRecord) -> str:
    """Those that stand: what was done again counts once, what was given up or left out not at all; of a
    load its requests."""
    if record.kind == "load":
        asked = record.measurements.get("requests_count")
        return (
            "requests not counted" if asked is None or asked.value is None else f"{asked.value:,.0f} requests"
        )
    count = len(steps_of(record)[0])
    return "no steps" if count == 0 else "1 step" if count == 1 else f"{count:,} steps"


def wall_text(header: RunHeader) -> str:
    return duration(header.wall_s) if header.wall_s is not None else "duration not known"


def neighbours_text(measurements: Mapping[str, Measurement]) -> str | None:
    """How much of the CPU other processes used; None where the run has no such measurement."""
    found = None
    for name, when in (
        ("others_cpu_share_steady", "during the steady part"),
        ("others_cpu_share", "while training"),
    ):
        found = measurements.get(name)
        if found is not None and found.value is not None:
            return f"neighbours used {share(found.value)} of the CPU {when}"
    return f"neighbours' share of the CPU is not known: {clean(found.reason)}" if found is not None else None


def steady_text(header: RunHeader) -> str | None:
    """What the steady-state detector said: `steady from step 4 to 40`, or why there is no steady part."""
    verdict = header.steady or {}
    if not verdict:
        return None
    if verdict.get("start_step") is not None and verdict.get("end_step") is not None:
        return f"steady from step {plain(verdict['start_step'])} to {plain(verdict['end_step'])}"
    said, why = verdict.get("verdict", "no steady part"), verdict.get("reason", "no reason given")
    return f"{plain(said)}: {plain(why)}"


ONLY_QUOTED = "from quoted figures alone: nothing here was measured"


def budget_text(budget: BudgetView) -> str:
    """over the budget of $0.32 per million by $0.05 (15.6 %)."""
    limit = f"the budget of {dollars(budget.limit.value or 0.0)} per million useful tokens"
    if budget.over_by.value is None or budget.share.value is None:
        side = "over" if budget.verdict == "over" else "not known to be within"
        return f"{side} {limit}: {clean(budget.over_by.reason)}"
    by = f"by {dollars(abs(budget.over_by.value))} ({share(abs(budget.share.value))})"
    return f"{budget.verdict} {limit} {by}"


def energy_text(energy: EnergyView) -> str | None:
    """What the energy cost, and how it is known; None where neither the energy nor a tariff is known."""
    used, cost = energy.energy, energy.cost
    if used.value is None:
        return f"energy is not known: {clean(used.reason)}" if energy.tariff else None
    text = f"energy: {number(used.value)} kWh, {used.kind}"
    if cost.value is None:
        return f"{text}; {clean(cost.reason)}"
    return f"{text}, is {dollars(cost.value)} of electricity, {cost.kind} (a cloud's price has it in already)"


def interval_name(found: Measurement) -> str:
    """How the interval was made, in a word or two: `within_run: block bootstrap, ...` is `within run`."""
    return clean(found.ci_method or "95% interval").partition(":")[0].replace("_", " ")


def no_interval(steps: int) -> str:
    """Beside the steady figure of a run with few steady steps, which looks as sure as any other."""
    return f"{counted(steps, 'step')}, too few for an interval"


def unavailable_text(measurements: Mapping[str, Measurement], most: int = 3) -> str:
    """Which figures are missing and why, the commonest reasons first: `power_w (no readable sensor)`."""
    by_reason: dict[str, list[str]] = {}
    for name, found in measurements.items():
        if found.value is None:
            by_reason.setdefault(clean(found.reason), []).append(clean(name))
    parts = [
        f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''} ({reason})"
        for reason, names in sorted(by_reason.items(), key=lambda item: -len(item[1]))[:most]
    ]
    left = len(by_reason) - len(parts)
    return ", ".join(parts) + (f", {number(left)} more with other reasons" if left > 0 else "")
