"""A lot of runs as one bill: the runs' bills add up to it, whatever became of them."""

from __future__ import annotations

from math import fsum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_records import arbitrary_records, make_record, make_step

from trueup.analysis.bill import Bill, OneOff, make_bill
from trueup.analysis.budget import budget_given
from trueup.analysis.energy_cost import tariff_given
from trueup.analysis.study_bill import make_study_bill, summed
from trueup.schema import InputError, Measurement, Price, RunRecord, unavailable

MANY = st.lists(
    st.tuples(arbitrary_records(), st.sampled_from(["finished", "failed", "interrupted", "stopped"])),
    min_size=1,
    max_size=6,
)


def named(record: RunRecord, run_id: str, **header: Any) -> RunRecord:
    return record.model_copy(update={"header": record.header.model_copy(update={"id": run_id, **header})})


def bills_of(found: list[tuple[RunRecord, str]], **options: Any) -> list[Bill]:
    return [make_bill(named(one, f"run{n}", state=state), **options) for n, (one, state) in enumerate(found)]


@settings(max_examples=60)
@given(MANY)
def test_the_runs_add_up_to_the_study(found: list[tuple[RunRecord, str]]) -> None:
    bills = bills_of(found)
    study = make_study_bill(bills)
    assert study.total.value == fsum(bill.total_usd for bill in bills)
    assert study.total.value == fsum(run.total.value or 0.0 for run in study.runs)
    assert study.wall_s == fsum(bill.wall_s for bill in bills)
    assert study.useful_tokens == fsum(bill.useful_tokens for bill in bills)


@settings(max_examples=60)
@given(MANY)
def test_the_studys_lines_add_up_to_its_total(found: list[tuple[RunRecord, str]]) -> None:
    study = make_study_bill(bills_of(found, one_off=OneOff(usd=5.0, over=3, source="debugging")))
    assert fsum(line.usd for line in study.lines) == pytest.approx(study.total.value, rel=1e-9)
    assert fsum(line.seconds for line in study.lines) == pytest.approx(study.wall_s, rel=1e-9, abs=1e-300)
    assert fsum(line.share for line in study.lines) == pytest.approx(1, rel=1e-9)


@settings(max_examples=60)
@given(MANY, st.randoms(use_true_random=False))
def test_the_order_of_the_runs_does_not_matter(found: list[tuple[RunRecord, str]], random: Any) -> None:
    bills = bills_of(found)
    shuffled = random.sample(bills, len(bills))
    one, other = make_study_bill(bills), make_study_bill(shuffled)
    assert one.total == other.total
    assert one.usd_per_million_useful_tokens == other.usd_per_million_useful_tokens


@settings(max_examples=60)
@given(MANY, MANY)
def test_two_studies_add_up_to_one(
    first: list[tuple[RunRecord, str]], second: list[tuple[RunRecord, str]]
) -> None:
    bills = bills_of(first + second)
    whole = make_study_bill(bills)
    parts = [make_study_bill(bills[: len(first)]), make_study_bill(bills[len(first) :])]
    assert whole.total.value == pytest.approx(fsum(part.total.value or 0.0 for part in parts), rel=1e-12)
    assert whole.unfinished.value == pytest.approx(fsum(part.unfinished.value or 0.0 for part in parts))


@settings(max_examples=40)
@given(MANY, st.floats(1e-3, 1e3))
def test_twice_the_price_is_twice_the_studys_bill(
    found: list[tuple[RunRecord, str]], usd_per_hour: float
) -> None:
    one, two = (
        make_study_bill(bills_of(found, price=Price(usd_per_hour=times * usd_per_hour, source="a test")))
        for times in (1, 2)
    )
    assert two.total.value == pytest.approx(2 * (one.total.value or 0.0), rel=1e-12, abs=1e-300)


def test_failed_and_interrupted_runs_are_paid_for_and_their_tokens_count() -> None:
    good = named(make_record(), "a")
    failed = named(make_record(steps=[make_step(1), make_step(2)]), "b", state="failed")
    bills = [make_bill(good), make_bill(failed)]
    study = make_study_bill(bills)
    assert study.states == {"finished": 1, "failed": 1}
    assert study.unfinished.value == bills[1].total_usd
    assert study.useful_tokens == 42 * 480
    cost = study.usd_per_million_useful_tokens.value
    assert cost == pytest.approx((bills[0].total_usd + bills[1].total_usd) / (42 * 480) * 1e6)
    assert cost > (bills[0].usd_per_million_useful_tokens.value or 0.0)


def test_a_study_that_trained_nothing_has_a_total_and_no_cost_per_token() -> None:
    study = make_study_bill([make_bill(named(make_record(steps=[]), "a", state="failed"))])
    assert study.total.value == study.unfinished.value
    assert "no useful token" in (study.usd_per_million_useful_tokens.reason or "")


def test_a_run_counts_once() -> None:
    bill = make_bill(make_record())
    with pytest.raises(InputError, match="run 7f3a is in the study twice"):
        make_study_bill([bill, bill])


def test_a_study_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="no run to bill"):
        make_study_bill([])


def with_budget(limit: float | None, run_id: str) -> Bill:
    recipe = {"budget": {"usd_per_million_tokens": limit}}
    return make_bill(named(make_record(header={"recipe": recipe}), run_id))


def test_runs_of_one_budget_give_it_to_the_study() -> None:
    study = make_study_bill([with_budget(0.5, "a"), with_budget(0.5, "b")])
    assert study.budget is not None
    assert study.budget.figure == study.usd_per_million_useful_tokens
    assert study.budget.limit.value == 0.5


@pytest.mark.parametrize("other", [0.6, None])
def test_runs_of_different_budgets_give_it_none_and_that_is_said(other: float | None) -> None:
    study = make_study_bill([with_budget(0.5, "a"), with_budget(other, "b")])
    assert study.budget is None
    assert any("not all runs have the same budget" in note for note in study.notes)


def test_a_study_may_be_given_its_own_budget() -> None:
    study = make_study_bill([with_budget(None, "a")], budget=budget_given(0.01, "a test"))
    assert study.budget is not None
    assert study.budget.verdict == "over"


def usd(value: float, unit: str = "USD") -> Measurement:
    return Measurement(value=value, unit=unit, kind="derived")


def test_currencies_are_not_mixed() -> None:
    with pytest.raises(InputError, match="mixes EUR and USD"):
        summed([usd(1.0), usd(2.0, "EUR")], "USD", "runs")


def test_a_sum_with_a_part_missing_is_missing() -> None:
    found = summed([usd(1.0), unavailable("USD", "no price listed")], "USD", "runs")
    assert found.value is None
    assert found.reason == "1 of 2 runs have none: no price listed"


def test_an_estimated_part_makes_an_estimated_sum() -> None:
    guess = Measurement(value=2.0, unit="USD", kind="estimated")
    assert summed([usd(1.0), guess], "USD", "runs").kind == "estimated"


def test_a_study_says_how_many_of_its_runs_were_billed_at_an_old_price() -> None:
    old = Price(usd_per_hour=3.6, source="a list", as_of="2026-01-01")
    bills = [make_bill(named(make_record(), "a"), old), make_bill(named(make_record(), "b"), old)]
    assert any(
        note.startswith("2 of 2 runs: the price is as of 2026") for note in make_study_bill(bills).notes
    )


def test_the_studys_energy_is_that_of_its_runs_at_the_tariff_they_have_in_common() -> None:
    metered = {"energy_j": Measurement(value=3.6e6, unit="J", kind="measured")}
    record = make_record().model_copy(update={"measurements": metered})
    tariffs = tariff_given(0.1, "a test"), tariff_given(0.2, "a test")
    alike = make_study_bill([make_bill(named(record, one), tariff=tariffs[0]) for one in "ab"])
    assert (alike.energy.energy.value, alike.energy.cost.value) == pytest.approx((2.0, 0.2))
    assert alike.energy.tariff == tariffs[0]
    apart = make_study_bill(
        [make_bill(named(record, one), tariff=at) for one, at in zip("ab", tariffs, strict=True)]
    )
    assert apart.energy.cost.value == pytest.approx(0.3)
    assert apart.energy.tariff is None
