"""The bill of a lot of runs: per run and together. What failed and what was interrupted was paid for as well.

Every sum is over the runs' own bills, so that they add up to the study's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import fsum

from trueup.schema import Frozen, InputError, Measurement, Price, RunState, unavailable
from trueup.schema.counting import counted

from .bill import Bill, BillLine, all_in_cost
from .bill_lines import LINE_NAMES
from .budget import Budget, BudgetVerdict, judged
from .energy_cost import EnergyCost
from .kinds import weakest

UNFINISHED: tuple[RunState, ...] = ("failed", "interrupted")


class StudyRun(Frozen):
    """One run's part of the study."""

    run: str
    name: str
    state: RunState
    total: Measurement
    wall_s: float
    useful_tokens: float
    usd_per_million_useful_tokens: Measurement


class StudyBill(Frozen):
    """`unfinished` is what runs that failed or were interrupted cost, a part of `total`. `useful_tokens` are
    those of every run, as its record says."""

    runs: tuple[StudyRun, ...]
    states: dict[str, int]
    prices: tuple[Price, ...]
    total: Measurement
    unfinished: Measurement
    wall_s: float
    useful_tokens: float
    usd_per_million_useful_tokens: Measurement
    lines: tuple[BillLine, ...]
    energy: EnergyCost
    budget: BudgetVerdict | None
    only_quoted: bool
    notes: tuple[str, ...]


def make_study_bill(bills: Sequence[Bill], *, budget: Budget | None = None) -> StudyBill:
    """The runs' bills as one. The budget is by default the runs' own, where all have the same.

    InputError where there is no run, or one twice.
    """
    _require_each_once(bills)
    total = summed([bill.total for bill in bills], "USD", "runs")
    useful_tokens = fsum(bill.useful_tokens for bill in bills)
    all_in = all_in_cost(total, useful_tokens, f"{counted(len(bills), 'run')} together")
    unfinished = [bill for bill in bills if bill.state in UNFINISHED]
    return StudyBill(
        runs=tuple(_run(bill) for bill in bills),
        states=dict(Counter(bill.state for bill in bills)),
        prices=tuple(dict.fromkeys(bill.price for bill in bills)),
        total=total,
        unfinished=summed([bill.total for bill in unfinished], "USD", "failed and interrupted runs"),
        wall_s=fsum(bill.wall_s for bill in bills),
        useful_tokens=useful_tokens,
        usd_per_million_useful_tokens=all_in,
        lines=_lines(bills, total.value or 0.0),
        energy=_energy(bills),
        budget=_budget(bills, budget, all_in, total.value or 0.0),
        only_quoted=all(bill.only_quoted for bill in bills),
        notes=_notes(bills, budget),
    )


def summed(parts: Sequence[Measurement], unit: str, what: str) -> Measurement:
    """The sum; unavailable where a part is, since less than the whole would pass for it. Of nothing it is 0.

    InputError where a part is in another unit: dollars and euros are not added.
    """
    units = sorted({part.unit for part in parts if part.value is not None} | {unit})
    if len(units) > 1:
        raise InputError(
            f"the sum over {what} mixes {' and '.join(units)}: give every price in one currency, converted "
            "at a rate you name in its source"
        )
    missing = [part for part in parts if part.value is None]
    if missing:
        return unavailable(unit, f"{len(missing)} of {len(parts)} {what} have none: {missing[0].reason}")
    return Measurement(
        value=fsum(part.value for part in parts if part.value is not None),
        unit=unit,
        kind=weakest({part.kind for part in parts}),
        method=f"sum over {len(parts)} {what}",
        n=len(parts),
    )


def _require_each_once(bills: Sequence[Bill]) -> None:
    if not bills:
        raise InputError("there is no run to bill: name at least one")
    twice = [run for run, count in Counter(bill.run for bill in bills).items() if count > 1]
    if twice:
        raise InputError(f"run {twice[0]} is in the study twice: name each run once")


def _run(bill: Bill) -> StudyRun:
    return StudyRun(
        run=bill.run,
        name=bill.name,
        state=bill.state,
        total=bill.total,
        wall_s=bill.wall_s,
        useful_tokens=bill.useful_tokens,
        usd_per_million_useful_tokens=bill.usd_per_million_useful_tokens,
    )


def _lines(bills: Sequence[Bill], total_usd: float) -> tuple[BillLine, ...]:
    """Line by line over the runs; those that no run has are left out."""

    def over(name: str, value: Callable[[BillLine], float]) -> float:
        return fsum(value(line) for bill in bills for line in bill.lines if line.name == name)

    kinds = {line.name: line.kind for bill in bills for line in bill.lines}
    made = []
    for name in (name for name in LINE_NAMES if name in kinds):
        usd = over(name, lambda line: line.usd)
        share = usd / total_usd if total_usd > 0 else 0.0
        seconds = over(name, lambda line: line.seconds)
        made.append(BillLine(name=name, seconds=seconds, usd=usd, share=share, kind=kinds[name]))
    return tuple(made)


def _energy(bills: Sequence[Bill]) -> EnergyCost:
    """The runs' energy and what it cost. The tariff is that of all of them, None where they have several."""
    tariffs = {bill.energy.tariff for bill in bills}
    return EnergyCost(
        energy=summed([bill.energy.energy for bill in bills], "kWh", "runs"),
        tariff=tariffs.pop() if len(tariffs) == 1 else None,
        cost=summed([bill.energy.cost for bill in bills], "USD", "runs"),
    )


def _budget(
    bills: Sequence[Bill], budget: Budget | None, all_in: Measurement, total_usd: float
) -> BudgetVerdict | None:
    if budget is None:
        first, *others = _limits(bills)
        if first is None or others:
            return None
        budget = Budget(usd_per_million_tokens=first, source="the budget of every run")
    return judged(budget, all_in, total_usd)


def _limits(bills: Sequence[Bill]) -> set[float | None]:
    return {bill.budget.limit.value if bill.budget else None for bill in bills}


def _notes(bills: Sequence[Bill], budget: Budget | None) -> tuple[str, ...]:
    notes = []
    if budget is None and len(_limits(bills)) > 1:
        notes.append("not all runs have the same budget, so the study has none; --budget gives it one")
    if len({bill.price for bill in bills}) > 1:
        notes.append("the runs were billed at different prices, each at its own")
    stale = [bill.stale_price for bill in bills if bill.stale_price]
    if stale:
        notes.append(f"{len(stale)} of {len(bills)} runs: {stale[0]}")
    running = sum(bill.state == "running" for bill in bills)
    if running:
        notes.append(f"not ended yet: {running} of {len(bills)} runs; this is the bill so far")
    return tuple(notes)
