"""Checkpoints of one run: a folder of folders, each named by its step in eight digits.

One is written as STEP.incomplete and renamed when all of it is on the disk; one that is removed is renamed
back to that first. Where a step is done again, the older folder is STEP.replaced until the newer one has its
name. So a kill at any instant leaves the old checkpoints or the new, whole; the next writer cleans up. One
process writes at a time.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from trueup.files.whole import flush, flush_names, sha256_of
from trueup.schema import StorageError
from trueup.schema.run import CHECKPOINTS_FOLDER

from .contents import DamagedCheckpointError, fill, load_tensors
from .manifest import MANIFEST_FILE, CheckpointManifest, FileDigest, sealed, unsealed
from .snapshot import Snapshot

__all__ = [
    "DamagedCheckpointError",
    "best_of",
    "checkpoints_of",
    "clean_up",
    "discard",
    "folder_name",
    "load_tensors",
    "newest_step",
    "newest_whole",
    "read_manifest",
    "remove_checkpoint",
    "step_of",
    "steps",
    "verified",
    "write_checkpoint",
]

INCOMPLETE = ".incomplete"
REPLACED = ".replaced"
_NAME = re.compile(r"[0-9]{8,}")


def checkpoints_of(run_folder: Path) -> Path:
    """Where a run keeps its checkpoints."""
    return run_folder / CHECKPOINTS_FOLDER


def folder_name(step: int) -> str:
    return f"{step:08d}"


def step_of(name: str) -> int | None:
    """The step that a folder of this name is of; None for any other name."""
    return int(name) if _NAME.fullmatch(name) and folder_name(int(name)) == name else None


def steps(root: Path) -> list[int]:
    """Steps that have a checkpoint, whole or damaged, in ascending order. One that a killed writer left aside
    gets its name back. Raises StorageError."""
    try:
        names = [name for name in os.listdir(root) if (root / name).is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"{root} cannot be read: {error.strerror or error}") from None
    for name in names:
        with contextlib.suppress(OSError):  # a read-only disk
            _put_back(root, name)
    return _steps_in(names)


def newest_step(root: Path) -> int | None:
    """The last of `steps`, for a thread beside the one that writes: nothing gets its name back. Raises
    OSError."""
    return max(_steps_in(os.listdir(root)), default=None)


def _steps_in(names: list[str]) -> list[int]:
    found = {_step_of(name) for name in names if not name.endswith(INCOMPLETE)}
    return sorted(step for step in found if step is not None)


# --- Reading ----------------------------------------------------------------------------------------------


def read_manifest(folder: Path) -> CheckpointManifest:
    """What a checkpoint says of itself; its other files are not looked at. Raises DamagedCheckpointError, and
    InputError where a newer trueup wrote it."""
    try:
        manifest = unsealed((folder / MANIFEST_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise DamagedCheckpointError(folder, MANIFEST_FILE, "it is missing") from None
    except OSError as error:
        raise DamagedCheckpointError(folder, MANIFEST_FILE, f"{error.strerror or error}") from None
    except ValueError as error:
        raise DamagedCheckpointError(folder, MANIFEST_FILE, str(error)) from None
    if _step_of(folder.name) not in (None, manifest.step):
        raise DamagedCheckpointError(
            folder, MANIFEST_FILE, f"it says step {manifest.step}, and the folder's name says another"
        )
    return manifest


def verified(folder: Path) -> CheckpointManifest:
    """The manifest of a whole checkpoint: every file has been read and has its size and digest. Raises as
    `read_manifest`; the error names the first file that is not as it was written."""
    manifest = read_manifest(folder)
    for name, told in sorted(manifest.files.items()):
        try:
            size = (folder / name).stat().st_size
            if size != told.bytes:
                raise DamagedCheckpointError(folder, name, f"it has {size} bytes, and had {told.bytes}")
            if sha256_of(folder / name) != told.sha256:
                raise DamagedCheckpointError(folder, name, "its content is not what was written")
        except (FileNotFoundError, NotADirectoryError):
            raise DamagedCheckpointError(folder, name, "it is missing") from None
        except OSError as error:
            raise DamagedCheckpointError(folder, name, error.strerror or str(error)) from None
    return manifest


def newest_whole(
    root: Path, say: Callable[[str], None], *, before: int | None = None
) -> tuple[Path, CheckpointManifest] | None:
    """The newest checkpoint (of a step below `before`) of which every byte is as it was written, or None.
    `say` gets a sentence for each damaged one that is passed over. Raises InputError where a newer trueup
    wrote it, StorageError where `root` cannot be read."""
    left = [step for step in steps(root) if before is None or step < before]
    while left:
        folder = _found(root, left.pop())
        try:
            return folder, verified(folder)
        except DamagedCheckpointError as damage:
            older = (
                f"going back to the one before it, of step {left[-1]}" if left else "there is none before it"
            )
            say(f"checkpoint {folder.name}: its file {damage.file} is damaged ({damage.what}); {older}")
    return None


def best_of(root: Path) -> tuple[Path, CheckpointManifest] | None:
    """The checkpoint that the newest readable one calls the best, where it is whole."""
    for step in reversed(steps(root)):
        try:
            best_step = read_manifest(_found(root, step)).best_step
        except DamagedCheckpointError:
            continue
        if best_step is not None:
            folder = _found(root, best_step)
            with contextlib.suppress(DamagedCheckpointError):
                return folder, verified(folder)
        return None
    return None


def _found(root: Path, step: int) -> Path:
    """The folder of a step's checkpoint, aside where it could not be put back."""
    target = root / folder_name(step)
    aside = root / f"{target.name}{REPLACED}"
    return aside if aside.exists() and not target.exists() else target


# --- Writing ----------------------------------------------------------------------------------------------


def write_checkpoint(root: Path, snapshot: Snapshot) -> Path:
    """Write a checkpoint into `root`, made if absent in a run folder that is there; one of the same step is
    replaced. Returns its folder. Raises StorageError, with the older ones as they were and nothing new."""
    target = root / folder_name(snapshot.step)
    part = root / f"{target.name}{INCOMPLETE}"
    made_root = False
    try:
        with _explained(root, snapshot.step):
            made_root = _make(root)
            clean_up(root)
            discard(part)  # what could not be cleaned up says why
            part.mkdir()
            fill(part, snapshot)
            (part / MANIFEST_FILE).write_bytes(sealed(_manifest(part, snapshot)))
            for path in (*sorted(part.rglob("*")), part):
                flush(path)
            _put(part, target)
    except BaseException:
        discard(part, ignore_errors=True)
        if made_root:
            with contextlib.suppress(OSError):
                root.rmdir()
        raise
    discard(root / f"{target.name}{REPLACED}", ignore_errors=True)
    return target


def remove_checkpoint(root: Path, step: int) -> None:
    """Remove a checkpoint: it is whole, or from one instant to the next none at all. Raises StorageError."""
    going = root / f"{folder_name(step)}{INCOMPLETE}"
    try:
        discard(going, ignore_errors=True)
        (root / folder_name(step)).rename(going)
        flush_names(root)
        discard(going)
    except OSError as error:
        raise StorageError(
            f"the checkpoint of step {step} could not be removed from {root}: {error.strerror or error}"
        ) from None


def _manifest(part: Path, snapshot: Snapshot) -> CheckpointManifest:
    files = sorted(path for path in part.rglob("*") if path.is_file())
    return CheckpointManifest(
        origin=snapshot.origin,
        step=snapshot.step,
        best_step=snapshot.best_step,
        eval_loss=snapshot.eval_loss,
        why=snapshot.why,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        state=snapshot.state,
        files={
            path.relative_to(part).as_posix(): FileDigest(sha256=sha256_of(path), bytes=path.stat().st_size)
            for path in files
        },
    )


def _put(part: Path, target: Path) -> None:
    """Rename what is whole to its name. An older folder of that name stays aside: its removal may wait."""
    aside = target.with_name(f"{target.name}{REPLACED}")
    if os.path.lexists(target):
        target.rename(aside)
    try:
        part.rename(target)
    except OSError:
        if aside.exists():
            aside.rename(target)
        raise
    flush_names(target.parent)


def clean_up(root: Path) -> None:
    """After writers that were killed: put an older folder back whose newer one never got its name, and remove
    what is not whole. Raises OSError."""
    for name in os.listdir(root):
        _put_back(root, name)
        if _step_of(name) is not None and name.endswith((REPLACED, INCOMPLETE)):
            discard(root / name, ignore_errors=True)


def discard(path: Path, *, ignore_errors: bool = False) -> None:
    """Remove what has this name, if anything has: a folder with all that is in it, a file, or a link and not
    what it leads to. Raises OSError, unless told to ignore it."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=ignore_errors)
        else:
            path.unlink(missing_ok=True)
    except OSError:
        if not ignore_errors:
            raise


def _put_back(root: Path, name: str) -> None:
    aside, target = root / name, root / name.removesuffix(REPLACED)
    if name.endswith(REPLACED) and _step_of(name) is not None and aside.is_dir() and not target.exists():
        aside.rename(target)


def _make(root: Path) -> bool:
    if root.is_dir():
        return False
    root.mkdir()
    flush_names(root.parent)
    return True


def _step_of(name: str) -> int | None:
    """The step in the name of a checkpoint's folder, whole or not; None for any other name."""
    return step_of(name.removesuffix(INCOMPLETE).removesuffix(REPLACED))


@contextlib.contextmanager
def _explained(root: Path, step: int) -> Iterator[None]:
    """The disk's errors as StorageError. The safetensors library has its own for a failed write."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if not root.parent.is_dir():
            why = f"the folder {root.parent} is gone; it is not made again"
        raise StorageError(
            f"the checkpoint of step {step} could not be written in {root}: {why}. Those before it are as "
            "they were; make room, or make the folder writable"
        ) from error
