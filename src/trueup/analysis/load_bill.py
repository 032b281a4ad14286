"""What a load's tokens cost, and what a stated traffic would cost a month.

The machine is paid by the hour whatever it does, so the dollars of the measured stretch are one sum, and what
a token of either kind cost depends on how it is split. Three ways are given, each under its own name: all of
it over the output tokens; all of it over all tokens; and, where the server tells how long it spent in prefill
and in decode, prefill's part over the input tokens and decode's over the output tokens. Starting the server,
warming it up and recording are on the bill's lines, and in none of these. Standard library only: printing is
quick.
"""

from __future__ import annotations

import math
from math import fsum

from pydantic import Field

from trueup.schema import Frozen, InputError, Kind, Measurement, Price, RunRecord, RunState, SpanName
from trueup.schema.bounds import PEAK, PER_DAY

from .bill import BillLine, checked_price, known_kinds, price_kind, require_times, stale_price
from .bill_lines import reason_of, value_of
from .load_names import UNSEEN, load_figure, load_missing, with_no_interval
from .load_pace import fell_behind, pace_note
from .load_server import OVERLAP, counter_doubt
from .outcomes import wall_seconds

HOURS_PER_MONTH = 365 * 24 / 12
SECONDS_PER_DAY = 86400.0
MOST_INSTANCES = 10_000_000
MANY_OTHERS = 0.1  # of the CPU: neighbours that are to be spoken of

LOAD_LINE_NAMES = (
    "answering",  # the measured stretch with a request in flight, less padding where the server tells it
    "padding",
    "no_request",
    "warm_up",
    "start",  # of the client, and of the server where it is the load's own, and its end
    "prepare",
    "record",
    "other",
)
_LINE_OF_SPAN = {
    SpanName.REQUESTS: "answering",
    SpanName.WARM_UP: "warm_up",
    SpanName.START: "start",
    SpanName.LOAD: "start",
    SpanName.PREPARE: "prepare",
    SpanName.RECORD: "record",
}
_COSTS = {
    "usd_per_million_output_tokens": "output_tokens",
    "usd_per_million_total_tokens": "total_tokens",
}


class Traffic(Frozen):
    """Requests a day like those of the load; `peak` is the busiest second's rate over the mean."""

    requests_per_day: float = Field(gt=0, allow_inf_nan=False)
    peak: float = Field(default=1.0, ge=1, allow_inf_nan=False)

    @property
    def requests_per_s(self) -> float:
        return self.requests_per_day / SECONDS_PER_DAY

    @property
    def words(self) -> str:
        peak = f", {self.peak:g} times that at the peak" if self.peak > 1 else ", evenly over the day"
        return f"{self.requests_per_day:,.10g} requests a day like the load's{peak}"


class Monthly(Frozen):
    """What a traffic needs and costs: whole instances, and the same where a part of one could be rented."""

    traffic: Traffic
    instances: Measurement
    usd_per_month: Measurement
    usd_per_month_part: Measurement


class LoadBill(Frozen):
    """A load run's bill. `lines` are of the whole run and add up; `costs` are of the measured stretch."""

    run: str
    name: str
    state: RunState
    price: Price
    total_usd: float
    wall_s: float
    lines: tuple[BillLine, ...]
    load_usd: Measurement
    costs: dict[str, Measurement]
    monthly: Monthly | None
    known: dict[str, int]
    stale_price: str | None
    notes: tuple[str, ...]


def traffic_given(requests_per_day: float, peak: float = 1.0) -> Traffic:
    """InputError unless both are within their bounds."""
    PER_DAY.require(requests_per_day, f"--traffic {requests_per_day:g}, requests a day")
    PEAK.require(peak, f"--peak {peak:g}, the busiest rate over the mean")
    return Traffic(requests_per_day=requests_per_day, peak=peak)


def make_load_bill(
    record: RunRecord, price: Price | None = None, *, traffic: Traffic | None = None
) -> LoadBill:
    """The run's bill at `price`, by default its own. InputError for a training run, without a price above
    zero, or where the record holds a time below zero."""
    if record.kind != "load":
        raise InputError(f"run {record.id} trained a model; `trueup bill {record.id}` has its bill")
    price = checked_price(record, price or record.header.price)
    require_times(record)
    seconds = _seconds_by_line(record)
    wall_s = fsum(seconds.values())
    stale = stale_price(record.header, price)
    notes = [*load_notes(record), *([stale] if stale else [])]
    return LoadBill(
        run=record.id,
        name=record.name,
        state=record.state,
        price=price,
        total_usd=fsum(s * (price.usd_per_hour / 3600) for s in seconds.values()),
        wall_s=wall_s,
        lines=tuple(_line(name, s, price, wall_s) for name, s in seconds.items()),
        load_usd=_load_usd(record, price),
        costs=load_costs(record, price),
        monthly=monthly(record, price, traffic) if traffic else None,
        known=known_kinds(record, price),
        stale_price=stale,
        notes=tuple(notes),
    )


def load_costs(record: RunRecord, price: Price) -> dict[str, Measurement]:
    """Dollars per million tokens of the measured stretch, by name, each way of splitting them."""
    found = {name: _over_rate(record, price, name, f"{what}_per_s") for name, what in _COSTS.items()}
    share = record.measurements.get("prefill_time_share")
    for which, part in (("input", share), ("output", _rest(share))):
        name = f"usd_per_million_{which}_tokens_split"
        if part is None or part.value is None:
            found[name] = load_missing(name, reason_of(record, "prefill_time_share"))
            continue
        whole = _over_rate(record, price, name, f"{which}_tokens_per_s")
        if whole.value is None:
            found[name] = whole
            continue
        how = f" ({part.method})" if part.method else ""
        phase = "prefill" if which == "input" else "decode"
        found[name] = load_figure(
            name,
            whole.value * part.value,
            whole.kind,
            f"{part.value:.4g} of the dollars, {phase}'s part of the seconds{how}; {whole.method}",
            n=whole.n,
            ci=whole.ci and (whole.ci[0] * part.value, whole.ci[1] * part.value),
            ci_method=whole.ci_method,
        )
    return found


def monthly(record: RunRecord, price: Price, traffic: Traffic) -> Monthly:
    """Instances = ⌈rate × peak / goodput⌉, dollars = instances × price × hours of a month. A load that the
    server answered with ease shows less than what it could do, so the instances are then an upper bound."""
    goodput = record.measurements.get("goodput_requests_per_s")
    if goodput is None or not goodput.value:
        reason = "no request was answered within the limits" if goodput and goodput.value == 0 else None
        reason = reason or reason_of(record, "goodput_requests_per_s")
        none = Measurement(unit="count", kind="unavailable", reason=reason)
        unpaid = none.model_copy(update={"unit": "USD/month"})
        return Monthly(traffic=traffic, instances=none, usd_per_month=unpaid, usd_per_month_part=unpaid)
    wanted = traffic.requests_per_s * traffic.peak
    method = f"{traffic.words}: {wanted:.6g} requests/s over a goodput of {goodput.value:.6g} an instance"
    ci = None
    if goodput.ci is not None and goodput.ci[0] > 0:
        ci = (wanted / goodput.ci[1], wanted / goodput.ci[0])
    needed = wanted / goodput.value
    usd = price.usd_per_hour * HOURS_PER_MONTH
    paid = f"{method}; {price.usd_per_hour:.9g} USD/h × {HOURS_PER_MONTH:g} h; price {price.kind}"
    kind: Kind = price_kind(price)

    def measured(
        unit: str, value: float, ends: tuple[float, float] | None, how: str, of: Kind = kind
    ) -> Measurement:
        named = goodput.ci_method if ends and goodput else None
        how = with_no_interval(how, goodput)
        return Measurement(value=value, unit=unit, kind=of, method=how, n=goodput.n, ci=ends, ci_method=named)

    whole = None if ci is None else (float(_up(ci[0])), float(_up(ci[1])))
    return Monthly(
        traffic=traffic,
        instances=measured("count", _up(needed), whole, method, "derived"),
        usd_per_month=measured(
            "USD/month", _up(needed) * usd, whole and (whole[0] * usd, whole[1] * usd), paid
        ),
        usd_per_month_part=measured("USD/month", needed * usd, ci and (ci[0] * usd, ci[1] * usd), paid),
    )


def _up(instances: float) -> int:
    """Whole instances: at least one, and not one more for a rounding error."""
    if instances > MOST_INSTANCES:
        raise InputError(f"{instances:.4g} instances would be needed: a traffic is in requests a day")
    return max(1, math.ceil(instances - 1e-9))


def _over_rate(record: RunRecord, price: Price, name: str, rate_name: str) -> Measurement:
    """Price over a rate; a high rate is a low cost, so the interval's ends change places."""
    rate = record.measurements.get(rate_name)
    if rate is None or rate.value is None:
        return load_missing(name, reason_of(record, rate_name))
    if rate.value <= 0:
        return load_missing(name, "the load brought no token")
    usd_per_s = price.usd_per_hour / 3600 * 1e6
    ci = None
    if rate.ci is not None and rate.ci[0] > 0:
        ci = (usd_per_s / rate.ci[1], usd_per_s / rate.ci[0])
    method = (
        f"{price.usd_per_hour:.9g} USD/h / ({rate.value:.6g} {rate.unit} × 3600) × 10⁶; price {price.kind}"
    )
    method = with_no_interval(method, rate)
    return load_figure(
        name, usd_per_s / rate.value, price_kind(price), method, n=rate.n, ci=ci, ci_method=rate.ci_method
    )


def _rest(share: Measurement | None) -> Measurement | None:
    if share is None or share.value is None:
        return None
    return share.model_copy(update={"value": 1 - share.value})


def _load_usd(record: RunRecord, price: Price) -> Measurement:
    seconds = value_of(record, "load_s")
    if seconds is None:
        return Measurement(unit="USD", kind="unavailable", reason=reason_of(record, "load_s"))
    method = f"{seconds:.9g} s × {price.usd_per_hour:.9g} USD/h / 3600; price {price.kind}: {price.source}"
    usd = seconds * (price.usd_per_hour / 3600)
    return Measurement(value=usd, unit="USD", kind=price_kind(price), method=method)


def _seconds_by_line(record: RunRecord) -> dict[str, float]:
    """Every line's seconds; they add up to the wall clock."""
    seconds = dict.fromkeys(LOAD_LINE_NAMES, 0.0)
    for span in record.spans:
        seconds[_LINE_OF_SPAN.get(span.name, "other")] += span.seconds
    seconds["other"] += max(0.0, wall_seconds(record) - fsum(span.seconds for span in record.spans))
    idle_s = seconds["answering"] * _share(record, "no_request_share")
    padding_s = (seconds["answering"] - idle_s) * _share(record, "server_padding_share")
    seconds["answering"] = max(0.0, seconds["answering"] - idle_s - padding_s)
    return seconds | {"no_request": idle_s, "padding": padding_s}


def _share(record: RunRecord, name: str) -> float:
    return min(1.0, max(0.0, value_of(record, name) or 0.0))


def _line(name: str, seconds: float, price: Price, wall_s: float) -> BillLine:
    return BillLine(
        name=name,
        seconds=seconds,
        usd=seconds * (price.usd_per_hour / 3600),
        share=seconds / wall_s if wall_s > 0 else 0.0,
        kind="derived" if name in ("answering", "padding", "no_request") else "measured",
    )


def load_notes(record: RunRecord) -> list[str]:
    """What the reader should know of how far the figures carry."""
    doubt = counter_doubt(record.measurements)
    notes = [doubt] if doubt else []
    output = record.measurements.get("output_tokens")
    if output is not None and UNSEEN in output.method:
        notes.append(f"{UNSEEN}; figures over output tokens may be too good")
    split = record.measurements.get("prefill_time_share")
    if split is not None and OVERLAP in split.method:
        notes.append(f"the split between input and output tokens is {OVERLAP}")
    if (pace := pace_note(record)) is not None:
        notes.append(pace)
    if (others := _many_others(record)) is not None:
        notes.append(
            f"other processes used {others:.1%} of the client machine's CPU meanwhile, which makes a server "
            "there and the client slower: its figures are of a busy machine"
        )
    if record.state == "running":
        notes.append("the load has not ended: this is its bill so far")
    if record.state == "interrupted":
        notes.append("the load was interrupted: the figures are of what was answered by then")
    return notes


def load_warnings(record: RunRecord) -> list[str]:
    """Those of the notes that a figure of the load is not to be read without, in a few words."""
    told = {
        "busy machine": _many_others(record) is not None,
        "did not keep up": fell_behind(record),
    }
    return [words for words, holds in told.items() if holds]


def _many_others(record: RunRecord) -> float | None:
    """What others used of the CPU, where that is much of it."""
    others = value_of(record, "others_cpu_share")
    return others if others is not None and others > MANY_OTHERS else None
