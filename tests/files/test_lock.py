"""One process at a time, or many that only look."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trueup.files.lock import take_lock


def test_a_lock_is_held_by_one_or_shared_by_many(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("ab") as one, (tmp_path / "lock").open("ab") as other:
        assert take_lock(one)
        for shared in (False, True):
            with pytest.raises(BlockingIOError):
                take_lock(other, shared=shared, wait=False)
        assert take_lock(one, shared=True)
        assert take_lock(other, shared=True, wait=False)
        with pytest.raises(BlockingIOError):
            take_lock(other, wait=False)


def test_a_lock_ends_with_the_process_that_held_it(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from trueup.files.lock import take_lock\n"
        "assert take_lock(open(sys.argv[1], 'ab'))\n"
        "os._exit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "lock")], check=False, timeout=60)
    assert done.returncode == 7
    with (tmp_path / "lock").open("ab") as handle:
        assert take_lock(handle, wait=False)


def test_a_place_without_locks_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> None:
        def flock(handle: object, operation: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", flock)

    with (tmp_path / "lock").open("ab") as handle:
        refuse(errno.ENOLCK)
        assert not take_lock(handle)
        refuse(errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            take_lock(handle)
