"""A whole load on a scripted server: what is sent when, what is recorded, and what the figures then are."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

import pytest
from made_loads import loaded, settings, value
from scripted_server import Script, ScriptedServer, answer_of, quick

from trueup.load.arrivals import poisson
from trueup.load.prompts import FilePrompt
from trueup.load.trace import Trace, TraceRow
from trueup.schema import Measurement


def test_an_open_load_sends_at_its_instants_however_slow_the_server_is() -> None:
    def slow(n: int, body: dict[str, Any]) -> Script:
        return answer_of(prompt=20, chunks=5, first_s=300.0, gap_s=1.0)

    server = ScriptedServer(slow)
    record = loaded(server, settings(requests=20, rate=5.0)).record
    due = list(islice(poisson(5.0, 1), 20))
    began = server.arrived_s[0] - due[0]
    assert [at_s - began for at_s in server.arrived_s] == pytest.approx(due)
    assert server.most_in_flight == 20
    assert [one.due_s for one in record.requests] == pytest.approx([one.sent_s for one in record.requests])


def test_latencies_of_a_steady_server_are_its_script() -> None:
    record = loaded(ScriptedServer(quick), settings()).record
    assert record.state == "finished"
    for statistic in ("p50_s", "p90_s", "max_s", "mean_s"):
        assert value(record, f"ttft_{statistic}") == pytest.approx(1.0)
        assert value(record, f"tpot_{statistic}") == pytest.approx(0.5)
        assert value(record, f"itl_{statistic}") == pytest.approx(0.5)
        assert value(record, f"e2e_{statistic}") == pytest.approx(3.0)
    assert value(record, "output_tokens") == 50
    assert value(record, "input_tokens") == 200
    assert value(record, "prompt_tokens_off_max") == 0
    assert value(record, "sent_late_max_s") == pytest.approx(0.0)


def test_what_waits_in_the_client_is_in_the_latency() -> None:
    """The loop is blocked for 4 s when the second answer is made: whoever was due meanwhile waited."""

    def blocking(n: int, body: dict[str, Any]) -> Script:
        if n == 1:
            asyncio.get_running_loop().now_s += 4.0  # type: ignore[attr-defined]
        return quick(n, body)

    record = loaded(ScriptedServer(blocking), settings(requests=8, rate=2.0)).record
    assert value(record, "sent_late_max_s") > 2.0
    late = [one for one in record.requests if one.sent_s - one.due_s > 1e-6]
    assert late
    assert all(one.first_s is not None and one.first_s - one.due_s > 1.0 for one in late)
    assert value(record, "ttft_max_s") > 3.0


def test_a_closed_load_has_its_number_in_flight_and_counts_from_a_free_place() -> None:
    server = ScriptedServer(quick)
    record = loaded(server, settings(arrivals="closed", rate=None, concurrency=3, requests=12)).record
    assert server.most_in_flight == 3
    assert value(record, "in_flight_max_count") == 3
    assert value(record, "in_flight_mean_count") == pytest.approx(3.0)
    assert value(record, "load_s") == pytest.approx(4 * 3.0)
    assert value(record, "output_tokens_per_s") == pytest.approx(12 * 5 / 12.0)


def test_a_closed_load_by_the_clock_sends_nothing_after_it() -> None:
    asked = settings(arrivals="closed", rate=None, concurrency=2, requests=None, duration_s=10.0)
    record = loaded(ScriptedServer(quick), asked).record
    assert len(record.requests) == 8  # 2 at 0, 3, 6 and 9 s
    assert record.header.reason == "all 8 requests came to an end: 8 answered, 0 not"


def test_a_closed_ramp_ends_with_more_in_flight_than_it_began_with() -> None:
    server = ScriptedServer(quick)
    asked = settings(arrivals="closed", rate=None, concurrency=1, concurrency_end=6, requests=60)
    loaded(server, asked)
    assert server.most_in_flight == 6


def test_lengths_of_a_trace_are_scaled_to_the_servers_context_and_the_scale_is_told() -> None:
    rows = (TraceRow(0.0, 3000, 1000), TraceRow(2.0, 300, 100), TraceRow(3.0, 1500, 500))
    trace = Trace(rows, "digest", "trace.csv")
    server = ScriptedServer(quick, context=404)
    asked = settings(
        arrivals="trace", rate=None, requests=None, trace="trace.csv", prompt_tokens=None, output_tokens=None
    )
    record = loaded(server, asked, job={"trace": trace}).record
    assert record.header.recipe["load"]["length_scale"] == pytest.approx(0.1)
    assert record.header.choices["length_scale"]["reason"].endswith("in a context of 404 tokens")
    lengths = {one.index: (one.prompt_tokens, one.output_tokens) for one in record.requests}
    assert lengths == {0: (300, 100), 1: (30, 10), 2: (150, 50)}
    began = server.arrived_s[0]
    assert [at_s - began for at_s in server.arrived_s] == pytest.approx([0.0, 2.0, 3.0])


def test_a_server_that_tells_no_context_is_asked_for_one() -> None:
    trace = Trace((TraceRow(0.0, 30, 10),), "digest", "trace.csv")
    asked = settings(arrivals="trace", rate=None, requests=None, trace="trace.csv")
    outcome = loaded(ScriptedServer(quick, context=None), asked, job={"trace": trace})
    assert outcome.record.state == "failed"
    assert "--context" in str(outcome.error)
    assert (
        loaded(ScriptedServer(quick, context=None), asked, job={"trace": trace, "context": 100}).error is None
    )


def test_prompts_of_a_file_are_sent_as_they_are_in_order_and_again() -> None:
    server = ScriptedServer(quick)
    prompts = [FilePrompt("first prompt", 3), FilePrompt("second", None)]
    asked = settings(prompts="p.jsonl", prompt_tokens=None, output_tokens=4, requests=3)
    record = loaded(server, asked, job={"prompts": prompts}).record
    assert [body["prompt"] for body in server.bodies] == ["first prompt", "second", "first prompt"]
    assert [body["max_tokens"] for body in server.bodies] == [3, 4, 3]
    assert "without a length" in (record.measurements["prompt_tokens_off_max"].reason or "")


def test_warm_up_requests_are_recorded_and_in_no_figure() -> None:
    def first_ones_slow(n: int, body: dict[str, Any]) -> Script:
        return answer_of(prompt=20, chunks=5, first_s=50.0 if n < 4 else 1.0, gap_s=0.5)

    record = loaded(ScriptedServer(first_ones_slow), settings(warm_up=4)).record
    assert sum(one.warm_up for one in record.requests) == 4
    assert value(record, "requests_count") == 10
    assert value(record, "ttft_max_s") == pytest.approx(1.0)
    spans = {span.name: span.seconds for span in record.spans}
    assert spans["warm_up"] == pytest.approx(52.0)


def test_the_spans_of_a_load_add_up_to_its_wall_clock() -> None:
    record = loaded(ScriptedServer(quick), settings(warm_up=2)).record
    assert sum(span.seconds for span in record.spans) == pytest.approx(record.header.wall_s)
    requests = next(span for span in record.spans if span.name == "requests")
    assert requests.seconds >= value(record, "load_s")


def test_errors_are_counted_by_kind_beside_the_latencies_of_the_others() -> None:
    def some_fail(n: int, body: dict[str, Any]) -> Script:
        if n % 5 == 1:
            return Script([(0.0, b'{"error": {"message": "busy"}}')], status=429)
        if n % 5 == 3:
            return Script([(0.5, b"data: oops\n\n")])
        return quick(n, body)

    record = loaded(ScriptedServer(some_fail), settings(requests=10)).record
    assert record.state == "finished"
    assert value(record, "error_share") == pytest.approx(0.4)
    assert value(record, "errors_too_many_requests_count") == 2
    assert value(record, "errors_malformed_count") == 2
    assert "the first: HTTP 429: busy" in record.measurements["errors_too_many_requests_count"].method
    assert record.measurements["ttft_p50_s"].n == 6
    assert value(record, "output_tokens") == 30


def test_usage_that_is_missing_makes_tokens_unknown_and_leaves_latency() -> None:
    def without(n: int, body: dict[str, Any]) -> Script:
        return answer_of(prompt=1, chunks=5, first_s=1.0, gap_s=0.5, usage=False)

    record = loaded(ScriptedServer(without), settings()).record
    assert value(record, "ttft_p50_s") == pytest.approx(1.0)
    for name in ("output_tokens", "output_tokens_per_s", "usd_per_million_output_tokens"):
        assert "10 of 10 answers came without the server's usage" in (record.measurements[name].reason or "")
    assert "token count" in (record.measurements["tpot_p50_s"].reason or "")


def test_chunks_of_several_tokens_are_said_to_be_so() -> None:
    def four(n: int, body: dict[str, Any]) -> Script:
        return answer_of(prompt=20, chunks=3, first_s=1.0, gap_s=0.8, tokens_per_chunk=4)

    record = loaded(ScriptedServer(four), settings(output_tokens=12)).record
    assert value(record, "tokens_per_chunk") == 4
    assert "4 tokens on average" in record.measurements["itl_p50_s"].method
    assert value(record, "tpot_p50_s") == pytest.approx(1.6 / 11)


def test_answers_shorter_than_asked_are_counted() -> None:
    def short(n: int, body: dict[str, Any]) -> Script:
        return answer_of(prompt=20, chunks=5 if n else 2, first_s=1.0, gap_s=0.5)

    assert value(loaded(ScriptedServer(short), settings()).record, "cut_short_count") == 1


def test_the_servers_counters_and_states_are_read_around_and_during_the_load() -> None:
    reads = 0

    def metrics() -> str:
        nonlocal reads
        reads += 1
        n = reads
        return (
            f"# TYPE vllm:num_preemptions counter\nvllm:num_preemptions_total {5 + n}\n"
            f"# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc {0.1 * min(n, 5)}\n"
            f"vllm:request_prefill_time_seconds_sum {n}\nvllm:request_decode_time_seconds_sum {3 * n}\n"
            f"# TYPE trueup:useful_tokens counter\ntrueup:useful_tokens_total {60 * n}\n"
            f"# TYPE trueup:recomputed_tokens counter\ntrueup:recomputed_tokens_total {15 * n}\n"
            f"# TYPE trueup:processed_tokens counter\ntrueup:processed_tokens_total {100 * n}\n"
            '# TYPE trueup:memory_bytes gauge\ntrueup:memory_bytes{owner="weights"} 500\n'
            'trueup:memory_bytes{owner="kv_cache"} 300\n'
        )  # fmt: skip

    record = loaded(ScriptedServer(quick, metrics=metrics), settings()).record
    assert value(record, "preemptions_count") == reads - 1
    assert value(record, "server_padding_share") == pytest.approx(0.25)
    assert value(record, "server_recompute_share") == pytest.approx(0.15)
    assert value(record, "prefill_time_share") == pytest.approx(0.25)
    assert "overlap" in record.measurements["prefill_time_share"].method
    assert value(record, "kv_cache_usage_max_share") == pytest.approx(0.5)
    assert value(record, "memory_weights_bytes") == 500
    assert value(record, "memory_kv_cache_bytes") == 300
    split = [value(record, f"usd_per_million_{what}_tokens_split") for what in ("input", "output")]
    hourly = 3.6 / 3600 * value(record, "load_s")
    assert split[0] * 200 / 1e6 + split[1] * 50 / 1e6 == pytest.approx(hourly)


def test_a_server_without_metrics_leaves_reasons() -> None:
    record = loaded(ScriptedServer(quick), settings()).record
    for name in ("preemptions_count", "kv_cache_usage_max_share", "server_padding_share"):
        assert "answered HTTP 404" in (record.measurements[name].reason or "")


def test_given_measurements_stand_with_the_loads_own() -> None:
    given = {"quality_perplexity": Measurement(value=12.5, unit="1", kind="measured", method="the gate")}
    record = loaded(ScriptedServer(quick), settings(), job={"given": given}).record
    assert record.measurements["quality_perplexity"] == given["quality_perplexity"]


def test_a_load_says_every_ten_seconds_how_far_it_is() -> None:
    """Six requests, two at a time, each answered after 25 s."""

    def slow(n: int, body: dict[str, Any]) -> Script:
        return answer_of(prompt=20, chunks=5, first_s=21.0, gap_s=1.0)

    said: list[str] = []
    record = loaded(
        ScriptedServer(slow),
        settings(requests=6, rate=None, arrivals="closed", concurrency=2, warm_up=2),
        tell=said.append,
    ).record
    assert record.state == "finished"
    assert said[0] == "warming up for 10 s: 0 of 2 requests answered, 2 in flight, 0 failed"
    load = [line for line in said if line.startswith("under load")]
    assert load[0] == "under load for 10 s: 0 of 6 requests answered, 2 in flight, 0 failed"
    assert load[-1] == "under load for 70 s: 4 of 6 requests answered, 2 in flight, 0 failed"
    assert len(load) == 7
