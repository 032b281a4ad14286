"""Sections of a recipe that say how a run survives: what is saved, what to do when something fails, what is
watched."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from trueup.schema import Frozen
from trueup.schema.guard import GuardPreset, GuardRule, PauseLimits


class CheckpointSection(Frozen):
    """All that a run needs to go on as if nothing had happened, saved while it trains."""

    every: int | None = Field(None, ge=1, description="steps between saves; null: by the other rules alone")
    minutes: float | None = Field(None, gt=0, description="minutes between saves; null: by steps alone")
    best: bool = Field(True, description="save when an evaluation is the best so far")
    keep: int = Field(2, ge=1, description="how many of the newest to keep; the best is kept beside them")
    keep_every: int | None = Field(None, ge=1, description="keep for good those of every so many steps")
    disk_gb: float | None = Field(
        None, gt=0, description="most GB of a run's checkpoints; the oldest go first, the newest never"
    )
    to: str | None = Field(
        None,
        min_length=1,
        description="also copy each there: a folder, s3://BUCKET/PREFIX, any fsspec address",
    )


class DivergenceSection(Frozen):
    """A loss far above what it was lately."""

    factor: float = Field(3.0, gt=1, description="times the running median of the loss")
    steps: int = Field(5, ge=1, description="so many steps in a row above it are a divergence")
    action: Literal["ignore", "stop", "rollback"] = Field("stop", description="what to do then")


class FailureSection(Frozen):
    """What to do when a step fails."""

    non_finite: Literal["stop", "skip", "rollback"] = Field(
        "stop", description="loss or gradient is no number: end the run, leave the step out, or roll back"
    )
    divergence: DivergenceSection = DivergenceSection()
    out_of_memory: Literal["stop", "halve"] = Field(
        "halve", description="end the run, or halve the micro-batches (the same step in more of them)"
    )
    rollback_lr: float = Field(
        0.5,
        gt=0,
        le=1,
        description="a rollback goes to the last checkpoint, with lr times this from there on",
    )
    most: int = Field(3, ge=1, description="skips or rollbacks in a row before the run ends all the same")


class GuardSection(PauseLimits):
    """Watches the run and acts."""

    presets: tuple[GuardPreset, ...] = Field((), description="ready-made rules, see docs/guard.md")
    rules: tuple[GuardRule, ...] = Field((), description="rules of your own, beside the presets'")
    checkpoint_on_pause: bool = Field(True, description="save before pausing")
    command: tuple[str, ...] = Field(
        (), description="program and arguments to call at each action, JSON on its standard input"
    )
    webhook: str | None = Field(None, description="http(s) address that each action is posted to as JSON")

    @model_validator(mode="after")
    def _calls_http(self) -> Self:
        if self.webhook is not None and not self.webhook.startswith(("http://", "https://")):
            raise ValueError(f"webhook is {self.webhook!r}, and only http:// and https:// are posted to")
        return self
