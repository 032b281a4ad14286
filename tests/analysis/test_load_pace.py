"""Whether a server kept up with the rate at which requests came."""

from __future__ import annotations

from typing import Any

import pytest
from load_records import make_load, request

from trueup.analysis.load_bill import load_notes
from trueup.analysis.load_figures import summarize_load
from trueup.schema import Measurement, RunRecord


def load_of(n: int, every_s: float, takes_s: Any, load: dict[str, Any] | None = None) -> RunRecord:
    """`takes_s` of a request's number: from its due instant to its end."""
    asked = []
    for i in range(n):
        due_s = i * every_s
        end_s = due_s + takes_s(i)
        asked.append(request(i, due_s, first_s=end_s - 1.0, last_s=end_s, done_s=end_s))
    record = make_load(asked, load=load)
    return record.model_copy(update={"measurements": summarize_load(record)})


def pace(record: RunRecord) -> list[str]:
    return [note for note in load_notes(record) if "kept up" in note or "keep up" in note]


def waiting(record: RunRecord, queue_s: float) -> RunRecord:
    told = Measurement(value=queue_s, unit="s", kind="measured")
    return record.model_copy(update={"measurements": {**record.measurements, "server_queue_mean_s": told}})


def test_one_that_answers_at_the_pace_of_the_requests_kept_up() -> None:
    (note,) = pace(load_of(120, 0.5, lambda _: 2.0))
    assert "the server kept up" in note
    assert "lower bound" in note


def test_slow_answers_that_do_not_get_slower_are_kept_up_with_though_they_pile_up_at_first() -> None:
    record = load_of(60, 1.0, lambda _: 5.5)
    assert record.measurements["in_flight_last_third_count"].value == 5.0
    assert "5 requests were in flight in the middle third of the load, 5 in the last" in pace(record)[0]


def test_one_whose_requests_in_flight_grow_did_not_keep_up_however_many_were_answered() -> None:
    """Each takes 0.06 s longer than the one before it; 94% of the rate were answered by the end."""
    record = load_of(120, 1.0, lambda i: 2.0 + i * 0.06)
    assert (record.measurements["completed_requests_per_s"].value or 0) > 0.93
    assert record.measurements["goodput_share"].value == 1.0
    (note,) = pace(record)
    assert "did not keep up" in note
    assert "lower bound" not in note


def test_one_that_answers_fewer_a_second_than_come_did_not_keep_up() -> None:
    assert "did not keep up" in pace(load_of(60, 0.1, lambda _: 3.0))[0]


def test_a_long_wait_in_the_queue_is_said_with_it() -> None:
    record = load_of(60, 1.0, lambda _: 5.5)
    assert "waited 1.7 s in its queue of 5.5 s in all" in pace(waiting(record, 1.7))[0]
    assert "in its queue" not in pace(waiting(record, 0.1))[0]


@pytest.mark.parametrize(("limits", "said"), [({}, True), ({"e2e_s": 10.0}, False)])
def test_that_no_limit_was_stated_is_said_with_it(limits: dict[str, float], said: bool) -> None:
    (note,) = pace(load_of(60, 1.0, lambda _: 2.0, {"limits": limits}))
    assert ("No limit on latency" in note) is said


def test_of_a_few_requests_it_is_not_known() -> None:
    (note,) = pace(load_of(12, 1.0, lambda _: 5.1))
    assert note == (
        "whether the server kept up is not known: 12 requests; whether a server keeps up is told from 30 on"
    )


@pytest.mark.parametrize("arrivals", ["closed", "ramp"])
def test_a_load_without_one_rate_of_its_own_says_nothing_of_it(arrivals: str) -> None:
    assert pace(load_of(60, 1.0, lambda _: 2.0, {"arrivals": arrivals})) == []
