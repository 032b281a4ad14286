"""A load's bill: its lines add up, its costs scale as money does, a month follows from the goodput."""

from __future__ import annotations

import math
from math import fsum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from load_records import make_load, request

from trueup.analysis.bill import make_bill
from trueup.analysis.load_bill import (
    HOURS_PER_MONTH,
    LOAD_LINE_NAMES,
    load_costs,
    make_load_bill,
    monthly,
    traffic_given,
)
from trueup.analysis.load_figures import summarize_load
from trueup.analysis.load_server import OVERLAP
from trueup.schema import InputError, Measurement, Price, RunRecord, SpanTotal

SPANS = [
    SpanTotal(name="start", seconds=2.0, count=1),
    SpanTotal(name="load", seconds=5.0, count=1),
    SpanTotal(name="warm_up", seconds=3.0, count=2),
    SpanTotal(name="prepare", seconds=0.5, count=1),
    SpanTotal(name="requests", seconds=60.5, count=1),
    SpanTotal(name="record", seconds=0.25, count=1),
    SpanTotal(name="other", seconds=0.25, count=4),
]


def load_of(n: int = 120, every_s: float = 0.5, usd_per_hour: float = 3.6, **extra: Measurement) -> RunRecord:
    record = make_load(
        [request(i, i * every_s) for i in range(n)],
        spans=SPANS,
        price=Price(usd_per_hour=usd_per_hour, source="a test"),
        wall_s=fsum(span.seconds for span in SPANS),
    )
    return record.model_copy(update={"measurements": summarize_load(record, extra=extra)})


def share(value: float) -> Measurement:
    return Measurement(value=value, unit="1", kind="measured")


def cost(record: RunRecord, name: str) -> float:
    assert record.header.price is not None
    found = load_costs(record, record.header.price)[name]
    assert found.value is not None, found.reason
    return found.value


def test_worked_costs() -> None:
    """$3.60 an hour is $0.001 a second; 120 requests in 61.5 s brought 600 tokens for 1200."""
    record = load_of()
    assert cost(record, "usd_per_million_output_tokens") == pytest.approx(0.001 * 61.5 / 600 * 1e6)
    assert cost(record, "usd_per_million_total_tokens") == pytest.approx(0.001 * 61.5 / 1800 * 1e6)


@settings(max_examples=20)
@given(st.floats(0.01, 100))
def test_twice_the_price_is_twice_every_cost(usd_per_hour: float) -> None:
    once, twice = load_of(usd_per_hour=usd_per_hour), load_of(usd_per_hour=2 * usd_per_hour)
    for name in ("usd_per_million_output_tokens", "usd_per_million_total_tokens"):
        assert cost(twice, name) == pytest.approx(2 * cost(once, name))


def test_the_interval_of_a_cost_is_that_of_the_rate_upside_down() -> None:
    record = load_of()
    rate = record.measurements["output_tokens_per_s"]
    assert record.header.price is not None
    found = load_costs(record, record.header.price)["usd_per_million_output_tokens"]
    assert rate.ci is not None
    assert found.ci == pytest.approx((1e3 / rate.ci[1], 1e3 / rate.ci[0]))
    assert (found.ci_method or "").startswith("within_run")


@settings(max_examples=20)
@given(st.floats(0.01, 0.99))
def test_the_split_by_time_adds_up_to_all_dollars(prefill: float) -> None:
    record = load_of(prefill_time_share=share(prefill))
    by_input = cost(record, "usd_per_million_input_tokens_split") * 1200
    by_output = cost(record, "usd_per_million_output_tokens_split") * 600
    assert by_input + by_output == pytest.approx(0.001 * 61.5 * 1e6)
    assert by_input / (by_input + by_output) == pytest.approx(prefill)


def test_without_the_servers_times_there_is_no_split_and_a_reason() -> None:
    record = load_of()
    assert record.header.price is not None
    found = load_costs(record, record.header.price)["usd_per_million_input_tokens_split"]
    assert found.value is None
    assert "metrics were not read" in (found.reason or "")


def test_a_split_by_seconds_of_requests_says_that_they_overlap() -> None:
    told = share(0.25).model_copy(update={"method": OVERLAP})
    bill = make_load_bill(load_of(prefill_time_share=told))
    assert "overlap" in bill.costs["usd_per_million_input_tokens_split"].method
    assert any("overlap" in note for note in bill.notes)


@settings(max_examples=20)
@given(padding=st.floats(0, 1), price=st.floats(0.01, 100))
def test_the_lines_add_up_to_the_run_and_none_is_negative(padding: float, price: float) -> None:
    bill = make_load_bill(load_of(usd_per_hour=price, server_padding_share=share(padding)))
    assert [line.name for line in bill.lines] == list(LOAD_LINE_NAMES)
    assert all(line.seconds >= 0 and line.usd >= 0 for line in bill.lines)
    assert fsum(line.seconds for line in bill.lines) == pytest.approx(71.5)
    assert fsum(line.usd for line in bill.lines) == pytest.approx(bill.total_usd)
    assert bill.total_usd == pytest.approx(71.5 * price / 3600)


def test_starting_and_warming_up_are_on_the_bill_and_in_no_cost_a_token() -> None:
    bill = make_load_bill(load_of())
    seconds = {line.name: line.seconds for line in bill.lines}
    assert seconds["start"] == pytest.approx(7.0)
    assert seconds["warm_up"] == pytest.approx(3.0)
    found = bill.costs["usd_per_million_output_tokens"].value
    assert found == pytest.approx(0.001 * 61.5 / 600 * 1e6)


def test_a_worked_month() -> None:
    """120 / 61.5 requests a second on one; a million a day, three times that at the peak, needs 17.8."""
    record = load_of()
    month = make_load_bill(record, traffic=traffic_given(1e6, 3.0)).monthly
    assert month is not None
    needed = 1e6 / 86400 * 3 / (120 / 61.5)
    assert month.instances.value == math.ceil(needed) == 18
    assert month.usd_per_month.value == pytest.approx(18 * 3.6 * 730)
    assert month.usd_per_month_part.value == pytest.approx(needed * 3.6 * 730)
    assert HOURS_PER_MONTH == 730
    low, high = month.usd_per_month.ci or (0.0, 0.0)
    assert low <= 18 * 3.6 * 730 <= high


@settings(max_examples=20)
@given(st.floats(1, 1e8))
def test_twice_the_traffic_is_twice_the_part_and_no_fewer_instances(requests_per_day: float) -> None:
    record, price = load_of(), Price(usd_per_hour=3.6, source="a test")
    once = monthly(record, price, traffic_given(requests_per_day))
    twice = monthly(record, price, traffic_given(2 * requests_per_day))
    assert twice.usd_per_month_part.value == pytest.approx(2 * (once.usd_per_month_part.value or 0))
    assert (once.instances.value or 0) <= (twice.instances.value or 0) <= 2 * (once.instances.value or 0)
    assert (once.usd_per_month.value or 0) >= (once.usd_per_month_part.value or 0) * (1 - 1e-8)


def test_a_small_traffic_needs_a_whole_instance() -> None:
    month = monthly(load_of(), Price(usd_per_hour=1.0, source="a test"), traffic_given(1))
    assert (month.instances.value, month.usd_per_month.value) == (1, 730.0)


def test_a_server_that_kept_no_limit_has_no_month_and_says_why() -> None:
    record = make_load([request(i, float(i)) for i in range(30)], load={"limits": {"ttft_s": 0.1}})
    record = record.model_copy(update={"measurements": summarize_load(record)})
    month = monthly(record, Price(usd_per_hour=1.0, source="a test"), traffic_given(1))
    assert month.usd_per_month.reason == "no request was answered within the limits"


def test_a_server_that_kept_up_is_said_to_have_shown_a_lower_bound() -> None:
    assert any("lower bound" in note for note in make_load_bill(load_of()).notes)


@pytest.mark.parametrize(("used", "said"), [(0.875, ["87.5%"]), (0.02, [])])
def test_neighbours_that_used_much_of_the_processors_are_spoken_of(used: float, said: list[str]) -> None:
    notes = make_load_bill(load_of(others_cpu_share=share(used))).notes
    assert [
        word for note in notes if "other processes" in note for word in note.split() if "%" in word
    ] == said


@pytest.mark.parametrize(
    ("requests_per_day", "peak"),
    [(0, 1), (-1, 1), (math.nan, 1), (math.inf, 1), (1e300, 1), (1, 0.5), (1, math.nan), (1, 1e300)],
)
def test_a_traffic_that_is_none_is_refused(requests_per_day: float, peak: float) -> None:
    with pytest.raises(InputError, match=r"--(traffic|peak) .*: expected a number from"):
        traffic_given(requests_per_day, peak)


def test_a_training_runs_bill_is_not_made_of_a_load_nor_the_other_way_round() -> None:
    record = load_of()
    with pytest.raises(InputError, match=r"put a load on a server and trained nothing"):
        make_bill(record)
    trained = record.model_copy(update={"header": record.header.model_copy(update={"kind": "train"})})
    with pytest.raises(InputError, match="trained a model"):
        make_load_bill(trained)


def test_without_a_price_there_is_no_bill() -> None:
    record = load_of()
    without = record.model_copy(update={"header": record.header.model_copy(update={"price": None})})
    with pytest.raises(InputError, match="has no price"):
        make_load_bill(without)
