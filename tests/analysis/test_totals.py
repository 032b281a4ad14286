"""Which steps stand, of a run that went back once or often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_records import make_record, make_step

from trueup.analysis.bill import make_bill
from trueup.analysis.measure import summarize
from trueup.analysis.totals import split_repeated, steps_of, totals, totals_of
from trueup.schema import Event, RunRecord


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


def gone_back(kind: str, *back_to: int, at_s: float = 1000.0) -> RunRecord:
    """Five steps, and the run going back after them."""
    events = [Event(at_s=at_s + n, kind=kind, message="", data={"step": s}) for n, s in enumerate(back_to)]
    return make_record(steps=[make_step(number) for number in range(1, 6)], events=events)


@pytest.mark.parametrize("kind", ["resume", "rollback"])
def test_what_a_run_went_back_behind_and_did_not_do_again_does_not_stand(kind: str) -> None:
    record = gone_back(kind, 3)
    assert [step.step for step in steps_of(record)[0]] == [1, 2, 3]
    assert totals_of(record).useful_tokens == 3 * 480
    assert totals_of(record).lost_s == pytest.approx(sum(step.step_s for step in record.steps[3:]))
    measurements, _ = summarize(record)
    assert measurements["useful_tokens"].value == 3 * 480
    assert measurements["steps_count"].value == 3
    assert measurements["loss_last"].value == record.steps[2].loss


def test_a_run_that_went_back_twice_stands_where_it_went_furthest_back() -> None:
    assert [step.step for step in steps_of(gone_back("resume", 2, 4))[0]] == [1, 2]


def test_going_back_before_the_last_step_is_told_by_the_steps() -> None:
    """The steps after it have numbers of their own, above the checkpoint's or not."""
    assert len(steps_of(gone_back("resume", 3, at_s=1.0))[0]) == 5


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
