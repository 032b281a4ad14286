"""A file's bytes as UTF-8 text in bytes: decompressed, UTF-16 and UTF-32 rewritten, the byte order mark gone.

Everything is read in chunks: the memory taken does not depend on the size of the file."""

from __future__ import annotations

import codecs
import gzip
import io
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

CHUNK_BYTES = 1 << 20
# The longer marks first: UTF-32's begins with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def open_utf8(path: Path, compression: str = "") -> BinaryIO:
    """`compression` is "", "gz" or "zst". Reading raises OSError, EOFError or zlib.error where compressed
    data is damaged or cut, UnicodeDecodeError where UTF-16 or UTF-32 is. Bytes of a file without a mark are
    handed on as they are."""
    if compression == "gz":
        plain: Any = gzip.GzipFile(path)
    elif compression == "zst":
        plain = pa.input_stream(str(path), compression="zstd")
    else:
        plain = path.open("rb")
    stream = io.BufferedReader(plain, CHUNK_BYTES)
    start = stream.peek(4)[:4]
    for mark, encoding in _MARKS:
        if start.startswith(mark):
            return cast(BinaryIO, io.BufferedReader(_Rewritten(stream, encoding), CHUNK_BYTES))
    if start.startswith(codecs.BOM_UTF8):
        stream.read(len(codecs.BOM_UTF8))
    return cast(BinaryIO, stream)


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
