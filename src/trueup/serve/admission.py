"""Who is not let in, and when they may come again."""

from __future__ import annotations

import math
from collections import deque

from trueup.schema import TrueupError

LATELY = 32  # ends looked back on
LONGEST_WAIT_S = 60  # what clients still heed; the openai package ignores longer ones


class ServiceError(TrueupError):
    """No answer: the service failed, or is not there for requests now."""


class NotReadyError(ServiceError):
    """The engine is still loading or warming up."""


class DrainingError(ServiceError):
    """The service finishes what it accepted and takes nothing new."""


class BusyError(ServiceError):
    """As many requests wait as may. `retry_after_s`: when to expect room."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Finishes:
    """When there will be room again, from how fast answers ended lately."""

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
