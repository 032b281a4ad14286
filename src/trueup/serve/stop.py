"""Stop strings: where an answer ends by its text, whatever pieces the text comes in."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Looks for the stop string that is whole first; of those that end at one place, the longest.

    Text that could be the beginning of one is held back until it is certain, so that no part of a stop string
    is ever given out. `stopped` says that one was found: what follows is dropped.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """What is certain now. Empty for ever after a stop string."""
        if self.stopped:
            return ""
        if not self._stops:
            return text
        text, self._held = self._held + text, ""
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            return text[: min(found)[1]]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back: no more text comes, so it begins no stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Characters at the text's end that could begin the stop string: the most, and never all of it."""
    most = min(len(text), len(stop) - 1)
    return next((length for length in range(most, 0, -1) if text.endswith(stop[:length])), 0)
