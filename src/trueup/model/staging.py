"""Folders that appear whole or not at all: written beside the target, flushed to the disk, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trueup.schema import InputError, StorageError

try:
    import fcntl
except ImportError:  # no advisory locks on this platform: two processes may do the same work, harmlessly
    fcntl = None  # type: ignore[assignment]


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
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = target.parent / f".{target.name}.part-{uuid.uuid4().hex[:12]}"
        staging.mkdir()
        try:
            yield staging
            for path in sorted(staging.rglob("*")):
                if path.is_file():  # safetensors makes files that only their owner can read
                    path.chmod(staging.stat().st_mode & 0o666)
                _flush(path)
            _flush(staging)
            _put_in_place(staging, target)
            _flush(target.parent)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _put_in_place(staging: Path, target: Path) -> None:
    if target.exists():
        aside = target.parent / f".{target.name}.part-{uuid.uuid4().hex[:12]}"
        os.rename(target, aside)
        os.rename(staging, target)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        os.rename(staging, target)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, text: str) -> None:
    """Writes a small text file so that a reader sees the old content or the new, never a part."""
    staging = path.with_name(f".{path.name}.part-{uuid.uuid4().hex[:12]}")
    try:
        staging.write_text(text, encoding="utf-8")
        _flush(staging)
        os.replace(staging, path)
        _flush(path.parent)
    finally:
        staging.unlink(missing_ok=True)


def flush_file(path: Path) -> None:
    """Waits until the file and its name are on the disk."""
    _flush(path)
    _flush(path.parent)


def remove_leftovers(target: Path) -> None:
    """Removes what killed writers of `target` left. Call it only while holding the target's lock."""
    for path in target.parent.glob(f".{target.name}.part-*"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def exclusive(lock: Path, doing: str) -> Iterator[None]:
    """Holds an advisory lock while the block runs; the operating system drops it if the process dies."""
    with storage_errors(doing, lock.parent):
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = lock.open("a")
    with handle:
        if fcntl is not None:
            # On a file system without locks go on unlocked: renames keep that correct, at worst done twice.
            with _ignoring_unsupported():
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def _ignoring_unsupported() -> Iterator[None]:
    try:
        yield
    except OSError:
        return


def require_empty(folder: Path) -> None:
    """Raises InputError where `folder` is a file or holds anything: an export never mixes with other
    files."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise InputError(f"{folder}: exists and is not an empty folder; name a new folder or empty this one")


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ValueError where it is not one, OSError where it cannot be read."""
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds a JSON {type(value).__name__}, not an object")
    return value
