"""Files of a run folder that hold whole lines or none."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path

CHUNK_BYTES = 1 << 16


class LineFile:
    """Appends lines of JSON. What a failed or killed write left behind is cut off before the next one; a line
    that lacks its newline alone gets it: whoever read the file in between has taken it for whole.

    Methods raise OSError; after one, the same lines may be given again. One writer at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._good_bytes = 0  # up to here the file is whole lines
        self.removed_bytes = 0  # written, and then gone with the file
        self._torn = False

    def append(self, lines: bytes) -> None:
        """Write all of `lines`, each of which ends in a newline, or none of them."""
        fd = self._ready()
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[os.write(fd, rest) :]
        except BaseException:
            self._torn = True
            with contextlib.suppress(OSError):  # tried again before the next write
                self._cut(fd)
            raise
        self._good_bytes += len(lines)

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            with contextlib.suppress(OSError):
                os.close(fd)

    def _ready(self) -> int:
        if self._fd is not None and os.fstat(self._fd).st_nlink == 0:
            self.removed_bytes += self._good_bytes
            self.close()
            raise FileNotFoundError(errno.ENOENT, "it was removed while the run was writing to it")
        if self._fd is None:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o644)
            try:
                size = os.fstat(fd).st_size
                self._good_bytes = end_of_last_line(fd, size)
                if _is_whole(os.pread(fd, size - self._good_bytes, self._good_bytes)):
                    size += os.write(fd, b"\n")
                    self._good_bytes = size
                self._torn = self._good_bytes < size  # a killed writer's half line
            except BaseException:
                os.close(fd)
                raise
            self._fd = fd
        if self._torn:
            self._cut(self._fd)
        return self._fd

    def _cut(self, fd: int) -> None:
        os.ftruncate(fd, self._good_bytes)
        self._torn = False


def _is_whole(line: bytes) -> bool:
    """Whether it is a JSON object to its end."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def end_of_last_line(fd: int, size: int) -> int:
    """Bytes up to and including the last newline of a file of `size` bytes."""
    end = size
    while end > 0:
        start = max(0, end - CHUNK_BYTES)
        os.lseek(fd, start, os.SEEK_SET)
        newline = os.read(fd, end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
