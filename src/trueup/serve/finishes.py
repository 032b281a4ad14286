"""When there will be room again, from how fast answers ended lately."""

from __future__ import annotations

import math
from collections import deque

LATELY = 32  # ends looked back on
LONGEST_WAIT_S = 60  # what clients still heed; the openai package ignores longer ones


class Finishes:
    def __init__(self) -> None:
        self._ended_s: deque[float] = deque(maxlen=LATELY)

    def note(self, now_s: float) -> None:
        self._ended_s.append(now_s)

    def retry_after_s(self, answers: int) -> int:
        """Seconds until so many answers more have ended, if it goes on as lately; 1 where none is known."""
        if len(self._ended_s) < 2:
            return 1
        each_s = (self._ended_s[-1] - self._ended_s[0]) / (len(self._ended_s) - 1)
        return min(LONGEST_WAIT_S, max(1, math.ceil(answers * each_s)))
