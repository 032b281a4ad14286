"""The bill balances: for any record its lines add up, none is negative, and it scales with the price."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from math import fsum
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_records import PRICE, arbitrary_records, make_header, make_record, make_step

from trueup.analysis.bill import LINE_NAMES, Bill, OneOff, dollars_per_million, make_bill, one_off_given
from trueup.analysis.measure import summarize
from trueup.catalog import PriceBook, published_prices
from trueup.schema import Event, InputError, Measurement, Price, RunRecord

CEILING = "matmul_ceiling_flops_per_s"


def ceiling(flops_per_s: float) -> dict[str, Measurement]:
    return {CEILING: Measurement(value=flops_per_s, unit="FLOP/s", kind="measured", scope="device")}


def measured(record: RunRecord, flops_per_s: float | None = 158e9) -> RunRecord:
    found, steady = summarize(record, extra=None if flops_per_s is None else ceiling(flops_per_s))
    header = record.header.model_copy(update={"steady": steady})
    return record.model_copy(update={"measurements": found, "header": header})


def seconds_of(bill: Bill) -> dict[str, float]:
    return {line.name: line.seconds for line in bill.lines}


@settings(max_examples=150, deadline=None)
@given(arbitrary_records(), st.sampled_from([None, 1e6, 1e9, 1e12]), st.booleans())
def test_the_bill_balances(record: RunRecord, flops_per_s: float | None, with_summary: bool) -> None:
    if with_summary:
        record = measured(record, flops_per_s)
    bill = make_bill(record)
    assert fsum(line.usd for line in bill.lines) == pytest.approx(bill.total_usd, rel=1e-9, abs=1e-300)
    assert fsum(line.seconds for line in bill.lines) == pytest.approx(bill.wall_s, rel=1e-9, abs=1e-300)
    spans_s = fsum(span.seconds for span in record.spans)
    assert bill.wall_s == pytest.approx(max(record.header.wall_s or 0.0, spans_s), rel=1e-9, abs=1e-9)
    assert min(line.seconds for line in bill.lines) >= 0
    assert min(line.usd for line in bill.lines) >= 0
    if bill.wall_s > 0:
        assert fsum(line.share for line in bill.lines) == pytest.approx(1, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(arbitrary_records(), st.floats(1e-3, 1e3))
def test_twice_the_price_is_twice_the_bill(record: RunRecord, usd_per_hour: float) -> None:
    record = measured(record)
    one = make_bill(record, Price(usd_per_hour=usd_per_hour, source="x"))
    two = make_bill(record, Price(usd_per_hour=2 * usd_per_hour, source="x"))
    assert two.total_usd == pytest.approx(2 * one.total_usd, rel=1e-12, abs=1e-300)
    for single_line, double_line in zip(one.lines, two.lines, strict=True):
        assert double_line.usd == pytest.approx(2 * single_line.usd, rel=1e-12, abs=1e-300)
    for which in ("usd_per_million_useful_tokens", "usd_per_million_useful_tokens_steady"):
        single, double = getattr(one, which), getattr(two, which)
        assert (single.value is None) == (double.value is None)
        if single.value is not None:
            assert double.value == pytest.approx(2 * single.value)


def test_lines_of_a_plain_run() -> None:
    record = measured(make_record())
    seconds = seconds_of(make_bill(record))
    step_s = sum(step.step_s for step in record.steps)
    assert [name for name in LINE_NAMES if name != "compute"] == list(seconds)
    assert seconds["one_off"] == 0
    assert seconds["load"] == 5.0  # start and load
    assert seconds["warm_up"] == 5.0  # calibrate and warm-up
    assert seconds["evaluation"] == 2.0
    assert seconds["record"] == 0.5
    assert seconds["padding"] == pytest.approx(step_s * 32 / 512)
    flop = record.measurements["useful_model_flop"].value
    assert flop is not None
    assert seconds["useful_compute"] == pytest.approx(flop / 158e9)
    split = ("useful_compute", "below_peak", "padding", "head_padding")
    assert sum(seconds[name] for name in split) == pytest.approx(step_s)
    assert 0 < seconds["head_padding"] < seconds["padding"]


def test_what_is_computed_again_has_its_line() -> None:
    plain, again = (
        make_record(),
        make_record(header={"recipe": {"train": {"activation_checkpointing": True}}}),
    )
    without, with_it = (seconds_of(make_bill(measured(record, 2e12))) for record in (plain, again))
    step_s = sum(step.step_s for step in plain.steps)
    assert without["recompute"] == 0
    # A second forward pass of frozen layers is a third of forward, backward and forward; the head is apart.
    assert 0.2 < with_it["recompute"] / (step_s - with_it["padding"]) < 1 / 3
    assert with_it["useful_compute"] == without["useful_compute"]
    split = ("useful_compute", "below_peak", "padding", "head_padding", "recompute")
    assert sum(with_it[name] for name in split) == pytest.approx(step_s)


def test_dollars_per_million_tokens() -> None:
    record = measured(make_record())
    bill = make_bill(record)
    assert bill.useful_tokens == 40 * 480
    assert bill.total_usd == pytest.approx(PRICE.usd_per_hour * bill.wall_s / 3600)
    assert bill.usd_per_million_useful_tokens.value == pytest.approx(bill.total_usd / (40 * 480) * 1e6)
    rate = record.measurements["useful_tokens_per_s_steady"]
    steady = bill.usd_per_million_useful_tokens_steady
    assert rate.value is not None
    assert rate.ci is not None
    assert steady.value == pytest.approx(PRICE.usd_per_hour / (rate.value * 3600) * 1e6)
    assert steady.ci is not None
    assert steady.ci[0] < steady.value < steady.ci[1]
    assert steady.ci[0] == pytest.approx(PRICE.usd_per_hour / 3600 / rate.ci[1] * 1e6)
    assert steady.ci_method is not None
    assert steady.ci_method.startswith("within_run")


@pytest.mark.parametrize(("share", "told"), [(2.34, True), (0.5, True), (0.49, False)])
def test_steps_that_vary_by_much_are_said_with_their_steady_figure(share: float, told: bool) -> None:
    rate = Measurement(value=240.0, unit="tokens/s", kind="derived")
    jitter = Measurement(value=share, unit="1", kind="derived")
    both = {"useful_tokens_per_s_steady": rate, "step_jitter_share": jitter}
    notes = make_bill(make_record().model_copy(update={"measurements": both})).notes
    assert any(f"step times vary by {share:.0%} (" in note for note in notes) is told
    alone = make_record().model_copy(update={"measurements": {"step_jitter_share": jitter}})
    assert not any("vary" in note for note in make_bill(alone).notes)


@pytest.mark.parametrize(
    ("usd_per_hour", "tokens_per_s", "usd_per_million"),
    [(21.50, 12_275, 0.487), (8.197, 12_275, 0.185), (55.04, 8 * 12_273, 0.156)],
)
def test_published_throughputs(usd_per_hour: float, tokens_per_s: float, usd_per_million: float) -> None:
    rate = Measurement(value=tokens_per_s, unit="tokens/s", kind="quoted")
    record = make_record().model_copy(update={"measurements": {"useful_tokens_per_s_steady": rate}})
    bill = make_bill(record, Price(usd_per_hour=usd_per_hour, source="list"))
    assert bill.usd_per_million_useful_tokens_steady.value == pytest.approx(usd_per_million, abs=6e-4)


@pytest.mark.parametrize(
    ("instance", "model", "tokens_per_s", "usd_per_million"),
    [
        ("trn1.32xlarge", "on-demand", 12_275, 0.487),
        ("trn1.32xlarge", "reserved-3y", 12_275, 0.185),
        ("p5.48xlarge", "on-demand", 8 * 12_273, 0.156),
    ],
)
def test_published_throughputs_at_the_catalogs_prices(
    instance: str, model: str, tokens_per_s: float, usd_per_million: float
) -> None:
    row = PriceBook(published=published_prices()).find(instance, model)
    assert row.amount_per_hour is not None
    assert dollars_per_million(row.amount_per_hour, tokens_per_s) == pytest.approx(usd_per_million, abs=6e-4)


@pytest.mark.parametrize("tokens_per_s", [0.0, -1.0, float("nan"), float("inf")])
def test_no_dollars_follow_from_a_rate_that_is_none(tokens_per_s: float) -> None:
    with pytest.raises(InputError, match=r"tokens per second has no dollars per token: expected a number"):
        dollars_per_million(21.50, tokens_per_s)


@given(st.floats(1e-3, 1e3), st.floats(1, 1e7), st.sampled_from([2.0, 4.0, 1024.0]))
def test_a_token_costs_in_proportion_to_the_price_and_against_the_rate(
    usd_per_hour: float, tokens_per_s: float, times: float
) -> None:
    one = dollars_per_million(usd_per_hour, tokens_per_s)
    assert dollars_per_million(times * usd_per_hour, tokens_per_s) == pytest.approx(times * one)
    assert dollars_per_million(usd_per_hour, times * tokens_per_s) == pytest.approx(one / times)


def test_a_steady_part_of_no_tokens_has_no_cost_per_token() -> None:
    rate = Measurement(value=0.0, unit="tokens/s", kind="measured")
    record = make_record().model_copy(update={"measurements": {"useful_tokens_per_s_steady": rate}})
    steady = make_bill(record).usd_per_million_useful_tokens_steady
    assert steady.value is None
    assert steady.reason == "the steady part trained no useful token"


def negative_span(record: RunRecord) -> RunRecord:
    spans = [span.model_copy(update={"seconds": -span.seconds}) for span in record.spans[:1]]
    return record.model_copy(update={"spans": (*spans, *record.spans[1:])})


def negative_wall(record: RunRecord) -> RunRecord:
    return record.model_copy(update={"header": record.header.model_copy(update={"wall_s": -3.0})})


def step_without_a_time(record: RunRecord) -> RunRecord:
    steps = (record.steps[0].model_copy(update={"step_s": float("nan")}), *record.steps[1:])
    return record.model_copy(update={"steps": steps})


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (negative_span, "its span 'start' took -2.0 s"),
        (negative_wall, "its wall clock took -3.0 s"),
        (step_without_a_time, "step 1 took nan s"),
    ],
)
def test_a_time_below_zero_is_refused(spoil: Callable[[RunRecord], RunRecord], what: str) -> None:
    with pytest.raises(InputError, match=rf"run 7f3a cannot be billed: {what}.*import the run again"):
        make_bill(spoil(make_record()))


def quoted_record() -> RunRecord:
    rate = Measurement(value=12_275, unit="tokens/s", kind="quoted")
    header = make_header(wall_s=None)
    return RunRecord(header=header, measurements={"useful_tokens_per_s_steady": rate})


def test_a_bill_of_quoted_figures_alone_says_so() -> None:
    assert make_bill(quoted_record()).only_quoted


@pytest.mark.parametrize("kind", ["measured", "estimated"])
def test_a_price_of_another_kind_is_not_quoted(kind: Literal["measured", "estimated"]) -> None:
    assert not make_bill(quoted_record(), Price(usd_per_hour=1.0, source="x", kind=kind)).only_quoted


def test_a_run_that_was_timed_here_is_not_made_of_quoted_figures_alone() -> None:
    bill = make_bill(measured(make_record()))
    assert bill.made_from == {"time": "measured", "useful_tokens": "measured", "price": "quoted"}
    assert not bill.only_quoted


def test_an_estimated_price_makes_an_estimated_bill() -> None:
    bill = make_bill(measured(make_record()), Price(usd_per_hour=1.0, source="a guess", kind="estimated"))
    figures = (bill.total, bill.usd_per_million_useful_tokens, bill.usd_per_million_useful_tokens_steady)
    assert {figure.kind for figure in figures} == {"estimated"}


def test_the_total_shows_its_arithmetic_and_the_prices_source() -> None:
    total = make_bill(measured(make_record())).total
    assert (total.unit, total.kind) == ("USD", "derived")
    assert "s × 0.0816 USD/h / 3600" in total.method
    assert "price quoted: an example" in total.method


@given(arbitrary_records(), st.floats(0, 1e6), st.integers(1, 1000))
def test_a_one_off_is_spread_evenly_over_its_runs(record: RunRecord, usd: float, over: int) -> None:
    plain = make_bill(record)
    bill = make_bill(record, one_off=OneOff(usd=usd, over=over, source="debugging"))
    assert bill.total_usd == pytest.approx(plain.total_usd + usd / over)
    assert fsum(line.usd for line in bill.lines) == pytest.approx(bill.total_usd, rel=1e-9, abs=1e-300)
    assert fsum(line.seconds for line in bill.lines) == fsum(line.seconds for line in plain.lines)
    if bill.total_usd > 0 and usd / over > 0:
        assert fsum(line.share for line in bill.lines) == pytest.approx(1, rel=1e-9)


def test_a_one_off_is_in_the_cost_of_a_token_and_has_its_line() -> None:
    record = measured(make_record())
    bill = make_bill(record, one_off=OneOff(usd=100.0, over=4, source="debugging"))
    (line,) = (line for line in bill.lines if line.name == "one_off")
    assert (line.usd, line.kind) == (25.0, "quoted")
    plain = make_bill(record).usd_per_million_useful_tokens.value
    assert bill.usd_per_million_useful_tokens.value == pytest.approx((plain or 0) + 25.0 / (40 * 480) * 1e6)


def test_without_a_ceiling_compute_is_one_line_and_says_why() -> None:
    bill = make_bill(measured(make_record(), None))
    names = [line.name for line in bill.lines]
    assert "compute" in names
    assert "useful_compute" not in names
    assert "below_peak" not in names
    assert any("no matmul ceiling" in note for note in bill.notes)


def test_a_ceiling_below_the_rate_reached_is_raised() -> None:
    bill = make_bill(measured(make_record(), 1e9))
    seconds = seconds_of(bill)
    assert seconds["below_peak"] == 0
    assert any("raised" in note for note in bill.notes)


def test_ranks_share_the_work() -> None:
    alone = seconds_of(make_bill(measured(make_record(), 1e12)))
    environment = {"world": {"size": 2}}
    both = seconds_of(make_bill(measured(make_record(header={"environment": environment}), 1e12)))
    assert both["useful_compute"] == pytest.approx(alone["useful_compute"] / 2)


def test_steps_done_again_are_lost_work() -> None:
    steps = [make_step(number) for number in (*range(1, 21), *range(15, 41))]
    bill = make_bill(measured(make_record(steps=steps)))
    lost_s = sum(make_step(number).step_s for number in range(15, 21))
    assert seconds_of(bill)["lost_work"] == pytest.approx(lost_s)
    assert bill.useful_tokens == 40 * 480


def test_a_run_cut_off_is_billed_from_its_steps() -> None:
    record = make_record(header={"state": "interrupted", "wall_s": None})
    bill = make_bill(record)
    assert bill.useful_tokens == 40 * 480
    assert seconds_of(bill)["padding"] > 0
    assert bill.usd_per_million_useful_tokens.value is not None
    assert bill.usd_per_million_useful_tokens_steady.value is None


def test_a_run_without_steps_has_a_bill_but_no_price_per_token() -> None:
    bill = make_bill(measured(make_record(steps=[])))
    assert bill.total_usd > 0
    assert bill.usd_per_million_useful_tokens.value is None
    assert "no useful token" in (bill.usd_per_million_useful_tokens.reason or "")
    assert bill.usd_per_million_useful_tokens_steady.value is None


@pytest.mark.parametrize("usd_per_hour", [0.0, -1.0, float("nan"), float("inf"), 1.7e308, 5e-324])
def test_a_price_that_is_none_is_refused(usd_per_hour: float) -> None:
    price = Price.model_construct(usd_per_hour=usd_per_hour, source="x", kind="quoted", as_of=None)
    with pytest.raises(InputError, match="cannot be billed: expected a number from"):
        make_bill(make_record(), price)


@pytest.mark.parametrize(("usd", "over"), [(1.7e308, 1), (-1.0, 1), (1.0, 0), (1.0, 10**400)])
def test_a_one_off_that_is_none_is_refused(usd: float, over: int) -> None:
    with pytest.raises(InputError, match=r"a one-off .*: expected a number from"):
        one_off_given(usd, over, "a test")


@pytest.mark.parametrize("damaged", [5e-324, 1e300, -3.0])
def test_a_record_with_no_count_of_tokens_has_no_bill(damaged: float) -> None:
    record = make_record()
    tokens = Measurement(value=damaged, unit="tokens", kind="measured")
    record = record.model_copy(update={"measurements": {**record.measurements, "useful_tokens": tokens}})
    with pytest.raises(InputError, match="damaged record"):
        make_bill(record)


def test_a_run_without_a_price_says_how_to_give_one() -> None:
    with pytest.raises(InputError, match=r"price\.usd_per_hour"):
        make_bill(make_record(header={"price": None}))


def test_known_counts_measurements_and_the_price() -> None:
    record = measured(make_record())
    bill = make_bill(record)
    assert sum(bill.known.values()) == len(record.measurements) + 1
    assert bill.known["quoted"] == 1


def test_document_keys() -> None:
    document = json.loads(make_bill(measured(make_record())).model_dump_json())
    assert {
        "run", "name", "price", "total_usd", "wall_s", "useful_tokens", "usd_per_million_useful_tokens",
        "usd_per_million_useful_tokens_steady", "lines", "known", "notes",
    } <= set(document)  # fmt: skip
    assert {"usd_per_hour", "source", "kind"} <= set(document["price"])
    assert {"name", "seconds", "usd", "share"} <= set(document["lines"][0])
    assert {"value", "unit", "kind", "reason", "ci", "ci_method"} <= set(
        document["usd_per_million_useful_tokens_steady"]
    )


def test_the_bill_survives_storage_to_the_last_bit() -> None:
    record = measured(make_record())
    assert make_bill(RunRecord.model_validate_json(record.model_dump_json())) == make_bill(record)


def test_the_bill_starts_without_numpy() -> None:
    code = (
        "import sys, trueup.analysis.bill\n"
        "heavy = {'numpy', 'scipy', 'torch'} & set(sys.modules)\n"
        "sys.exit(' '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_ceiling_measured_beside_busy_neighbours_is_said() -> None:
    record = make_record(steps=[make_step(1)])
    event = Event(at_s=1.0, kind="contended_ceiling", message="neighbours used 40% of the CPU")
    noted = make_bill(record.model_copy(update={"events": (event,)})).notes
    assert "neighbours used 40% of the CPU" in noted
    assert not any("neighbours" in note for note in make_bill(record).notes)
