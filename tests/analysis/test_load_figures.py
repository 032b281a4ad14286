"""A load's figures equal values worked out by hand, and are unknown with a reason where they cannot be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from load_records import failed, make_load, request

from trueup.analysis.load_figures import summarize_load
from trueup.analysis.load_latency import order_interval
from trueup.analysis.load_limits import Limits, within
from trueup.analysis.load_names import LOAD_NAMES
from trueup.analysis.load_rates import stretch_of
from trueup.schema import Event, Measurement, RequestResult, Sample

Found = dict[str, Measurement]


def value(found: Found, name: str) -> float:
    one = found[name]
    assert one.value is not None, f"{name}: {one.reason}"
    return one.value


def test_every_name_is_there_with_a_value_or_a_reason() -> None:
    for record in (make_load([]), make_load([request(0, 1.0)]), make_load([failed(0, 1.0)])):
        found = summarize_load(record)
        assert set(LOAD_NAMES) <= set(found)
        assert all(one.value is not None or one.reason for one in found.values())


def test_units_and_scopes_are_those_of_the_table() -> None:
    found = summarize_load(make_load([request(n, float(n)) for n in range(30)]))
    for name, facts in LOAD_NAMES.items():
        assert found[name].unit == facts.unit, name
        assert found[name].scope == facts.scope or name in ("power_mean_w", "energy_j"), name


def test_worked_latencies() -> None:
    found = summarize_load(make_load([request(0, 0.0), request(1, 1.0, sent_s=1.5, first_s=4.0, last_s=6.0,
                                                              done_s=6.5, gaps_s=(0.5,) * 4)]))  # fmt: skip
    assert value(found, "ttft_mean_s") == pytest.approx((1.0 + 3.0) / 2)
    assert value(found, "tpot_mean_s") == pytest.approx((1.0 / 4 + 2.0 / 4) / 2)
    assert value(found, "itl_mean_s") == pytest.approx((4 * 0.25 + 4 * 0.5) / 8)
    assert value(found, "e2e_max_s") == pytest.approx(5.5)
    assert value(found, "sent_late_max_s") == pytest.approx(0.5)


def test_worked_rates() -> None:
    """Ten requests a second apart, each of 2 s: a stretch of 11 s."""
    found = summarize_load(make_load([request(n, float(n)) for n in range(10)]))
    assert value(found, "load_s") == pytest.approx(11.0)
    assert value(found, "offered_requests_per_s") == pytest.approx(1.0)
    assert value(found, "completed_requests_per_s") == pytest.approx(10 / 11)
    assert value(found, "output_tokens_per_s") == pytest.approx(50 / 11)
    assert value(found, "total_tokens_per_s") == pytest.approx(150 / 11)
    assert value(found, "in_flight_mean_count") == pytest.approx(20 / 11)
    assert value(found, "in_flight_max_count") == 2
    assert value(found, "no_request_share") == pytest.approx(0.0)


def test_the_time_without_a_request_is_known() -> None:
    found = summarize_load(make_load([request(0, 0.0), request(1, 8.0)]))
    assert value(found, "no_request_share") == pytest.approx(6 / 10)


def test_formulas_stand_with_the_figures() -> None:
    found = summarize_load(make_load([request(0, 0.0)]))
    assert found["ttft_p50_s"].method == "first text − instant the request was due"
    assert found["tpot_p50_s"].method == "(last text − first text) / (output tokens − 1)"
    assert found["e2e_p50_s"].method == "end of the answer − instant the request was due"


@pytest.mark.parametrize(("n", "known"), [(298, False), (299, True)])
def test_a_p99_needs_299_values_and_else_says_the_longest_and_how_many(n: int, known: bool) -> None:
    found = summarize_load(make_load([request(i, float(i), first_s=i + 1 + i / n) for i in range(n)]))
    p99 = found["ttft_p99_s"]
    assert (p99.value is not None) == known
    assert p99.n == n
    if not known:
        assert p99.reason is not None
        assert p99.reason.startswith("298 values; a 99th percentile needs 299. The longest is 1.99")


def test_failed_requests_have_no_latency_and_stand_as_errors() -> None:
    found = summarize_load(make_load([request(0, 0.0), failed(1, 1.0), failed(2, 2.0, "connect")]))
    assert value(found, "error_share") == pytest.approx(2 / 3)
    assert value(found, "errors_timeout_count") == 1
    assert value(found, "errors_connect_count") == 1
    assert found["ttft_p50_s"].n == 1


def test_shares_of_requests_have_wilsons_interval() -> None:
    """Of 1 in 10, with z = 1.96 (Wilson 1927): 0.0179 to 0.4042."""
    asked = [*(request(n, float(n)) for n in range(9)), failed(9, 9.0)]
    found = summarize_load(make_load(asked))
    assert found["error_share"].ci == pytest.approx((0.0179, 0.4042), abs=1e-4)
    assert found["goodput_share"].ci == pytest.approx((0.5958, 0.9821), abs=1e-4)
    assert (found["error_share"].ci_method or "").startswith("within_run: Wilson's")


def test_cancelled_requests_are_no_errors() -> None:
    found = summarize_load(make_load([request(0, 0.0), failed(1, 1.0, "cancelled")]))
    assert value(found, "error_share") == 0
    assert value(found, "cancelled_requests_count") == 1
    assert "errors_cancelled_count" not in found


def test_warm_up_requests_are_in_no_figure() -> None:
    found = summarize_load(make_load([request(0, 0.0, warm_up=True, first_s=90.0), request(1, 100.0)]))
    assert value(found, "requests_count") == 1
    assert value(found, "ttft_max_s") == pytest.approx(1.0)
    assert value(found, "load_s") == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({}, True),
        ({"ttft_s": 1.0, "tpot_s": 0.25, "e2e_s": 2.0}, True),
        ({"ttft_s": 0.99}, False),
        ({"tpot_s": 0.24}, False),
        ({"e2e_s": 1.9}, False),
    ],
)
def test_an_answer_keeps_limits_or_not(limits: dict[str, float], kept: bool) -> None:
    assert within(request(0, 0.0), Limits(**limits)) is kept


def test_goodput_counts_what_kept_every_limit_over_all_that_ended() -> None:
    asked = [*(request(n, float(n)) for n in range(6)), request(6, 6.0, first_s=9.0), failed(7, 7.0)]
    found = summarize_load(make_load(asked, load={"limits": {"ttft_s": 1.5}}))
    assert value(found, "goodput_share") == pytest.approx(6 / 8)
    assert value(found, "goodput_requests_per_s") == pytest.approx(6 / value(found, "load_s"))
    assert "TTFT ≤ 1.5 s" in found["goodput_share"].method


def test_without_limits_goodput_is_every_whole_answer_and_says_so() -> None:
    found = summarize_load(make_load([request(0, 0.0), failed(1, 0.5)]))
    assert value(found, "goodput_share") == pytest.approx(0.5)
    assert "no limit was stated" in found["goodput_share"].method


def test_a_limit_on_tpot_without_token_counts_makes_goodput_unknown() -> None:
    asked = [request(0, 0.0, output_tokens=None, prompt_tokens=None)]
    found = summarize_load(make_load(asked, load={"limits": {"tpot_s": 1.0}}))
    assert "1 answer came without a token count" in (found["goodput_share"].reason or "")


def test_an_answer_of_one_token_has_no_tpot_and_breaks_no_limit_on_it() -> None:
    one = request(0, 0.0, output_tokens=1, chunks=1, gaps_s=(), last_s=1.0)
    assert within(one, Limits(tpot_s=0.1)) is True
    assert summarize_load(make_load([one]))["tpot_p50_s"].value is None


def test_counters_that_fall_mean_that_the_server_began_anew() -> None:
    events = [counted("before", output_tokens=100.0), counted("after", output_tokens=7.0)]
    found = summarize_load(make_load([request(0, 0.0)], events=events))
    assert "began anew" in (found["server_output_tokens"].reason or "")


def test_memory_by_owner_is_known_where_the_server_told_it_but_once() -> None:
    told = {"when": "before", "counters": {}, "states": {}, "memory": {"weights": 5e8}}
    events = [
        Event(at_s=0.0, kind="server_metrics", message="", data=told),
        Event(at_s=9.0, kind="no_server_metrics", message="no whole answer in 5 s"),
    ]
    found = summarize_load(make_load([request(0, 0.0)], events=events))
    assert value(found, "memory_weights_bytes") == 5e8
    assert found["memory_weights_bytes"].method == "the server's own count, before the load"
    assert found["preemptions_count"].reason == "no whole answer in 5 s"


def test_a_prefix_cache_that_was_never_asked_has_no_share() -> None:
    same = {"prefix_tokens_asked": 5.0, "prefix_tokens_hit": 2.0}
    events = [counted("before", **same), counted("after", **same)]
    found = summarize_load(make_load([request(0, 0.0)], events=events))
    assert "nothing was looked up in the cache" in (found["prefix_cache_hit_share"].reason or "")


def counted(when: str, **counters: float) -> Event:
    data = {"when": when, "counters": counters, "states": {}, "memory": {}}
    return Event(at_s=0.0, kind="server_metrics", message="", data=data)


def test_energy_is_of_the_measured_stretch_alone() -> None:
    samples = [Sample(at_s=float(t), values={"energy_j": 10.0 * t}) for t in range(20)]
    found = summarize_load(make_load([request(0, 5.0), request(1, 8.0)], samples=samples))
    assert value(found, "energy_j") == pytest.approx(50.0)  # from 5 s to 10 s
    assert value(found, "energy_per_output_token_j") == pytest.approx(5.0)


def test_a_sensor_that_is_not_there_leaves_its_reason() -> None:
    missing = {"energy_j": "this machine has no meter", "power_w": "this machine has no meter"}
    found = summarize_load(make_load([request(0, 0.0)], environment={"missing_sensors": missing}))
    assert found["energy_per_output_token_j"].reason == "this machine has no meter"


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.01, 50)), min_size=1, max_size=40))
def test_the_stretch_holds_busy_and_idle_time_and_no_more_in_flight_than_requests(
    times: list[tuple[float, float]],
) -> None:
    asked = [
        request(n, due, first_s=None, last_s=None, done_s=due + took) for n, (due, took) in enumerate(times)
    ]
    stretch = stretch_of(asked)
    assert stretch is not None
    assert 0 < stretch.busy_s <= stretch.seconds * (1 + 1e-9)
    assert stretch.request_s >= stretch.busy_s * (1 - 1e-9)
    assert 1 <= stretch.most_in_flight <= len(asked)


@settings(max_examples=20)
@given(st.floats(0.1, 10), st.integers(0, 1000))
def test_all_times_times_k_are_all_latencies_times_k_and_all_rates_over_k(k: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    due = np.cumsum(draw.exponential(1.0, 30))
    found, scaled = (
        summarize_load(make_load([stretched(n, at_s, factor) for n, at_s in enumerate(due)]))
        for factor in (1.0, k)
    )
    for name in ("ttft_p90_s", "tpot_p50_s", "itl_mean_s", "e2e_max_s", "load_s"):
        assert value(scaled, name) == pytest.approx(k * value(found, name))
    for name in ("output_tokens_per_s", "completed_requests_per_s", "offered_requests_per_s"):
        assert value(scaled, name) == pytest.approx(value(found, name) / k)
    for name in ("goodput_share", "in_flight_mean_count", "output_tokens"):
        assert value(scaled, name) == pytest.approx(value(found, name))


def stretched(n: int, due_s: float, k: float) -> RequestResult:
    return request(
        n, k * due_s, first_s=k * (due_s + 1), last_s=k * (due_s + 2), done_s=k * (due_s + 2),
        gaps_s=(k * 0.25,) * 4,
    )  # fmt: skip


def test_a_percentiles_interval_covers_it_as_often_as_it_says() -> None:
    """Of 2000 samples of 60 exponential values at least 95% less four standard errors, for p50 and p90."""
    draw = np.random.default_rng(0)
    for percent in (50, 90):
        true = -math.log(1 - percent / 100)
        intervals = [order_interval(draw.exponential(size=60).tolist(), percent) for _ in range(2000)]
        inside = sum(found is not None and found[0] <= true <= found[1] for found in intervals)
        known = sum(found is not None for found in intervals)
        assert known == 2000
        assert inside / known >= 0.95 - 4 * math.sqrt(0.95 * 0.05 / 2000)


def test_a_percentile_of_too_few_values_has_no_interval() -> None:
    assert order_interval([1.0, 2.0, 3.0, 4.0, 5.0], 50) is None
    assert order_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 50) == (1.0, 6.0)
    assert order_interval([float(n) for n in range(100)], 99) is None


def test_rates_have_an_interval_within_the_run_where_the_load_is_long_enough() -> None:
    long = summarize_load(make_load([request(n, 0.5 * n) for n in range(120)]))
    rate = long["output_tokens_per_s"]
    assert rate.ci is not None
    assert rate.value is not None
    assert rate.ci[0] < rate.value < rate.ci[1]
    assert (rate.ci_method or "").startswith("within_run")
    assert (
        summarize_load(make_load([request(n, float(n)) for n in range(5)]))["output_tokens_per_s"].ci is None
    )


def test_neighbours_are_not_known_where_the_server_may_be_among_them() -> None:
    samples = [Sample(at_s=1.0, values={"others_cpu_share": 0.9})]
    why = "the server is in a process that is not found"
    environment = {"missing_sensors": {"others_cpu_share": why}}
    found = summarize_load(make_load([request(0, 0.0)], samples=samples, environment=environment))
    assert found["others_cpu_share"].reason == why
    assert summarize_load(make_load([request(0, 0.0)], samples=samples))["others_cpu_share"].value == 0.9


def test_a_closed_load_offers_no_rate() -> None:
    record = make_load([request(n, float(n)) for n in range(30)], load={"arrivals": "closed"})
    offered = summarize_load(record)["offered_requests_per_s"]
    assert offered.value is None
    assert "a closed load offers no rate" in (offered.reason or "")
