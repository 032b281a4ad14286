"""From a load run's requests to its measurements: all of them, each with a value or a reason.

Latency is of whole answers and counts from the instant a request was due. Requests that failed have none and
stand beside it as the share of errors; those that the end of the load cut off are counted, and are no errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any, NamedTuple

from trueup.schema import Measurement, RequestResult, RunRecord, Sample
from trueup.schema.counting import counted

from .load_latency import of_latency
from .load_limits import Limits, closed, limits_of, within
from .load_names import LOAD_NAMES, load_figure, load_missing
from .load_pace import in_flight_by_third
from .load_rates import Stretch, rate, stretch_of
from .load_server import of_server
from .load_tokens import of_tokens
from .mean_interval import share_of
from .outcomes import of_wall_clock
from .sensors import of_samples, series

Found = dict[str, Measurement]

GIVEN_EVENT = "given"  # data: measurements that were given to the run, by name
_COUNTED = "requests counted"
_OFFERED = "offered_requests_per_s"


class _Sorted(NamedTuple):
    """The measured requests by what became of them."""

    all: list[RequestResult]
    whole: list[RequestResult]
    failed: list[RequestResult]
    cancelled: list[RequestResult]

    @classmethod
    def of(cls, record: RunRecord) -> _Sorted:
        asked = [one for one in record.requests if not one.warm_up]
        return cls(
            asked,
            [one for one in asked if one.error is None],
            [one for one in asked if one.error not in (None, "cancelled")],
            [one for one in asked if one.error == "cancelled"],
        )


def summarize_load(record: RunRecord, *, extra: Mapping[str, Measurement] | None = None) -> Found:
    """Every measurement of `load_names.LOAD_NAMES`, and those beside them. `extra` holds what only the run
    itself could measure. The record may be of a run that was cut off. Money is not here: see `load_bill`."""
    sorted_ = _Sorted.of(record)
    stretch = stretch_of(sorted_.all)
    limits = limits_of(record.header)
    samples = [one for one in record.samples if stretch and stretch.begin_s <= one.at_s <= stretch.end_s]
    found = _counts(sorted_)
    found |= _in_time(sorted_, stretch, limits)
    if closed(record.header):
        found[_OFFERED] = load_missing(
            _OFFERED, "a closed load offers no rate: the next request waits for an answer"
        )
    found |= in_flight_by_third(sorted_.all)
    found |= of_tokens(sorted_.whole, stretch)
    found |= of_latency(sorted_.whole)
    found |= of_server(record, samples)
    found |= _energy(record, samples, found["output_tokens"])
    found |= _neighbours(record, samples)
    found |= of_wall_clock(record)
    found |= _given(record)
    found |= extra or {}
    ordered = {name: found.get(name) or load_missing(name, _why_absent(name)) for name in LOAD_NAMES}
    return ordered | {name: one for name, one in found.items() if name not in LOAD_NAMES}


def _why_absent(name: str) -> str:
    return "the run has no price" if name.startswith("usd_") else "the run did not measure it"


def _counts(sorted_: _Sorted) -> Found:
    named = {
        "requests_count": sorted_.all,
        "completed_requests_count": sorted_.whole,
        "failed_requests_count": sorted_.failed,
        "cancelled_requests_count": sorted_.cancelled,
    }
    found = {name: load_figure(name, len(held), "measured", _COUNTED) for name, held in named.items()}
    judged = len(sorted_.whole) + len(sorted_.failed)
    found["error_share"] = (
        _share("error_share", len(sorted_.failed), judged, _COUNTED)
        if judged
        else load_missing("error_share", "no request came to an end", n=0)
    )
    late = [one.sent_s - one.due_s for one in sorted_.all if one.error != "cancelled"]
    found["sent_late_max_s"] = (
        load_figure(
            "sent_late_max_s",
            max(late),
            "measured",
            "sent − due, on the client's clock; it is in TTFT and E2E, which count from the instant due",
            n=len(late),
        )
        if late
        else load_missing("sent_late_max_s", "no request was sent", n=0)
    )
    kinds = Counter(str(one.error) for one in sorted_.failed)
    for kind, count in sorted(kinds.items()):
        reason = next(one.reason or "" for one in sorted_.failed if one.error == kind)
        found[f"errors_{kind}_count"] = Measurement(
            value=count, unit="count", kind="measured", method=f"counted; the first: {reason}"
        )
    return found


def _share(name: str, count: int, judged: int, how: str) -> Measurement:
    value, ci, method = share_of(count, judged)
    told = f"within_run: {method} of requests taken as independent"
    return load_figure(name, value, "measured", how, n=judged, ci=ci, ci_method=told)


def _in_time(sorted_: _Sorted, stretch: Stretch | None, limits: Limits) -> Found:
    names = (
        *("load_s", _OFFERED, "completed_requests_per_s", "goodput_requests_per_s"),
        *("goodput_share", "in_flight_mean_count", "in_flight_max_count", "no_request_share"),
    )
    if stretch is None:
        return {name: load_missing(name, "no request was sent", n=0) for name in names}
    whole, judged = sorted_.whole, len(sorted_.whole) + len(sorted_.failed)
    found = {
        "load_s": load_figure("load_s", stretch.seconds, "measured", "first request due to last answer"),
        _OFFERED: _offered(sorted_.all),
        "completed_requests_per_s": rate(
            "completed_requests_per_s",
            [(one.done_s, 1.0) for one in whole],
            stretch,
            "whole answers",
            n=len(whole),
        ),
        "in_flight_mean_count": load_figure(
            "in_flight_mean_count",
            stretch.request_s / stretch.seconds,
            "measured",
            "Σ(done − sent) / stretch",
        ),
        "in_flight_max_count": load_figure(
            "in_flight_max_count", stretch.most_in_flight, "measured", "counted at every start and end"
        ),
        "no_request_share": load_figure(
            "no_request_share", 1 - stretch.busy_s / stretch.seconds, "measured", "by the client's clock"
        ),
    }
    kept = [(one, within(one, limits)) for one in whole]
    if untold := sum(verdict is None for _, verdict in kept):
        reason = f"{counted(untold, 'answer')} came without a token count, so their TPOT is not known"
        return found | {n: load_missing(n, reason) for n in ("goodput_requests_per_s", "goodput_share")}
    good = [one for one, verdict in kept if verdict]
    what = f"whole answers with {limits.words}" if limits != Limits() else f"whole answers; {limits.words}"
    found["goodput_requests_per_s"] = rate(
        "goodput_requests_per_s", [(one.done_s, 1.0) for one in good], stretch, what, n=len(good)
    )
    found["goodput_share"] = (
        _share("goodput_share", len(good), judged, what)
        if judged
        else load_missing("goodput_share", "no request came to an end", n=0)
    )
    return found


def _offered(asked: Sequence[RequestResult]) -> Measurement:
    due = [one.due_s for one in asked]
    over_s = max(due) - min(due)
    if len(due) < 2 or over_s <= 0:
        return load_missing(_OFFERED, "fewer than two instants at which requests were due")
    method = "(requests − 1) / (last due − first due)"
    return load_figure(_OFFERED, (len(due) - 1) / over_s, "measured", method, n=len(due))


def _energy(record: RunRecord, samples: Sequence[Sample], output_tokens: Measurement) -> Found:
    """Of the measured stretch alone."""
    sensed = of_samples(record.model_copy(update={"samples": tuple(samples), "steps": ()}), (), 0.0)
    energy = sensed["energy_j"]
    found = {"energy_j": energy, "power_mean_w": sensed["power_mean_w"]}
    name = "energy_per_output_token_j"
    if energy.value is None or not output_tokens.value:
        found[name] = load_missing(name, energy.reason or output_tokens.reason or "no output token")
    else:
        method = f"energy over output tokens; {energy.method}"
        found[name] = load_figure(name, energy.value / output_tokens.value, "derived", method)
    return found


def _neighbours(record: RunRecord, samples: Sequence[Sample]) -> Found:
    """What used the processors beside the load and its server."""
    name = "others_cpu_share"
    absent = record.header.environment.get("missing_sensors")
    if isinstance(absent, Mapping) and name in absent:
        return {name: load_missing(name, str(absent[name]))}
    others = [value for _, value in series(samples, name)]
    if not others:
        return {name: load_missing(name, "no sample lies in the measured stretch")}
    mean = fsum(others) / len(others)
    return {name: load_figure(name, mean, "measured", "mean of the samples", n=len(others))}


def _given(record: RunRecord) -> Found:
    """Measurements that were made elsewhere and given to the run: a quality gate's, a memory plan's."""
    found: dict[str, Any] = {}
    for event in record.events:
        if event.kind == GIVEN_EVENT and isinstance(event.data.get("measurements"), Mapping):
            found |= event.data["measurements"]
    return {name: Measurement.model_validate(one) for name, one in found.items()}
