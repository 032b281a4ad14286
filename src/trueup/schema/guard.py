"""A guard's rules and the limits of its pauses, as a recipe gives them and as they are judged, and the words
for what it does and is told."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from .measurement import Frozen
from .watched import ONLY_RISING, ONLY_TRAINING

RuleAction = Literal["warn", "checkpoint", "pause", "stop"]
ActionKind = Literal[RuleAction, "resume"]
GuardPreset = Literal["thermal", "power", "budget", "leak", "all"]


class GuardRule(Frozen):
    """One thing to watch. Above (or below) its level for the length of the window, the action follows."""

    watch: str = Field(
        min_length=1,
        description="a sensor (temperature_c, power_w, ...) or a derived value, see docs/guard.md",
    )
    above: float | None = Field(
        None, allow_inf_nan=False, description="act when the mean over the window is above this"
    )
    below: float | None = Field(
        None, allow_inf_nan=False, description="act when the mean over the window is below this"
    )
    window_s: float = Field(10.0, gt=0, allow_inf_nan=False, description="seconds the mean is taken over")
    resume: float | None = Field(
        None,
        allow_inf_nan=False,
        description="a pause ends when the mean is back past this level; null: past the level itself",
    )
    action: RuleAction = Field("warn", description="what to do")
    cooldown_s: float = Field(
        60.0, ge=0, description="seconds before this rule acts again; after a pause, from its end"
    )

    @model_validator(mode="after")
    def _can_end_what_it_starts(self) -> Self:
        if self.action == "pause" and self.watch in ONLY_TRAINING:
            raise ValueError(
                f"a paused run makes no steps, so {self.watch} would never say when to go on; "
                "warn, checkpoint or stop on it, or pause on a sensor"
            )
        if self.action == "pause" and self.watch in ONLY_RISING:
            raise ValueError(f"{self.watch} never falls, so a pause on it would never end; warn or stop")
        return self

    @model_validator(mode="after")
    def _has_one_level(self) -> Self:
        if (self.above is None) == (self.below is None):
            raise ValueError("give one level: above or below")
        if self.resume is not None:
            if self.action != "pause":
                raise ValueError(f"resume is the level that ends a pause, and action is {self.action}")
            if self.above is not None and self.resume > self.above:
                raise ValueError("resume lies above the level that starts the pause")
            if self.below is not None and self.resume < self.below:
                raise ValueError("resume lies below the level that starts the pause")
        return self


class PauseLimits(Frozen):
    """How short, how long and how frequent the pauses of a guard may be."""

    min_pause_s: float = Field(30.0, ge=0, description="a pause lasts at least so many seconds")
    max_pause_s: float = Field(
        3600.0, gt=0, description="a pause that lasts longer ends the run, saved, as stopped"
    )
    max_pauses_per_hour: int = Field(
        6, ge=1, description="one more than these ends the run, saved, as stopped"
    )

    @model_validator(mode="after")
    def _pauses_can_end(self) -> Self:
        if self.max_pause_s < self.min_pause_s:
            raise ValueError("max_pause_s is shorter than min_pause_s")
        return self
