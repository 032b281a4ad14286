"""Which load runs may be compared, and what each would cost a month at a stated traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trueup.schema import InputError, Measurement, RunHeader, RunKind, RunRecord, unavailable

from .aspect import Aspect
from .load_bill import Traffic, load_notes, load_warnings, monthly
from .load_limits import limits_of
from .load_metrics import ORIGINAL, PER_MONTH, PER_MONTH_PART

if TYPE_CHECKING:
    from .comparable import ComparedRun, Group


# A setting of a load as it is said of one: {} is its value.
_SAID = {
    "arrivals": "{}",
    "rate": "{:g} a second",
    "rate_end": "to {:g} a second",
    "concurrency": "{} in flight",
    "concurrency_end": "to {} in flight",
    "requests": "{} requests",
    "duration_s": "{:g} s long",
    "time_scale": "a trace's gaps times {:g}",
    "trace_digest": "a trace with the digest {}",
    "length_scale": "its lengths times {:g}",
    "prompt_tokens": "prompts of {} tokens",
    "output_tokens": "answers of {} tokens",
    "prompts_digest": "prompts with the digest {}",
    "temperature": "temperature {:g}",
    "timeout_s": "given up after {:g} s",
}
_YES_OR_NO = {
    "chat": ("chat completions", "completions"),
    "ignore_eos": ("answers to be of that length", "answers that may end earlier"),
}


def _of_load(*keys: str) -> Callable[[RunHeader], Any]:
    def value(header: RunHeader) -> Any:
        load = header.recipe.get("load")
        held = {key: load.get(key) for key in keys} if isinstance(load, Mapping) else {}
        told = [_setting(header, key, one) for key, one in held.items() if one is not None]
        return ", ".join(told) or None

    return value


def _setting(header: RunHeader, key: str, value: Any) -> str:
    """In words; one of a type that a load's settings never have, as it stands."""
    if key == "limits":
        return limits_of(header).words
    if key in _YES_OR_NO and isinstance(value, bool):
        return _YES_OR_NO[key][0 if value else 1]
    try:
        return _SAID[key].format(value)
    except (KeyError, ValueError):
        return f"{key} {value}"


def _aspect(meaning: str, *keys: str) -> Aspect:
    return Aspect(meaning, _of_load(*keys), tuple(f"load.{key}" for key in keys))


# What must agree for latency and cost to be of the same thing. The model, how it is served and on what are
# what is compared.
LOAD_ASPECTS: dict[str, Aspect] = {
    "arrivals": _aspect(
        "how requests arrive",
        *("arrivals", "rate", "rate_end", "concurrency", "concurrency_end", "requests", "duration_s"),
        "time_scale",
    ),
    "lengths": _aspect(
        "lengths of prompts and answers",
        *("trace_digest", "length_scale", "prompt_tokens", "output_tokens", "prompts_digest", "ignore_eos"),
    ),
    "endpoint": _aspect("what is asked of the server", "chat", "temperature"),
    "limits": _aspect("limits that an answer is to keep", "limits", "timeout_s"),
}


def kind_of(groups: Sequence[Group]) -> RunKind:
    """The kind of all runs. InputError where some are loads on a server and some trained a model."""
    kinds = {run.header.kind: run for group in groups for run in group.runs}
    if len(kinds) > 1:
        load, trained = kinds["load"], kinds["train"]
        raise InputError(
            f"run {load.id} ({load.header.name}) is a load on a server, run {trained.id} "
            f"({trained.header.name}) trained a model: they have no figure in common. Compare loads with "
            "loads (kind=load) and trainings with trainings (kind=train)"
        )
    return next(iter(kinds), "train")


def with_monthly(groups: Sequence[Group], traffic: Traffic) -> list[Group]:
    """The groups, each run with what the traffic would cost a month on its server. InputError unless all are
    loads."""
    if kind_of(groups) != "load":
        raise InputError("--traffic is for loads on a server: these runs trained a model")
    return [
        replace(
            group,
            runs=tuple(
                replace(
                    run, measurements={**run.measurements, **_of_month(run.header, run.measurements, traffic)}
                )
                for run in group.runs
            ),
        )
        for group in groups
    ]


def load_doubts(groups: Sequence[Group]) -> list[str]:
    """What each load's own bill says of how far its figures carry, once for loads of which the same is
    said."""
    said: dict[str, list[str]] = {}
    for group in groups:
        for run in group.runs:
            for note in load_notes(_record(run)):
                said.setdefault(note, []).append(run.header.name)
    return [f"{', '.join(dict.fromkeys(names))}: {note}" for note, names in said.items()]


def warnings_of(group: Group) -> tuple[str, ...]:
    """What no figure of the group's loads is to be read without: busy machine, did not keep up (1 of 3
    loads). Nothing of trainings."""
    loads = [run for run in group.runs if run.header.kind == "load"]
    times = Counter(words for run in loads for words in load_warnings(_record(run)))
    return tuple(
        words if count == len(loads) else f"{words} ({count} of {len(loads)} loads)"
        for words, count in times.items()
    )


def stated(groups: Sequence[Group], traffic: Traffic | None) -> list[str]:
    """What the loads' figures are of: the limits that an answer was to keep, and the traffic of a month."""
    limits = {group.name: {limits_of(run.header).words for run in group.runs} for group in groups}
    every = set().union(*limits.values())
    if len(every) == 1:
        told = every.pop()
    else:
        told = "; ".join(f"{' or '.join(sorted(held))} of {name}" for name, held in limits.items())
    lines = [f"goodput and answers within the limits are of: {told}"]
    return lines if traffic is None else [*lines, f"a month is of {traffic.words}"]


def with_originals(groups: Sequence[Group]) -> tuple[list[Group], list[str]]:
    """The groups, of which those that serve the original of a model that a gate judged have what the gate
    measured of it, and a sentence on each. Not where gates measured different things of it, as on other
    text, nor where it was rounded while it was loaded."""
    judged = [run for group in groups for run in group.runs if _original(run)]
    found, told = [], []
    for group in groups:
        gates = [run for run in judged if all(_serves(one, _original(run)) for one in group.runs)]
        figures = _of_original(gates)
        if figures:
            runs = (replace(run, measurements={**run.measurements, **figures}) for run in group.runs)
            group = replace(group, runs=tuple(runs))
            gate = gates[0]
            told.append(
                f"what is said of {group.name}'s quality is of {_original(gate)}, the original, as the gate "
                f"that judged {gate.header.name} measured it"
            )
        found.append(group)
    return found, told


def _original(run: ComparedRun) -> str | None:
    """What the model was made of that this load's gate judged."""
    quality = run.header.recipe.get("quality")
    named = quality.get("original") if isinstance(quality, Mapping) else None
    return named if isinstance(named, str) else None


def _serves(run: ComparedRun, model: str | None) -> bool:
    """As far as its name says, a model's folder or hub name alike; and as it is, judged by no gate itself."""
    served, server = (run.header.recipe.get(key) for key in ("model", "server"))
    path = served.get("path") if isinstance(served, Mapping) else None
    options = server.get("options") if isinstance(server, Mapping) else None
    if model is None or not isinstance(path, str) or any("int8" in str(one) for one in options or ()):
        return False
    alike = path.rstrip("/").rpartition("/")[2].lower() == model.rstrip("/").rpartition("/")[2].lower()
    return alike and not any(name.startswith("quality_") for name in run.measurements)


def _of_original(gates: Sequence[ComparedRun]) -> dict[str, Measurement]:
    """What all of these gates say of the original, under the name that it has of a model."""
    found: dict[str, Measurement] = {}
    for name, one in gates[0].measurements.items() if gates else ():
        values = {run.measurements[name].value for run in gates if name in run.measurements}
        if ORIGINAL in name and one.value is not None and values == {one.value}:
            found[name.replace(ORIGINAL, "")] = one
    return found


def _record(run: ComparedRun) -> RunRecord:
    return RunRecord(header=run.header, measurements=dict(run.measurements))


def _of_month(header: RunHeader, measurements: Mapping[str, Any], traffic: Traffic) -> dict[str, Any]:
    if header.price is None:
        none = unavailable("USD/month", "the run has no price: load again with --usd-per-hour or --instance")
        return {PER_MONTH: none, PER_MONTH_PART: none}
    found = monthly(RunRecord(header=header, measurements=dict(measurements)), header.price, traffic)
    return {PER_MONTH: found.usd_per_month, PER_MONTH_PART: found.usd_per_month_part}
