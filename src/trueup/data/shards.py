"""A finished stretch of the work as one file, so that a killed prepare goes on from the last one.

| column of records | holds                                                                              |
|-------------------|------------------------------------------------------------------------------------|
| hash              | 16 bytes of the content                                                            |
| origin, shown     | where the record was read, and its beginning, for a person                         |
| examples          | how many rows of the examples it has: more than one where it was split             |
| script            | its writing system                                                                 |
| pairs, signature  | its word pairs and their MinHash (duplicates.py); empty where no one asks for them |

The examples are as examples.arrow holds them. The tally counts what was dropped and changed here."""

from __future__ import annotations

import hashlib
import json
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from .records import Tally, shown_of

RECORDS = pa.schema(
    [
        ("hash", pa.binary(16)),
        ("origin", pa.string()),
        ("shown", pa.string()),
        ("examples", pa.int32()),
        ("script", pa.string()),
        ("pairs", pa.list_(pa.uint32())),
        ("signature", pa.list_(pa.uint32())),
    ]
)
_SIZES = struct.Struct("<3Q")
_CHECK_BYTES = 16


@dataclass
class ShardTally(Tally):
    """Also the personal data found, by kind, and the longest example in tokens, kept or not."""

    redacted: Counter[str] = field(default_factory=Counter)
    longest: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "dropped": self.dropped,
            "changed": self.changed,
            "first": self.first,
            "redacted": self.redacted,
            "longest": self.longest,
        }

    def include(self, other: dict[str, Any]) -> None:
        """Add what `as_dict` gave for a later stretch of the data."""
        self.dropped.update(other["dropped"])
        self.changed.update(other["changed"])
        self.redacted.update(other["redacted"])
        self.longest = max(self.longest, other["longest"])
        for reason, items in other["first"].items():
            shown = self.first.setdefault(reason, [])
            shown.extend(items[: shown_of(reason) - len(shown)])


@dataclass(frozen=True)
class Shard:
    examples: pa.RecordBatch
    records: pa.RecordBatch
    tally: dict[str, Any]


def shard_path(work: Path, index: int) -> Path:
    return work / f"{index:08}.shard"


def write_shard(path: Path, shard: Shard) -> None:
    """Appears under its name when it is whole. Not flushed to the disk: its checksum tells after a power
    cut."""
    parts = [
        _arrow_bytes(shard.examples),
        _arrow_bytes(shard.records),
        json.dumps(shard.tally).encode(),
    ]
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(_SIZES.pack(*map(len, parts)))
        for content in parts:
            file.write(content)
        file.write(_check(parts))
    part.replace(path)


def read_shard(path: Path) -> Shard | None:
    """None where there is none, or it is not as it was written."""
    try:
        content = memoryview(path.read_bytes())
    except FileNotFoundError:
        return None
    if len(content) < _SIZES.size:
        return None
    at, parts = _SIZES.size, []
    for size in _SIZES.unpack(content[:at]):
        parts.append(content[at : at + size])
        at += size
    if bytes(content[at:]) != _check(parts):
        return None
    return Shard(_arrow_batch(parts[0]), _arrow_batch(parts[1]), json.loads(bytes(parts[2])))


def _arrow_bytes(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _arrow_batch(content: memoryview) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(content)) as reader:
        return reader.read_next_batch()


def _check(parts: Sequence[Any]) -> bytes:
    found = hashlib.blake2b(digest_size=_CHECK_BYTES)
    for content in parts:
        found.update(content)
    return found.digest()
