"""What the guard remembers of a sensor over minutes: a mean, or the lowest value, of each short part."""

from __future__ import annotations

from itertools import combinations
from statistics import median

from trueup.schema import Frozen


class History(Frozen):
    """Means of the latest parts, and their median."""

    parts: tuple[float, ...] = ()
    median: float | None = None
    since_s: float | None = None  # when the part that is not whole yet began
    total: float = 0.0
    count: int = 0

    def with_value(self, at_s: float, value: float, part_s: float, most: int) -> History:
        """With one more reading. A part ends at the first reading `part_s` after its first one."""
        if self.since_s is None or at_s - self.since_s < part_s:
            return History.model_construct(
                parts=self.parts,
                median=self.median,
                since_s=at_s if self.since_s is None else self.since_s,
                total=self.total + value,
                count=self.count + 1,
            )
        parts = (*self.parts[-(most - 1) :], self.total / self.count)
        return History(parts=parts, median=median(parts), since_s=at_s, total=value, count=1)


class Growth(Frozen):
    """The lowest value of each of the latest parts, with when it was read: what a process gives back between
    steps is not in it. A gap of more than a part begins anew."""

    parts: tuple[tuple[float, float], ...] = ()
    since_s: float | None = None
    last_s: float | None = None
    lowest: tuple[float, float] | None = None

    def with_value(self, at_s: float, value: float, part_s: float, most: int) -> Growth:
        """With one more reading."""
        if self.since_s is None or self.last_s is None or self.lowest is None or at_s - self.last_s > part_s:
            return Growth.model_construct(parts=(), since_s=at_s, last_s=at_s, lowest=(at_s, value))
        if at_s - self.since_s < part_s:
            lowest = self.lowest if value >= self.lowest[1] else (at_s, value)
            return Growth.model_construct(parts=self.parts, since_s=self.since_s, last_s=at_s, lowest=lowest)
        parts = (*self.parts[-(most - 1) :], self.lowest)
        return Growth.model_construct(parts=parts, since_s=at_s, last_s=at_s, lowest=(at_s, value))

    def slope(self, fewest: int) -> float | None:
        """Per second: the median of the slopes between any two parts (Theil and Sen). 0 where a quarter of
        them do not rise: a step up, however high, is no steady growth. None with too few parts."""
        if len(self.parts) < fewest:
            return None
        slopes = sorted((v1 - v0) / (t1 - t0) for (t0, v0), (t1, v1) in combinations(self.parts, 2))
        return max(0.0, median(slopes)) if slopes[len(slopes) // 4] > 0 else 0.0
