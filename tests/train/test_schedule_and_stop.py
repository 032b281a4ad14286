"""Learning rate and stop conditions, as pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.recipe import Recipe
from trueup.recipe.models import ScheduleSection
from trueup.schema import Price
from trueup.train.schedule import learning_rate
from trueup.train.stop import stop_rule


def rates(kind: str, total: int, warm_up: int, floor: float = 1e-6) -> list[float]:
    schedule = ScheduleSection(kind=kind, warmup_steps=warm_up, floor=floor)
    return [learning_rate(s, total_steps=total, peak=1e-3, schedule=schedule) for s in range(1, total + 1)]


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_rises_to_the_peak_and_ends_on_the_floor(kind: str) -> None:
    curve = rates(kind, total=40, warm_up=5)
    assert curve[0] == pytest.approx(1e-3 / 5)
    assert curve[4] == pytest.approx(1e-3)
    assert curve[-1] == pytest.approx(1e-6)
    assert curve[4:] == sorted(curve[4:], reverse=True)


def test_constant_stays_at_the_peak() -> None:
    assert set(rates("constant", total=10, warm_up=0)) == {1e-3}


@given(
    kind=st.sampled_from(["cosine", "linear", "constant"]),
    total=st.integers(1, 200),
    warm_up=st.integers(0, 300),
    floor=st.floats(0, 1e-3),
)
def test_never_leaves_floor_and_peak(kind: str, total: int, warm_up: int, floor: float) -> None:
    for rate in rates(kind, total, warm_up, floor):
        assert floor - 1e-15 <= rate <= 1e-3 + 1e-15


def recipe(**train: object) -> Recipe:
    return Recipe.model_validate(
        {
            "model": {"path": "tiny"},
            "data": {"source": "stdlib-docs"},
            "train": train,
            "price": {"usd_per_hour": 3.6, "source": "test"},
        }
    )


PRICE = Price(usd_per_hour=3.6, source="test")


def test_epochs_and_steps_whichever_comes_first() -> None:
    assert stop_rule(recipe(epochs=2), PRICE, 10).total_steps == 20
    assert stop_rule(recipe(epochs=2, max_steps=7), PRICE, 10).total_steps == 7
    assert stop_rule(recipe(epochs=0.01), PRICE, 10).total_steps == 1


def test_a_part_of_an_epoch_is_rounded_up_and_many_epochs_are_only_counted() -> None:
    assert stop_rule(recipe(epochs=2.55), PRICE, 10).total_steps == 26
    assert stop_rule(recipe(epochs=100_000), PRICE, 10).total_steps == 1_000_000


def test_dollars_become_seconds_and_the_tightest_limit_wins() -> None:
    rule = stop_rule(recipe(stop={"usd": 0.01, "minutes": 1}), PRICE, 10)
    assert rule.wall_s == pytest.approx(10.0)
    assert "usd" in str(rule.reason(step=1, wall_s=8.0, useful_tokens=1, reserve_s=2.0))
    assert rule.reason(step=1, wall_s=8.0, useful_tokens=1, reserve_s=1.0) is None


def test_useful_tokens_end_the_run() -> None:
    rule = stop_rule(recipe(stop={"useful_tokens": 100}), PRICE, 10)
    assert rule.reason(step=1, wall_s=1, useful_tokens=99, reserve_s=0) is None
    assert "useful_tokens" in str(rule.reason(step=1, wall_s=1, useful_tokens=100, reserve_s=0))
