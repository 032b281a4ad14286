"""What is in a checkpoint's folder beside its manifest, on the way in and out: tensors as safetensors, the
run's record gzipped below `record/`, attached files as they are. Nothing is pickled."""

from __future__ import annotations

import contextlib
import gzip
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trueup.files.names import is_plain
from trueup.files.whole import replacing_file
from trueup.schema import StorageError
from trueup.schema.run import RECORD_FILES

from .manifest import MANIFEST_FILE, CheckpointManifest
from .snapshot import Snapshot

if TYPE_CHECKING:
    import torch

RECORD_FOLDER = "record"
TENSORS_SUFFIX = ".safetensors"
_GZIP = ".gz"
_COMPRESSION = 1  # records shrink well at any level, and training wants the processor
_CHUNK_BYTES = 1 << 20


class DamagedCheckpointError(StorageError):
    """A file of a checkpoint is missing or is not what was written. `file` is its path below the folder."""

    def __init__(self, folder: Path, file: str, what: str) -> None:
        super().__init__(f"{folder / file} is damaged: {what}")
        self.folder, self.file, self.what = folder, file, what


def fill(folder: Path, snapshot: Snapshot) -> None:
    """Write all but the manifest. Files of the record and attached ones that are not there are left out.
    Raises OSError and SafetensorError as the disk does, ValueError for a name that cannot be."""
    _require_names(snapshot)
    for stem, tensors in snapshot.tensors.items():
        _write_tensors(folder / f"{stem}{TENSORS_SUFFIX}", tensors)
    for source in snapshot.record:
        if source.is_file():
            (folder / RECORD_FOLDER).mkdir(exist_ok=True)
            _write_zipped(source, folder / RECORD_FOLDER / f"{source.name}{_GZIP}")
    for name, source in snapshot.attached.items():
        if source.is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / name)


def load_tensors(folder: Path, stem: str) -> dict[str, torch.Tensor]:
    """The tensors kept under a stem, in host memory. Digests are not looked at: see `verified`. Raises
    DamagedCheckpointError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    name = f"{stem}{TENSORS_SUFFIX}"
    try:
        return load_file(folder / name)
    except (OSError, SafetensorError) as error:
        raise DamagedCheckpointError(folder, name, f"it cannot be read ({error})") from None


def record_files(manifest: CheckpointManifest) -> dict[str, str]:
    """The saved files of the record: name in the checkpoint -> name in a run's folder. Others than a record
    has are no part of it, whatever a manifest says."""
    names = {f"{RECORD_FOLDER}/{file}{_GZIP}": file for file in RECORD_FILES}
    return {name: file for name, file in names.items() if name in manifest.files}


def unpack(saved: Path, target: Path) -> None:
    """A gzipped file of a checkpoint, whole or not at all. Raises as `unpacking`."""
    with unpacking(saved, target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(saved) as stream, replacing_file(target) as part, part.open("wb") as out:
            shutil.copyfileobj(stream, out, _CHUNK_BYTES)


@contextlib.contextmanager
def unpacking(saved: Path, target: Path) -> Iterator[None]:
    """For a block that reads a gzipped file of the record to bring it to `target`. Raises
    DamagedCheckpointError, StorageError."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        folder, name = saved.parents[1], f"{RECORD_FOLDER}/{saved.name}"
        raise DamagedCheckpointError(folder, name, f"it cannot be unpacked ({error})") from None
    except OSError as error:
        raise StorageError(
            f"the run's record could not be brought back from {saved} to {target}: "
            f"{error.strerror or error}. Make room or make the folder writable, and resume again"
        ) from None


def _require_names(snapshot: Snapshot) -> None:
    """Each file of the folder has a name of its own, and none leads out of it."""
    own = [f"{stem}{TENSORS_SUFFIX}" for stem in snapshot.tensors]
    record = [f"{RECORD_FOLDER}/{source.name}{_GZIP}" for source in snapshot.record]
    names = [MANIFEST_FILE, *own, *record, *snapshot.attached]
    if wrong := sorted({name for name in names if not is_plain(name) or names.count(name) > 1}):
        raise ValueError(f"a checkpoint cannot have a file {wrong[0]!r}, or not twice")


def _write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    save_file(dict(tensors), path, metadata={"format": "pt"})
    path.chmod(path.parent.stat().st_mode & 0o666)  # the library's files are their owner's alone


def _write_zipped(source: Path, target: Path) -> None:
    """The same content gives the same bytes. Of a file of lines that grows meanwhile, whole lines only."""
    by_lines = source.suffix == ".jsonl"
    with (
        source.open("rb") as stream,
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", _COMPRESSION, raw, mtime=0) as out,
    ):
        begun = b""
        while chunk := stream.read(_CHUNK_BYTES):
            end = chunk.rfind(b"\n") + 1 if by_lines else len(chunk)
            if end:
                out.write(begun + chunk[:end])
                begun = b""
            begun += chunk[end:]
