"""Whatever the sensors say, the guard keeps its word."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from trueup.analysis.guard import NO_VALUE, advance
from trueup.analysis.guard_records import HOUR_S, Action, GuardState, Policy, Reading, Rule

quick = settings(max_examples=60, deadline=None)
seek = settings(max_examples=500, deadline=None, phases=[Phase.generate], derandomize=True)
NAMES = ("a", "b")
LEVELS = (1.0, 3.0)
actions = st.sampled_from(["warn", "checkpoint", "pause", "pause", "stop"])
seconds = st.sampled_from([0.0, 1.0, 7.0, 30.0])


@st.composite
def rules(draw: st.DrawFn, name: str) -> Rule:
    above = draw(st.booleans())
    level = draw(st.sampled_from(LEVELS))
    apart = draw(st.sampled_from([0.0, 1.0]))
    rule = Rule(
        name=name,
        watch=draw(st.sampled_from(NAMES)),
        above=level if above else None,
        below=None if above else level,
        window_s=draw(st.sampled_from([0.5, 2.0, 10.0])),
        action=draw(actions),
        cooldown_s=draw(seconds),
    )
    resume = level - apart if above else level + apart
    return rule.model_copy(update={"resume": resume}) if rule.action == "pause" else rule


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """The first rule pauses above 3, so that most series have pauses; the others do anything."""
    pauses = Rule(
        name="rule0", watch="a", above=3.0, window_s=draw(st.sampled_from([0.5, 2.0, 5.0])),
        resume=draw(st.sampled_from([3.0, 1.0])), action="pause", cooldown_s=draw(seconds),
    )  # fmt: skip
    min_pause_s = draw(seconds)
    return Policy(
        rules=(pauses, *(draw(rules(f"rule{n}")) for n in range(1, draw(st.integers(1, 3))))),
        min_pause_s=min_pause_s,
        max_pause_s=min_pause_s + draw(st.sampled_from([1.0, 60.0, 300.0])),
        max_pauses_per_hour=draw(st.integers(1, 4)),
    )


# Stretches of one value at an even pace, hot or cool; among them whatever else a sampler may do.
even = st.tuples(
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from([{"a": 4.0}, {"a": 0.0}, {"a": 4.0, "b": 2.0}, {"a": 0.0, "b": 2.0}, {"b": 2.0}]),
    st.none(),
    st.just(True),
    st.sampled_from([3, 10, 40]),
)
odd = st.tuples(
    st.sampled_from([0.0, 0.1, 5.0, 8.0, 40.0, 400.0]),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from([0.0, 2.0, 4.0]) | st.floats(), max_size=2),
    st.none() | st.sampled_from([0.0, 3.0, 50.0]),
    st.booleans(),
    st.sampled_from([1, 2, 10]),
)


@st.composite
def series(draw: st.DrawFn) -> list[Reading]:
    at_s, found = 0.0, []
    for gap_s, values, holds_s, between, times in draw(st.lists(even | even | odd, max_size=12)):
        for _ in range(times):
            at_s += gap_s
            found.append(Reading(at_s=at_s, values=values, holds_s=holds_s, between_steps=between))
    return found


def played(policy: Policy, readings: Sequence[Reading]) -> tuple[GuardState, list[Action]]:
    end_s = readings[-1].at_s if readings else 0.0
    state, done = advance(policy, GuardState(), readings, end_s)
    return state, list(done)


def starts(done: Sequence[Action]) -> list[Action]:
    return [action for action in done if action.kind in ("pause", "resume", "stop")]


@pytest.mark.parametrize("wanted", ["the run goes on", "the most allowed", "paused for"])
def test_the_series_have_what_the_properties_speak_of(wanted: str) -> None:
    """Else they would hold for nothing: pauses that end by themselves, too many of them, too long ones."""

    def has_it(case: tuple[Policy, list[Reading]]) -> bool:
        return any(wanted in action.message for action in played(*case)[1])

    assert find(st.tuples(policies(), series()), has_it, settings=seek)


@given(policies(), series())
@quick
def test_it_never_oscillates_faster_than_the_least_pause(policy: Policy, readings: list[Reading]) -> None:
    changes = starts(played(policy, readings)[1])
    for before, after in pairwise(changes):
        assert (before.kind, after.kind) in {
            ("pause", "resume"), ("pause", "stop"), ("resume", "pause"), ("resume", "stop")
        }  # fmt: skip
        if after.kind == "resume":
            assert after.at_s - before.at_s >= policy.min_pause_s
    begun = [action.at_s for action in changes if action.kind == "pause"]
    for earlier, later in pairwise(begun):
        assert later - earlier >= policy.min_pause_s


@given(policies(), series())
@quick
def test_it_never_pauses_more_often_in_an_hour_than_allowed(policy: Policy, readings: list[Reading]) -> None:
    begun = [action.at_s for action in played(policy, readings)[1] if action.kind == "pause"]
    for at_s in begun:
        assert sum(at_s - HOUR_S < other <= at_s for other in begun) <= policy.max_pauses_per_hour


@given(policies(), series(), st.data())
@quick
def test_it_never_acts_on_absent_data(policy: Policy, readings: list[Reading], data: st.DataObject) -> None:
    """Only a rule that has read its value acts, on a mean that its own readings allow; and without the value
    of a name, no rule on it ever acts."""
    _, done = played(policy, readings)
    by_name = {rule.name: rule for rule in policy.rules}
    for action in done:
        if action.value is None:  # past the longest pause
            assert action.kind == "stop"
            continue
        watch = by_name[action.rule.split(" and ")[0]].watch
        read = [r.values[watch] for r in readings if watch in r.values and r.at_s <= action.at_s]
        usable = [value for value in read if abs(value) < NO_VALUE]
        assert usable
        slack = 1e-9 * (1 + max(map(abs, usable)))
        assert min(usable) - slack <= action.value <= max(usable) + slack
    blind = data.draw(st.sampled_from(NAMES))
    hidden = [
        r.model_copy(update={"values": {k: v for k, v in r.values.items() if k != blind}}) for r in readings
    ]
    for action in played(policy, hidden)[1]:
        assert all(by_name[name].watch != blind for name in action.rule.split(" and "))


@given(policies(), series())
@quick
def test_a_paused_run_always_goes_on_or_stops(policy: Policy, readings: list[Reading]) -> None:
    state, done = played(policy, readings)
    later, more = advance(policy, state, [], state.at_s + policy.max_pause_s + 1)
    assert later.pause is None
    changes = starts([*done, *more])
    assert not changes or changes[-1].kind != "pause"


@given(policies(), series(), st.data())
@quick
def test_batches_change_nothing(policy: Policy, readings: list[Reading], data: st.DataObject) -> None:
    whole_state, whole = played(policy, readings)
    state, done, left = GuardState(), [], list(readings)
    while left:
        size = data.draw(st.integers(1, len(left)), label="batch")
        batch, left = left[:size], left[size:]
        now_s = batch[-1].at_s
        if left:  # the look may come at any time before the next reading
            now_s += data.draw(st.sampled_from([0.0, 0.5, 1.0])) * (left[0].at_s - now_s)
        state, more = advance(policy, state, batch, now_s)
        done += more
    assert done == whole
    assert state.model_dump() == whole_state.model_dump() or not readings


@given(policies(), series(), st.data())
@quick
def test_the_state_survives_json_at_any_point(
    policy: Policy, readings: list[Reading], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(readings)))
    state, done = played(policy, readings[:cut])
    kept = GuardState.model_validate(json.loads(json.dumps(state.model_dump(mode="json"), allow_nan=False)))
    assert kept == state
    end_s = readings[-1].at_s if readings else 0.0
    assert advance(policy, kept, readings[cut:], end_s) == advance(policy, state, readings[cut:], end_s)
    assert list(done) + list(advance(policy, kept, readings[cut:], end_s)[1]) == played(policy, readings)[1]


@given(policies(), series())
@quick
def test_what_it_remembers_stays_small(policy: Policy, readings: list[Reading]) -> None:
    state, _ = played(policy, [*readings, *(r.model_copy(update={"at_s": 1e4 + r.at_s}) for r in readings)])
    assert all(len(window.parts) <= 60 for window in state.windows.values())
    assert len(state.pauses_s) <= policy.max_pauses_per_hour
