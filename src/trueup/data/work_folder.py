"""Where a data set is while it is prepared: DATA/.DIGEST.work, for one process at a time.

The folder holds a lock file and what is finished of the work. Who finds it locked waits; who finds it left by
a killed process goes on from what is there. It is removed when the data set is in its place, and when
the input was at fault or the disk: only a kill, an interrupt or a crash leaves something to go on from."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from trueup.files.lock import take_lock
from trueup.files.whole import needs_another_place
from trueup.schema import InputError, StorageError

LEFTOVER_AGE_S = 24 * 3600.0  # what a killed process left is removed once nothing was added for so long
_LOCK_FILE = "lock"


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """A full disk is a StorageError, a place that may not be written to an InputError; both name the
    place."""
    try:
        yield
    except OSError as error:
        if needs_another_place(error):
            raise InputError(
                f"{path} cannot be written to: {error.strerror or error}. "
                "Set TRUEUP_HOME to a folder that can"
            ) from error
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "Free some space there, or set TRUEUP_HOME to another disk" if full else "Nothing was kept"
        raise StorageError(f"could not write the prepared data under {path}: {error}. {advice}") from error


@contextlib.contextmanager
def work_folder(target: Path) -> Iterator[Path]:
    """The work folder of `target`, held alone while the block runs; waits for whoever holds it.

    Raises InputError and StorageError as `storage_errors` says."""
    place = target.with_name(f".{target.name}.work")
    with storage_errors(target.parent):
        held = _locked(place)
    try:
        yield place
    except (InputError, StorageError):  # going on would end the same way
        shutil.rmtree(place, ignore_errors=True)
        raise
    else:
        shutil.rmtree(place, ignore_errors=True)
    finally:
        held.close()


def sweep(data_home: Path) -> None:
    """Remove what killed processes left of other data sets, when it is old and nobody works on it."""
    with contextlib.suppress(OSError):
        for place in [*data_home.glob(".*.work"), *data_home.glob(".*.part-*")]:
            with contextlib.suppress(OSError):
                _remove_if_left(place)


def _locked(place: Path) -> IO[bytes]:
    while True:
        place.mkdir(parents=True, exist_ok=True)
        try:
            handle = (place / _LOCK_FILE).open("ab")
        except FileNotFoundError:  # removed in between
            continue
        take_lock(handle)  # where there are no locks two processes may do the same work, harmlessly
        if _is_in_place(handle, place):
            return handle
        handle.close()  # who held it finished and removed the folder while this process waited


def _is_in_place(handle: IO[bytes], place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle.fileno()), (place / _LOCK_FILE).stat())
    except FileNotFoundError:
        return False


def _remove_if_left(place: Path) -> None:
    newest = max(path.stat().st_mtime for path in [place, *place.rglob("*")])
    if time.time() - newest < LEFTOVER_AGE_S:
        return
    with contextlib.ExitStack() as stack:
        if (place / _LOCK_FILE).exists():
            handle = stack.enter_context((place / _LOCK_FILE).open("ab"))
            take_lock(handle, wait=False)
        shutil.rmtree(place, ignore_errors=True)
