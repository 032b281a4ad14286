"""The guard's decisions: a policy, a state and readings in, actions out. Nothing here looks at a clock.

Readings are taken one at a time in order of time, and what falls due between two of them at its own instant:
looked at singly or in batches, the same readings give the same actions. A pause begins only at a reading that
says that the run can: a pause decided in the middle of a long step would be over before it began.
"""

from __future__ import annotations

from collections.abc import Sequence

from trueup.schema.guard import ActionKind

from .guard_records import HOUR_S, Action, Asked, GuardState, Pause, Policy, Reading, Rule, Window
from .guard_words import over_level, past_longest_pause, resumed, too_many_pauses, worded

PARTS = 20  # a window's readings are kept in at most about twice as many parts
NO_VALUE = 1e100  # what is larger, infinite or no number is no reading


def advance(
    policy: Policy,
    state: GuardState,
    readings: Sequence[Reading],
    at_s: float,
    asked: Sequence[Asked] = (),
) -> tuple[GuardState, tuple[Action, ...]]:
    """The state at `at_s` and the actions up to then. `readings`: those since the last call, in order of
    time; `asked` is what people want now. After a stop nothing follows."""
    if not policy.rules and not asked and state.pause is None:
        return state.model_copy(update={"at_s": max(at_s, state.at_s)}), ()
    machine = _Machine(policy, state)
    for reading in readings:
        machine.read(reading)
    machine.wait_until(at_s)
    for one in asked:
        machine.obey(one)
    return machine.state(), tuple(machine.actions)


def restarted(state: GuardState, at_s: float) -> GuardState:
    """The state in a process that goes on with the run: nothing was read meanwhile, no pause goes on, and its
    clock may stand anywhere. What is still past its level is said again."""
    shift_s = min(0.0, at_s - state.at_s)
    return GuardState(
        at_s=at_s,
        acted_s={name: then_s + shift_s for name, then_s in state.acted_s.items()},
        pauses_s=tuple(then_s + shift_s for then_s in state.pauses_s),
    )


class _Machine:
    """A state opened for writing."""

    def __init__(self, policy: Policy, state: GuardState) -> None:
        self._policy = policy
        self._at_s = state.at_s
        self._windows = dict(state.windows)
        self._acted_s = dict(state.acted_s)
        self._pause = state.pause
        self._pauses_s = list(state.pauses_s)
        self._stopped = state.stopped
        self.actions: list[Action] = []

    def state(self) -> GuardState:
        return GuardState.model_construct(
            at_s=self._at_s,
            windows=self._windows,
            acted_s=self._acted_s,
            pause=self._pause,
            pauses_s=tuple(self._pauses_s),
            stopped=self._stopped,
        )

    def wait_until(self, at_s: float) -> None:
        """What falls due before `at_s`."""
        at_s = max(at_s, self._at_s)
        pause, longest_s = self._pause, self._policy.max_pause_s
        if pause is not None and not pause.by_hand and pause.since_s + longest_s < at_s:
            self._at_s = max(self._at_s, pause.since_s + longest_s)
            self._stop(" and ".join(pause.rules), past_longest_pause(pause.rules, longest_s))
        self._at_s = at_s

    def read(self, reading: Reading) -> None:
        self.wait_until(reading.at_s)
        for rule in self._policy.rules:
            value = reading.values.get(rule.watch)
            if value is not None and abs(value) < NO_VALUE and not self._stopped:
                self._judge(rule, value, reading.holds_s)
        if self._pause is not None:
            self._resume_if_back()
        elif reading.between_steps:
            self._pause_if_over()

    def obey(self, asked: Asked) -> None:
        if self._stopped:
            return
        words = worded(asked.who, asked.why)
        if asked.kind == "stop":
            self._stop(asked.who, f"the run ends, saved: {words}")
        elif asked.kind == "checkpoint":
            self._act("checkpoint", asked.who, f"a checkpoint was asked for: {words}")
        elif asked.kind == "resume":
            if self._pause is not None:
                self._resume(asked.who, f"the run goes on: {words}")
        elif self._pause is None:
            self._pause = Pause(since_s=self._at_s, rules=(), by_hand=True)
            self._act("pause", asked.who, f"the run pauses until it is told to resume or stop: {words}")
        elif not self._pause.by_hand:
            self._pause = self._pause.model_copy(update={"by_hand": True})
            message = f"the pause now lasts until the run is told to resume or stop: {words}"
            self._act("pause", asked.who, message)

    def _judge(self, rule: Rule, value: float, holds_s: float | None) -> None:
        window = self._pushed(rule, value, holds_s)
        self._windows[rule.name] = window
        mean = window.mean(rule.window_s)
        if mean is None:
            return
        if not rule.is_over(mean):
            if not window.armed:
                self._windows[rule.name] = window.model_copy(update={"armed": True})
            return
        if rule.action == "pause":
            if self._pause is not None and rule.name not in self._pause.rules:
                rules = (*self._pause.rules, rule.name)
                self._pause = self._pause.model_copy(update={"rules": rules})
        elif window.armed and self._is_cool(rule) and not (rule.action == "checkpoint" and self._pause):
            self._windows[rule.name] = window.model_copy(update={"armed": False})
            self._acted_s[rule.name] = self._at_s
            message = over_level(rule, mean)
            if rule.action == "stop":
                self._stop(rule.name, message, rule, mean)
            else:
                self._act(rule.action, rule.name, message, rule, mean)

    def _pause_if_over(self) -> None:
        """Begin a pause for the first rule that wants one now."""
        for rule in self._policy.rules:
            if rule.action != "pause" or self._stopped:
                continue
            mean = self._fresh_mean(rule)
            if mean is not None and rule.is_over(mean) and self._is_cool(rule):
                self._pause_on(rule, mean)
                return

    def _pause_on(self, rule: Rule, mean: float) -> None:
        self._pauses_s = [then_s for then_s in self._pauses_s if then_s > self._at_s - HOUR_S]
        if len(self._pauses_s) >= self._policy.max_pauses_per_hour:
            why = too_many_pauses(over_level(rule, mean, acts=False), len(self._pauses_s))
            self._stop(rule.name, why, rule, mean)
            return
        self._pauses_s.append(self._at_s)
        self._acted_s[rule.name] = self._at_s
        self._pause = Pause(since_s=self._at_s, rules=(rule.name,))
        self._act("pause", rule.name, over_level(rule, mean), rule, mean)

    def _resume_if_back(self) -> None:
        """End the pause when it was long enough and every rule behind it has read its value as back."""
        pause = self._pause
        assert pause is not None
        if pause.by_hand or self._at_s < pause.since_s + self._policy.min_pause_s:
            return
        rules = [rule for rule in self._policy.rules if rule.name in pause.rules]
        means = [self._fresh_mean(rule) for rule in rules]
        back = [m is not None and rule.is_back(m) for rule, m in zip(rules, means, strict=True)]
        if rules and all(back):
            message = resumed(pause.rules, self._at_s - pause.since_s)
            self._resume(" and ".join(pause.rules), message, rules[0], means[0])

    def _fresh_mean(self, rule: Rule) -> float | None:
        window = self._windows.get(rule.name)
        if window is None or window.last_s is None:
            return None
        if self._at_s - window.last_s > max(rule.gap_s, window.held_s):
            return None
        return window.mean(rule.window_s)

    def _pushed(self, rule: Rule, value: float, holds_s: float | None) -> Window:
        """The rule's window with one more reading; empty before it where there was a gap."""
        window = self._windows.get(rule.name, Window())
        if holds_s is None:
            since_s = self._at_s - window.last_s if window.last_s is not None else None
            whole = since_s is not None and since_s <= rule.gap_s
            held_s, parts = (since_s or 0.0, window.parts) if whole else (0.0, ())
        else:
            held_s, parts = holds_s, window.parts
        return Window.model_construct(
            parts=_trimmed(_appended(parts, held_s, value, rule.window_s / PARTS), rule.window_s),
            last_s=self._at_s,
            held_s=holds_s or 0.0,
            armed=window.armed,
        )

    def _is_cool(self, rule: Rule) -> bool:
        then_s = self._acted_s.get(rule.name)
        return then_s is None or self._at_s - then_s >= rule.cooldown_s

    def _resume(self, who: str, message: str, rule: Rule | None = None, mean: float | None = None) -> None:
        assert self._pause is not None
        self._acted_s |= dict.fromkeys(self._pause.rules, self._at_s)
        self._pause = None
        self._act("resume", who, message, rule, mean)

    def _stop(self, who: str, message: str, rule: Rule | None = None, mean: float | None = None) -> None:
        self._pause, self._stopped = None, True
        self._act("stop", who, message, rule, mean)

    def _act(
        self, kind: ActionKind, who: str, message: str, rule: Rule | None = None, mean: float | None = None
    ) -> None:
        level = None
        if rule is not None:
            level = rule.resume_level if kind == "resume" else rule.level
        window_s = rule.window_s if rule is not None else None
        self.actions.append(
            Action(
                at_s=self._at_s,
                kind=kind,
                rule=who,
                message=message,
                value=mean,
                level=level,
                window_s=window_s,
            )
        )


def _appended(
    parts: tuple[tuple[float, float], ...], held_s: float, value: float, part_s: float
) -> tuple[tuple[float, float], ...]:
    if held_s <= 0:
        return parts
    if parts and parts[-1][0] + held_s <= part_s:
        before_s, before = parts[-1]
        both_s = before_s + held_s
        return (*parts[:-1], (both_s, (before_s * before + held_s * value) / both_s))
    return (*parts, (held_s, value))


def _trimmed(parts: tuple[tuple[float, float], ...], window_s: float) -> tuple[tuple[float, float], ...]:
    """Without those that lie wholly before the window."""
    covered_s = 0.0
    for at in range(len(parts) - 1, -1, -1):
        covered_s += parts[at][0]
        if covered_s >= window_s:
            return parts[at:]
    return parts
