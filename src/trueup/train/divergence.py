"""A loss that has left its level: far above its running median, step after step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

from trueup.recipe.survival import DivergenceSection
from trueup.schema import TrueupError

WINDOW = 50  # losses the median is taken over
FEWEST = 5  # losses before anything is said
LEAST = 0.1  # nats: a loss this low is not a divergence, whatever multiple of its median it is


class DivergedError(TrueupError):
    """The loss diverged. `losses` are those far above `median`, the last steps of the run."""

    def __init__(self, message: str, median: float, losses: tuple[float, ...]) -> None:
        super().__init__(message)
        self.median = median
        self.losses = losses


class Divergence:
    """Looks at the loss of every step. Losses far above the median are not taken into it until they have been
    judged. A step that was left out counts in a row that has begun, and neither begins nor ends one: a row is
    never longer than its steps, and a checkpoint from before it is still there."""

    def __init__(self, section: DivergenceSection) -> None:
        self._section = section
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._above: list[float] = []
        self.median = math.nan  # that the last verdict was by
        self.losses: tuple[float, ...] = ()  # of the last verdict
        self.since = 0  # step of the first of them

    def look(self, loss: float, step: int) -> bool:
        """Whether this step makes it a divergence: so many in a row above factor x median. The loss of a step
        that was left out is given as NaN."""
        if not math.isfinite(loss):
            return bool(self._above) and self._judged(step)
        if not self._is_far(loss):
            self._losses.extend([*self._above, loss])
            self._above = []
            return False
        if not self._above:
            self.since = step
        self._above.append(loss)
        return self._judged(step)

    def _judged(self, step: int) -> bool:
        if step - self.since + 1 < self._section.steps:
            return False
        self.median, self.losses = median(self._losses), tuple(self._above)
        self._losses.extend(self._above)
        self._above = []
        return True

    def _is_far(self, loss: float) -> bool:
        if len(self._losses) < FEWEST:
            return False
        return loss > max(LEAST, self._section.factor * median(self._losses))

    def state(self) -> dict[str, Any]:
        """JSON-able."""
        return {"losses": list(self._losses), "above": list(self._above), "since": self.since}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._losses = deque((float(loss) for loss in state["losses"]), maxlen=WINDOW)
        self._above = [float(loss) for loss in state["above"]]
        self.since = int(state["since"])
