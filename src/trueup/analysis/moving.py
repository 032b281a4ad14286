"""The two sides of a move from one platform or setting to another: what a full run costs on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from typing import NamedTuple

from trueup.schema import InputError, Measurement, Price, RunRecord, unavailable
from trueup.schema.bounds import TOKENS

from .bill import make_bill, started_at, useful_tokens_of
from .breakeven import BreakEven, SideCost, break_even
from .comparable import Group
from .compare_turns import doubts, pairs_of
from .kinds import weakest
from .outcomes import wall_seconds
from .price_models import cost_of
from .side_by_side import AskedPrice

TOKENS_AGREE = 0.01  # full runs whose useful tokens differ by no more are of one size


class RunCost(NamedTuple):
    """What one run cost, all in, and how many useful tokens it trained; `notes` are on its price."""

    total: Measurement
    useful_tokens: float
    notes: tuple[str, ...] = ()


def run_cost(record: RunRecord, price: Price | None = None, asked: AskedPrice | None = None) -> RunCost:
    """Under the price model asked for, else at `price`, by default the run's own. InputError without one."""
    tokens = useful_tokens_of(record)
    if asked is None:
        bill = make_bill(record, price)
        return RunCost(bill.total, tokens, (bill.stale_price,) if bill.stale_price else ())
    if asked.terms is None:
        return RunCost(unavailable("USD", f"--price {asked.label}: {asked.reason}"), tokens)
    cost = cost_of(asked.terms, wall_seconds(record), started=started_at(record.header))
    return RunCost(cost.total, tokens, cost.notes)


def break_even_of(
    a: Group,
    b: Group,
    costs: Mapping[str, RunCost],
    one_off: float,
    *,
    source: str,
    tokens_per_run: float | None = None,
) -> BreakEven:
    """When moving from A to B has paid. `costs` by run; `one_off` in dollars.

    `tokens_per_run`: useful tokens of a full run, where those of the two sides are not of one size.
    InputError where a side has no full run or one without a cost, or where full runs differ in size.
    """
    pairs = pairs_of(a, b)
    runs_a = [one for one, _ in pairs] or list(a.runs)
    runs_b = [other for _, other in pairs] or list(b.runs)
    if shared := {run.id for run in a.runs} & {run.id for run in b.runs}:
        raise InputError(f"run {min(shared)} is on both sides: a move is from some runs to others")
    if tokens_per_run is None:
        _require_one_size(a, b, costs)
    else:
        TOKENS.require(tokens_per_run, f"--tokens-per-run {tokens_per_run:g}, useful tokens of a full run")
    side_a, side_b = (
        _side(group.name, [costs[run.id] for run in runs], tokens_per_run)
        for group, runs in ((a, runs_a), (b, runs_b))
    )
    if side_a.currency == side_b.currency != "USD":
        raise InputError(
            f"the one-off is in USD and the runs are billed in {side_a.currency}: give all in one currency"
        )
    found = break_even(side_a, side_b, one_off, source=source, paired=bool(pairs))
    notes = [*found.notes, *doubts([a, b]), *_on_prices(a, b, costs)]
    notes += [*_unfinished(a, costs), *_unfinished(b, costs)]
    if tokens_per_run is not None:
        notes.append(
            f"a full run is taken to be of {tokens_per_run:,.0f} useful tokens, at each run's own $ per token"
        )
    return found.model_copy(update={"notes": tuple(notes)})


def _require_one_size(a: Group, b: Group, costs: Mapping[str, RunCost]) -> None:
    tokens = {
        group.name: [costs[run.id].useful_tokens for run in group.runs] for group in (a, b) if group.runs
    }
    each = [count for counts in tokens.values() for count in counts]
    if each and max(each) > (1 + TOKENS_AGREE) * min(each):
        shown = ", ".join(
            f"of {name} {min(counts):,.0f}" + (f" to {max(counts):,.0f}" if max(counts) > min(counts) else "")
            for name, counts in tokens.items()
        )
        mean = fsum(next(iter(tokens.values()))) / len(next(iter(tokens.values())))
        raise InputError(
            f"full runs are not of one size, in useful tokens: {shown}. A smaller run is cheaper wherever it "
            f"is done, so say what a full run will be: --tokens-per-run {mean:.0f} takes runs of the mean "
            f"size of {next(iter(tokens))}, each at its own run's cost per useful token"
        )


def _side(name: str, costs: Sequence[RunCost], tokens_per_run: float | None) -> SideCost:
    totals = [cost.total for cost in costs]
    for total in totals:
        if total.value is None:
            raise InputError(f"{name} has no cost of a run to go by: {total.reason}")
    units = sorted({total.unit for total in totals}) or ["USD"]
    if len(units) > 1:
        raise InputError(
            f"runs of {name} are billed in {' and '.join(units)}: give their prices in one currency"
        )
    return SideCost(
        label=name,
        per_run=[_per_run(name, cost, tokens_per_run) for cost in costs],
        currency=units[0],
        kind=weakest({total.kind for total in totals}),
        how=totals[0].method if len(totals) == 1 else "",
    )


def _per_run(name: str, cost: RunCost, tokens_per_run: float | None) -> float:
    value = cost.total.value or 0.0
    if tokens_per_run is None:
        return value
    if cost.useful_tokens <= 0:
        raise InputError(f"a run of {name} trained no useful token: it has no cost per token to go by")
    return value / cost.useful_tokens * tokens_per_run


def _on_prices(a: Group, b: Group, costs: Mapping[str, RunCost]) -> list[str]:
    """What must be known beside the prices, each thing once, with the sides it holds of."""
    said: dict[str, dict[str, None]] = {}
    for group in (a, b):
        for run in group.runs:
            for note in costs[run.id].notes:
                said.setdefault(note, {})[group.name] = None
    return [f"{', '.join(names)}: {note}" for note, names in said.items()]


def _unfinished(group: Group, costs: Mapping[str, RunCost]) -> list[str]:
    if not group.left_out:
        return []
    known = [costs[run.id].total for run in group.left_out if run.id in costs]
    paid = [total for total in known if total.value is not None]
    cost = f"; they cost {fsum(one.value or 0.0 for one in paid):.4g} {paid[0].unit}" if paid else ""
    return [f"{len(group.left_out)} of {group.name} did not finish and are not counted as full runs{cost}"]
