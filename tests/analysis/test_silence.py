"""Sensors that fell silent: the gaps that events tell of, and the bill that says so."""

from __future__ import annotations

from run_records import make_record

from trueup.analysis.bill import make_bill
from trueup.analysis.silence import in_words, silences
from trueup.schema import Event


def event(kind: str, at_s: float, sensor: str = "power_w", since_s: float | None = None) -> Event:
    data = {} if kind == "resume" else {"sensor": sensor, "since_s": at_s if since_s is None else since_s}
    return Event(at_s=at_s, kind=kind, message="", data=data)


def test_a_gap_is_from_the_last_reading_to_the_next() -> None:
    events = [event("sensor_silent", 20, since_s=10), event("sensor_back", 50, since_s=10)]
    assert silences(events, 100) == {"power_w": [(10, 50)]}


def test_one_that_never_came_back_is_silent_to_the_end() -> None:
    assert silences([event("sensor_lost", 20)], 100) == {"power_w": [(20, 100)]}
    assert "from 20 s to the end" in in_words([event("sensor_lost", 20)], 100)[0]


def test_a_process_that_goes_on_asks_anew() -> None:
    events = [event("sensor_lost", 20), event("resume", 60), event("sensor_silent", 90, since_s=80)]
    assert silences(events, 100) == {"power_w": [(20, 60), (80, 100)]}


def test_sensors_are_told_apart_and_their_gaps_added_up() -> None:
    events = [
        event("sensor_silent", 20, since_s=10),
        event("sensor_lost", 30, "clock_mhz"),
        event("sensor_back", 40),
        event("sensor_silent", 70, since_s=60),
        event("sensor_back", 80),
    ]
    power, clock = in_words(events, 100)
    assert power.startswith("power_w fell silent 2 times, first from 10 s: it was not read for 50 s")
    assert clock.startswith("clock_mhz fell silent once, from 30 s to the end: it was not read for 70 s")


def test_without_such_events_nothing_is_said() -> None:
    assert in_words([event("resume", 3)], 10) == []


def test_the_bill_marks_the_gap() -> None:
    lost = event("sensor_lost", 1.0)
    before, after = make_bill(make_record()).notes, make_bill(make_record(events=[lost])).notes
    (note,) = (one for one in after if one not in before)
    assert note.startswith("power_w fell silent once, from 1 s to the end")
