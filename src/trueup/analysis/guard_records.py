"""The guard's records: what it is told, what it remembers, what it wants done. All frozen and JSON-able."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from trueup.schema import Frozen
from trueup.schema.choices import Order
from trueup.schema.guard import ActionKind, GuardRule, PauseLimits

HOUR_S = 3600.0
# Without a reading for longer than this, or than half the window, a window begins anew. The slowest monitor
# of a device reports every 5 s.
LONGEST_GAP_S = 6.0
BY_HAND = "by hand"


class Rule(GuardRule):
    """A rule as it is judged: with a name of its own among the policy's, and what a person can do."""

    name: str = ""
    advice: str = ""

    @property
    def level(self) -> float:
        level = self.below if self.above is None else self.above
        assert level is not None
        return level

    @property
    def resume_level(self) -> float:
        return self.level if self.resume is None else self.resume

    @property
    def gap_s(self) -> float:
        return max(LONGEST_GAP_S, self.window_s / 2)

    def is_over(self, mean: float) -> bool:
        return mean > self.level if self.above is not None else mean < self.level

    def is_back(self, mean: float) -> bool:
        return mean <= self.resume_level if self.above is not None else mean >= self.resume_level


class Policy(PauseLimits):
    """Rules with unique names, and the limits of pauses. Of rules that act at once, the first comes first."""

    rules: tuple[Rule, ...] = ()

    @property
    def watched(self) -> frozenset[str]:
        return frozenset(rule.watch for rule in self.rules)


class Reading(Frozen):
    """Values at an instant. `holds_s`: how long they held up to then; None: since the reading before.
    `between_steps`: the run can pause here."""

    at_s: float
    values: dict[str, float] = Field(default_factory=dict)
    holds_s: float | None = None
    between_steps: bool = False


class Asked(Frozen):
    """What somebody outside wants. `who` says so in messages."""

    kind: Order
    who: str = BY_HAND
    why: str = ""


class Window(Frozen):
    """The latest readings of what a rule watches, as (seconds held, mean) in order of time."""

    parts: tuple[tuple[float, float], ...] = ()
    last_s: float | None = None
    held_s: float = 0.0  # how long the last reading said it held
    armed: bool = True  # false from an action until the mean is back past the level

    def mean(self, window_s: float) -> float | None:
        """Over the last `window_s`; None while it is not covered."""
        left_s, total = window_s, 0.0
        for held_s, value in reversed(self.parts):
            took_s = min(held_s, left_s)
            total += took_s * value
            left_s -= took_s
            if left_s <= 1e-9 * window_s:
                return total / (window_s - left_s)
        return None


class Pause(Frozen):
    """A pause that goes on: which rules must come back before it ends, unless a person holds it."""

    since_s: float
    rules: tuple[str, ...]
    by_hand: bool = False


class GuardState(Frozen):
    """All the guard remembers. `model_dump(mode="json")` and `model_validate` give the same state back."""

    at_s: float = 0.0
    windows: dict[str, Window] = Field(default_factory=dict)  # by the rule's name
    acted_s: dict[str, float] = Field(default_factory=dict)  # by name: its last act, or its pause's end
    pause: Pause | None = None
    pauses_s: tuple[float, ...] = ()  # when rules began a pause, of the last hour
    stopped: bool = False


class Action(Frozen):
    """What the loop is to do. `value` is the mean that crossed `level` over `window_s`, where a rule acts."""

    at_s: float
    kind: ActionKind
    rule: str
    message: str
    value: float | None = None
    level: float | None = None
    window_s: float | None = None

    def data(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"message", "at_s"}, exclude_none=True)
