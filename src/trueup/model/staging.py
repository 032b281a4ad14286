"""A model's folders: made whole or not at all, by one process at a time, with errors that say what to do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trueup.files.lock import take_lock
from trueup.files.whole import new_beside, put_in_place
from trueup.schema import InputError, StorageError


@contextmanager
def storage_errors(doing: str, where: Path) -> Iterator[None]:
    """Turns what a full disk or a read-only folder raises into a StorageError that says what was being done.

    The safetensors library reports a failed write as its own exception, not as OSError.
    """
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{doing} failed in {where}: {error.strerror or error}. Nothing was left half-written; "
            f"make room, or make the folder writable, and run again."
        ) from error
    except SafetensorError as error:
        raise StorageError(
            f"{doing} failed in {where}: {error}. Nothing was left half-written; make room and run again."
        ) from error


@contextmanager
def staged_folder(target: Path, doing: str) -> Iterator[Path]:
    """Gives an empty folder to fill, which becomes `target` when the block ends without an error.

    An existing `target` is replaced. On any error the half-filled folder is removed and `target` is as
    before. Raises StorageError where the disk is full or the place cannot be written.
    """
    with storage_errors(doing, target.parent):
        staging = new_beside(target)
        staging.mkdir(parents=True)
        try:
            yield staging
            for path in staging.rglob("*"):
                if path.is_file():  # safetensors makes files that only their owner can read
                    path.chmod(staging.stat().st_mode & 0o666)
            put_in_place(staging, target, replace=True)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def exclusive(lock: Path, doing: str) -> Iterator[None]:
    """Holds an advisory lock while the block runs; the operating system drops it if the process dies."""
    with storage_errors(doing, lock.parent):
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = lock.open("a")
    with handle:
        take_lock(handle)  # where there are no locks renames keep it correct, at worst done twice
        yield


def require_empty(folder: Path) -> None:
    """Raises InputError where `folder` is a file or holds anything: an export never mixes with other
    files."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise InputError(f"{folder}: exists and is not an empty folder; name a new folder or empty this one")
