"""Compares groups of runs: one table, a verdict on each figure, and what could explain a difference.

The first group is the reference; a ratio is another group's figure over its. Runs that did not finish are
left out and named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trueup.schema import Frozen, InputError, Measurement, RunKind

from .bill import stale_price
from .comparable import (
    ComparedRun,
    Difference,
    Group,
    as_text,
    dig,
    environment_differences,
    platform_of,
    regrouped,
    require_comparable,
    settings_compared,
)
from .compare_figures import group_figure, metrics_of, require_one_unit
from .compare_findings import NO_VERDICT, THE_SAME, UNDECIDED, Finding, findings_of
from .compare_front import Point, front_of, front_words
from .compare_metric import Metric
from .compare_turns import doubts, pairs_of
from .load_bill import Traffic
from .load_compare import kind_of, load_doubts, stated, warnings_of, with_monthly, with_originals
from .quality_cost import target_perplexity, with_quality_cost

FINISHED = "finished"
NO_FRONT = "of loads there is no front: cost, latency, memory and quality stand side by side"
_NEIGHBOURS_MATTER = 0.02  # of the CPU: a difference between two groups' neighbours that is worth saying


class LeftOut(Frozen):
    """A run that is not counted, and why."""

    id: str
    name: str
    state: str
    reason: str | None


class GroupResult(Frozen):
    """One group's side of the table. `figures` by measurement; `warnings`: what none of these is to be read
    without, in a few words."""

    name: str
    platform: str
    price: str
    runs: tuple[str, ...]
    seeds: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    figures: dict[str, Measurement]
    warnings: tuple[str, ...]


class Row(Frozen):
    """A row of the table: which measurement, what it is called, and which way is better."""

    metric: str
    label: str
    better: str


class Comparison(Frozen):
    """Everything a comparison found.

    `perplexity` is the one that quality-matched costs are of; `stated`: what was given that figures of loads
    are of; `compared` are settings, `allowed` is what differs though it should not, `environment` what could
    explain a difference.
    """

    kind: RunKind
    reference: str
    headline: tuple[str, ...]
    rows: tuple[Row, ...]
    groups: tuple[GroupResult, ...]
    findings: tuple[Finding, ...]
    perplexity: float | None
    stated: tuple[str, ...]
    front: tuple[Point, ...]
    front_words: str
    compared: tuple[Difference, ...]
    allowed: tuple[Difference, ...]
    environment: tuple[Difference, ...]
    notes: tuple[str, ...]


def group_of(name: str, runs: Iterable[ComparedRun]) -> Group:
    """A group of the runs that finished, the others aside. InputError where none did."""
    runs = list(runs)
    finished = tuple(run for run in runs if run.header.state == FINISHED)
    others = tuple(run for run in runs if run.header.state != FINISHED)
    if not finished:
        told = ", ".join(f"{run.id} is {run.header.state}" for run in others[:5])
        more = f", and {len(others) - 5} more" if len(others) > 5 else ""
        raise InputError(f"{name}: no finished run to compare" + (f" ({told}{more})" if others else ""))
    return Group(name, finished, others)


def compare(
    groups: Sequence[Group],
    *,
    by: str | None = None,
    allowed: Iterable[str] = (),
    at_perplexity: float | None = None,
    traffic: Traffic | None = None,
) -> Comparison:
    """The comparison of these groups, or of their runs grouped by `by` anew; of loads with what the `traffic`
    would cost a month.

    InputError where a run is on both sides, there are fewer than two groups, runs differ in what is not being
    compared and is not `allowed`, units are mixed, a throughput is zero, or a traffic is for trainings.
    """
    if traffic is not None:
        groups = with_monthly(groups, traffic)
    if by is not None:
        groups = regrouped(_each_once(groups), by)
    _require_two_sides(groups)
    differences = require_comparable(groups, allowed, by)
    groups, originals = with_originals(groups)
    perplexity = target_perplexity(groups, at_perplexity)
    groups = [with_quality_cost(group, perplexity) for group in groups]
    rows = metrics_of(run for group in groups for run in group.runs)
    for metric in rows:
        require_one_unit(metric, groups)
    figures = {group.name: {one.name: group_figure(one, group.runs) for one in rows} for group in groups}
    turns = {group.name: pairs_of(groups[0], group) for group in groups[1:]}
    findings = [one for metric in rows for one in findings_of(metric, groups[0], groups[1:], figures, turns)]
    front = front_of(figures)
    names = [group.name for group in groups]
    kind = kind_of(groups)
    results = tuple(_result(group, figures[group.name]) for group in groups)
    beware = _beware(results)
    return Comparison(
        kind=kind,
        reference=names[0],
        headline=tuple(_headline(names[0], name, findings, figures, rows) + beware for name in names[1:]),
        rows=tuple(_row(one, perplexity) for one in rows),
        groups=results,
        findings=tuple(findings),
        perplexity=perplexity,
        stated=(*stated(groups, traffic), *originals) if kind == "load" else (),
        front=tuple(front),
        front_words=front_words(front, names) if kind == "train" else NO_FRONT,
        compared=tuple(settings_compared(groups)),
        allowed=tuple(differences),
        environment=tuple(environment_differences(groups)),
        notes=(
            *(load_doubts(groups) if kind == "load" else ()),
            *_stale_prices(groups),
            *doubts(groups),
            *_neighbours(groups),
        ),
    )


def _row(metric: Metric, perplexity: float | None) -> Row:
    """With the perplexity in the label, where the figure is the cost of reaching it."""
    label = metric.label
    if metric.every_run and perplexity is not None:
        label += f" {perplexity:.4g}"
    return Row(metric=metric.name, label=label, better=metric.better)


def _each_once(groups: Sequence[Group]) -> list[Group]:
    """Without the runs that an earlier group has already."""
    seen: set[str] = set()
    found = []
    for group in groups:
        kept = {run.id for run in (*group.runs, *group.left_out)} - seen
        seen |= kept
        found.append(
            Group(
                group.name,
                tuple(run for run in group.runs if run.id in kept),
                tuple(run for run in group.left_out if run.id in kept),
            )
        )
    return found


def _require_two_sides(groups: Sequence[Group]) -> None:
    if len(groups) < 2:
        raise InputError(
            "one group is no comparison: name two selections or more, or group the runs of one with "
            "--by platform or --by another setting"
        )
    where: dict[str, str] = {}
    for group in groups:
        for run in group.runs:
            if run.id in where:
                raise InputError(
                    f"run {run.id} ({run.header.name}) is on both sides, in '{where[run.id]}' and in "
                    f"'{group.name}'; narrow one of them so that it is on one side only"
                )
            where[run.id] = group.name


def _headline(
    reference: str,
    group: str,
    findings: Sequence[Finding],
    figures: dict[str, dict[str, Measurement]],
    rows: Sequence[Metric],
) -> str:
    """The verdict on the first figure that both have, cost before all else."""
    labels = {metric.name: metric for metric in rows}
    own = [one for one in findings if one.group == group and one.ratio.value is not None]
    if not own:
        return f"{group} and {reference} have no figure in common"
    first = own[0]
    metric = labels.get(first.metric)
    label = metric.label if metric is not None else first.metric.replace("_", " ")
    values = " against ".join(_in_words(figures[name][first.metric]) for name in (group, reference))
    low_high = f", 95% interval {first.ratio.ci[0]:.3g} to {first.ratio.ci[1]:.3g}" if first.ratio.ci else ""
    return (
        f"{_opening(reference, group, first, metric)} ({first.words}). {label}: {values}, "
        f"ratio {first.ratio.value:.3g}{low_high}"
    )


def _beware(groups: Sequence[GroupResult]) -> str:
    """What makes a side's figures ones of another time, behind a verdict that rests on them."""
    told = "; ".join(f"{group.name}: {', '.join(group.warnings)}" for group in groups if group.warnings)
    return f". Beware: {told}" if told else ""


def _in_words(figure: Measurement) -> str:
    if figure.unit.startswith("USD"):
        return f"${figure.value:.4g}"
    return f"{figure.value:.4g}" + ("" if figure.unit == "1" else f" {figure.unit}")


def _opening(reference: str, group: str, found: Finding, metric: Metric | None) -> str:
    if found.verdict == NO_VERDICT:
        return f"no verdict on {group} against {reference}"
    if found.verdict == UNDECIDED:
        either = f"{metric.lower} or {metric.higher}" if metric is not None else "better or worse"
        return f"not enough runs to say whether {group} is {either} than {reference}, or the same"
    if found.verdict == THE_SAME:
        return f"{group} is the same as {reference}"
    return f"{group} is {found.verdict} than {reference}"


def _result(group: Group, figures: dict[str, Measurement]) -> GroupResult:
    def listed(values: Iterable[str]) -> str:
        return "; ".join(dict.fromkeys(values))

    prices = (
        f"${price.usd_per_hour:g} an hour, {price.kind}: {price.source}" if price is not None else "no price"
        for price in (run.header.price for run in group.runs)
    )
    return GroupResult(
        name=group.name,
        platform=listed(platform_of(run.header) or "not recorded" for run in group.runs),
        price=listed(prices),
        runs=tuple(run.id for run in group.runs),
        seeds=tuple(dict.fromkeys(as_text(_seed(run)) for run in group.runs)),
        left_out=tuple(
            LeftOut(id=run.id, name=run.header.name, state=run.header.state, reason=run.header.reason)
            for run in group.left_out
        ),
        figures=figures,
        warnings=warnings_of(group),
    )


def _seed(run: ComparedRun) -> object:
    return dig(run.header.recipe, "load.seed" if run.header.kind == "load" else "train.seed")


def _stale_prices(groups: Sequence[Group]) -> list[str]:
    """That the price of a group's runs was old when they began, once for groups of which the same is said."""
    said: dict[str, list[str]] = {}
    for group in groups:
        prices = ((run.header, run.header.price) for run in group.runs)
        stale = [note for header, price in prices if price and (note := stale_price(header, price))]
        for note in stale[:1]:
            said.setdefault(note, []).append(group.name)
    return [f"{', '.join(names)}: {note}" for note, names in said.items()]


def _neighbours(groups: Sequence[Group]) -> list[str]:
    """Where other processes took much more of one group's CPU than of another's."""
    shares = {}
    for group in groups:
        known = [share for run in group.runs if (share := _share(run)) is not None]
        if known:
            shares[group.name] = sum(known) / len(known)
    if not shares or max(shares.values()) - min(shares.values()) < _NEIGHBOURS_MATTER:
        return []
    told = ", ".join(f"{share:.1%} beside {name}" for name, share in shares.items())
    return [f"neighbours used different parts of the CPU: {told}"]


def _share(run: ComparedRun) -> float | None:
    for name in ("others_cpu_share_steady", "others_cpu_share"):
        found = run.measurements.get(name)
        if found is not None and found.value is not None:
            return found.value
    return None
