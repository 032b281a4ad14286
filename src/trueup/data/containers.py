"""Files as numbered rows: JSON, JSON lines, CSV, TSV, plain text, Parquet, Arrow.

Every reader streams: it holds one row, one batch of a columnar file, or LONGEST_LINE bytes of a line at
most. A row that cannot be read is handed on as a `BadRow`, so that it is counted where it stands; a file that
cannot be read is an InputError.

| kind | numbers of rows | rows |
|---|---|---|
| json | position in the list | any JSON value |
| jsonl | line | any JSON value |
| csv, tsv | line the row begins on | {column: text}; the header names the columns |
| txt | piece | {"text": text}: one document, in pieces where it is longer than PIECE_CHARACTERS |
| parquet, arrow | position | {column: value} |
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueup.schema import InputError

from .byte_streams import open_utf8
from .columnar import arrow_rows, parquet_rows
from .json_stream import document_rows, is_row_after_row
from .records import excerpt

LONGEST_LINE = 1 << 26  # bytes of one line or field; no example of any model is as long
PIECE_CHARACTERS = 1 << 20
KINDS = {
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "txt",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
COMPRESSIONS = {".gz": "gz", ".zst": "zst"}
COLUMNAR = frozenset({"parquet", "arrow"})  # compressed inside

Rows = Iterator[tuple[int, Any]]


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be read, kept in the stream. `reason` is the name it is counted under."""

    message: str
    reason: str = "unreadable_line"


@dataclass(frozen=True)
class DataFile:
    """One file of a source. `name` is how it is shown: its path within the source."""

    path: Path
    name: str
    kind: str
    compression: str = ""

    @property
    def container(self) -> str:
        return f"{self.kind}.{self.compression}" if self.compression else self.kind


def file_of(path: Path, name: str) -> DataFile | None:
    """How a file is read, by its name; None for a kind that is not read."""
    compression = COMPRESSIONS.get(path.suffix.lower(), "")
    inner = Path(path.stem) if compression else path
    kind = KINDS.get(inner.suffix.lower())
    if kind is None or (compression and kind in COLUMNAR):
        return None
    return DataFile(path, name, kind, compression)


def rows(file: DataFile, row_keys: frozenset[str]) -> Rows:
    """The numbered rows of a file. `row_keys`: see json_stream.document_rows.

    Raises InputError: not readable, damaged, cut short, or not what its name says.
    """
    try:
        yield from _READERS[file.kind](file, row_keys)
    except UnicodeDecodeError as error:
        raise InputError(f"{file.path}: not {error.encoding}: {error.reason} at byte {error.start}") from None
    except (EOFError, zlib.error) as error:
        raise InputError(f"{file.path}: the compressed data is damaged or cut short: {error}") from None
    except ValueError as error:  # pyarrow's errors about content are ValueErrors
        raise InputError(f"{file.path}: cannot be read as {file.kind}: {excerpt(str(error))}") from None
    except OSError as error:
        what = error.strerror or excerpt(str(error))
        raise InputError(f"{file.path}: cannot be read: {what}; check data.source") from error


def _json(file: DataFile, row_keys: frozenset[str]) -> Rows:
    """A document; JSON lines where another object follows the first."""
    with _text(file) as text:
        are_lines = is_row_after_row(text, str(file.path), row_keys)
    yield from _lines(file) if are_lines else _document(file, row_keys)


def _json_lines(file: DataFile, row_keys: frozenset[str]) -> Rows:
    """One row a line; a document where the file begins with a list."""
    with open_utf8(file.path, file.compression) as stream:
        is_list = stream.read(4096).lstrip()[:1] == b"["
    yield from _document(file, row_keys) if is_list else _lines(file)


def _text(file: DataFile, **settings: Any) -> io.TextIOWrapper:
    return io.TextIOWrapper(open_utf8(file.path, file.compression), encoding="utf-8", **settings)


def _document(file: DataFile, row_keys: frozenset[str]) -> Rows:
    with _text(file, newline="") as text:
        yield from document_rows(text, str(file.path), row_keys)


def _lines(file: DataFile) -> Rows:
    """Lines end in LF, CRLF or a bare CR; no JSON text holds one of these inside. Latin-1 hands on bytes as
    they are, so that only a line that is not UTF-8 is lost."""
    stream = open_utf8(file.path, file.compression)
    with io.TextIOWrapper(stream, encoding="latin-1", newline=None) as text:
        for number in itertools.count(1):
            line = text.readline(LONGEST_LINE).encode("latin-1")
            if not line:
                return
            if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                while (rest := text.readline(LONGEST_LINE)) and not rest.endswith("\n"):
                    pass
                yield number, BadRow(f"longer than {LONGEST_LINE} bytes; it begins: {_shown(line[:160])}")
            elif not line.isspace():
                yield number, _parse(line)


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return BadRow(f"not UTF-8: {error.reason} at byte {error.start}")
    except (ValueError, RecursionError) as error:
        return BadRow(f"not JSON: {error}; the line ends: {_shown(line[-120:])}")


def _shown(piece: bytes) -> str:
    return excerpt(piece.decode("utf-8", "replace").replace("\0", "\\0"))


def _table(file: DataFile, _: frozenset[str]) -> Rows:
    """CSV and TSV. Bytes that are not UTF-8 become surrogates, so that only their row is dropped."""
    csv.field_size_limit(LONGEST_LINE)
    with _text(file, errors="surrogateescape", newline="") as text:
        lines = iter(lambda: text.readline(LONGEST_LINE), "")
        head = list(itertools.islice(lines, 1))
        if not head:
            return
        delimiter = "\t" if file.kind == "tsv" else _delimiter(head[0])
        reader = csv.reader(itertools.chain(head, lines), delimiter=delimiter, strict=True)
        try:
            header = [name.strip() for name in next(reader)]
        except csv.Error as error:
            raise InputError(f"{file.path}:1: the header is not {file.kind}: {error}") from None
        if any("\udc80" <= character <= "\udcff" for name in header for character in name):
            raise InputError(f"{file.path}:1: the header is not UTF-8; save the file as UTF-8")
        if len(set(header)) < len(header):
            raise InputError(f"{file.path}:1: a column name is there twice: {', '.join(header)}")
        yield from _table_rows(reader, header)


def _table_rows(reader: Any, header: list[str]) -> Rows:
    while True:
        number = reader.line_num + 1
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            upto = f" (lines {number} to {reader.line_num})" if reader.line_num > number else ""
            yield number, BadRow(f"not a row of a table: {error}{upto}")
            continue
        if len(values) == len(header):
            yield number, dict(zip(header, values, strict=True))
        elif values:  # a blank line is no row
            what = f"{len(values)} fields where the header has {len(header)}: {excerpt(repr(values))}"
            yield number, BadRow(what, "field_count")


def _delimiter(header: str) -> str:
    """What parts the header's names: comma, semicolon (spreadsheets of many languages), tab or bar."""
    outside = "".join(header.split('"')[::2])
    return max(",;\t|", key=outside.count)


def _plain_text(file: DataFile, _: frozenset[str]) -> Rows:
    """One document. A longer one is cut at the last blank line of a piece, else line end, else anywhere."""
    with _text(file, errors="surrogateescape") as text:
        held = ""
        for number in itertools.count(1):
            held += text.read(PIECE_CHARACTERS - len(held))
            if len(held) < PIECE_CHARACTERS:
                if held:
                    yield number, {"text": held}
                return
            paragraph, line = held.rfind("\n\n"), held.rfind("\n")
            cut = paragraph + 2 if paragraph >= 0 else line + 1 if line >= 0 else len(held)
            yield number, {"text": held[:cut]}
            held = held[cut:]


_READERS: dict[str, Callable[[DataFile, frozenset[str]], Rows]] = {
    "json": _json,
    "jsonl": _json_lines,
    "csv": _table,
    "tsv": _table,
    "txt": _plain_text,
    "parquet": lambda file, _: parquet_rows(file.path),
    "arrow": lambda file, _: arrow_rows(file.path),
}
