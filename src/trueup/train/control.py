"""What people ask of a run from outside: files in its folder, each taken once."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import get_args

from trueup.analysis.guard_records import Asked
from trueup.schema.choices import Order
from trueup.schema.run import CHECKPOINT_NOW_FILE, CONTROL_FOLDER

WORDS: tuple[Order, ...] = get_args(Order)
LONGEST_WHY = 200  # characters of a file's text


class Control:
    """The control files of one run folder: `control/` with pause, resume, checkpoint or stop, whose text may
    say why, and `checkpoint-now`. Nothing here raises: on a sick disk nothing is asked.

    A file that is there already and from before `since_unix_s` was meant for an earlier process of the run,
    and is only removed. What comes later is obeyed, whatever clocks say: they can be set back.
    """

    def __init__(self, run_folder: Path | None, since_unix_s: float = 0.0) -> None:
        folder = os.fspath(run_folder) if run_folder is not None else None
        self._control = os.path.join(folder, CONTROL_FOLDER) if folder else None
        self._now = os.path.join(folder, CHECKPOINT_NOW_FILE) if folder else None
        self._done: dict[str, int] = {}  # path -> time of what was taken: a file that stays is taken once
        for path in self._paths() if folder else ():
            at_ns = _changed_ns(path)
            if at_ns is not None and at_ns < since_unix_s * 1e9:
                self._take(path)

    def taken(self) -> tuple[Asked, ...]:
        """What was asked since the last call, in the order in which it was."""
        if self._control is None or self._now is None:
            return ()
        found = self._in_control(self._control) if os.path.isdir(self._control) else []
        if (at_ns := self._take(self._now)) is not None:
            found.append((at_ns, Asked(kind="checkpoint", why=CHECKPOINT_NOW_FILE)))
        found.sort(key=lambda one: one[0])
        return tuple(asked for _, asked in found)

    def _paths(self) -> list[str]:
        assert self._control is not None
        assert self._now is not None
        return [*(os.path.join(self._control, word) for word in WORDS), self._now]

    def _in_control(self, folder: str) -> list[tuple[int, Asked]]:
        found = []
        for word in WORDS:
            path = os.path.join(folder, word)
            if _changed_ns(path) is None:
                continue
            why = _text(path)
            if (at_ns := self._take(path)) is not None:
                found.append((at_ns, Asked(kind=word, why=why)))
        return found

    def _take(self, path: str) -> int | None:
        """When the file was put there, if it is new; it is removed."""
        at_ns = _changed_ns(path)
        if at_ns is None or self._done.get(path) == at_ns:
            return None
        self._done[path] = at_ns
        with contextlib.suppress(OSError):
            os.unlink(path)
        return at_ns


def _changed_ns(path: str) -> int | None:
    """Of a plain file: reading a named pipe would wait for whoever writes to it."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns if stat.S_ISREG(found.st_mode) else None


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return " ".join(file.read(LONGEST_WHY * 4).split())[:LONGEST_WHY]
    except OSError:
        return ""
