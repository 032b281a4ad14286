"""Where records come from: the built-in source, or a JSON or JSONL file read as a stream.

A `Source` knows its identity (a digest of its content) before it is read, so that prepared data can be found
again, and yields records while counting what it leaves out. Rows are dropped one by one and counted under
`unreadable_line`, `not_an_object`, `missing_field`, `wrong_type`, `unknown_role`, `invalid_text`,
`no_answer`, `empty_answer`; with `strict` the first row that cannot be read as its format (all but the last
two) is refused."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trueup.recipe.models import DataSection
from trueup.schema import InputError

from . import stdlib_docs
from .formats import DETECT_ROWS, FORMATS, Detection, conversation, detect
from .records import Record, RowError, Tally, excerpt

LENIENT_REASONS = frozenset({"no_answer", "empty_answer"})  # well-formed rows that only have nothing to teach
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class BadRow:
    """A line that is not JSON, kept in the stream so that it is counted where it stands."""

    message: str


@dataclass
class Source:
    """One opened source. `digest` identifies its content; `format` and `evidence` are known after `records`
    has begun."""

    name: str
    digest: str
    read: Callable[[Source, Tally], Iterator[Record]]
    format: str = ""
    evidence: str = ""
    rows_read: int = field(default=0)

    def records(self, tally: Tally) -> Iterator[Record]:
        """The usable records in order; what is dropped or changed is counted in `tally`."""
        return self.read(self, tally)


def open_source(section: DataSection) -> Source:
    """The source a data section names.

    Raises InputError: no such file, a folder, unreadable, empty, or a kind that is not read.
    """
    if section.source == stdlib_docs.NAME:
        return Source(stdlib_docs.NAME, stdlib_docs.identity(), _read_stdlib)
    path = Path(section.source).expanduser()
    if path.suffix not in (".json", ".jsonl"):
        raise InputError(
            f"data.source '{section.source}' is neither '{stdlib_docs.NAME}' nor a .json or .jsonl file"
        )
    try:
        if path.exists() and not path.is_file():  # a pipe would be read twice, and be empty the second time
            kind = "folder" if path.is_dir() else "pipe or device"
            raise InputError(f"{path} is a {kind}; data.source takes one .json or .jsonl file")
        digest, size = _file_digest(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file (looked from {Path.cwd()}); check data.source") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; check data.source") from error
    if size == 0:
        raise InputError(f"{path} is empty; expected one JSON record per line, or a JSON list of records")

    def read(source: Source, tally: Tally) -> Iterator[Record]:
        return _read_file(path, section, source, tally)

    return Source(path.name, digest, read)


def _read_stdlib(source: Source, tally: Tally) -> Iterator[Record]:
    source.format = stdlib_docs.NAME
    source.evidence = "docstrings of the running Python's standard library"
    for record in stdlib_docs.records():
        source.rows_read += 1
        yield record


def _read_file(path: Path, section: DataSection, source: Source, tally: Tally) -> Iterator[Record]:
    rows = _rows(path)
    head = list(itertools.islice(rows, DETECT_ROWS))
    found = _choose_format(section, [row for _, row in head if not isinstance(row, BadRow)], head, str(path))
    source.format, source.evidence = found.format.name, found.evidence
    for number, row in itertools.chain(head, rows):
        source.rows_read += 1
        where = f"{path.name}:{number}"
        try:
            if isinstance(row, BadRow):
                raise RowError("unreadable_line", row.message)
            if not isinstance(row, dict):
                raise RowError("not_an_object", f"expected a JSON object, not {type(row).__name__}")
            turns, cut = conversation(found.format.read(row))
        except RowError as error:
            if section.strict and error.reason not in LENIENT_REASONS:
                raise InputError(
                    f"{path}:{number}: {error.reason}: {error}. "
                    "Mend the line, or set data.strict to false to count such lines and use the rest"
                ) from None
            tally.drop(error.reason, where, str(error))
            continue
        if cut:
            tally.change("turns_after_last_answer_cut", where, f"{cut} turns after the last answer left off")
        yield Record(turns, where)


def _choose_format(
    section: DataSection, objects: list[Any], head: list[tuple[int, Any]], path: str
) -> Detection:
    if not head:
        raise InputError(
            f"{path} holds no records; expected one JSON record per line, or a JSON list of records"
        )
    if not objects:
        number, bad = head[0]
        raise InputError(f"{path}:{number}: none of the first {len(head)} lines is JSON: {bad.message}")
    if section.format != "auto":
        return Detection(FORMATS[section.format], "named by the recipe (data.format)")
    return detect(objects, path)


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Numbered rows of a JSON list (by position, from 1) or of JSON lines (by line number)."""
    with path.open("rb") as file:
        start = file.read(4096).removeprefix(_BOM).lstrip()[:1]
    if not start:
        yield from _lines(path)
    elif start == b"[" or path.suffix == ".json":
        yield from _document(path)
    else:
        yield from _lines(path)


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            line = raw.removeprefix(_BOM) if number == 1 else raw
            if line.strip():
                yield number, _parse(line)


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return BadRow(f"not UTF-8: {error.reason} at byte {error.start}")
    except (ValueError, RecursionError) as error:
        shown = excerpt(line[-120:].decode("utf-8", "replace"))
        return BadRow(f"not JSON: {error}; the line ends: {shown}")


def _document(path: Path) -> Iterator[tuple[int, Any]]:
    """A whole JSON file: a list of rows, or one row. A .json file of JSON lines is read as lines."""
    try:
        document = json.loads(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}: {error.reason}") from None
    except json.JSONDecodeError as error:
        lines = list(itertools.islice(_lines(path), 2))
        if lines and isinstance(lines[0][1], dict):
            yield from _lines(path)
            return
        raise InputError(
            f"{path}:{error.lineno}: not JSON: {error.msg} (column {error.colno}); a .json file "
            "holds one list of records; one record a line is read too"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from None
    yield from enumerate(document if isinstance(document, list) else [document], start=1)


def _file_digest(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return digest, file.tell()
