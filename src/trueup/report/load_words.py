"""A load's figures in sentences, for the terminal and the page alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from trueup.analysis.load_limits import closed, limits_of

from .headline import interval_name
from .wording import clean, dollar_decimals, dollars, interval, quantity, quantity_within, words

if TYPE_CHECKING:
    from trueup.analysis.load_bill import Monthly
    from trueup.schema import Measurement, RunRecord

INPUT_SPLIT, OUTPUT_SPLIT = (f"usd_per_million_{which}_tokens_split" for which in ("input", "output"))
COSTS = {
    "usd_per_million_output_tokens": "per million output tokens (all dollars over them)",
    "usd_per_million_total_tokens": "per million tokens of either kind (all dollars over all)",
    INPUT_SPLIT: "per million input tokens, by prefill's part of the time",
    OUTPUT_SPLIT: "per million output tokens, by decode's part of the time",
}
_SHORT = ("output tokens", "all tokens", "input, by time", "output, by time")
_ERRORS = re.compile(r"errors_(\w+)_count")

Found = Mapping[str, "Measurement"]


def cost_words(name: str, cost: Measurement) -> str:
    """$1.234 per million output tokens (…), $1.201 to $1.270 within run."""
    if cost.value is None:
        return f"no dollars {COSTS[name]}: {clean(cost.reason)}"
    text = f"{dollars(cost.value)} {COSTS[name]}"
    if cost.ci is not None:
        low, high = (dollars(edge, dollar_decimals(cost.value)) for edge in cost.ci)
        text += f", {low} to {high} {interval_name(cost)}"
    return text


def costs_words(costs: Mapping[str, Measurement]) -> list[tuple[str, str]]:
    """A short name and a sentence for each way of splitting the dollars. The two by time are made of one
    figure: where they lack it, one sentence says so."""
    told = [(short, cost_words(name, costs[name])) for name, short in zip(COSTS, _SHORT, strict=True)]
    reasons = {costs[name].reason for name in (INPUT_SPLIT, OUTPUT_SPLIT) if costs[name].value is None}
    if len(reasons) == 1 and costs[INPUT_SPLIT].value is costs[OUTPUT_SPLIT].value is None:
        words = f"no dollars for input and output tokens apart, by time: {clean(reasons.pop())}"
        return [*told[:2], ("by time", words)]
    return told


def requests_words(record: RunRecord) -> Iterator[str]:
    """How many came to what end, at what rate, and how many within the limits. A closed load offers no rate
    of its own: an older record has one all the same."""
    found, limits = record.measurements, limits_of(record.header)
    counted = {what: _value(found, f"{what}_requests_count") for what in ("completed", "failed", "cancelled")}
    told = ", ".join(
        f"{count:,.0f} {'answered' if what == 'completed' else what}"
        for what, count in counted.items()
        if count is not None and (count or what == "completed")
    )
    errors = [
        f"{count:,.0f} {words(match[1])}"
        for name in found
        if (match := _ERRORS.fullmatch(name)) and (count := _value(found, name))
    ]
    yield f"requests: {told}" + (f" ({', '.join(errors)})" if errors else "")
    if not closed(record.header):
        yield f"  offered: {figure_words(found, 'offered_requests_per_s')}"
    for name, label in (
        ("completed_requests_per_s", "answered"),
        ("goodput_requests_per_s", f"goodput ({limits.words})"),
    ):
        yield f"  {label}: {figure_words(found, name)}"
    for name, label in (
        ("goodput_share", "answered within the limits"),
        ("in_flight_mean_count", "in flight, mean"),
        ("sent_late_max_s", "sent late by the client, at most"),
    ):
        yield f"  {label}: {figure_words(found, name)}"


def tokens_words(found: Found) -> Iterator[str]:
    yield f"tokens: {figure_words(found, 'input_tokens')} in, {figure_words(found, 'output_tokens')} out"
    for name, label in (("output_tokens_per_s", "output"), ("total_tokens_per_s", "input and output")):
        yield f"  {label}: {figure_words(found, name)}"
    off, short = _value(found, "prompt_tokens_off_max"), _value(found, "cut_short_count")
    if off:
        yield f"  prompts were up to {off:,.0f} tokens off what was wanted"
    if short:
        yield f"  {short:,.0f} answers were shorter than asked"


def server_words(found: Found) -> Iterator[str]:
    """What the server told of itself, one line; why nothing, where it told nothing."""
    named = {
        "kv_cache_usage_mean_share": "KV cache in use",
        "kv_cache_usage_max_share": "at most",
        "preemptions_count": "preemptions",
        "server_padding_share": "padding of tokens computed",
        "server_recompute_share": "computed again after preemption",
        "prefix_cache_hit_share": "prefix cache hits",
        "prefill_time_share": "prefill's part of the time",
        "server_queue_mean_s": "wait in its queue, mean",
        "server_ttft_mean_s": "time to first token by its own clock, mean",
        "server_rss_max_bytes": "resident memory",
        "energy_per_output_token_j": "energy per output token",
    }
    told = [
        f"{label} {quantity(value, found[name].unit, name)}"
        for name, label in named.items()
        if (value := _value(found, name)) is not None
    ]
    if told:
        yield f"server: {', '.join(told)}"
    elif "preemptions_count" in found:
        yield f"server: told nothing of itself ({clean(found['preemptions_count'].reason)})"


def month_words(month: Monthly) -> Iterator[str]:
    """$730.00 a month on 1 instance for … ; then how."""
    usd, instances = month.usd_per_month, month.instances
    if usd.value is None:
        yield f"no dollars a month for {month.traffic.words}: {clean(usd.reason)}"
        return
    count = instances.value or 0.0
    yield (
        f"{dollars(usd.value)} a month on {count:,.0f} instance{'' if count == 1 else 's'} for "
        f"{month.traffic.words}{_between(usd)}"
    )
    part = month.usd_per_month_part
    if part.value is not None:
        yield f"{dollars(part.value)} if a part of an instance could be rented{_between(part)}"
    yield clean(usd.method)


def figure_words(found: Found, name: str) -> str:
    """A figure with its interval, or why there is none."""
    one = found.get(name)
    if one is None:
        return "not recorded"
    if one.value is None:
        return f"not known ({clean(one.reason)})"
    text = quantity_within(one.value, one.ci, one.unit, name)
    if one.ci is not None:
        text += f" ({interval(one.ci, one.unit, name)} {interval_name(one)})"
    return text


def _between(usd: Measurement) -> str:
    if usd.ci is None:
        return ""
    return f" ({dollars(usd.ci[0])} to {dollars(usd.ci[1])} {interval_name(usd)})"


def _value(found: Found, name: str) -> float | None:
    return found[name].value if name in found else None
