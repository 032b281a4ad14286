"""From what `--resume` names to the checkpoint a run goes on from, in this home."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.home import Home

from .output import say

if TYPE_CHECKING:
    from trueup.checkpoint.manifest import CheckpointManifest, Origin
    from trueup.recipe import LoadedRecipe
    from trueup.schema import RunHeader
    from trueup.train.resume import Resume

AUTO = "auto"
LOCK_FILE = "lock"  # in a run's folder, locked while a process of the run lives


class NothingToResumeError(Exception):
    """There is no run to go on with; `finished` is one of this recipe that needs no going on."""

    def __init__(self, finished: str | None) -> None:
        super().__init__(finished)
        self.finished = finished


@dataclass(frozen=True)
class Found:
    """A whole checkpoint, wherever it lies, that this recipe may go on from."""

    folder: Path
    manifest: CheckpointManifest

    @property
    def threads(self) -> int:
        """Host threads the run had chosen: sums of floats depend on how they are shared out."""
        return int(self.manifest.origin.choices["threads"]["value"])


def find_checkpoint(asked: str, loaded: LoadedRecipe, home: Home, allowed: list[str]) -> Found:
    """The newest whole checkpoint of what is asked for. Nothing is changed.

    Raises NothingToResumeError where `auto` finds nothing; InputError for a run that still runs, has no whole
    checkpoint, or was trained by another recipe.
    """
    from trueup.checkpoint.folder import read_manifest
    from trueup.train.resume import changes, require_unchanged

    folder = _checkpoint(asked, loaded, home)
    manifest = read_manifest(folder)
    if _goes_by(home.runs / manifest.origin.run, loaded.digest):
        allowed = [*allowed, *changes(manifest.origin.recipe, loaded.recipe)]
    for message in require_unchanged(manifest, loaded.recipe, allowed):
        say(f"note: {message}, as allowed")
    return Found(folder, manifest)


@contextlib.contextmanager
def held(run: Path) -> Iterator[None]:
    """Alone with a run's folder, made if absent, as long as the block runs. InputError where another process
    is. Where the folder cannot be written, who writes the record says so."""
    from trueup.files.lock import take_lock
    from trueup.schema import InputError

    with contextlib.ExitStack() as stack:
        try:
            run.mkdir(parents=True, exist_ok=True)
            handle = stack.enter_context((run / LOCK_FILE).open("ab"))
            take_lock(handle, wait=False)
        except BlockingIOError:
            raise InputError(
                f"run {run.name} is still running; end it first: `trueup ctl {run.name} stop`"
            ) from None
        except OSError:
            pass
        yield


def _goes_by(run: Path, digest: str) -> bool:
    """Whether the run itself already goes by this recipe: what it changed was allowed before, and there is
    only no checkpoint since."""
    from trueup.schema import InputError
    from trueup.store.run_folder import read_header

    try:
        header = read_header(run)
    except InputError:
        return False
    return _is_of(header.recipe, header.recipe_digest, digest)


def _is_of(recipe: dict[str, Any], digest_then: str, digest: str) -> bool:
    """Whether a recorded recipe is the one of `digest`, now or with the keys that recipes have got since: an
    older trueup did not write those, and its digest is without them."""
    from pydantic import ValidationError

    from trueup.recipe import Recipe, recipe_digest

    if digest_then == digest:
        return True
    with contextlib.suppress(ValidationError):
        return recipe_digest(Recipe.model_validate(recipe)) == digest
    return False


def take_up(found: Found, home: Home, *, leads: bool) -> Resume:
    """The checkpoint in its run's folder in this home, copied there if it came from elsewhere, and what the
    run recorded. What was saved after it is left aside. The leading rank does it, the others find it done."""
    from trueup.checkpoint.carry import leave_later
    from trueup.checkpoint.folder import checkpoints_of, folder_name
    from trueup.store.run_folder import read_run_parts
    from trueup.train.resume import Resume

    run = home.runs / found.manifest.origin.run
    folder = checkpoints_of(run) / folder_name(found.manifest.step)
    if leads:
        _require_ended(run)
        _bring_home(found.folder, found.manifest, folder, run)
        for step in leave_later(folder.parent, found.manifest.step):
            say(f"note: the checkpoint of step {step} is left aside")
    parts = read_run_parts(run)
    return Resume(folder, found.manifest, parts.record, parts.told)


def _checkpoint(asked: str, loaded: LoadedRecipe, home: Home) -> Path:
    """The folder of a whole checkpoint."""
    from trueup.checkpoint.folder import checkpoints_of, newest_whole, verified
    from trueup.checkpoint.manifest import MANIFEST_FILE
    from trueup.checkpoint.remote import is_remote
    from trueup.schema import InputError

    if asked == AUTO:
        return _newest_of(loaded, home)
    if is_remote(asked):
        return _pulled(asked)
    try:
        path = Path(asked).expanduser()
        if (path / MANIFEST_FILE).is_file():
            verified(path)
            return path.absolute()
        run = next((one for one in (path, home.runs / asked) if checkpoints_of(one).is_dir()), None)
    except (OSError, RuntimeError) as error:  # too long, not to be looked into, of a user who is not there
        raise InputError(f"--resume {asked[:200]}: {getattr(error, 'strerror', None) or error}") from None
    run = run or home.runs / _run_id(asked)
    found = newest_whole(checkpoints_of(run), say)
    if found is None:
        raise InputError(
            f"--resume {asked}: run {run.name} has no whole checkpoint; start it anew without --resume"
        )
    return found[0].absolute()


def _run_id(asked: str) -> str:
    from .records import open_store

    with open_store() as store:
        return store.resolve(asked)


def _newest_of(loaded: LoadedRecipe, home: Home) -> Path:
    """The newest whole checkpoint of the newest run of this very recipe, of those that have one: in this
    home, else where the recipe has them copied to."""
    from trueup.checkpoint.folder import checkpoints_of, newest_whole
    from trueup.schema import InputError
    from trueup.store.liveness import why_stopped

    found = sorted(_runs_of(loaded.digest, home), key=lambda item: item[1], reverse=True)
    for run, _, header in found:
        if header is not None and header.state == "running" and why_stopped(run, header) is None:
            raise InputError(f"run {header.id} of this recipe is still running; `trueup ctl` speaks to it")
        if header is not None and header.state == "finished":
            raise NothingToResumeError(header.id)
        newest = newest_whole(checkpoints_of(run), say)
        if newest is not None:
            return newest[0]
    if loaded.recipe.checkpoint.to is not None:
        return _newest_away(loaded.recipe.checkpoint.to, loaded.digest)
    raise NothingToResumeError(None)


def _newest_away(place: str, digest: str) -> Path:
    from trueup.checkpoint.remote import DamagedRemoteError, Remote
    from trueup.train.saves import LAST

    remote = Remote(place)
    newest: CheckpointManifest | None = None
    for run in remote.runs():
        for step in remote.steps(run)[-1:]:
            with contextlib.suppress(DamagedRemoteError):
                manifest = remote.manifest(run, step)
                if _is_of(manifest.origin.recipe, manifest.origin.recipe_digest, digest):
                    newest = max(filter(None, (newest, manifest)), key=lambda one: one.created)
    if newest is None:
        raise NothingToResumeError(None)
    if LAST in newest.why:
        raise NothingToResumeError(newest.origin.run)
    return _pulled(f"{place.rstrip('/')}/{newest.origin.run}")


def _pulled(address: str) -> Path:
    """The newest whole checkpoint of an address, in a temporary folder, the best beside it."""
    from trueup.checkpoint.folder import read_manifest
    from trueup.checkpoint.remote import parse, pull_newest
    from trueup.schema import InputError

    root = Path(tempfile.mkdtemp(prefix="trueup-resume-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    say(f"pulling the newest checkpoint of {address}")
    pulled = pull_newest(address, root, say)
    if pulled is None:
        raise InputError(f"--resume {address}: there is no whole checkpoint")
    run, named = read_manifest(pulled).origin.run, parse(address)[1]
    if run != named:
        raise InputError(f"--resume {address}: the checkpoint there is of run {run}, not {named}")
    return pulled


def _runs_of(digest: str, home: Home) -> Iterator[tuple[Path, str, RunHeader | None]]:
    """Folder, start and header of the runs of a recipe. Where a header is damaged or gone, the run's newest
    checkpoint says whose it is."""
    from trueup.schema import InputError
    from trueup.store.run_folder import read_header

    for run in home.runs.iterdir() if home.runs.is_dir() else ():
        try:
            header = read_header(run)
        except InputError:  # said by every command that lists runs
            origin = _origin_of(run)
            if origin is not None and _is_of(origin.recipe, origin.recipe_digest, digest):
                yield run, origin.started_at, None
            continue
        if _is_of(header.recipe, header.recipe_digest, digest):
            yield run, header.started_at, header


def _origin_of(run: Path) -> Origin | None:
    from trueup.checkpoint.folder import checkpoints_of, folder_name, read_manifest, steps
    from trueup.schema import TrueupError

    root = checkpoints_of(run)
    with contextlib.suppress(TrueupError):
        for step in reversed(steps(root)):
            with contextlib.suppress(TrueupError):
                return read_manifest(root / folder_name(step)).origin
    return None


def _bring_home(source: Path, manifest: CheckpointManifest, folder: Path, run: Path) -> None:
    """The checkpoint, and the best one if it lies beside, into the run's folder, with the record where there
    is none or it is an older one."""
    from trueup.checkpoint.carry import copy_checkpoint
    from trueup.checkpoint.folder import folder_name
    from trueup.checkpoint.record import restore_record

    if not (folder.exists() and folder.samefile(source)):
        copy_checkpoint(source, folder.parent)
        best = source.with_name(folder_name(manifest.best_step or manifest.step))
        if best.is_dir() and not (folder.parent / best.name).exists():
            copy_checkpoint(best, folder.parent)
    restore_record(folder, manifest, run, lambda message: say(f"note: {message}"))


def _require_ended(run: Path) -> None:
    from trueup.schema import InputError
    from trueup.schema.run import HEADER_FILE
    from trueup.store.liveness import why_stopped
    from trueup.store.run_folder import read_header

    if not (run / HEADER_FILE).exists():
        return
    try:
        header = read_header(run)
    except InputError as damage:
        if _is_newer(run / HEADER_FILE):
            raise
        _leave_damaged_header(run, damage)
        return
    if header.state == "running" and why_stopped(run, header) is None:
        raise InputError(f"run {header.id} is still running; end it first: `trueup ctl {header.id} stop`")


def _is_newer(header: Path) -> bool:
    """Whether a newer trueup wrote it: it is no damage then."""
    from trueup.files.whole import read_json_object
    from trueup.store.run_folder import FORMAT

    with contextlib.suppress(OSError, ValueError, RecursionError):
        version = read_json_object(header).get("format")
        return isinstance(version, int) and version > FORMAT
    return False


def _leave_damaged_header(run: Path, damage: Exception) -> None:
    """The checkpoint's takes its place: this process has the run's lock, so no other writes it."""
    from trueup.schema import StorageError
    from trueup.schema.run import HEADER_FILE

    aside = run / f"{HEADER_FILE}.damaged"
    say(f"note: {damage}; it is left aside as {aside.name}, and the checkpoint's record takes its place")
    try:
        (run / HEADER_FILE).rename(aside)
    except OSError as error:
        raise StorageError(f"{run / HEADER_FILE} cannot be left aside: {error.strerror or error}") from None
