"""The run's record that a checkpoint carries, on its way back into a run's folder."""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from trueup.files.whole import replace_text
from trueup.schema import StorageError
from trueup.schema.run import HEADER_FILE, HEARTBEAT_FILE, MEASUREMENTS_FILE, RECORD_FILES, SAMPLES_FILE

from .contents import record_files, unpack, unpacking
from .folder import folder_name
from .manifest import CheckpointManifest

NOT_CARRIED = (SAMPLES_FILE, MEASUREMENTS_FILE, HEARTBEAT_FILE)
_CHUNK_BYTES = 1 << 20


def restore_record(
    folder: Path, manifest: CheckpointManifest, run_folder: Path, say: Callable[[str], None]
) -> list[str]:
    """Bring the record that was saved into a run folder, made if absent. Files that are there already stay as
    they are, unless the run has gone on elsewhere since they were written: then they, and what belongs to
    them, are left aside. Returns the names of those brought. Raises StorageError."""
    files = {file: name for name, file in record_files(manifest).items()}
    older = [file for file, name in files.items() if not _holds(run_folder / file, folder / name)]
    aside = run_folder / f"record-{folder_name(manifest.step)}.left"
    if older:
        say(
            "the record here does not begin with the one saved with the checkpoint (the run has gone on "
            f"elsewhere, or a file is damaged): it is left aside in {aside}"
        )
        _leave(run_folder, (*NOT_CARRIED, *(file for file in RECORD_FILES if file not in files)), aside)
        _leave_header(run_folder, aside)
    brought = []
    for file in sorted(files, key=lambda file: (file != HEADER_FILE, file)):
        if file in older:  # one after the other: where this is cut short, the next time finds the rest
            _leave(run_folder, (file,), aside)
        if (older and file == HEADER_FILE) or not (run_folder / file).exists():
            _bring(folder / files[file], run_folder / file, manifest.step)
            brought.append(file)
    return brought


def _holds(here: Path, saved: Path) -> bool:
    """Whether a file of lines begins with what was saved of it, as one does that has only grown since. The
    header is rewritten and tells nothing; nor does a file that is not there."""
    if here.name == HEADER_FILE or not here.exists():
        return True
    with unpacking(saved, here), gzip.open(saved) as then, here.open("rb") as now:
        while chunk := then.read(_CHUNK_BYTES):
            if now.read(len(chunk)) != chunk:
                return False
    return True


def _bring(saved: Path, target: Path, step: int) -> None:
    if target.name != HEADER_FILE:
        unpack(saved, target)
        return
    with unpacking(saved, target):
        header = json.loads(gzip.decompress(saved.read_bytes()))
        if header.get("state") == "running":  # as it was when it was saved; no process of it lives here
            reason = f"it came here with the checkpoint of step {step}, and is known up to that"
            header |= {"state": "interrupted", "reason": reason}
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_text(target, json.dumps(header, indent=2))


def _leave_header(run_folder: Path, aside: Path) -> None:
    """A copy: without a header there is no run to find."""
    with _explained(run_folder):
        if (run_folder / HEADER_FILE).exists() and not (aside / HEADER_FILE).exists():
            shutil.copyfile(run_folder / HEADER_FILE, aside / HEADER_FILE)


def _leave(run_folder: Path, files: tuple[str, ...], aside: Path) -> None:
    with _explained(run_folder):
        aside.mkdir(exist_ok=True)
        for file in files:
            if (run_folder / file).exists():
                (run_folder / file).replace(aside / file)


@contextlib.contextmanager
def _explained(run_folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"the run's record in {run_folder} could not be left aside: {error.strerror or error}. Make the "
            "folder writable, and resume again"
        ) from None
