"""Which steps stand, of a run that went back once or often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_records import make_record, make_step

from trueup.analysis.bill import make_bill
from trueup.analysis.totals import split_repeated, totals


@pytest.mark.parametrize(
    ("done", "stand", "lost"),
    [
        ([1, 2, 3], [0, 1, 2], []),
        ([1, 2, 3, 4, 5, 4], [0, 1, 2, 5], [3, 4]),  # ended before it came to step 5 again
        ([1, 2, 3, 4, 3, 4, 5], [0, 1, 4, 5, 6], [2, 3]),
        ([1, 2, 3, 4, 5, 3, 4, 2], [0, 7], [1, 2, 3, 4, 5, 6]),
        ([1, 2, 2, 2], [0, 3], [1, 2]),
        ([], [], []),
    ],
)
def test_what_the_run_went_back_behind_does_not_stand(
    done: list[int], stand: list[int], lost: list[int]
) -> None:
    steps = [make_step(number, step_s=1.0 + place) for place, number in enumerate(done)]
    assert split_repeated(steps) == ([steps[n] for n in stand], [steps[n] for n in lost])
    sums = totals(steps)
    assert sums.useful_tokens == 480 * len(stand)
    assert sums.all_processed_tokens == 512 * len(done)
    assert sums.lost_s == sum(steps[n].step_s for n in lost)


def test_a_step_whose_update_was_left_out_does_not_stand() -> None:
    steps = [make_step(1), make_step(2, skipped=True), make_step(3), make_step(3, skipped=True)]
    assert split_repeated(steps) == ([steps[0]], steps[1:])


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), max_size=6))
def test_steps_that_stand_are_those_the_weights_went_through(processes: list[tuple[int, int]]) -> None:
    """Each process takes up a checkpoint of at most the step the last one came to, and does some steps."""
    weights: list[int] = []  # places, in `done`, of the steps that made them
    done: list[int] = []
    for back_to, count in processes:
        del weights[back_to:]
        for _ in range(count):
            done.append(len(weights) + 1)
            weights.append(len(done) - 1)
    steps = [make_step(number, loss=float(place)) for place, number in enumerate(done)]
    stand, lost = split_repeated(steps)
    assert [int(step.loss) for step in stand] == weights
    assert sorted(int(step.loss) for step in stand + lost) == list(range(len(done)))


def test_the_bill_of_a_run_that_ended_before_its_old_last_step() -> None:
    steps = [make_step(number) for number in (1, 2, 3, 4, 5, 4)]
    bill = make_bill(make_record(steps=steps, header={"state": "interrupted"}))
    (lost,) = [line.seconds for line in bill.lines if line.name == "lost_work"]
    assert bill.useful_tokens == 4 * 480
    assert lost == pytest.approx(steps[3].step_s + steps[4].step_s)
