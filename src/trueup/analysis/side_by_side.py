"""One run, or a study, under several price models: what it would have cost, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trueup.schema import Frozen, InputError, Measurement, PricingTerms, RunHeader, unavailable
from trueup.schema.counting import counted

from .bill import Bill, OneOff, all_in_cost, started_at
from .price_models import cost_of, terms_from_price
from .study_bill import summed


class AskedPrice(Frozen):
    """A price model asked for by its label; without terms, why there are none."""

    label: str
    terms: PricingTerms | None = None
    reason: str | None = None


class ModelBill(Frozen):
    """The same work under one price model. A model without a price is unavailable, never left out."""

    model: str
    currency: str
    per_hour: Measurement
    total: Measurement
    usd_per_million_useful_tokens: Measurement
    notes: tuple[str, ...] = ()


def as_billed(bill: Bill) -> AskedPrice:
    """The bill's own price, as one to set others beside."""
    return AskedPrice(label="as billed", terms=terms_from_price(bill.price))


def under_models(
    bill: Bill, header: RunHeader, asked: Sequence[AskedPrice], one_off: OneOff | None = None
) -> tuple[ModelBill, ...]:
    """The bill's seconds and tokens under each price. InputError where a one-off in dollars meets a price in
    another currency."""
    return tuple(_row(bill, header, one, one_off) for one in asked)


def study_under_models(
    rows: Mapping[str, Sequence[ModelBill]], useful_tokens: float
) -> tuple[ModelBill, ...]:
    """The runs' rows, by run, added up model by model; each run has the same models in the same order.

    InputError where a model's runs are in different currencies.
    """
    return tuple(_together(of_model, useful_tokens) for of_model in zip(*rows.values(), strict=True))


def _row(bill: Bill, header: RunHeader, asked: AskedPrice, one_off: OneOff | None) -> ModelBill:
    if asked.terms is None:
        reason = asked.reason or "no price is known"
        total = unavailable("USD", reason, scope="node")
        return ModelBill(
            model=asked.label,
            currency="USD",
            per_hour=unavailable("USD/h", reason, scope="node"),
            total=total,
            usd_per_million_useful_tokens=all_in_cost(total, bill.useful_tokens, f"under {asked.label}"),
        )
    cost = cost_of(asked.terms, bill.wall_s, started=started_at(header))
    total = _with_one_off(cost.total, one_off)
    return ModelBill(
        model=asked.label,
        currency=cost.currency,
        per_hour=cost.per_hour,
        total=total,
        usd_per_million_useful_tokens=all_in_cost(total, bill.useful_tokens, f"under {asked.label}"),
        notes=cost.notes,
    )


def _with_one_off(total: Measurement, one_off: OneOff | None) -> Measurement:
    if one_off is None or total.value is None:
        return total
    if total.unit != "USD":
        raise InputError(
            f"a one-off in USD cannot be added to a price in {total.unit}: give the price in USD, converted "
            "at a rate you name in its source"
        )
    once = one_off.usd_per_run
    ci = None if total.ci is None else (total.ci[0] + once, total.ci[1] + once)
    method = f"{total.method} + {one_off.usd:g} USD / {one_off.over} ({one_off.source})"
    return total.model_copy(update={"value": total.value + once, "ci": ci, "method": method})


def _together(rows: Sequence[ModelBill], useful_tokens: float) -> ModelBill:
    label = rows[0].model
    currency = next((row.currency for row in rows if row.total.value is not None), rows[0].currency)
    total = summed([row.total for row in rows], currency, f"runs under {label}")
    rates = {(row.per_hour.value, row.per_hour.unit) for row in rows}
    several = unavailable(f"{currency}/h", "it differs between the runs", scope="node")
    return ModelBill(
        model=label,
        currency=currency,
        per_hour=rows[0].per_hour if len(rates) == 1 else several,
        total=total,
        usd_per_million_useful_tokens=all_in_cost(
            total, useful_tokens, f"{counted(len(rows), 'run')} together, under {label}"
        ),
        notes=tuple(dict.fromkeys(note for row in rows for note in row.notes)),
    )
