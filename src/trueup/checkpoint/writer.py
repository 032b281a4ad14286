"""Writes checkpoints while the run goes on: the caller hands over a copy and trains, a thread writes."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path

from trueup.schema import StorageError, TrueupError

from .carry import left_up_to
from .folder import discard, folder_name, read_manifest, remove_checkpoint, steps, write_checkpoint
from .manifest import CheckpointManifest
from .retention import Retention, Saved
from .snapshot import Snapshot
from .uploads import Tell, Uploads


class CheckpointWriter:
    """One save is written at a time, into `root`; older checkpoints go by `retention` once the new one is
    whole, never before, however full the disk is. `upload` is given each folder then, apart from the saves.

    Nothing that a disk or a network does is raised: it is told, and the next save tries again. `tell` gets,
    from other threads: `checkpoint` (step, seconds, bytes, why, left_out), `checkpoint_failed` (step, error),
    `checkpoint_removed` (step, bytes), `checkpoint_not_removed` (error), `checkpoint_uploaded` (step,
    seconds), `upload_failed` (step, error; at the end steps: all that stay behind). Its threads never keep
    the interpreter from ending.

    A manifest names as the best a checkpoint that is there, whatever became of the save of a better one.
    """

    def __init__(
        self,
        root: Path,
        *,
        retention: Retention,
        tell: Tell,
        upload: Callable[[Path], None] | None = None,
    ) -> None:
        self._root = root
        self._retention = retention
        self._tell = tell
        self._uploads = Uploads(upload, tell) if upload else None
        self._thread: threading.Thread | None = None
        self._failures = 0  # since the last save that succeeded

    def save(self, snapshot: Snapshot) -> None:
        """Wait for the save that is being written, if any, and begin this one."""
        self.wait_for_write()
        snapshot = dataclasses.replace(snapshot, state=copy.deepcopy(snapshot.state))
        self._thread = threading.Thread(target=self._save, args=(snapshot,), name="checkpoint", daemon=True)
        self._thread.start()

    def upload(self, folder: Path) -> None:
        """Upload a checkpoint that is there already, where an earlier process may have been killed before it
        was away, or the run has gone back to it."""
        if self._uploads is not None:
            self._uploads.offer(folder)

    @property
    def in_flight(self) -> bool:
        """Whether a save is being written."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Until all that was handed over is on disk or has failed, uploads too."""
        self.wait_for_write()
        if self._uploads is not None:
            self._uploads.wait()

    def finish(self) -> None:
        """As `wait`, at the end of the run: an upload that had failed is tried once more."""
        self.wait_for_write()
        if self._uploads is not None:
            self._uploads.finish()

    def wait_for_write(self) -> None:
        """Until what was handed over is on disk or has failed; uploads may go on."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _save(self, snapshot: Snapshot) -> None:
        began = time.monotonic()
        if self._uploads is not None and not self._uploads.let_go(self._root / folder_name(snapshot.step)):
            self._uploads.wait()  # a step done again, and its older folder is being read
        try:
            snapshot = dataclasses.replace(snapshot, best_step=_best_there(self._root, snapshot))
            folder = write_checkpoint(self._root, snapshot)
            manifest = read_manifest(folder)
        except Exception as error:  # whatever it was, the run goes on
            self._failures += 1
            why = str(error) if isinstance(error, TrueupError) else f"{type(error).__name__}: {error}"
            self._tell(
                "checkpoint_failed", f"{why}; the next save tries again", step=snapshot.step, error=why
            )
            return
        self._tell_saved(snapshot, manifest, time.monotonic() - began)
        self._retire(snapshot.step)
        if self._uploads is not None:
            self._uploads.offer(folder)

    def _tell_saved(self, snapshot: Snapshot, manifest: CheckpointManifest, seconds: float) -> None:
        left_out = sorted(snapshot.attached.keys() - manifest.files.keys())
        size = manifest.size_bytes
        message = f"saved step {manifest.step}: {size / 1e6:.1f} MB in {seconds:.2f} s"
        if left_out:
            message += f", without {', '.join(left_out)}, which is gone"
        if self._failures:
            before = "save" if self._failures == 1 else f"{self._failures} saves"
            message += f"; the {before} before it had failed"
        self._failures = 0
        self._tell(
            "checkpoint",
            message,
            step=manifest.step,
            seconds=seconds,
            bytes=size,
            why=list(manifest.why),
            left_out=left_out,
        )

    def _retire(self, step: int) -> None:
        """Remove what is not to be kept, and later steps than this one: the run went back and does them
        again, and nobody must resume from them. What it left aside then goes when it has been passed."""
        try:
            saved = {one: _saved(self._root, one) for one in steps(self._root)}
            due = self._retention.to_remove([one for one in saved.values() if one.step <= step])
            for one in (*due, *(later for later in saved if later > step)):
                if self._uploads is None or self._uploads.let_go(self._root / folder_name(one)):
                    remove_checkpoint(self._root, one)
                    self._tell_removed(one, saved[one].bytes)
            for one, aside in left_up_to(self._root, step).items():
                size = _size(aside)
                discard(aside)
                self._tell_removed(one, size)
        except (StorageError, OSError) as error:
            self._tell(
                "checkpoint_not_removed", f"{error}; it is tried again after the next save", error=str(error)
            )

    def _tell_removed(self, step: int, size: int) -> None:
        message = f"removed the checkpoint of step {step}: {size / 1e6:.1f} MB"
        self._tell("checkpoint_removed", message, step=step, bytes=size)


def _best_there(root: Path, snapshot: Snapshot) -> int | None:
    """The best so far of what is on disk or about to be: where the save of the best had failed, the one
    before it, so that it stays. Raises StorageError."""
    there = [step for step in steps(root) if step < snapshot.step]
    if snapshot.best_step is None or snapshot.best_step in (*there, snapshot.step):
        return snapshot.best_step
    for step in reversed(there):
        with contextlib.suppress(TrueupError):
            best = read_manifest(root / folder_name(step)).best_step
            if best in there:
                return best
    return None


def _saved(root: Path, step: int) -> Saved:
    folder = root / folder_name(step)
    try:
        return Saved(step, _size(folder), read_manifest(folder).best_step)
    except TrueupError:
        return Saved(step, _size(folder))


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
