"""When to end: the first of the recipe's conditions that is met."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trueup.recipe import Recipe
from trueup.recipe.models import StopSection
from trueup.schema import Price


@dataclass(frozen=True)
class StopRule:
    """The recipe's limits, in the units in which the loop counts."""

    total_steps: int  # from epochs and max_steps
    wall_s: float | None
    useful_tokens: int | None
    wall_condition: str = ""  # which of the recipe's keys set wall_s

    def reason(self, *, step: int, wall_s: float, useful_tokens: int, reserve_s: float) -> str | None:
        """Why to end now, or None. `reserve_s` is what the work after the last step is expected to take:
        a limit in dollars or minutes is for the whole run, not for its steps alone."""
        if self.wall_s is not None and wall_s + reserve_s >= self.wall_s:
            return f"{self.wall_condition} reached"
        if self.useful_tokens is not None and useful_tokens >= self.useful_tokens:
            return f"train.stop.useful_tokens ({self.useful_tokens}) reached"
        if step >= self.total_steps:
            return "the one step done" if self.total_steps == 1 else f"all {self.total_steps} steps done"
        return None


def total_steps(recipe: Recipe, steps_per_epoch: int) -> int:
    """Steps that `epochs` and `max_steps` allow. Every epoch has as many: the last example of the last epoch
    is trained too."""
    whole, part = divmod(recipe.train.epochs, 1)
    total = int(whole) * steps_per_epoch + math.ceil(part * steps_per_epoch)
    limit = recipe.train.max_steps
    return total if limit is None else min(total, limit)


def wall_limit(stop: StopSection, price: Price | None) -> tuple[float | None, str]:
    """Seconds after which the run is to end, if it is, and which key says so. Dollars become seconds at the
    run's price."""
    limits: list[tuple[float, str]] = []
    if stop.minutes is not None:
        limits.append((stop.minutes * 60, f"train.stop.minutes ({stop.minutes:g})"))
    if stop.usd is not None and price is not None:
        limits.append((stop.usd / price.usd_per_hour * 3600, f"train.stop.usd ({stop.usd:g})"))
    return min(limits, default=(None, ""))


def stop_rule(recipe: Recipe, price: Price | None, steps_per_epoch: int) -> StopRule:
    """Limits of this recipe."""
    wall_s, condition = wall_limit(recipe.train.stop, price)
    total = total_steps(recipe, steps_per_epoch)
    return StopRule(total, wall_s, recipe.train.stop.useful_tokens, condition)
