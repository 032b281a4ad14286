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
    """A folder whose upload fails is tried again when the next one is offered."""

    def __init__(self, upload: Callable[[Path], None], tell: Tell) -> None:
        self._upload = upload
        self._tell = tell
        self._lock = threading.Lock()
        self._waiting: list[Path] = []
        self._failed: list[Path] = []
        self._now: Path | None = None
        self._thread: threading.Thread | None = None

    def offer(self, folder: Path) -> None:
        """Upload it when those before it are done."""
        with self._lock:
            self._waiting = list(dict.fromkeys((*self._failed, *self._waiting, folder)))
            self._failed = []
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="checkpoint-upload", daemon=True)
                self._thread.start()

    def let_go(self, folder: Path) -> bool:
        """Forget a folder, so that it may be removed. False where it is being uploaded just now."""
        with self._lock:
            if folder == self._now:
                return False
            self._waiting = [other for other in self._waiting if other != folder]
            self._failed = [other for other in self._failed if other != folder]
            return True

    def wait(self) -> None:
        """Until each folder that was offered is uploaded or has failed."""
        thread = self._thread
        if thread is not None:
            thread.join()

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
            with self._lock:
                self._failed.append(folder)
            self._tell(
                "upload_failed",
                f"the checkpoint of step {step} is on the local disk and could not be uploaded: {error}; it "
                "is tried again with the next save",
                step=step,
                error=f"{type(error).__name__}: {error}",
            )
        else:
            seconds = time.monotonic() - began
            self._tell(
                "checkpoint_uploaded", f"uploaded the checkpoint of step {step}", step=step, seconds=seconds
            )
