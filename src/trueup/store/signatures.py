"""Which run folders there are, and whether one has changed since it was read."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from trueup.schema import StorageError
from trueup.schema.run import (
    EVENTS_FILE,
    HEADER_FILE,
    HEARTBEAT_FILE,
    HEARTBEAT_STALE_S,
    MEASUREMENTS_FILE,
    SEGMENTS_FILE,
    STEPS_FILE,
)

# A change to any of these, or to its size, means that the folder is to be read again. The heartbeat is the
# last of them: it says nothing where run.json says how the run ended.
_SIGNED = (HEADER_FILE, MEASUREMENTS_FILE, SEGMENTS_FILE, STEPS_FILE, EVENTS_FILE, HEARTBEAT_FILE)
_ENDED = ("finished", "failed", "stopped")  # by the run itself; "interrupted" may be what its heartbeat told


def run_folders(runs: Path) -> list[str]:
    """Names of the folders in runs/, in order; hidden ones are being made by an import."""
    try:
        with os.scandir(runs) as entries:
            return sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"{runs} cannot be read: {error.strerror}") from None


def is_as_read(folder: str, signature: str, state: str) -> bool:
    """Whether a folder is as it was when it had this signature and held a run in this state. One that runs is
    never taken to be."""
    if state in _ENDED:
        return signature.startswith(signature_of(folder, _SIGNED[:-1]) + " ")
    return state != "running" and signature == signature_of(folder)


def signature_of(folder: str, files: Sequence[str] = _SIGNED) -> str:
    """Sizes and times of the files that a run writes to; cheap, so that thousands of folders are."""
    parts = []
    for name in files:
        try:
            found = os.stat(f"{folder}/{name}")
            parts.append(f"{found.st_size}.{found.st_mtime_ns}")
        except OSError:
            parts.append("-")
    return " ".join(parts)


def has_no_run_yet(folder: Path) -> bool:
    """A folder whose run.json is still to come, or never will where its run was killed before its first step.
    With steps in it and no run.json for long, something is lost."""
    try:
        if os.path.exists(f"{folder}/{HEADER_FILE}"):
            return False
        young = time.time() - os.stat(folder).st_mtime < HEARTBEAT_STALE_S
        return young or not os.path.exists(f"{folder}/{STEPS_FILE}")
    except OSError:
        return True  # it was removed meanwhile
