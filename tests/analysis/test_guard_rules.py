"""What the guard does with given readings, rule by rule."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest

from trueup.analysis.guard import advance, restarted
from trueup.analysis.guard_records import Action, Asked, GuardState, Policy, Reading, Rule

HZ = 2


def rule(**fields: Any) -> Rule:
    given: dict[str, Any] = {
        "name": "hot", "watch": "temperature_c", "above": 90, "window_s": 10, "action": "warn",
        "cooldown_s": 60,
    }  # fmt: skip
    if "below" in fields:
        del given["above"]
    return Rule(**(given | fields))


def held(value: float, start_s: float, end_s: float, name: str = "temperature_c") -> list[Reading]:
    """Two readings a second of one value, each between two steps."""
    count = round((end_s - start_s) * HZ)
    return [Reading(at_s=start_s + n / HZ, values={name: value}, between_steps=True) for n in range(count)]


def run(
    policy: Policy, readings: Iterable[Reading], at_s: float | None = None, state: GuardState | None = None
) -> tuple[GuardState, tuple[Action, ...]]:
    readings = list(readings)
    end_s = at_s if at_s is not None else readings[-1].at_s
    return advance(policy, state or GuardState(), readings, end_s)


def kinds(actions: Iterable[Action]) -> list[str]:
    return [action.kind for action in actions]


def test_a_rule_waits_until_its_window_is_covered() -> None:
    policy = Policy(rules=(rule(),))
    state, actions = run(policy, held(95, 0, 10))
    assert actions == ()
    _, actions = run(policy, held(95, 10, 11), state=state)
    assert kinds(actions) == ["warn"]
    (warn,) = actions
    assert (warn.at_s, warn.value, warn.level, warn.window_s) == (10, pytest.approx(95), 90, 10)
    assert "temperature_c is 95 on average over 10 s, above 90" in warn.message


def test_the_mean_is_judged_and_not_a_single_reading() -> None:
    readings = held(80, 0, 20)
    readings[-1] = readings[-1].model_copy(update={"values": {"temperature_c": 200}})
    assert run(Policy(rules=(rule(),)), readings)[1] == ()


def test_a_mean_is_weighted_by_time_and_not_by_the_number_of_readings() -> None:
    """Ten hot readings within one second, then slow cool ones: mostly cool."""
    hot = [Reading(at_s=n / 10, values={"temperature_c": 100}) for n in range(11)]
    cool = [Reading(at_s=1 + 3 * n, values={"temperature_c": 50}) for n in range(1, 4)]
    _, actions = run(Policy(rules=(rule(above=60),)), [*hot, *cool])
    assert actions == ()
    _, actions = run(Policy(rules=(rule(above=54),)), [*hot, *cool])
    assert [a.value for a in actions] == [pytest.approx((1 * 100 + 9 * 50) / 10)]


def test_below_a_level_is_the_mirror_image() -> None:
    policy = Policy(rules=(rule(watch="clock_share", below=0.8, action="warn"),))
    assert run(policy, held(0.9, 0, 20, "clock_share"))[1] == ()
    (warn,) = run(policy, held(0.7, 0, 20, "clock_share"))[1]
    assert "below 0.8" in warn.message


def test_a_gap_is_no_reading_and_the_window_begins_anew() -> None:
    policy = Policy(rules=(rule(),))
    readings = [*held(95, 0, 9), *held(95, 60, 69)]
    assert run(policy, readings)[1] == ()
    assert kinds(run(policy, [*readings, *held(95, 69, 71)])[1]) == ["warn"]


def test_what_says_how_long_it_held_needs_no_reading_before() -> None:
    """A step of a minute covers a window of ten seconds by itself."""
    policy = Policy(rules=(rule(watch="loss", above=3),))
    step = Reading(at_s=60, values={"loss": 4}, holds_s=60)
    assert kinds(run(policy, [step])[1]) == ["warn"]


def test_it_warns_once_for_each_excursion_and_not_within_the_cooldown() -> None:
    policy = Policy(rules=(rule(cooldown_s=100),))
    _, actions = run(policy, held(95, 0, 300))
    assert [a.at_s for a in actions] == [10]
    up_and_down = [r for n in range(10) for r in held(95 if n % 2 else 50, 20 * n, 20 * (n + 1))]
    _, actions = run(policy, up_and_down)
    assert [b.at_s - a.at_s >= 100 for a, b in pairwise(actions)] == [True]


def test_a_pause_ends_past_its_resume_level_and_after_its_least_length() -> None:
    policy = Policy(rules=(rule(action="pause", resume=80, cooldown_s=0),), min_pause_s=30)
    # between the two levels nothing changes
    readings = [*held(95, 0, 20), *held(85, 20, 100), *held(75, 100, 130)]
    _, (pause, resume) = run(policy, readings)
    assert (pause.kind, pause.at_s) == ("pause", 10)
    assert "pauses until it is back at 80" in pause.message
    assert resume.kind == "resume"
    assert 100 <= resume.at_s <= 110
    assert (resume.level, resume.value) == (80, pytest.approx(80, abs=1))
    _, (pause, resume) = run(policy, [*held(95, 0, 10.5), *held(20, 10.5, 130)])
    assert resume.at_s - pause.at_s == 30


def test_a_pause_begins_only_where_the_run_can_pause() -> None:
    """Hot in the middle of a long step and cool at its end: there is nothing to pause for."""
    policy = Policy(rules=(rule(action="pause"),))
    during = [r.model_copy(update={"between_steps": False}) for r in (*held(95, 0, 40), *held(50, 40, 80))]
    assert run(policy, [*during, Reading(at_s=80, between_steps=True)])[1] == ()
    _, actions = run(policy, [*during[:80], Reading(at_s=40, between_steps=True)])
    assert [(a.kind, a.at_s) for a in actions] == [("pause", 40)]


def test_a_second_rule_must_come_back_too() -> None:
    other = rule(name="load", watch="power_w", above=300, action="pause")
    policy = Policy(rules=(rule(action="pause"), other), min_pause_s=0)
    both = [
        Reading(
            at_s=n / HZ,
            values={"temperature_c": 95 if n < 40 else 20, "power_w": 400 if n < 120 else 100},
            between_steps=True,
        )
        for n in range(200)
    ]
    _, actions = run(policy, both)
    assert kinds(actions) == ["pause", "resume"]
    assert actions[1].at_s > 60


def test_a_paused_run_whose_sensor_falls_silent_ends_after_the_longest_pause() -> None:
    policy = Policy(rules=(rule(action="pause"),), max_pause_s=100)
    state, actions = run(policy, held(95, 0, 20), at_s=110)
    assert kinds(actions) == ["pause"]
    after, actions = run(policy, [], at_s=500, state=state)
    assert [(a.kind, a.at_s) for a in actions] == [("stop", 110)]
    assert "paused for 100 s" in actions[0].message
    assert "no longer read" in actions[0].message
    assert after.pause is None
    assert run(policy, held(95, 500, 600), state=after)[1] == ()


def test_a_value_that_fell_silent_neither_pauses_nor_resumes() -> None:
    policy = Policy(rules=(rule(action="pause"),), min_pause_s=60)
    late = [Reading(at_s=100, values={"power_w": 1}, between_steps=True)]
    hot_until_then = [r.model_copy(update={"between_steps": False}) for r in held(95, 0, 20)]
    assert run(policy, [*hot_until_then, *late])[1] == ()
    cool_until_then = [*held(95, 0, 20), *held(50, 20, 60)]
    assert kinds(run(policy, [*cool_until_then, *late])[1]) == ["pause"]
    assert kinds(run(policy, [*cool_until_then, *held(50, 60, 71)])[1]) == ["pause", "resume"]


def test_one_pause_more_than_allowed_in_an_hour_ends_the_run() -> None:
    policy = Policy(
        rules=(rule(action="pause", cooldown_s=0),), min_pause_s=0, max_pause_s=1000, max_pauses_per_hour=3
    )
    readings = [r for n in range(10) for r in held(50 if n % 2 else 95, 100 * n, 100 * (n + 1))]
    _, actions = run(policy, readings)
    assert kinds(actions) == ["pause", "resume"] * 3 + ["stop"]
    assert "3 pauses in an hour are the most allowed" in actions[-1].message
    slow = [r for n in range(10) for r in held(50 if n % 2 else 95, 900 * n, 900 * n + 30)]
    assert "stop" not in kinds(run(policy.model_copy(update={"max_pause_s": 5000}), slow)[1])


def test_a_checkpoint_rule_acts_and_waits_while_paused() -> None:
    policy = Policy(rules=(rule(name="save", above=85, action="checkpoint"), rule(action="pause")))
    readings = held(95, 0, 30)
    _, actions = run(policy, readings)
    assert kinds(actions) == ["checkpoint", "pause"]
    paused = GuardState(pause=None)
    state, _ = advance(policy, paused, [], 0, [Asked(kind="pause")])
    assert run(policy, readings, state=state)[1] == ()


def test_what_is_no_number_is_no_reading() -> None:
    policy = Policy(rules=(rule(),))
    for value in (float("inf"), float("nan"), -float("inf"), 1e300):
        assert run(policy, held(value, 0, 30))[1] == ()


def test_a_pause_by_hand_lasts_until_it_is_ended_by_hand() -> None:
    policy = Policy(rules=(rule(action="pause"),), max_pause_s=100)
    state, actions = advance(policy, GuardState(), [], 0, [Asked(kind="pause", why="a drill")])
    assert kinds(actions) == ["pause"]
    assert "by hand, a drill" in actions[0].message
    state, actions = run(policy, held(50, 0, 1000), state=state)
    assert actions == ()
    state, actions = advance(policy, state, [], 1000, [Asked(kind="pause"), Asked(kind="resume")])
    assert kinds(actions) == ["resume"]
    assert advance(policy, state, [], 1000, [Asked(kind="resume")])[1] == ()


def test_a_person_can_hold_and_end_the_pause_of_a_rule() -> None:
    policy = Policy(rules=(rule(action="pause", cooldown_s=50),), min_pause_s=0)
    state, _ = run(policy, held(95, 0, 20))
    state, actions = advance(policy, state, [], 20, [Asked(kind="pause")])
    assert kinds(actions) == ["pause"]
    state, actions = run(policy, held(20, 20, 60), state=state)
    assert actions == ()
    state, _ = run(policy, held(95, 60, 80), state=state)
    state, actions = advance(policy, state, [], 80, [Asked(kind="resume")])
    assert kinds(actions) == ["resume"]
    # still hot: the rule acts again, when its cooldown is over
    state, actions = run(policy, held(95, 80, 200), state=state)
    assert [(a.kind, a.at_s) for a in actions] == [("pause", 130)]


def test_stop_and_checkpoint_by_hand_need_no_rules() -> None:
    state, actions = advance(Policy(), GuardState(), [], 5, [Asked(kind="checkpoint")])
    assert [(a.kind, a.rule, a.at_s) for a in actions] == [("checkpoint", "by hand", 5)]
    state, actions = advance(Policy(), state, [], 6, [Asked(kind="stop", who="spot", why="taken back")])
    assert [(a.kind, a.rule) for a in actions] == [("stop", "spot")]
    assert advance(Policy(), state, [], 7, [Asked(kind="pause")])[1] == ()


def test_a_process_that_goes_on_counts_earlier_pauses_and_forgets_its_readings() -> None:
    policy = Policy(rules=(rule(action="pause", cooldown_s=50),), max_pauses_per_hour=1)
    state, _ = run(policy, held(95, 0, 20))
    assert state.pause is not None
    for at_s in (200.0, 5.0):  # a clock that goes on, and one that began anew
        fresh = restarted(state, at_s)
        assert fresh.pause is None
        assert fresh.windows == {}
        assert all(then_s <= at_s for then_s in (*fresh.pauses_s, *fresh.acted_s.values()))
        _, actions = run(policy, held(95, at_s, at_s + 100), state=fresh)
        assert kinds(actions) == ["stop"]


def test_an_action_carries_what_a_hook_needs() -> None:
    (warn,) = run(Policy(rules=(rule(advice="open a window"),)), held(95, 0, 20))[1]
    assert warn.data() == {
        "kind": "warn", "rule": "hot", "value": pytest.approx(95), "level": 90.0, "window_s": 10.0
    }  # fmt: skip
    assert warn.message.endswith("open a window")
