"""What the server told of itself while a load was on it: from the events that hold its counters before and
after, and from samples of its state in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any

from trueup.schema import Measurement, RunRecord, Sample

from .load_names import load_figure, load_missing

Found = dict[str, Measurement]
_Rose = dict[str, float]  # by counter

SERVER_METRICS_EVENT = "server_metrics"  # data: when (before, after), counters, states, memory
NO_METRICS_EVENT = "no_server_metrics"  # its message says why
OVERLAP = "by the seconds of requests, which overlap: not the machine's own time in each"
COUNTER_SLACK = 0.02  # a server's counter may lag behind the answers that it has given
_FIGURES = (
    *("kv_cache_usage_mean_share", "kv_cache_usage_max_share", "preemptions_count", "prefix_cache_hit_share"),
    *("server_padding_share", "server_recompute_share", "prefill_time_share", "server_output_tokens"),
    *("server_queue_mean_s", "server_prefill_mean_s", "server_ttft_mean_s"),
    "server_rss_max_bytes",
)


def of_server(record: RunRecord, samples: Sequence[Sample]) -> Found:
    """Each with a value or the reason; `samples` are those of the measured stretch."""
    snapshots = {
        str(event.data.get("when")): event.data
        for event in record.events
        if event.kind == SERVER_METRICS_EVENT
    }
    memory = _memory(snapshots)
    rose = _rises(record, snapshots)
    if isinstance(rose, str):
        return {name: load_missing(name, rose) for name in _FIGURES} | memory
    found = _states(samples)
    found["preemptions_count"] = _rise(rose, "preemptions_count", "preemptions")
    found["server_output_tokens"] = _rise(rose, "server_output_tokens", "output_tokens")
    found["prefix_cache_hit_share"] = _part(
        rose,
        "prefix_cache_hit_share",
        "prefix_tokens_hit",
        ("prefix_tokens_asked",),
        "looked up in the cache",
    )
    found["server_recompute_share"] = _part(
        rose, "server_recompute_share", "recomputed_tokens", ("processed_tokens",), "computed"
    )
    found["server_padding_share"] = _padding(rose, found["server_recompute_share"])
    found["prefill_time_share"] = _prefill_share(rose)
    for name, what in (
        ("server_queue_mean_s", "queue"),
        ("server_prefill_mean_s", "prefill"),
        ("server_ttft_mean_s", "first_token"),
    ):
        found[name] = _mean(rose, name, what)
    return found | memory


def _memory(snapshots: Mapping[str, Mapping[str, Any]]) -> Found:
    """By owner, as told last; what a server holds by owner does not change while it serves."""
    when = next((one for one in ("after", "before") if one in snapshots), None)
    held = _numbers(snapshots[when].get("memory")) if when is not None else {}
    how = f"the server's own count, {when} the load"
    return {
        f"memory_{owner}_bytes": Measurement(value=size, unit="bytes", kind="measured", method=how)
        for owner, size in held.items()
    }


def counter_doubt(found: Mapping[str, Measurement]) -> str | None:
    """In words, where the answers count more tokens than the server's own counter did meanwhile."""
    usage, counter = found.get("output_tokens"), found.get("server_output_tokens")
    if usage is None or counter is None or usage.value is None or counter.value is None:
        return None
    if usage.value <= counter.value * (1 + COUNTER_SLACK):
        return None
    return (
        f"the usage of the answers adds up to {usage.value:,.0f} output tokens, and the server's own counter "
        f"rose by {counter.value:,.0f}: the answers count too many, or /metrics is of one server of several; "
        "figures over output tokens may be too good"
    )


def _rises(record: RunRecord, snapshots: Mapping[str, Mapping[str, Any]]) -> _Rose | str:
    """By how much each counter rose, or why nothing is known."""
    before, after = snapshots.get("before"), snapshots.get("after")
    if before is None or after is None:
        why = [event.message for event in record.events if event.kind == NO_METRICS_EVENT]
        return why[-1] if why else "the server's metrics were not read both before and after the load"
    first, last = _numbers(before.get("counters")), _numbers(after.get("counters"))
    return {name: last[name] - first[name] for name in last if name in first}


def _numbers(found: Any) -> dict[str, float]:
    if not isinstance(found, Mapping):
        return {}
    return {str(name): float(value) for name, value in found.items() if isinstance(value, int | float)}


def _states(samples: Sequence[Sample]) -> Found:
    found: Found = {}
    kv = [one.values["kv_cache_usage_share"] for one in samples if "kv_cache_usage_share" in one.values]
    if kv:
        found["kv_cache_usage_mean_share"] = load_figure(
            "kv_cache_usage_mean_share", fsum(kv) / len(kv), "measured", "mean of the readings", n=len(kv)
        )
        found["kv_cache_usage_max_share"] = load_figure(
            "kv_cache_usage_max_share", max(kv), "measured", "highest reading, about one a second", n=len(kv)
        )
    else:
        for name in ("kv_cache_usage_mean_share", "kv_cache_usage_max_share"):
            found[name] = load_missing(name, "the server tells no use of its KV cache")
    rss = [one.values["server_rss_bytes"] for one in samples if "server_rss_bytes" in one.values]
    found["server_rss_max_bytes"] = (
        load_figure(
            "server_rss_max_bytes", max(rss), "measured", "highest reading, about one a second", n=len(rss)
        )
        if rss
        else load_missing("server_rss_max_bytes", "the server tells no resident memory")
    )
    return found


def _prefill_share(rose: _Rose) -> Measurement:
    """By the wall clock where the server has it; else by the seconds of requests, which says so."""
    words = "told of prefill and decode"
    clock, requests = ("prefill_s", "decode_s"), ("request_prefill_s", "request_decode_s")
    if all(name in rose for name in clock) or not all(name in rose for name in requests):
        return _part(rose, "prefill_time_share", clock[0], clock, words)
    found = _part(rose, "prefill_time_share", requests[0], requests, words)
    if found.value is None:
        return found
    return found.model_copy(update={"method": f"{found.method}; {OVERLAP}"})


def _padding(rose: _Rose, recompute: Measurement) -> Measurement:
    """What is neither useful nor done again, where the server tells that apart."""
    useful = _part(rose, "server_padding_share", "useful_tokens", ("processed_tokens",), "computed")
    if useful.value is None:
        return useful
    again = recompute.value or 0.0
    method = (
        "1 − useful"
        + (" and recomputed" if again else "")
        + " over processed tokens, by the server's counters"
    )
    return load_figure("server_padding_share", max(0.0, 1 - useful.value - again), "measured", method)


def _rise(rose: _Rose, name: str, counter: str) -> Measurement:
    by = rose.get(counter)
    if by is None:
        return load_missing(name, f"the server has no counter of {_in_words(counter)}")
    if by < 0:
        return load_missing(name, "the counter fell: the server began anew during the load")
    return load_figure(name, by, "measured", "the server's counter, after the load less before it")


def _mean(rose: _Rose, name: str, what: str) -> Measurement:
    """Over the requests that the server counted meanwhile, those of others among them."""
    seconds, counter = rose.get(f"request_{what}_s"), rose.get(f"request_{what}_count")
    if seconds is None or counter is None:
        return load_missing(name, f"the server has no histogram of {_in_words(f'request_{what}_s')}")
    if seconds < 0 or counter < 0:
        return load_missing(name, "a counter fell: the server began anew during the load")
    if counter == 0:
        return load_missing(name, "the server counted no request during the load", n=0)
    how = "the histogram's sum over its count, after the load less before it"
    return load_figure(name, seconds / counter, "measured", how, n=round(counter))


def _part(rose: _Rose, name: str, part: str, whole: tuple[str, ...], what: str) -> Measurement:
    counters = (part, *whole)
    if lacking := [one for one in counters if one not in rose]:
        return load_missing(name, f"the server has no counter of {_in_words(lacking[0])}")
    total = fsum(rose[one] for one in whole)
    if min(rose[one] for one in counters) < 0:
        return load_missing(name, "a counter fell: the server began anew during the load")
    if total <= 0:
        return load_missing(name, f"nothing was {what} during the load")
    return load_figure(
        name, rose[part] / total, "measured", "by the server's counters, after the load less before it"
    )


def _in_words(counter: str) -> str:
    """prefill seconds, useful tokens."""
    stem = counter.removesuffix("_s")
    return stem.replace("_", " ") + (" seconds" if stem != counter else "")
