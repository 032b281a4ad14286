"""The name, unit, scope and meaning of every measurement of a load run, of which the documentation is made.

Beside these a load run has `errors_KIND_count` for each kind of error that occurred, `memory_OWNER_bytes`
where the server tells its memory by owner, and `quality_…` and `plan_…` where they were given to it.
"""

from __future__ import annotations

import math

from trueup.schema import Kind, Measurement, Scope, unavailable

from .names import NAMES, P99_NEEDS, NameFacts

_LATENCIES = {
    "ttft": ("time to first token", "first text − instant the request was due"),
    "tpot": ("time per output token after the first", "(last text − first text) / (output tokens − 1)"),
    "itl": ("time between tokens", "between one chunk with text and the next"),
    "e2e": ("time to the whole answer", "end of the answer − instant the request was due"),
}
FORMULAS = {name: formula for name, (_, formula) in _LATENCIES.items()}
STATISTICS = {
    "p50_s": "median",
    "p90_s": "90th percentile",
    "p99_s": f"99th percentile, given from {P99_NEEDS} values on",
    "max_s": "longest",
    "mean_s": "mean",
}

UNSEEN = "more tokens are counted than the text has bytes: tokens that are not shown, or a count too high"
NO_INTERVAL = "no interval: "  # in the method of a figure that has none, before the reason

LOAD_NAMES: dict[str, NameFacts] = {
    # what was asked and answered
    "load_s": NameFacts("s", "process", "measured stretch: from the first request due to the last answer"),
    "requests_count": NameFacts("count", "process", "requests of the measured stretch, warm-up left out"),
    "completed_requests_count": NameFacts("count", "process", "requests with a whole answer"),
    "failed_requests_count": NameFacts("count", "process", "requests without one, by no doing of the load's"),
    "cancelled_requests_count": NameFacts("count", "process", "requests that the end of the load cut off"),
    "error_share": NameFacts("1", "process", "failed requests over failed and completed ones"),
    "offered_requests_per_s": NameFacts(
        "requests/s", "process", "requests over the stretch in which they were due; not of a closed load"
    ),
    "completed_requests_per_s": NameFacts("requests/s", "process", "whole answers over the measured stretch"),
    "goodput_requests_per_s": NameFacts(
        "requests/s", "process", "whole answers within the stated limits over the measured stretch"
    ),
    "goodput_share": NameFacts("1", "process", "requests answered within the limits, of all not cancelled"),
    "in_flight_mean_count": NameFacts(
        "count", "process", "requests in flight, mean over the measured stretch"
    ),
    "in_flight_max_count": NameFacts("count", "process", "most requests in flight at once"),
    "in_flight_middle_third_count": NameFacts(
        "count", "process", "requests in flight when one was due, mean over the middle third of the requests"
    ),
    "in_flight_last_third_count": NameFacts(
        "count", "process", "requests in flight when one was due, mean over the last third of the requests"
    ),
    "no_request_share": NameFacts("1", "process", "part of the measured stretch with no request in flight"),
    "sent_late_max_s": NameFacts("s", "process", "longest time by which the client sent a request late"),
    # tokens
    "input_tokens": NameFacts("tokens", "process", "prompt tokens of whole answers, as the server counts"),
    "output_tokens": NameFacts("tokens", "process", "tokens of whole answers, as the server counts"),
    "input_tokens_per_s": NameFacts("tokens/s", "process", "input tokens over the measured stretch"),
    "output_tokens_per_s": NameFacts("tokens/s", "process", "output tokens over the measured stretch"),
    "total_tokens_per_s": NameFacts(
        "tokens/s", "process", "input and output tokens over the measured stretch"
    ),
    "tokens_per_chunk": NameFacts("tokens", "process", "output tokens in a chunk of the stream, mean"),
    "prompt_tokens_off_max": NameFacts(
        "tokens", "process", "most by which a prompt's tokens differed from what was wanted"
    ),
    "cut_short_count": NameFacts("count", "process", "whole answers with fewer tokens than were asked for"),
    # latency
    **{
        f"{name}_{statistic}": NameFacts("s", "process", f"{meaning}, {words}")
        for name, (meaning, _) in _LATENCIES.items()
        for statistic, words in STATISTICS.items()
    },
    # what the server tells
    "kv_cache_usage_mean_share": NameFacts("1", "device", "KV cache in use, mean of the readings"),
    "kv_cache_usage_max_share": NameFacts("1", "device", "KV cache in use, highest reading"),
    "preemptions_count": NameFacts("count", "device", "requests put back for want of KV cache"),
    "prefix_cache_hit_share": NameFacts("1", "device", "prompt tokens found in the prefix cache"),
    "server_padding_share": NameFacts(
        "1", "device", "part of the tokens the server computed that is padding"
    ),
    "server_recompute_share": NameFacts(
        "1", "device", "part of the tokens the server computed that it computed again after a preemption"
    ),
    "prefill_time_share": NameFacts(
        "1", "device", "prefill over prefill and decode, in seconds as the server counts them"
    ),
    "server_queue_mean_s": NameFacts(
        "s", "process", "mean time from a request's arrival at the server to its first work on it"
    ),
    "server_prefill_mean_s": NameFacts(
        "s", "process", "mean time from the server's first work on a request to its first token"
    ),
    "server_ttft_mean_s": NameFacts(
        "s", "process", "mean time from a request's arrival at the server to its first token, as it tells"
    ),
    "server_output_tokens": NameFacts("tokens", "device", "tokens the server says it generated meanwhile"),
    "server_rss_max_bytes": NameFacts("bytes", "process", "resident memory of the server, highest reading"),
    # power
    "power_mean_w": NAMES["power_mean_w"],
    "energy_j": NameFacts("J", "device", "energy over the measured stretch, idle power included"),
    "energy_per_output_token_j": NameFacts("J/token", "device", "energy over output tokens"),
    # money
    "usd_per_million_output_tokens": NameFacts(
        "USD/million output tokens", "process", "all dollars of the stretch over its output tokens"
    ),
    "usd_per_million_total_tokens": NameFacts(
        "USD/million tokens", "process", "all dollars of the stretch over its input and output tokens"
    ),
    "usd_per_million_input_tokens_split": NameFacts(
        "USD/million input tokens", "process", "dollars of prefill's share of the time over the input tokens"
    ),
    "usd_per_million_output_tokens_split": NameFacts(
        "USD/million output tokens", "process", "dollars of decode's share of the time over the output tokens"
    ),
    # the run
    "wall_s": NAMES["wall_s"],
    "other_share": NAMES["other_share"],
    "others_cpu_share": NameFacts(
        "1", "node", "mean part of the client machine's CPU that others than the load and its server used"
    ),
    "telemetry_cpu_s": NAMES["telemetry_cpu_s"],
}


def load_figure(
    name: str,
    value: float,
    kind: Kind,
    method: str,
    *,
    n: int | None = None,
    ci: tuple[float, float] | None = None,
    ci_method: str | None = None,
) -> Measurement:
    """The named measurement with its unit. A value that is not finite becomes unavailable, and says so."""
    facts = LOAD_NAMES[name]
    if not math.isfinite(value):
        return unavailable(facts.unit, f"the value is {value}, not a finite number", method=method, n=n)
    return Measurement(
        value=value,
        unit=facts.unit,
        kind=kind,
        method=method,
        scope=facts.scope,
        n=n,
        ci=ci,
        ci_method=ci_method if ci else None,
    )


def why_no_interval(found: Measurement) -> str | None:
    """The reason, of a figure that has none and says why."""
    return found.method.partition(NO_INTERVAL)[2] or None if found.ci is None else None


def with_no_interval(method: str, of: Measurement) -> str:
    """The method of a figure that follows from another one, which may have no interval for it."""
    why = why_no_interval(of)
    return f"{method}; {NO_INTERVAL}{why}" if why else method


def load_missing(name: str, reason: str, *, n: int | None = None, method: str = "") -> Measurement:
    """The named measurement that could not be made, and why."""
    facts = LOAD_NAMES[name]
    scope: Scope = facts.scope
    return unavailable(facts.unit, reason, method=method, scope=scope, n=n)
