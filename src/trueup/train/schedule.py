"""Learning rate as a pure function of the step."""

from __future__ import annotations

import math

from trueup.recipe.models import ScheduleSection


def learning_rate(step: int, *, total_steps: int, peak: float, schedule: ScheduleSection) -> float:
    """Learning rate of optimizer step `step` (from 1) of `total_steps`.

    Rises linearly over `warmup_steps`, reaching `peak` on the last of them, then decays to
    `schedule.floor`, which it reaches on the last step. Never below the floor.
    """
    warm_up = min(schedule.warmup_steps, total_steps)
    if step <= warm_up:
        return max(schedule.floor, peak * step / warm_up)
    if schedule.kind == "constant":
        return peak
    progress = (step - warm_up) / max(1, total_steps - warm_up)
    remaining = 1 - progress if schedule.kind == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return schedule.floor + (peak - schedule.floor) * remaining
