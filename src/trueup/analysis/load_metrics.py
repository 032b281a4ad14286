"""The rows of a comparison of load runs: cost, rate, latency, the server's own figures, memory, quality."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .compare_metric import COST, ENERGY, RATE, TIME, Better, Metric
from .load_names import LOAD_NAMES

PER_MONTH, PER_MONTH_PART = "usd_per_month", "usd_per_month_part"
_LESS: tuple[Better, str, str] = ("lower", "less memory", "more memory")
_FEWER: tuple[Better, str, str] = ("lower", "better", "worse")
_HIGHER: tuple[Better, str, str] = ("higher", "worse", "better")

_LATENCIES = tuple(
    Metric(f"{name}_{statistic}_s", f"{name.upper()}, {statistic}", *TIME)
    for name in ("ttft", "tpot", "itl", "e2e")
    for statistic in ("p50", "p90", "p99")
)
_ROWS: tuple[Metric, ...] = (
    Metric("usd_per_million_output_tokens", "$ per million output tokens", *COST),
    Metric("usd_per_million_total_tokens", "$ per million tokens, in and out", *COST),
    Metric("usd_per_million_input_tokens_split", "$ per million input tokens, by time", *COST),
    Metric("usd_per_million_output_tokens_split", "$ per million output tokens, by time", *COST),
    Metric(PER_MONTH, "$ a month, whole instances", *COST),
    Metric(PER_MONTH_PART, "$ a month, parts of instances", *COST),
    Metric("goodput_requests_per_s", "goodput, requests/s", *RATE),
    Metric("goodput_share", "answered within the limits", *_HIGHER),
    Metric("output_tokens_per_s", "output tokens/s", *RATE),
    Metric("total_tokens_per_s", "tokens/s, in and out", *RATE),
    *_LATENCIES,
    Metric("error_share", "errors", *_FEWER),
    Metric("kv_cache_usage_max_share", "KV cache in use, at most", *_LESS),
    Metric("preemptions_count", "preemptions", *_FEWER),
    Metric("server_padding_share", "padding of tokens computed", *_FEWER),
    Metric("server_rss_max_bytes", "resident memory of the server", *_LESS),
    Metric("energy_per_output_token_j", "energy per output token", *ENERGY),
)
MEMORY = re.compile(r"(memory|plan)_\w+_bytes")  # by owner: as the server told, or as was planned
_QUALITY = re.compile(r"quality_(?!tokens)(?!\w*_original)\w+")  # not what was judged on, nor by
_MORE_IS_BETTER = re.compile(
    r"(^|_)(score|accuracy|acc|exact_match|f1|agreement|overlap|match|matched|same)(_|$)"
)


def load_metrics(names: Iterable[str]) -> list[Metric]:
    """Those of the rows that are among the names, then memory by owner and what a quality gate found."""
    held = dict.fromkeys(names)
    rows = [metric for metric in _ROWS if metric.name in held]
    beside = [name for name in held if name not in LOAD_NAMES]
    rows += [
        Metric(name, _label(name), *_LESS, given=name.startswith("plan_"))
        for name in beside
        if MEMORY.fullmatch(name)
    ]
    return rows + [
        Metric(name, _label(name), *(_HIGHER if _MORE_IS_BETTER.search(name) else _FEWER), given=True)
        for name in beside
        if _QUALITY.fullmatch(name)
    ]


def _label(name: str) -> str:
    """memory: weights; plan: weights; quality: perplexity."""
    kind, _, rest = name.removesuffix("_bytes").partition("_")
    return f"{kind}: {rest.replace('_', ' ')}"
