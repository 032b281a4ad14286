"""Counts for Prometheus, under vLLM's names where it has one of the same meaning, so that dashboards and load
generators made for it read them. What it has no name for begins with `trueup:`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .protocols import Finished

if TYPE_CHECKING:
    from .protocols import EngineStats

LABELS = ("model_name", "engine")
# Upper ends of the classes, in seconds: 1-2-5 steps, wide enough for a CPU and a GPU alike.
TOKEN_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
FIRST_TOKEN_S = (*TOKEN_S, 20, 50, 100, 200, 500)
REQUEST_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Read = Callable[["EngineStats"], float]

GAUGES: dict[str, tuple[str, Read]] = {
    "vllm:num_requests_running": ("Requests that the engine is computing.", lambda s: s.running),
    "vllm:num_requests_waiting": ("Requests that wait for the engine.", lambda s: s.waiting),
    "vllm:kv_cache_usage_perc": (
        "Share of the KV blocks that requests hold; 1 is all.",
        lambda s: s.blocks_used / s.blocks if s.blocks else 0.0,
    ),
    "trueup:kv_blocks": ("KV blocks that requests can get; the null block is none.", lambda s: s.blocks),
    "trueup:kv_blocks_used": ("KV blocks that requests hold.", lambda s: s.blocks_used),
}
COUNTERS: dict[str, tuple[str, Read]] = {
    "vllm:num_preemptions": ("Requests sent back to wait for blocks.", lambda s: s.preemptions),
    "vllm:prefix_cache_queries": (
        "Prompt tokens looked up in the prefix cache.",
        lambda s: s.prefix_tokens_asked,
    ),
    "vllm:prefix_cache_hits": ("Prompt tokens that the prefix cache had.", lambda s: s.prefix_tokens_hit),
    "trueup:useful_tokens": ("Tokens computed for the first time.", lambda s: s.useful_tokens),
    "trueup:recomputed_tokens": ("Tokens computed again after a preemption.", lambda s: s.recomputed_tokens),
    "trueup:processed_tokens": ("Tokens computed, padding included.", lambda s: s.processed_tokens),
    "trueup:prefill_seconds": ("Wall seconds of steps with several new tokens a row.", lambda s: s.prefill_s),
    "trueup:decode_seconds": ("Wall seconds of steps with one new token a row.", lambda s: s.decode_s),
    "trueup:engine_steps": ("Steps of the engine.", lambda s: s.steps),
    "trueup:failed_steps": ("Steps of the engine that failed.", lambda s: s.failed_steps),
}


class ServingMetrics:
    """An `Observer`, and the page that tells what it saw. `stats` gives the engine's counts, or None while it
    is not there yet: then its series are absent, not 0."""

    def __init__(self, model: str, stats: Callable[[], EngineStats | None], most_tokens: int) -> None:
        self._registry = CollectorRegistry()
        self._values = (model, "0")
        self._registry.register(_EngineCounts(self._values, stats))
        ProcessCollector(registry=self._registry)
        self._memory = Gauge(
            "trueup:memory_bytes", "What holds memory.", (*LABELS, "owner"), registry=self._registry
        )
        self._answers = Gauge(
            "trueup:idempotent_answers_bytes", "Answers kept for a retry.", LABELS, registry=self._registry
        ).labels(*self._values)
        self._first_token_s = self._histogram(
            "vllm:time_to_first_token_seconds", "From arrival.", FIRST_TOKEN_S
        )
        self._between_s = self._histogram("vllm:inter_token_latency_seconds", "Between tokens.", TOKEN_S)
        self._per_token_s = self._histogram(
            "vllm:request_time_per_output_token_seconds", "Of a request's tokens after its first.", TOKEN_S
        )
        self._e2e_s = self._histogram("vllm:e2e_request_latency_seconds", "From arrival to end.", REQUEST_S)
        self._decode_s = self._histogram(
            "vllm:request_decode_time_seconds", "First to last token.", REQUEST_S
        )
        self._queue_s = self._histogram(
            "vllm:request_queue_time_seconds", "From arrival to the engine's first work.", REQUEST_S
        )
        self._prefill_s = self._histogram(
            "vllm:request_prefill_time_seconds", "From the engine's first work to the first token.", REQUEST_S
        )
        sizes = _steps_1_2_5(most_tokens)
        self._prompt = self._histogram("vllm:request_prompt_tokens", "Prompt tokens.", sizes)
        self._generated = self._histogram("vllm:request_generation_tokens", "Tokens generated.", sizes)
        self._asked = self._histogram("vllm:request_params_max_tokens", "Tokens asked for at most.", sizes)
        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens of requests that began.")
        self._generated_tokens = self._counter("vllm:generation_tokens", "Tokens generated.")
        self._ended = Counter(
            "vllm:request_success",
            "Requests that ended, by how: stop, length, abort, error.",
            (*LABELS, "finished_reason"),
            registry=self._registry,
        )
        self._responses = Counter(
            "trueup:http_responses",
            "Answers of the API by status.",
            (*LABELS, "status"),
            registry=self._registry,
        )
        self._replays = self._counter("trueup:idempotent_replays", "Answers given again from memory.")

    def page(self) -> bytes:
        return generate_latest(self._registry)

    def responded(self, status: int) -> None:
        """The status of one answer of the API; what follows it in a stream is `request_success`."""
        self._responses.labels(*self._values, str(status)).inc()

    def holds(self, memory_bytes: Mapping[str, int]) -> None:
        """What was loaded, by owner."""
        for owner, size in memory_bytes.items():
            self._memory.labels(*self._values, owner).set(size)

    def keeps(self, answers_bytes: int) -> None:
        self._answers.set(answers_bytes)

    def replayed(self) -> None:
        self._replays.inc()

    def first_token(self, after_s: float, prompt_tokens: int) -> None:
        self._first_token_s.observe(after_s)
        self._prompt_tokens.inc(prompt_tokens)

    def tokens(self, count: int, after_s: float | None) -> None:
        self._generated_tokens.inc(count)
        if after_s is not None:
            for _ in range(count):
                self._between_s.observe(after_s / count)

    def finished(self, request: Finished) -> None:
        self._ended.labels(*self._values, request.how).inc()
        self._e2e_s.observe(request.e2e_s)
        self._prompt.observe(request.prompt_tokens)
        self._generated.observe(request.generated_tokens)
        self._asked.observe(request.max_tokens)
        if request.queue_s is not None:
            self._queue_s.observe(request.queue_s)
        if request.prefill_s is not None:
            self._prefill_s.observe(request.prefill_s)
        if request.decode_s is not None:
            self._decode_s.observe(request.decode_s)
        if request.per_token_s is not None:
            self._per_token_s.observe(request.per_token_s)

    def _histogram(self, name: str, meaning: str, ends: tuple[float, ...]) -> Histogram:
        made = Histogram(name, meaning, LABELS, buckets=ends, registry=self._registry)
        return made.labels(*self._values)

    def _counter(self, name: str, meaning: str) -> Counter:
        return Counter(name, meaning, LABELS, registry=self._registry).labels(*self._values)


class _EngineCounts(Collector):
    """The engine's own counts, read when they are asked for."""

    def __init__(self, values: tuple[str, str], stats: Callable[[], EngineStats | None]) -> None:
        self._values = values
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        if stats is None:
            return
        for name, (meaning, read) in GAUGES.items():
            gauge = GaugeMetricFamily(name, meaning, labels=LABELS)
            gauge.add_metric(self._values, read(stats))
            yield gauge
        for name, (meaning, read) in COUNTERS.items():
            counter = CounterMetricFamily(name, meaning, labels=LABELS)
            counter.add_metric(self._values, read(stats))
            yield counter


def _steps_1_2_5(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, … up to the first that is at least `most`."""
    steps: list[float] = []
    for exponent in range(len(str(most)) + 1):
        for step in (1, 2, 5):
            steps.append(float(step * 10**exponent))
            if steps[-1] >= most:
                return tuple(steps)
    return tuple(steps)
