"""The metrics page: vLLM's names, and the counts that the clients have too."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest
from api_server import MODEL, Running, series, serving
from fake_engine import FakeEngine, says, without_end
from prometheus_client.parser import text_string_to_metric_families

from trueup.load.scrape import read_metrics
from trueup.serve.metrics import ServingMetrics, _steps_1_2_5
from trueup.serve.protocols import EngineStats, Finished

PLAIN: dict[str, Any] = {"model": MODEL, "prompt": "hi", "max_tokens": 20}
VLLM = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds_count",
    "vllm:inter_token_latency_seconds_count",
    "vllm:request_time_per_output_token_seconds_count",
    "vllm:e2e_request_latency_seconds_count",
    "vllm:request_decode_time_seconds_count",
    "vllm:request_queue_time_seconds_count",
    "vllm:request_prefill_time_seconds_count",
    "vllm:request_prompt_tokens_count",
    "vllm:request_generation_tokens_count",
    "vllm:request_params_max_tokens_count",
}


def page(server: Running) -> dict[tuple[str, str], float]:
    return series(httpx.get(f"{server.url}/metrics").text)


def post(server: Running, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=30)


def test_series_have_vllms_names_and_labels() -> None:
    with serving() as server:
        post(server, PLAIN)
        text = httpx.get(f"{server.url}/metrics").text
    assert {name for name, _ in series(text)} >= VLLM
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' in text


def test_counts_are_those_of_the_clients() -> None:
    with serving() as server:
        usages = [post(server, {**PLAIN, "max_tokens": most}).json()["usage"] for most in (20, 20, 3, 1)]
        streamed = post(server, {**PLAIN, "stream": True, "n": 2})
        assert streamed.text.count('"finish_reason":"stop"') == 2
        post(server, {**PLAIN, "temperature": 9})
        found = page(server)
    generated = sum(usage["completion_tokens"] for usage in usages) + 2 * len("Hello, world.*")
    assert found["vllm:generation_tokens_total", ""] == generated
    assert found["vllm:request_generation_tokens_sum", ""] == generated
    assert found["vllm:prompt_tokens_total", ""] == 6 * len("hi")
    assert found["vllm:request_success_total", "stop"] == 4
    assert found["vllm:request_success_total", "length"] == 2
    assert found["trueup:http_responses_total", "200"] == 5
    assert found["trueup:http_responses_total", "400"] == 1


def test_each_request_has_one_time_to_its_first_token() -> None:
    """vllm#8115: it was counted twice."""
    with serving() as server:
        for most in (1, 5, 20):
            post(server, {**PLAIN, "max_tokens": most})
        found = page(server)
    assert found["vllm:time_to_first_token_seconds_count", ""] == 3
    assert found["vllm:e2e_request_latency_seconds_count", ""] == 3
    assert found["vllm:inter_token_latency_seconds_count", ""] == 0 + 4 + len("Hello, world.")
    assert found["vllm:request_time_per_output_token_seconds_count", ""] == 2  # one had but one token


def test_a_client_that_leaves_is_counted_once_as_aborted() -> None:
    engine = FakeEngine(script=without_end, held=True)
    with serving(engine) as server:
        with (
            httpx.Client(timeout=30) as client,
            client.stream(
                "POST", f"{server.url}/v1/completions", json={**PLAIN, "max_tokens": 400, "stream": True}
            ) as response,
        ):
            engine.let(2)
            chunks = response.iter_raw()  # held: it closes the response when it is let go
            next(chunks)
        server.until(lambda: server.service.under_way == 0)
        engine.free()
        server.until(lambda: not engine.has_work)
        found = page(server)
    assert found["vllm:request_success_total", "abort"] == 1
    assert found["vllm:time_to_first_token_seconds_count", ""] == 1
    assert ("vllm:request_success_total", "stop") not in found


def test_the_kv_share_is_of_the_blocks_that_requests_can_have() -> None:
    engine = FakeEngine(script=without_end, held=True, blocks=10)
    with serving(engine) as server, httpx.Client(timeout=30) as client:
        body = {**PLAIN, "prompt": "x" * 38, "max_tokens": 400, "stream": True}
        with client.stream("POST", f"{server.url}/v1/completions", json=body) as response:
            engine.let(1)
            chunks = response.iter_raw()  # held: it closes the response when it is let go
            next(chunks)
            server.until(lambda: page(server)["vllm:num_requests_running", ""] == 1)
            assert page(server)["vllm:kv_cache_usage_perc", ""] == 1.0
        engine.free()
        server.until(lambda: page(server)["vllm:num_requests_running", ""] == 0)
        assert page(server)["vllm:kv_cache_usage_perc", ""] == 0.0


def test_a_replay_is_counted_as_one_and_computes_nothing() -> None:
    with serving(FakeEngine(script=says("ab"))) as server:
        for _ in range(3):
            url, headers = f"{server.url}/v1/completions", {"Idempotency-Key": "k"}
            assert httpx.post(url, json=PLAIN, headers=headers).status_code == 200
        found = page(server)
    assert found["trueup:idempotent_replays_total", ""] == 2
    assert found["vllm:request_success_total", "stop"] == 1
    assert found["vllm:generation_tokens_total", ""] == 3


def test_before_the_engine_is_there_its_series_are_absent_and_not_zero() -> None:
    found = series(ServingMetrics("m", lambda: None, 100).page().decode())
    assert not any(name.startswith("vllm:num_requests") for name, _ in found)
    found = series(ServingMetrics("m", lambda: EngineStats(blocks=4, blocks_used=1), 100).page().decode())
    assert found["vllm:kv_cache_usage_perc", ""] == 0.25


def test_memory_is_told_by_owner_and_of_the_process() -> None:
    metrics = ServingMetrics("m", lambda: None, 100)
    metrics.holds({"weights": 1000, "kv_cache": 24})
    page = metrics.page().decode()
    assert 'trueup:memory_bytes{engine="0",model_name="m",owner="kv_cache"} 24.0' in page
    assert series(page)["process_resident_memory_bytes", ""] > 1e6


def test_tokens_that_came_together_share_the_time_since_the_last() -> None:
    metrics = ServingMetrics("m", lambda: None, 100)
    metrics.tokens(1, None)
    metrics.tokens(4, 2.0)
    found = series(metrics.page().decode())
    assert found["vllm:inter_token_latency_seconds_count", ""] == 4
    assert found["vllm:inter_token_latency_seconds_sum", ""] == pytest.approx(2.0)


def test_a_request_without_a_token_has_no_time_for_each() -> None:
    metrics = ServingMetrics("m", lambda: None, 100)
    metrics.finished(Finished("error", 2, 0, 5, 1.0, None, None))
    found = series(metrics.page().decode())
    assert found["vllm:request_success_total", "error"] == 1
    assert found["vllm:request_decode_time_seconds_count", ""] == 0


def test_a_count_that_is_no_number_and_a_name_of_any_letters_leave_a_page_that_can_be_read() -> None:
    stats = EngineStats(blocks=4, prefill_s=-math.inf, decode_s=math.nan)
    name = 'quoted " and \\ and\nbroken é🌶'
    page = ServingMetrics(name, lambda: stats, 100).page().decode()
    found = series(page)
    assert found["trueup:prefill_seconds_total", ""] == -math.inf
    assert math.isnan(found["trueup:decode_seconds_total", ""])
    assert found["trueup:kv_blocks", ""] == 4
    families = text_string_to_metric_families(page)
    assert name in {sample.labels.get("model_name") for family in families for sample in family.samples}


@pytest.mark.parametrize(("most", "last"), [(1, 1), (100, 100), (4096, 5000), (8192, 10000)])
def test_size_classes_reach_the_largest_request(most: int, last: int) -> None:
    assert _steps_1_2_5(most)[-1] == last


def test_a_load_reads_the_clock_of_prefill_and_decode_from_our_own_page() -> None:
    stats = EngineStats(prefill_s=3.0, decode_s=5.0)
    found = read_metrics(ServingMetrics("m", lambda: stats, 100).page().decode()).counters
    assert (found["prefill_s"], found["decode_s"]) == (3.0, 5.0)
