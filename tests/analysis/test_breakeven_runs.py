"""The sides of a move are full runs of one size, in one currency; what did not finish is said."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from run_records import make_record

from trueup.analysis.breakeven import BreakEven
from trueup.analysis.comparable import ComparedRun, Group
from trueup.analysis.moving import RunCost, break_even_of, run_cost
from trueup.schema import InputError, Measurement, Price, unavailable

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
TOKENS = 19_200.0


def run(run_id: str, *, state: str = "finished", hour: float = 0.0, host: str | None = None) -> ComparedRun:
    environment = {"host": {"hostname": host}} if host else {}
    started = (NOON + timedelta(hours=hour)).isoformat()
    header = {"id": run_id, "state": state, "environment": environment, "started_at": started}
    return ComparedRun.of(make_record(steps=[], header=header))


def usd(value: float, tokens: float = TOKENS, unit: str = "USD") -> RunCost:
    return RunCost(Measurement(value=value, unit=unit, kind="derived", method="a test"), tokens)


def group(name: str, *runs: ComparedRun, left_out: tuple[ComparedRun, ...] = ()) -> Group:
    return Group(name, runs, left_out)


def moved(costs_a: list[RunCost], costs_b: list[RunCost], one_off: float = 10.0, **options: Any) -> BreakEven:
    """Runs a0, a1, … on one machine and b0, b1, … on another, each at its cost."""
    runs_a = [run(f"a{n}", hour=n, host="one") for n in range(len(costs_a))]
    runs_b = [run(f"b{n}", hour=n, host="other") for n in range(len(costs_b))]
    costs = {one.id: cost for one, cost in zip(runs_a + runs_b, costs_a + costs_b, strict=True)}
    return break_even_of(group("A", *runs_a), group("B", *runs_b), costs, one_off, source="a test", **options)


def test_a_full_run_costs_the_mean_of_the_full_runs() -> None:
    found = moved([usd(5.0), usd(7.0)], [usd(4.0)])
    assert (found.cost_a.value, found.cost_b.value, found.runs.value) == (6.0, 4.0, 5.0)


def test_runs_of_another_size_are_refused() -> None:
    with pytest.raises(InputError, match=r"of A 19,200, of B 38,400\. .* --tokens-per-run 19200 "):
        moved([usd(5.0)], [usd(4.0, 2 * TOKENS)])


def test_runs_of_another_size_are_compared_by_the_token_when_told() -> None:
    found = moved([usd(5.0)], [usd(4.0, 2 * TOKENS)], tokens_per_run=10 * TOKENS)
    assert (found.cost_a.value, found.cost_b.value) == pytest.approx((50.0, 20.0))
    assert any("192,000 useful tokens" in note for note in found.notes)


@pytest.mark.parametrize("tokens", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_a_full_run_has_tokens(tokens: float) -> None:
    with pytest.raises(InputError, match="--tokens-per-run"):
        moved([usd(5.0)], [usd(4.0)], tokens_per_run=tokens)


def test_a_run_without_a_token_has_no_cost_per_token() -> None:
    with pytest.raises(InputError, match="a run of B trained no useful token"):
        moved([usd(5.0)], [usd(4.0, 0.0)], tokens_per_run=10.0)


def test_a_run_that_failed_is_no_full_run_and_its_cost_is_said() -> None:
    failed = run("f", state="failed")
    costs = {"a": usd(5.0), "b": usd(4.0), "f": usd(1.5, 10.0)}
    found = break_even_of(
        group("A", run("a")), group("B", run("b"), left_out=(failed,)), costs, 10.0, source="a test"
    )
    assert found.cost_b.value == 4.0
    assert any("1 of B did not finish" in note and "they cost 1.5 USD" in note for note in found.notes)


def test_runs_that_took_turns_on_one_host_are_paired() -> None:
    runs_a = [run(f"a{n}", hour=2 * n, host="one") for n in range(4)]
    runs_b = [run(f"b{n}", hour=2 * n + 1, host="one") for n in range(4)]
    prices = (10.0, 12.0, 14.0, 16.0, 8.1, 9.9, 12.0, 14.1)
    costs = {one.id: usd(price) for one, price in zip(runs_a + runs_b, prices, strict=True)}
    found = break_even_of(group("A", *runs_a), group("B", *runs_b), costs, 50.0, source="a test")
    assert "paired" in (found.saving.ci_method or "")
    assert found.certainty == "sure"


def test_what_is_to_be_known_of_a_price_is_said_once() -> None:
    old = usd(5.0)._replace(notes=("the price is old",))
    for costs_b, names in (([usd(4.0)], "A"), ([old], "A, B")):
        found = moved([old, old], costs_b)
        assert [note for note in found.notes if "old" in note] == [f"{names}: the price is old"]


def test_a_run_at_a_price_of_long_ago_says_so() -> None:
    price = Price(usd_per_hour=3.6, source="a list", as_of="2026-01-01")
    (note,) = run_cost(make_record(), price).notes
    assert "as of 2026-01-01" in note


def test_a_run_on_both_sides_is_refused() -> None:
    with pytest.raises(InputError, match="run a is on both sides"):
        break_even_of(group("A", run("a")), group("B", run("a")), {"a": usd(1.0)}, 1.0, source="a test")


def test_a_cost_that_is_not_known_is_refused_with_its_reason() -> None:
    with pytest.raises(InputError, match="B has no cost of a run to go by: no price listed"):
        moved([usd(5.0)], [RunCost(unavailable("USD", "no price listed"), TOKENS)])


def test_currencies_are_not_mixed_within_a_side() -> None:
    with pytest.raises(InputError, match="runs of B are billed in EUR and USD"):
        moved([usd(5.0)], [usd(4.0), usd(4.0, unit="EUR")])


def test_a_one_off_in_dollars_is_not_added_to_euros() -> None:
    with pytest.raises(InputError, match="one-off is in USD and the runs are billed in EUR"):
        moved([usd(5.0, unit="EUR")], [usd(4.0, unit="EUR")])


def test_currencies_are_not_mixed_between_sides() -> None:
    with pytest.raises(InputError, match="A is billed in USD and B in EUR"):
        moved([usd(5.0)], [usd(4.0, unit="EUR")])
