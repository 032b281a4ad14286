"""The red line: what a million useful tokens may cost all in, and on which side of it a bill lies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator

from trueup.schema import Frozen, Measurement, RunHeader, unavailable
from trueup.schema.bounds import PER_MILLION_TOKENS

PER_MILLION = "USD/million useful tokens"


class Budget(Frozen):
    """Dollars per million useful tokens, all in, that a bill is held to."""

    usd_per_million_tokens: Annotated[float, AfterValidator(PER_MILLION_TOKENS.checked)]
    source: str


class BudgetVerdict(Frozen):
    """`over_by` is the figure less the limit: negative where the bill is within it. `share` is of it."""

    verdict: Literal["within", "over", "not known"]
    limit: Measurement
    figure: Measurement
    over_by: Measurement
    share: Measurement


def budget_of(header: RunHeader) -> Budget | None:
    """The red line of the run's recipe, where it has one."""
    section = header.recipe.get("budget")
    limit = section.get("usd_per_million_tokens") if isinstance(section, Mapping) else None
    return None if limit is None else budget_given(limit, "budget.usd_per_million_tokens of the recipe")


def budget_given(usd_per_million_tokens: float, source: str) -> Budget:
    """InputError for dollars out of bounds."""
    PER_MILLION_TOKENS.require(
        usd_per_million_tokens, f"a budget of {usd_per_million_tokens} USD per million tokens ({source})"
    )
    return Budget(usd_per_million_tokens=usd_per_million_tokens, source=source)


def judged(budget: Budget, figure: Measurement, total_usd: float) -> BudgetVerdict:
    """Where dollars were spent and no useful token was trained, every budget is overrun, by no number."""
    limit = Measurement(
        value=budget.usd_per_million_tokens, unit=PER_MILLION, kind="quoted", method=budget.source
    )
    if figure.value is None:
        reason = figure.reason or "the bill has no figure"
        return BudgetVerdict(
            verdict="over" if total_usd > 0 else "not known",
            limit=limit,
            figure=figure,
            over_by=unavailable(PER_MILLION, reason),
            share=unavailable("1", reason),
        )
    over = figure.value - budget.usd_per_million_tokens
    return BudgetVerdict(
        verdict="over" if over > 0 else "within",
        limit=limit,
        figure=figure,
        over_by=Measurement(
            value=over, unit=PER_MILLION, kind="derived", method="the bill's figure less the budget"
        ),
        share=Measurement(
            value=over / budget.usd_per_million_tokens,
            unit="1",
            kind="derived",
            method="the bill's figure less the budget, over the budget",
        ),
    )
