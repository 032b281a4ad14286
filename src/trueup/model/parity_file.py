"""The outputs of one side in one safetensors file, written as they are made: never are all of them in memory.

The header comes first in such a file and is known last, so its room is kept free and filled up with spaces.
Everything is fp32 (bf16 fits in it exactly) beside the batch, which is int64. U tokens without padding.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import torch

from trueup.schema import InputError, StorageError, TrueupError
from trueup.schema.parity import BatchFacts, PointKind, SideFacts

from .batch import BatchTensors

FORMAT = "trueup-parity-2"  # 2: the digest covers the header too
BATCH = "batch"
BYTES_A_POINT = 512  # of the header, more than any entry takes
DTYPES = {torch.float32: "F32", torch.int64: "I64"}
METADATA = {"format", "side", "batch", "points", "sha256"}


@dataclass(frozen=True)
class Point:
    """One output: where it was taken, what it is, and how it is known (observed, derived, computed)."""

    name: str
    kind: PointKind
    how: str = "observed"

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.name}"


class OutputWriter:
    """Writes to an open, empty file. `take` what comes, then `finish` once."""

    def __init__(self, file: BinaryIO, batch: BatchTensors, *, points: int) -> None:
        """`points`: at most so many outputs will be taken."""
        self._file = file
        self._room = 4096 + BYTES_A_POINT * (points + len(fields(batch)))
        self._entries: dict[str, dict[str, Any]] = {}
        self._points: list[tuple[str, str, str]] = []
        self._digest = hashlib.sha256()
        self._end = 0
        file.seek(8 + self._room)
        for name, tensor in arrays_of(batch).items():
            self._append(f"{BATCH}/{name}", tensor)

    def take(self, point: Point, value: torch.Tensor) -> None:
        """`value`: fp32, in host memory."""
        self._append(point.key, value)
        self._points.append((point.name, point.kind, point.how))

    def finish(self, side: SideFacts, batch: BatchFacts) -> None:
        metadata = {
            "format": FORMAT,
            "side": side.model_dump_json(),
            "batch": batch.model_dump_json(),
            "points": json.dumps(self._points),
        }
        content = {"__metadata__": metadata, **self._entries}
        self._digest.update(_canonical(content))
        metadata["sha256"] = self._digest.hexdigest()
        header = json.dumps(content).encode()
        if len(header) > self._room:
            raise TrueupError(f"the header of the outputs takes {len(header)} bytes, not {self._room}")
        self._file.seek(0)
        self._file.write(struct.pack("<Q", self._room) + header.ljust(self._room))
        self._file.flush()

    def _append(self, key: str, value: torch.Tensor) -> None:
        content = value.contiguous().numpy().tobytes()
        self._file.write(content)
        self._digest.update(content)
        start, self._end = self._end, self._end + len(content)
        self._entries[key] = {
            "dtype": DTYPES[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [start, self._end],
        }


class OutputFile:
    """What `OutputWriter` wrote, read back one output at a time."""

    def __init__(self, path: Path) -> None:
        """Raises InputError for another kind of file, StorageError for one that cannot be read."""
        from safetensors import SafetensorError, safe_open

        try:
            opened: Any = safe_open(path, framework="pt")
            metadata = opened.metadata() or {}
        except (OSError, SafetensorError) as error:
            raise StorageError(f"{path}: cannot be read ({error})") from None
        if metadata.get("format") != FORMAT or not metadata.keys() >= METADATA:
            raise InputError(
                f"{path}: not a file of outputs that this version of trueup reads ({FORMAT}); "
                "`trueup parity A --save FILE` writes one"
            )
        try:
            self.side = SideFacts.model_validate_json(metadata["side"])
            self.facts = BatchFacts.model_validate_json(metadata["batch"])
            self.points = [Point(*point) for point in json.loads(metadata["points"])]
        except (ValueError, TypeError) as error:
            raise StorageError(f"{path}: damaged, its header cannot be read ({error})") from None
        self._open, self._path, self._sha256 = opened, path, metadata["sha256"]

    def verify(self) -> None:
        """Raises StorageError where any output, or what is said of it, is not as it was written."""
        with self._path.open("rb") as file:
            (room,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(room))
            digest = hashlib.file_digest(file, "sha256")
        header["__metadata__"].pop("sha256")
        digest.update(_canonical(header))
        if digest.hexdigest() != self._sha256 or digest_of(self.batch()) != self.facts.digest:
            raise StorageError(f"{self._path}: damaged, its content does not have the digest in its header")

    def batch(self) -> BatchTensors:
        """The arrays that the side was shown."""
        names = [field.name for field in fields(BatchTensors)]
        return BatchTensors(*(self._open.get_tensor(f"{BATCH}/{name}") for name in names))

    def tensor(self, point: Point) -> torch.Tensor:
        value: torch.Tensor = self._open.get_tensor(point.key)
        return value

    def __iter__(self) -> Iterator[tuple[Point, torch.Tensor]]:
        """In the order of execution."""
        return ((point, self.tensor(point)) for point in self.points)


def _canonical(header: dict[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True).encode()


def arrays_of(batch: BatchTensors) -> dict[str, torch.Tensor]:
    return {field.name: getattr(batch, field.name).cpu() for field in fields(batch)}


def array_digests(batch: BatchTensors) -> dict[str, str]:
    """Of each array, shape and numbers."""
    return {
        name: hashlib.sha256(f"{tuple(array.shape)}".encode() + array.numpy().tobytes()).hexdigest()
        for name, array in arrays_of(batch).items()
    }


def digest_of(batch: BatchTensors) -> str:
    """Of the whole batch."""
    return hashlib.sha256(json.dumps(array_digests(batch), sort_keys=True).encode()).hexdigest()


def batch_facts(batch: BatchTensors, source: str) -> BatchFacts:
    segments_BT = batch.segments_BT.cpu()
    rows, width = segments_BT.shape
    return BatchFacts(
        source=source,
        digest=digest_of(batch),
        arrays=array_digests(batch),
        rows=rows,
        width=width,
        tokens=int((segments_BT != 0).sum()),
        segments=sum(len(row[row != 0].unique()) for row in segments_BT),
        supervised=len(batch.targets_N),
    )
