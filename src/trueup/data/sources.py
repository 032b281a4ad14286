"""Where records come from: the built-in source, or files read as a stream.

A `Source` knows its identity (a digest of its content) before it is read, so that prepared data can be found
again, and yields records while counting what it leaves out. The format is found for each file by itself. Rows
are dropped one by one and counted under `unreadable_line`, `field_count`, `not_an_object`, `missing_field`,
`wrong_type`, `unknown_role`, `tool_call`, `role_order`, `invalid_text`, `nul_character`, `no_answer`,
`empty_answer`, `empty_question`, `empty_text`, `unlearned_answer`; with `strict` the first row that cannot be
read as its format (all but the last five) is refused."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from trueup.recipe.models import DataSection
from trueup.schema import InputError

from . import hub, stdlib_docs
from .columns import detect_columns, renamed
from .containers import BadRow, DataFile, rows
from .conversation import checked
from .formats import DETECT_ROWS, FORMATS, Detection, detect
from .locate import content_digest, locate
from .records import Record, RowError, Tally

# Well-formed rows that only have nothing to teach.
LENIENT_REASONS = frozenset({"no_answer", "empty_answer", "empty_question", "empty_text", "unlearned_answer"})
RULES = (
    2  # raised whenever the same files would give other records: what was prepared before is prepared anew
)
# Keys under which a row holds a list itself: an object that has one is a row, not a document around rows.
_LIST_KEYS = frozenset(
    {
        "messages",
        "conversations",
        "conversation",
        "prompt",
        "completion",
        "chosen",
        "rejected",
        "history",
        "tools",
    }
)
_UNREADABLE_SHOWN = 10
_NOTES = {
    "preference": "preference pairs are read as their chosen side; the rejected side is not used",
    "text": "plain text is used without a template; all of it carries loss",
}


@dataclass
class FileFormat:
    """What one file turned out to be. `rows` are those read of it."""

    file: str
    container: str
    format: str
    evidence: str
    rows: int = 0


@dataclass
class Source:
    """One opened source. `digest` identifies its content; what it holds (`format`, `evidence`, `files`,
    `rows_read`, `notes` for a person) is known once `records` is exhausted."""

    name: str
    digest: str
    read: Callable[[Source, Tally], Iterator[Record]]
    format: str = ""
    evidence: str = ""
    rows_read: int = field(default=0)
    files: list[FileFormat] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def records(self, tally: Tally) -> Iterator[Record]:
        """The usable records in order; what is dropped or changed is counted in `tally`."""
        return self.read(self, tally)

    def found(self) -> dict[str, Any]:
        """The formats found and why, as the manifest keeps them."""
        return {
            "name": self.format,
            "evidence": self.evidence,
            "files": [asdict(file) for file in self.files],
        }


def open_source(section: DataSection) -> Source:
    """The source a data section names.

    Raises InputError: nothing there, unreadable, empty, or a kind that is not read.
    """
    if section.source == stdlib_docs.NAME:
        return Source(stdlib_docs.NAME, stdlib_docs.identity(), _read_stdlib)
    is_hub = section.source.startswith(hub.PREFIX)
    located = hub.locate_hub(section.source) if is_hub else locate(section.source)

    def read(source: Source, tally: Tally) -> Iterator[Record]:
        return _read_files(located.files, section, source, tally)

    digest = f"{content_digest(located.files)}-{RULES}"
    return Source(located.name, digest, read, notes=list(located.notes))


def _read_stdlib(source: Source, tally: Tally) -> Iterator[Record]:
    source.format = stdlib_docs.NAME
    source.evidence = "docstrings of the running Python's standard library"
    seen = FileFormat(stdlib_docs.NAME, "built-in", source.format, source.evidence)
    source.files = [seen]
    for record in stdlib_docs.records():
        source.rows_read += 1
        seen.rows += 1
        yield record


def _read_files(
    files: list[DataFile], section: DataSection, source: Source, tally: Tally
) -> Iterator[Record]:
    """Every file's format is found before the first record, so that all that cannot be read are named."""
    detections = _inspect_all(files, section, source)
    source.files = [
        FileFormat(file.name, file.container, found.format.name, found.evidence) for file, found in detections
    ]
    counts = Counter(item.format for item in source.files)
    source.format = ", ".join(sorted(counts))
    source.evidence = source.files[0].evidence
    if len(files) > 1:
        said = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        source.evidence = f"{len(source.files)} files, each by its own first rows: {said}"
    source.notes += [note for name, note in _NOTES.items() if name in counts]
    for (file, found), seen in zip(detections, source.files, strict=True):
        yield from _read_file(file, found, section, source, seen, tally)


def _inspect_all(
    files: list[DataFile], section: DataSection, source: Source
) -> list[tuple[DataFile, Detection]]:
    if len(files) == 1:
        return [(files[0], _inspect(files[0], section))]
    found: list[tuple[DataFile, Detection]] = []
    errors: list[str] = []
    for file in files:
        try:
            found.append((file, _inspect(file, section)))
        except NoRecordsError:
            source.notes.append(f"passed over, holding no records: {file.name}")
        except InputError as error:
            errors.append(f"  {error}")
    if errors:
        more = len(errors) - _UNREADABLE_SHOWN
        raise InputError(
            "\n".join(
                [
                    f"data.source '{source.name}': {len(errors)} of {len(files)} files cannot be used:",
                    *errors[:_UNREADABLE_SHOWN],
                    *([f"  and {more} more"] if more > 0 else []),
                ]
            )
        )
    if not found:
        raise InputError(f"data.source '{source.name}': none of its {len(files)} files holds a record")
    return found


class NoRecordsError(InputError):
    """A file without a single row."""


def _inspect(file: DataFile, section: DataSection) -> Detection:
    """A file's format, by its first rows. Raises InputError, NoRecordsError among them."""
    head: list[tuple[int, Any]] = [
        (number, dict.fromkeys(row) if isinstance(row, dict) else row)  # the keys tell; rows may be large
        for number, row in itertools.islice(rows(file, _row_keys(section)), DETECT_ROWS)
    ]
    if not head:
        expected = "one JSON record per line, or a JSON list of records" if "json" in file.kind else "rows"
        raise NoRecordsError(f"{file.path} holds no records; expected {expected}")
    objects = [row for _, row in head if not isinstance(row, BadRow)]
    if not objects:
        number, bad = head[0]
        what = "lines is JSON" if "json" in file.kind else "rows can be read"
        raise InputError(f"{file.path}:{number}: none of the first {len(head)} {what}: {bad.message}")
    if file.kind == "txt":
        return Detection(FORMATS["text"], "a .txt file is one document of plain text")
    if section.format != "auto" and section.columns.format is None:
        return Detection(FORMATS[section.format], "named by the recipe (data.format)")
    mapped = detect_columns(objects, section.columns, str(file.path))
    return mapped or detect(objects, str(file.path))


def _row_keys(section: DataSection) -> frozenset[str]:
    return _LIST_KEYS | set(section.columns.named().values())


def _read_file(
    file: DataFile, found: Detection, section: DataSection, source: Source, seen: FileFormat, tally: Tally
) -> Iterator[Record]:
    for number, row in rows(file, _row_keys(section)):
        source.rows_read += 1
        seen.rows += 1
        where = f"{file.name}:{number}"
        try:
            if isinstance(row, BadRow):
                raise RowError(row.reason, row.message)
            if not isinstance(row, dict):
                raise RowError("not_an_object", f"expected a JSON object, not {type(row).__name__}")
            own_names = file.kind == "txt"  # no columns to map
            turns, cut = checked(found.format.read(row if own_names else renamed(row, section.columns)))
        except RowError as error:
            if section.strict and error.reason not in LENIENT_REASONS:
                raise InputError(
                    f"{file.path}:{number}: {error.reason}: {error}. "
                    "Mend the line, or set data.strict to false to count such lines and use the rest"
                ) from None
            tally.drop(error.reason, where, str(error))
            continue
        if cut:
            tally.change("turns_after_last_answer_cut", where, f"{cut} turns after the last answer left off")
        yield Record(turns, where)
