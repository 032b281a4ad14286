"""Checkpoints on their way to another place, one after the other, in a thread of their own: a slow network
keeps neither training nor the next save waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Tell(Protocol):
    """Called from other threads."""

    def __call__(self, kind: str, message: str, **data: Any) -> None: ...


class Uploads:
    """A folder whose upload fails is tried again once another has arrived, and so are those that wait with
    it but for the newest: a far side that is gone is asked no more than once for each folder offered. One
    that is gone from the disk by then is forgotten: the run went back before it."""

    def __init__(self, upload: Callable[[Path], None], tell: Tell) -> None:
        self._upload = upload
        self._tell = tell
        self._lock = threading.Lock()
        self._waiting: list[Path] = []
        self._failed: list[Path] = []
        self._now: Path | None = None
        self._thread: threading.Thread | None = None
        self._ending = False

    def offer(self, folder: Path) -> None:
        """Upload it when those before it are done."""
        with self._lock:
            self._forget(folder)
            self._begin(folder)

    def let_go(self, folder: Path) -> bool:
        """Forget a folder, so that it may be removed. False where it is being uploaded just now."""
        with self._lock:
            if folder == self._now:
                return False
            self._forget(folder)
            return True

    def wait(self) -> None:
        """Until each folder that was offered is uploaded or has failed."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def finish(self) -> None:
        """As `wait`, at the end: the first failure is the last, but that the newest of what failed is tried
        once more, and the others with it where it arrives. What stays behind is told, also where an interrupt
        ends the waiting."""
        self._ending = True
        try:
            self.wait()
            with self._lock:
                self._failed = [folder for folder in self._failed if folder.is_dir()]
                if self._failed:
                    newest = max(self._failed, key=lambda folder: int(folder.name))
                    self._forget(newest)
                    self._begin(newest)
            self.wait()
        finally:
            self._tell_left()

    def _tell_left(self) -> None:
        with self._lock:
            behind = {*self._failed, *self._waiting, *([self._now] if self._now else ())}
        if left := sorted(int(folder.name) for folder in behind if folder.is_dir()):
            what = "1 checkpoint is" if len(left) == 1 else f"{len(left)} checkpoints are"
            message = f"{what} on the local disk alone, the last of step {left[-1]}"
            self._tell("upload_failed", message, step=left[-1], steps=left)

    def _forget(self, folder: Path) -> None:
        """Under the lock."""
        self._waiting = [other for other in self._waiting if other != folder]
        self._failed = [other for other in self._failed if other != folder]

    def _begin(self, folder: Path) -> None:
        """Under the lock."""
        self._waiting.append(folder)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="checkpoint-upload", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        try:
            while folder := self._next():
                self._try(folder)
        finally:
            with self._lock:
                self._now = None

    def _next(self) -> Path | None:
        with self._lock:
            self._now = self._waiting.pop(0) if self._waiting else None
            if self._now is None:
                self._thread = None  # under the lock: what is offered from now on gets a new one
            return self._now

    def _try(self, folder: Path) -> None:
        began = time.monotonic()
        step = int(folder.name)
        try:
            self._upload(folder)
        except Exception as error:  # whatever a network does, the run goes on
            if not folder.is_dir():
                return
            self._put_off(folder)
            again = "" if self._ending else "; it is tried again when another has arrived, or at the end"
            self._tell(
                "upload_failed",
                f"the checkpoint of step {step} is on the local disk and could not be uploaded: {error}"
                f"{again}",
                step=step,
                error=f"{type(error).__name__}: {error}",
            )
        else:
            self._take_up()
            seconds = time.monotonic() - began
            self._tell(
                "checkpoint_uploaded", f"uploaded the checkpoint of step {step}", step=step, seconds=seconds
            )

    def _put_off(self, folder: Path) -> None:
        """This one and, but for the newest, those after it, until one has arrived."""
        with self._lock:
            still = [] if self._ending else self._waiting[-1:]
            self._failed += [*(other for other in self._waiting if other not in still), folder]
            self._waiting = still

    def _take_up(self) -> None:
        """The far side answers: what had failed has its turn."""
        with self._lock:
            self._waiting = [*self._failed, *self._waiting]  # the newest stays the last
            self._failed = []
