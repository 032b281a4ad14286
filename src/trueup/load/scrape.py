"""What a server tells of itself at /metrics, under the names that vLLM, llama.cpp and trueup give it.

Sources: vllm/v1/metrics/loggers.py, llama.cpp tools/server README. Where a server has several series of one
name (one an engine), counters are added up and shares averaged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from trueup.schema import MissingExtraError

from .fetch import NoDocumentError, fetch

if TYPE_CHECKING:
    import httpx

WITHIN_S = 5.0
MOST_BYTES = 8 << 20


class Snapshot(NamedTuple):
    """Counters and states at an instant, by our names; memory in bytes by owner."""

    counters: dict[str, float]
    states: dict[str, float]
    memory: dict[str, float]


# Our name: what it is called by the servers. Counters only rise.
COUNTERS: dict[str, tuple[str, ...]] = {
    "prompt_tokens": ("vllm:prompt_tokens_total", "llamacpp:prompt_tokens_total"),
    "output_tokens": ("vllm:generation_tokens_total", "llamacpp:tokens_predicted_total"),
    "preemptions": ("vllm:num_preemptions_total",),
    "prefix_tokens_asked": ("vllm:prefix_cache_queries_total",),
    "prefix_tokens_hit": ("vllm:prefix_cache_hits_total",),
    # By the wall clock.
    "prefill_s": ("trueup:prefill_seconds_total", "llamacpp:prompt_seconds_total"),
    "decode_s": ("trueup:decode_seconds_total", "llamacpp:tokens_predicted_seconds_total"),
    # Sums over requests, which overlap.
    "request_prefill_s": ("vllm:request_prefill_time_seconds_sum",),
    "request_prefill_count": ("vllm:request_prefill_time_seconds_count",),
    "request_decode_s": ("vllm:request_decode_time_seconds_sum",),
    "request_queue_s": ("vllm:request_queue_time_seconds_sum",),
    "request_queue_count": ("vllm:request_queue_time_seconds_count",),
    "request_first_token_s": ("vllm:time_to_first_token_seconds_sum",),
    "request_first_token_count": ("vllm:time_to_first_token_seconds_count",),
    "useful_tokens": ("trueup:useful_tokens_total",),
    "processed_tokens": ("trueup:processed_tokens_total",),
    "recomputed_tokens": ("trueup:recomputed_tokens_total",),
}
STATES: dict[str, tuple[str, ...]] = {
    "kv_cache_usage_share": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "llamacpp:kv_cache_usage_ratio",
    ),
    "requests_running": ("vllm:num_requests_running", "llamacpp:requests_processing"),
    "requests_waiting": ("vllm:num_requests_waiting", "llamacpp:requests_deferred"),
    "server_rss_bytes": ("process_resident_memory_bytes",),
}
MEMORY = "trueup:memory_bytes"  # a series for each `owner`
_AVERAGED = {"kv_cache_usage_share"}


def read_metrics(text: str) -> Snapshot:
    """Raises ValueError for a text that is not Prometheus's."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        raise MissingExtraError("prometheus-client", "load", "reading a server's metrics") from None
    values: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not math.isfinite(sample.value):
                continue
            if sample.name == MEMORY:
                owner = sample.labels.get("owner", "other")
                memory[owner] = memory.get(owner, 0.0) + sample.value
            values.setdefault(sample.name, []).append(sample.value)
    return Snapshot(_named(COUNTERS, values), _named(STATES, values), memory)


async def scrape(http: httpx.AsyncClient, url: str, tries: int = 1) -> Snapshot | str:
    """The server's metrics now, or why there are none; it is asked `tries` times where it does not answer."""
    try:
        found = await fetch(http, url, within_s=WITHIN_S, most_bytes=MOST_BYTES)
    except NoDocumentError as error:
        if tries > 1:
            return await scrape(http, url, tries - 1)
        return f"{url} did not answer: {error}"
    if found.status != 200:
        return f"{url} answered HTTP {found.status}"
    try:
        return read_metrics(found.body.decode("utf-8", "replace"))
    except ValueError as error:
        return f"{url} is not in Prometheus's format: {error}"


def _named(names: Mapping[str, tuple[str, ...]], values: Mapping[str, list[float]]) -> dict[str, float]:
    found = {}
    for ours, theirs in names.items():
        held = next((values[name] for name in theirs if values.get(name)), None)
        if held is not None:
            found[ours] = sum(held) / (len(held) if ours in _AVERAGED else 1)
    return found
