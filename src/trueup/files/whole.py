"""Written beside the target under a new name, flushed to the disk, renamed: whole or not at all.

A reader, or a kill at any instant, finds the old content or the new. On an error what was written is removed
and the target is as before. Everything raises OSError: what to tell a person of it is for the caller to word.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME_CHARACTERS = 40  # of the target's name in that of what is beside it: a long name must not grow too long


def new_beside(target: Path) -> Path:
    """A hidden name in the target's folder that nothing has yet."""
    return target.with_name(f"{_prefix(target)}{uuid.uuid4().hex[:12]}")


@contextlib.contextmanager
def replacing_file(target: Path) -> Iterator[Path]:
    """Gives a path to write to; the file there becomes `target` when the block ends without an error."""
    part = new_beside(target)
    try:
        yield part
        flush(part)
        part.replace(target)
        flush_names(target.parent)
    finally:
        with contextlib.suppress(OSError):  # a read-only disk refuses to remove even what is not there
            part.unlink(missing_ok=True)


def replace_text(target: Path, text: str) -> None:
    """The file with this text, in UTF-8."""
    with replacing_file(target) as part:
        part.write_text(text, encoding="utf-8")


def put_in_place(folder: Path, target: Path, *, replace: bool) -> None:
    """Flush a finished folder and rename it to `target`. A target that is there is moved aside first and then
    removed; without `replace` it is an error."""
    for path in sorted(folder.rglob("*")):
        flush(path)
    flush(folder)
    if replace and target.exists():
        aside = new_beside(target)
        with contextlib.suppress(FileNotFoundError):  # another process moved it first
            target.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    folder.rename(target)
    flush_names(target.parent)


def remove_leftovers(target: Path) -> None:
    """Remove what killed writers of `target` left. For who holds a lock on it: a living writer's go too."""
    for path in target.parent.glob(f"{_prefix(target)}*"):
        shutil.rmtree(path, ignore_errors=True)


def flush(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_names(folder: Path) -> None:
    """`flush` a folder after a rename in it, where its file system can."""
    with contextlib.suppress(OSError):  # some file systems refuse; the rename is whole all the same
        flush(folder)


def prove_writable(folder: Path, size: int = 1) -> None:
    """Make the folder if need be, and show that a file of `size` bytes fits."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".probe-{uuid.uuid4().hex[:12]}"
    try:
        probe.write_bytes(os.urandom(size))  # a compressing disk must not swallow it
        flush(probe)
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


def needs_another_place(error: OSError) -> bool:
    """Whether no room would help: the place is read-only, another's, or not a folder."""
    return error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ValueError where it is not one."""
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds a JSON {type(value).__name__}, not an object")
    return value


def _prefix(target: Path) -> str:
    return f".{target.name[:NAME_CHARACTERS]}.part-"
