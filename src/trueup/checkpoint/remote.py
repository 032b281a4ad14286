"""Checkpoints at a place away from the run: a folder, s3://BUCKET/PREFIX, any fsspec address.

A place holds RUN_ID/00000040/ with the same files as the local folder. The manifest goes up last and is
removed first, so what an upload left halfway is never taken for a checkpoint. Coming back, every file is
checked against the manifest before the folder gets its name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from trueup.files.whole import put_in_place
from trueup.schema import InputError, StorageError

from .folder import INCOMPLETE, DamagedCheckpointError, discard, folder_name, read_manifest, step_of, verified
from .manifest import MANIFEST_FILE, CheckpointManifest, unsealed
from .remote_files import RemoteFiles, Retry, shown
from .retention import Retention, Saved

Say = Callable[[str], None]

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(://|::)")


class DamagedRemoteError(StorageError):
    """What lies there is no whole checkpoint. An older one may be."""


def is_remote(text: str) -> bool:
    """Whether it is an address rather than a path of this machine's file system."""
    return _ADDRESS.match(text) is not None


def parse(address: str) -> tuple[str, str, int | None]:
    """The place, the run and the step (None: the newest) of PLACE/RUN_ID or PLACE/RUN_ID/00000040.

    Raises InputError where no run is named."""
    *head, last = address.rstrip("/").split("/")
    step = step_of(last) if head else None
    if step is not None:
        *head, last = head
    base = "/".join(head) or ("/" if head else ".")
    if last in ("", ".", "..") or last.endswith(":") or base.endswith((":/", "::")):
        raise InputError(
            f"{shown(address)} names no run: expected PLACE/RUN_ID or PLACE/RUN_ID/00000040, where "
            "PLACE is what checkpoint.to was, such as s3://BUCKET/PREFIX"
        )
    return base, last, step


class Remote:
    """The checkpoints of all runs at one place. All methods raise StorageError, with the address and what the
    far side said, after trying again as `retry` says where that may help."""

    def __init__(self, address: str, retry: Retry | None = None) -> None:
        """Touches no network. Raises MissingExtraError, and InputError for what is no address."""
        self._files = RemoteFiles(address, retry or Retry())
        self.address = self._files.address

    def upload(self, folder: Path, run_id: str) -> None:
        """A whole checkpoint folder. Where the same one is there nothing is sent; another of the same step is
        replaced. The local folder must stay until this returns."""
        manifest = read_manifest(folder)
        text = (folder / MANIFEST_FILE).read_bytes()
        where = _name(run_id, manifest.step)
        there = self._files.read(f"{where}/{MANIFEST_FILE}")
        if there == text:
            return
        if there is not None:  # its files are about to change under it
            self._files.remove(f"{where}/{MANIFEST_FILE}")
        for name in manifest.files:
            self._files.put(folder / name, f"{where}/{name}")
        if (folder / MANIFEST_FILE).read_bytes() != text:
            raise StorageError(f"{folder} was saved anew while it went to {self._files.where(where)}")
        self._files.put(folder / MANIFEST_FILE, f"{where}/{MANIFEST_FILE}")

    def runs(self) -> list[str]:
        """Names of the folders at the place, each a run if `steps` finds any in it."""
        return self._files.folders()

    def steps(self, run_id: str) -> list[int]:
        """Steps with a manifest, ascending."""
        return self.found(run_id)[0]

    def found(self, run_id: str) -> tuple[list[int], list[int]]:
        """Steps with a manifest, and those without: half uploaded, or half removed. Both ascending."""
        inside: dict[int, set[str]] = {}
        for name in self._files.find(run_id):
            folder, _, file = name.removeprefix(f"{run_id}/").partition("/")
            if (step := step_of(folder)) is not None:
                inside.setdefault(step, set()).add(file)
        whole = sorted(step for step, files in inside.items() if MANIFEST_FILE in files)
        return whole, sorted(inside.keys() - set(whole))

    def manifest(self, run_id: str, step: int) -> CheckpointManifest:
        """Raises DamagedRemoteError, a StorageError, where it is missing or damaged; InputError where a newer
        trueup wrote it."""
        return self._manifest(run_id, step)[0]

    def pull(self, run_id: str, step: int, root: Path) -> Path:
        """The checkpoint as a folder of `root`, which has it whole or not at all. One that `root` has already
        is not fetched again if it is the same; a damaged one is replaced.

        Raises DamagedRemoteError, naming the file, where the far side's is not whole; StorageError where
        `root` has another of that step, cannot be written, or the network fails."""
        manifest, text = self._manifest(run_id, step)
        target = root / folder_name(step)
        part = root / f"{folder_name(step)}{INCOMPLETE}"
        try:
            if _is_here(target, manifest.origin.run, text):
                return target
            discard(part, ignore_errors=True)
            part.mkdir(parents=True)
            self._fetch(_name(run_id, step), manifest, text, part)
            if target.exists():  # damaged, as was seen above
                discard(target)
            put_in_place(part, target, replace=False)
        except OSError as error:
            raise StorageError(f"{target} cannot be written: {error.strerror or error}") from error
        finally:
            discard(part, ignore_errors=True)
        return target

    def retain(self, run_id: str, retention: Retention, *, newest: int) -> None:
        """Remove what is not to be kept: by the retention's rules, what was left halfway, and steps after
        `newest`, the newest that the run has saved, sent here or not: it went back before those."""
        whole, half = self.found(run_id)
        saved = [self._saved(run_id, step) for step in whole if step <= newest]
        later = [step for step in whole if step > newest]
        for step in (*retention.to_remove(saved), *later, *half):
            self.remove(run_id, step)

    def _saved(self, run_id: str, step: int) -> Saved:
        try:
            manifest = self.manifest(run_id, step)
        except DamagedRemoteError:
            return Saved(step, 0)
        return Saved(step, manifest.size_bytes, manifest.best_step)

    def remove(self, run_id: str, step: int) -> None:
        """The manifest first, then the rest. Nothing where there is none."""
        where = _name(run_id, step)
        self._files.remove(f"{where}/{MANIFEST_FILE}")
        self._files.remove_folder(where)

    def _manifest(self, run_id: str, step: int) -> tuple[CheckpointManifest, bytes]:
        name = f"{_name(run_id, step)}/{MANIFEST_FILE}"
        text = self._files.read(name)
        if text is None:
            raise DamagedRemoteError(f"{self._files.where(name)} is missing: there is no whole checkpoint")
        try:
            manifest = unsealed(text)
            if manifest.step != step:
                raise ValueError(f"it is of step {manifest.step}")
        except ValueError as error:
            raise DamagedRemoteError(f"{self._files.where(name)} cannot be used: {error}") from error
        return manifest, text

    def _fetch(self, where: str, manifest: CheckpointManifest, text: bytes, part: Path) -> None:
        missing = {f"{where}/{name}" for name in manifest.files} - set(self._files.find(where))
        if missing:
            name = min(missing)
            raise DamagedRemoteError(f"{self._files.where(name)} is missing, and the manifest names it")
        for name, digest in manifest.files.items():
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            self._files.fetch(f"{where}/{name}", part / name, digest.bytes)
        (part / MANIFEST_FILE).write_bytes(text)
        try:
            verified(part)
        except DamagedCheckpointError as damage:
            far = self._files.where(f"{where}/{damage.file}")
            raise DamagedRemoteError(f"{far} is damaged: {damage.what}") from damage


def pull_newest(address: str, root: Path, say: Say, retry: Retry | None = None) -> Path | None:
    """Pull the newest whole checkpoint of the run that an address names (`parse`) into `root`, and beside it
    the best one its manifest names. What is damaged or half uploaded is passed over and said to `say`. None
    where the run has no whole one. An address with a step is of that one alone.

    Raises InputError, and StorageError: the far side cannot be reached, or the step named is not whole."""
    base, run_id, step = parse(address)
    remote = Remote(base, retry)
    whole, half = remote.found(run_id)
    for one in sorted([*whole, *half], reverse=True) if step is None else [step]:
        try:
            pulled = remote.pull(run_id, one, root)
        except DamagedRemoteError as error:
            if step is not None:
                raise
            say(f"{error}; passed over step {one}")
            continue
        _pull_best(remote, run_id, pulled, whole, say)
        return pulled
    return None


def _pull_best(remote: Remote, run_id: str, pulled: Path, whole: list[int], say: Say) -> None:
    manifest = read_manifest(pulled)
    best = manifest.best_step
    if best is None or best == manifest.step:
        return
    lost = f"the run goes on without the best checkpoint up to step {manifest.step}"
    if best not in whole:
        say(f"{remote.address}/{_name(run_id, best)} is not there: {lost}")
        return
    try:
        remote.pull(run_id, best, pulled.parent)
    except DamagedRemoteError as error:
        say(f"{error}: {lost}")


def _name(run_id: str, step: int) -> str:
    return f"{run_id}/{folder_name(step)}"


def _is_here(target: Path, run_id: str, text: bytes) -> bool:
    """Whether the folder is there, whole and with that manifest. StorageError where it is whole and another:
    it may be newer than what was uploaded."""
    if not target.exists():
        return False
    try:
        verified(target)
    except DamagedCheckpointError:
        return False
    if (target / MANIFEST_FILE).read_bytes() != text:
        raise StorageError(
            f"{target} is whole, and another than what was to be pulled (of run {run_id}): resume from it, "
            "or move it away"
        )
    return True
