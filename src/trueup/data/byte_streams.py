"""A file's bytes as UTF-8 text in bytes: decompressed, UTF-16 and UTF-32 rewritten, the byte order mark gone.

Everything is read in chunks: the memory taken does not depend on the size of the file."""

from __future__ import annotations

import codecs
import gzip
import io
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from trueup.schema import InputError

CHUNK_BYTES = 1 << 20
# The longer marks first: UTF-32's begins with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_PACKED = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}  # how such files begin, and how they are named
_LOOKED_AT, _NULS = 512, 4  # bytes; so many of them at least tell another encoding


def open_utf8(path: Path, compression: str = "") -> BinaryIO:
    """`compression` is "", "gz" or "zst". Reading raises OSError, EOFError or zlib.error where compressed
    data is damaged or cut, UnicodeDecodeError where UTF-16 or UTF-32 is. Bytes of a file without a mark are
    handed on as they are, but InputError where they are another encoding's or compressed."""
    if compression == "gz":
        plain: Any = gzip.GzipFile(path)
    elif compression == "zst":
        plain = pa.input_stream(str(path), compression="zstd")
    else:
        plain = path.open("rb")
    stream = io.BufferedReader(plain, CHUNK_BYTES)
    start = stream.peek(_LOOKED_AT)[:_LOOKED_AT]
    for begins, ending in _PACKED.items():
        if start.startswith(begins):
            stream.close()
            raise InputError(
                f"{path}: compressed{' twice' if compression else f'; end its name in {ending}'}"
            )
    for mark, encoding in _MARKS:
        if start.startswith(mark):
            return cast(BinaryIO, io.BufferedReader(_Rewritten(stream, encoding), CHUNK_BYTES))
    if start.startswith(codecs.BOM_UTF8):
        stream.read(len(codecs.BOM_UTF8))
    elif _is_wide(start):
        stream.close()
        raise InputError(
            f"{path}: not UTF-8: it holds NULs, as UTF-16 without a byte order mark does; save it as UTF-8, "
            "or with the mark"
        )
    return cast(BinaryIO, stream)


def _is_wide(start: bytes) -> bool:
    """Whether these are characters of two or four bytes: some NULs, and none at every second place (UTF-16 of
    mostly Latin text), or at least half of the bytes and none at every fourth (UTF-32), or bytes that are not
    UTF-8 beside them (UTF-16 of any text). In a line that a disk lost, NULs follow each other."""
    nuls = [start[place::4].count(0) for place in range(4)]
    if sum(nuls) < _NULS:
        return False
    if 0 in (nuls[0] + nuls[2], nuls[1] + nuls[3]) or (2 * sum(nuls) >= len(start) and 0 in nuls):
        return True
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)  # the last character may be cut
    except UnicodeDecodeError:
        return True
    return False


class _Rewritten(io.RawIOBase):
    """Another encoding's bytes, read as UTF-8."""

    def __init__(self, source: io.BufferedReader, encoding: str) -> None:
        self._source = source
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._left = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left and not self._ended:
            chunk = self._source.read(CHUNK_BYTES)
            self._ended = not chunk
            self._left = self._decoder.decode(chunk, final=self._ended).encode("utf-8")
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def close(self) -> None:
        self._source.close()
        super().close()
