"""Which load runs may be compared, and what each would cost a month at a stated traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trueup.schema import InputError, RunHeader, RunKind, RunRecord, unavailable

from .aspect import Aspect
from .load_bill import Traffic, monthly
from .load_metrics import PER_MONTH, PER_MONTH_PART

if TYPE_CHECKING:
    from .comparable import Group


def _of_load(*keys: str) -> Callable[[RunHeader], Any]:
    def value(header: RunHeader) -> Any:
        load = header.recipe.get("load")
        held = [load.get(key) for key in keys] if isinstance(load, Mapping) else []
        told = [f"{key} {one}" for key, one in zip(keys, held, strict=False) if one not in (None, {})]
        return ", ".join(told) or None

    return value


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


def _of_month(header: RunHeader, measurements: Mapping[str, Any], traffic: Traffic) -> dict[str, Any]:
    if header.price is None:
        none = unavailable("USD/month", "the run has no price: load again with --usd-per-hour or --instance")
        return {PER_MONTH: none, PER_MONTH_PART: none}
    found = monthly(RunRecord(header=header, measurements=dict(measurements)), header.price, traffic)
    return {PER_MONTH: found.usd_per_month, PER_MONTH_PART: found.usd_per_month_part}
