"""The rows of a comparison of load runs: cost, rate, latency, the server's own figures, memory, quality."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from .compare_metric import COST, ENERGY, RATE, TIME, Better, Metric
from .load_names import LOAD_NAMES

Row = TypeVar("Row")

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
    Metric(PER_MONTH, "$ a month, whole instances", *COST),
    Metric(PER_MONTH_PART, "$ a month, parts of instances", *COST),
    Metric("usd_per_million_output_tokens", "$ per million output tokens", *COST),
    Metric("usd_per_million_total_tokens", "$ per million tokens, in and out", *COST),
    Metric("usd_per_million_input_tokens_split", "$ per million input tokens, by time", *COST),
    Metric("usd_per_million_output_tokens_split", "$ per million output tokens, by time", *COST),
    Metric("goodput_requests_per_s", "goodput, requests/s", *RATE),
    Metric("goodput_share", "answered within the limits", *_HIGHER, share=True),
    Metric("output_tokens_per_s", "output tokens/s", *RATE),
    Metric("total_tokens_per_s", "tokens/s, in and out", *RATE),
    *_LATENCIES,
    Metric("error_share", "errors", *_FEWER, share=True),
    Metric("server_queue_mean_s", "wait in the server's queue, mean", *TIME),
    Metric("kv_cache_usage_max_share", "KV cache in use, at most", *_LESS, share=True),
    Metric("preemptions_count", "preemptions", *_FEWER),
    Metric("server_padding_share", "padding of tokens computed", *_FEWER, share=True),
    Metric("server_rss_max_bytes", "resident memory of the server", *_LESS),
    Metric("energy_per_output_token_j", "energy per output token", *ENERGY),
)
MEMORY = re.compile(r"(memory|plan)_\w+_bytes")  # by owner: as the server told, or as was planned
ORIGINAL = "_original"  # in the name of what a gate measured of the original
_QUALITY = re.compile(rf"quality_(?!tokens)(?!\w*{ORIGINAL})\w+")  # not what was judged on, nor by
_MORE_IS_BETTER = re.compile(
    r"(^|_)(score|accuracy|acc|exact_match|f1|agreement|overlap|match|matched|same)(_|$)"
)
_PART_OF_A_WHOLE = re.compile(r"_(overlap|choice|match|accuracy)_share")
THEMES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("Cost", re.compile(r"usd_.+")),
    ("Rate", re.compile(r"goodput_.+|(output|total)_tokens_per_s|error_share")),
    ("Latency", re.compile(r"(ttft|tpot|itl|e2e)_.+")),
    ("Memory", re.compile(r"(memory|plan)_\w+_bytes|server_rss_max_bytes|kv_cache_.+")),
    ("Quality", re.compile(r"quality_.+")),
    ("The server", re.compile(r".+")),
)


def themes_of(rows: Iterable[Row], name_of: Callable[[Row], str]) -> list[tuple[str, list[Row]]]:
    """The rows of a comparison of loads by what they are about, in the order of the themes."""
    found: dict[str, list[Row]] = {title: [] for title, _ in THEMES}
    for row in rows:
        found[next(title for title, pattern in THEMES if pattern.fullmatch(name_of(row)))].append(row)
    return [(title, held) for title, held in found.items() if held]


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
        Metric(
            name,
            _label(name),
            *(_HIGHER if _MORE_IS_BETTER.search(name) else _FEWER),
            given=True,
            share=bool(_PART_OF_A_WHOLE.search(name)),
        )
        for name in beside
        if _QUALITY.fullmatch(name)
    ]


def _label(name: str) -> str:
    """memory: weights; plan: weights; quality: perplexity."""
    kind, _, rest = name.removesuffix("_bytes").partition("_")
    return f"{kind}: {rest.replace('_', ' ')}"
