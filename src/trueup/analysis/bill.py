"""The bill: where a run's money went. Its lines add up to the total and none is negative.

Everything is taken from the stored record, so that a bill from the database and one from the run's folder are
the same. Neither numpy nor scipy is imported here or below: printing a bill is quick.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from math import fsum
from typing import Literal

from pydantic import Field

from trueup.catalog import staleness
from trueup.schema import (
    Frozen,
    InputError,
    Kind,
    Measurement,
    Price,
    RunHeader,
    RunRecord,
    RunState,
    Step,
    unavailable,
)
from trueup.schema.bounds import MONEY, PER_HOUR, RUNS, SECONDS, TOKENS, TOKENS_PER_S, Payment

from .bill_lines import LINE_NAMES, LINE_OF_SPAN, reason_of, seconds_by_line, value_of
from .budget import PER_MILLION, Budget, BudgetVerdict, budget_of, judged
from .energy_cost import EnergyCost, Tariff, energy_cost
from .outcomes import wall_seconds
from .silence import in_words
from .totals import totals_of

UNEVEN = 0.5  # standard deviation over mean of step times, from which it is said


class OneOff(Frozen):
    """Work done once, such as debugging, spread evenly over `over` runs."""

    usd: Payment
    over: int = Field(ge=1, le=RUNS.most)
    source: str

    @property
    def usd_per_run(self) -> float:
        return self.usd / self.over


def one_off_given(usd: float, over: int, source: str) -> OneOff:
    """InputError unless dollars and runs are within their bounds."""
    MONEY.require(usd, f"a one-off of {usd:g} USD ({source})")
    RUNS.require(over, f"a one-off ({source}) over {str(over)[:20]} runs")
    return OneOff(usd=usd, over=over, source=source)


class BillLine(Frozen):
    """One purpose the money served. `kind` is 'measured' for a span, 'derived' for a part of one, 'quoted'
    for what was given."""

    name: str
    seconds: float
    usd: float
    share: float
    kind: Literal["measured", "derived", "quoted"]


class Bill(Frozen):
    """A run's bill. `known` counts the run's measurements, and the price, by kind. `made_from` says of what
    kind each thing is that the bill is computed from; `only_quoted` that they are quoted, all of them;
    `stale_price`, which is in the notes too, that the price was old when the run began."""

    run: str
    name: str
    state: RunState
    price: Price
    total_usd: float
    total: Measurement
    wall_s: float
    useful_tokens: float
    usd_per_million_useful_tokens: Measurement
    usd_per_million_useful_tokens_steady: Measurement
    lines: tuple[BillLine, ...]
    energy: EnergyCost
    budget: BudgetVerdict | None
    made_from: dict[str, Kind]
    only_quoted: bool
    known: dict[str, int]
    stale_price: str | None
    notes: tuple[str, ...]


def make_bill(
    record: RunRecord,
    price: Price | None = None,
    *,
    one_off: OneOff | None = None,
    budget: Budget | None = None,
    tariff: Tariff | None = None,
    estimate_energy: bool = False,
) -> Bill:
    """The run's bill at `price`; price, budget and tariff are by default those stored with the run.

    InputError for a load run, without a price above zero, or where the record holds a time below zero.
    """
    if record.kind == "load":
        raise InputError(
            f"run {record.id} ({record.name}) put a load on a server and trained nothing: it has no dollars "
            f"per useful token. `trueup bill {record.id}` says what its tokens cost"
        )
    price = checked_price(record, price or record.header.price)
    require_times(record)
    notes: list[str] = []
    wall_s = wall_seconds(record)
    seconds = seconds_by_line(record, wall_s, notes)
    # From the lines, not from the wall clock: the two agree but for rounding, and a bill adds up exactly.
    total_s = fsum(seconds.values())
    total = _total(total_s, price, one_off)
    useful_tokens = useful_tokens_of(record)
    all_in = all_in_cost(total, useful_tokens, f"price {price.kind}")
    steady = _steady(record, price)
    made_from = _made_from(record, price, one_off)
    budget = budget or budget_of(record.header)
    notes += [event.message for event in record.events if event.kind == "contended_ceiling"][-1:]
    notes += in_words(record.events, wall_s)
    jitter = value_of(record, "step_jitter_share") or 0.0
    if steady.value is not None and jitter >= UNEVEN:
        notes.append(
            f"step times vary by {jitter:.0%} (standard deviation over mean, steps with an event left out)"
        )
    if seconds["down_time"]:
        notes.append("down time is billed as if the instance had been kept; subtract its line if it was not")
    stale = stale_price(record.header, price)
    notes += [stale] if stale else []
    if record.header.state == "running":
        notes.append("the run has not ended: this is its bill so far")
    total_usd = total.value or 0.0
    return Bill(
        run=record.header.id,
        name=record.header.name,
        state=record.header.state,
        price=price,
        total_usd=total_usd,
        total=total,
        wall_s=total_s,
        useful_tokens=useful_tokens,
        usd_per_million_useful_tokens=all_in,
        usd_per_million_useful_tokens_steady=steady,
        lines=_lines(seconds, price, one_off, total_usd),
        energy=energy_cost(record, tariff, estimate=estimate_energy),
        budget=judged(budget, all_in, total_usd) if budget else None,
        made_from=made_from,
        only_quoted=set(made_from.values()) == {"quoted"},
        known=known_kinds(record, price),
        stale_price=stale,
        notes=tuple(notes),
    )


def dollars_per_million(usd_per_hour: float, tokens_per_s: float) -> float:
    """$ per million tokens = price per hour ÷ (tokens per second × 3600) × 10⁶.

    InputError for a rate or a price out of bounds, as of zero: nothing follows from it.
    """
    PER_HOUR.require(usd_per_hour, f"a price of {usd_per_hour} USD per hour has no dollars per token")
    TOKENS_PER_S.require(tokens_per_s, f"a rate of {tokens_per_s} tokens per second has no dollars per token")
    return usd_per_hour / 3600 / tokens_per_s * 1e6


def all_in_cost(total: Measurement, useful_tokens: float, how: str) -> Measurement:
    """A whole bill over its useful tokens, per million, in the currency of `total`."""
    unit = PER_MILLION.replace("USD", total.unit)
    method = f"the whole bill over the useful tokens; {how}"
    if total.value is None:
        return unavailable(unit, total.reason or "there is no total", method=method)
    if useful_tokens <= 0:
        return unavailable(unit, "no useful token was trained", method=method)
    return Measurement(
        value=total.value / useful_tokens * 1e6,
        unit=unit,
        kind=total.kind,
        method=f"{method}; {total.value:.6g} {total.unit} / {useful_tokens:.9g} × 10⁶",
    )


def useful_tokens_of(record: RunRecord) -> float:
    """As the record says; of a run that was cut off, counted from its steps. InputError for no count."""
    recorded = value_of(record, "useful_tokens")
    found = float(totals_of(record).useful_tokens) if recorded is None else recorded
    if found:
        TOKENS.require(found, f"run {record.header.id} has a damaged record: {found:g} useful tokens")
    return found


def require_times(record: RunRecord) -> None:
    """InputError where a recorded time is below zero, not a number or of centuries: such a record is
    damaged."""
    named = [(f"its span '{span.name}'", span.seconds) for span in record.spans]
    named += [("its wall clock", record.header.wall_s or 0.0)]
    named += [(f"step {step.step}", seconds) for step in record.steps for seconds in _times(step)]
    for what, seconds in named:
        if not SECONDS.hold(seconds):
            raise InputError(
                f"run {record.header.id} cannot be billed: {what} took {seconds} s, and a time is {SECONDS}; "
                "the record is damaged: import the run again from where it was made"
            )


def _times(step: Step) -> tuple[float, float, float]:
    return step.step_s, step.data_wait_s, step.communication_s


def _total(total_s: float, price: Price, one_off: OneOff | None) -> Measurement:
    value = total_s * (price.usd_per_hour / 3600)
    method = f"{total_s:.9g} s × {price.usd_per_hour:.9g} USD/h / 3600"
    if one_off is not None:
        value += one_off.usd_per_run
        method += f" + {one_off.usd:g} USD / {one_off.over} ({one_off.source})"
    return Measurement(
        value=value,
        unit="USD",
        kind=price_kind(price),
        method=f"{method}; price {price.kind}: {price.source}",
    )


def stale_price(header: RunHeader, price: Price) -> str | None:
    """What to say of a price that was old when the run began, if it was."""
    started = started_at(header)
    return staleness(price, started.date()) if started else None


def started_at(header: RunHeader) -> datetime | None:
    """When the run began; None where its record has no readable instant."""
    try:
        found = datetime.fromisoformat(header.started_at)
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def price_kind(price: Price) -> Kind:
    """Of what is worked out with it."""
    return "estimated" if price.kind == "estimated" else "derived"


def _made_from(record: RunRecord, price: Price, one_off: OneOff | None) -> dict[str, Kind]:
    """Of what kind the bill's ingredients are. Seconds and tokens of spans and steps were measured here."""
    found: dict[str, Kind] = {}
    tokens = record.measurements.get("useful_tokens")
    rate = record.measurements.get("useful_tokens_per_s_steady")
    if record.spans or record.header.wall_s:
        found["time"] = "measured"
    if record.steps or (tokens is not None and tokens.value is not None):
        found["useful_tokens"] = "measured" if record.steps or tokens is None else tokens.kind
    if rate is not None and rate.value is not None and "time" not in found:
        found["rate"] = rate.kind
    found["price"] = price.kind
    if one_off is not None:
        found["one_off"] = "quoted"
    return found


def checked_price(record: RunRecord, price: Price | None) -> Price:
    """InputError where there is none, or one out of bounds."""
    if price is None:
        raise InputError(
            f"run {record.header.id} has no price, so it has no bill: the recipe gives one by "
            "price.usd_per_hour with price.source, or by platform.instance from the catalog"
        )
    PER_HOUR.require(price.usd_per_hour, f"a price of {price.usd_per_hour} USD per hour cannot be billed")
    return price


def _lines(
    seconds: dict[str, float], price: Price, one_off: OneOff | None, total_usd: float
) -> tuple[BillLine, ...]:
    usd_per_s = price.usd_per_hour / 3600
    total_s = fsum(seconds.values())
    once_usd = one_off.usd_per_run if one_off else 0.0

    def line(name: str, line_s: float, usd: float) -> BillLine:
        # of seconds where there is nothing else: so shares are exact however small the dollars
        part, whole = (usd, total_usd) if once_usd else (line_s, total_s)
        spans = set(LINE_OF_SPAN.values())
        kind: Literal["measured", "derived", "quoted"] = "measured" if name in spans else "derived"
        return BillLine(
            name=name,
            seconds=line_s,
            usd=usd,
            share=part / whole if whole > 0 else 0.0,
            kind="quoted" if name == "one_off" else kind,
        )

    of_time = [line(name, seconds[name], seconds[name] * usd_per_s) for name in LINE_NAMES if name in seconds]
    return (*of_time, line("one_off", 0.0, once_usd))


def _steady(record: RunRecord, price: Price) -> Measurement:
    """Price over the steady rate; a high rate is a low cost, so the interval's ends change places."""
    rate = record.measurements.get("useful_tokens_per_s_steady")
    method = f"price over useful tokens per second of the steady part; price {price.kind}"
    if rate is None or rate.value is None:
        return unavailable(PER_MILLION, reason_of(record, "useful_tokens_per_s_steady"), method=method)
    if rate.value <= 0:
        return unavailable(PER_MILLION, "the steady part trained no useful token", method=method)
    ci = None
    if rate.ci is not None and rate.ci[0] > 0:
        low, high = (dollars_per_million(price.usd_per_hour, edge) for edge in reversed(rate.ci))
        ci = (low, high)
    return Measurement(
        value=dollars_per_million(price.usd_per_hour, rate.value),
        unit=PER_MILLION,
        kind=price_kind(price),
        method=f"{method}; {price.usd_per_hour:.9g} USD/h / ({rate.value:.6g} tokens/s × 3600) × 10⁶, rate "
        f"{rate.kind}",
        n=rate.n,
        ci=ci,
        ci_method=rate.ci_method if ci else None,
    )


def known_kinds(record: RunRecord, price: Price) -> dict[str, int]:
    """How many of the run's measurements, and its price, are of each kind."""
    kinds = ("measured", "derived", "quoted", "estimated", "predicted", "unavailable")
    counted = Counter[str](one.kind for one in record.measurements.values())
    counted[price.kind] += 1
    return {kind: counted[kind] for kind in kinds}
