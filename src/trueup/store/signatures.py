"""Which run folders there are, and whether one has changed since it was read."""

from __future__ import annotations

import os
import time
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

# A change to any of these, or to its size, means that the folder is to be read again.
_SIGNED = (HEADER_FILE, MEASUREMENTS_FILE, SEGMENTS_FILE, STEPS_FILE, EVENTS_FILE, HEARTBEAT_FILE)


def run_folders(runs: Path) -> list[str]:
    """Names of the folders in runs/, in order; hidden ones are being made by an import."""
    try:
        with os.scandir(runs) as entries:
            return sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"{runs} cannot be read: {error.strerror}") from None


def signature_of(folder: str) -> str:
    """Sizes and times of the files that a run writes to; cheap, so that thousands of folders are."""
    parts = []
    for name in _SIGNED:
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
