"""Ctrl-C and SIGTERM: asked once, the run ends at the next safe place; asked twice, at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Self

AGAIN_AFTER_S = 0.05
ACKNOWLEDGED = b"\nstopping at the next safe place; once more stops at once, and keeps fewer weights\n"


class Interrupted(BaseException):
    """The run was asked to end. Not an Exception: no handler for failures may swallow it. `safe`: raised at a
    place where weights and optimizer are whole; `number`: the signal that raised it where it landed, and
    `again` where it was not the first."""

    def __init__(
        self, reason: str, *, safe: bool = False, number: int | None = None, again: bool = False
    ) -> None:
        super().__init__(reason)
        self.safe = safe
        self.number = number
        self.again = again


class Interruption:
    """Catches the signals while open. Between `polite` and the end a first signal only sets `requested`,
    which the loop reads between micro-batches; at any other time it raises Interrupted where it lands.
    Once `concluding`, none is heeded: writing the record takes a moment and is what an interrupt keeps."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.requested: str | None = None
        self.polite = False
        self.concluding = False
        self._before: dict[signal.Signals, object] = {}
        self._hook_before = sys.unraisablehook

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                self._before[number] = signal.signal(number, self._caught)
            self._hook_before, sys.unraisablehook = sys.unraisablehook, self._swallowed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if before:
            sys.unraisablehook = self._hook_before

    def check(self) -> None:
        """Raise Interrupted if a signal has come."""
        if self.requested:
            raise Interrupted(self.requested, safe=True)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if self.concluding:
            return
        again = self.requested is not None
        self.requested = f"{signal.Signals(number).name} received"
        if again or not self.polite:
            raise Interrupted(self.requested, number=number, again=again)
        os.write(2, ACKNOWLEDGED)  # not print: the signal may have come in the middle of one

    def _swallowed(self, unraisable: sys.UnraisableHookArgs) -> None:
        """A signal that lands in a finaliser or a callback of the garbage collector raises where Python lets
        no exception out. It is sent again, as if it came a moment later."""
        error = unraisable.exc_value
        if not isinstance(error, Interrupted) or error.number is None:
            self._hook_before(unraisable)
            return
        if not error.again:
            self.requested = None
        threading.Timer(AGAIN_AFTER_S, self._send_again, (error.number,)).start()

    def _send_again(self, number: int) -> None:
        """A real signal, to the main thread: it may be waiting, and nothing less ends a wait."""
        main = threading.main_thread().ident
        if self._before and main is not None:  # else the run has ended, and nobody here would catch it
            signal.pthread_kill(main, number)
