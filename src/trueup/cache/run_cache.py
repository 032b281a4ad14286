"""The compile cache of a run: a folder of its own, filled with what this home has signed, sealed at the end.

The processes of one run share a folder, HOME/compile-cache/work/NAME/, so that what one has compiled the
others find. Runs do not: what another has not finished is never seen, and what a killed one left goes with
its folder. Sealing adds new files to the store and signs. Nothing here ends a run: a cache that cannot be
used or kept is said and done without.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from trueup.files.lock import take_lock
from trueup.files.names import is_plain
from trueup.schema.counting import counted

from . import libraries
from .manifest import CachedFile, Manifest, NotSignedHereError, UnusableError, key_of, now
from .store import CacheStore

WORK_FOLDER = "work"
ROOM_BYTES = 64 << 20  # free space below which compiling in the home is not begun
_CONTENT = "content"
_LOCK = "lock"

Seen = tuple[int, int]  # size and time of change in ns: as long as both stay, a file is taken as unchanged


@contextlib.contextmanager
def opened(
    home: Path,
    facts: Mapping[str, Any],
    *,
    variables: Sequence[str],
    trust: bool = False,
    say: Callable[[str], None],
    shared_as: str | None = None,
) -> Iterator[CompileCache]:
    """The cache for these facts (JSON-able), sealed when the block ends, also by an error.

    `variables` are the environment variables that name the compilers' cache folders. `trust` takes a cache
    that another home signed for this home's own. The processes of one run give the same `shared_as`, a name
    that no other run has.
    """
    cache = CompileCache(home, facts, variables, trust=trust, say=say, shared_as=shared_as)
    try:
        yield cache
    finally:
        cache.close()


class CompileCache:
    """Made by `opened`. `environment` is to be set before the first compile; `kept_files` were found."""

    def __init__(
        self,
        home: Path,
        facts: Mapping[str, Any],
        variables: Sequence[str],
        *,
        trust: bool,
        say: Callable[[str], None],
        shared_as: str | None,
    ) -> None:
        self._store = CacheStore(home)
        self._facts: dict[str, Any] = json.loads(json.dumps(facts))
        self.key = key_of(self._facts)
        self._trust = trust
        self._say = say
        self._private = shared_as is None
        self._known: dict[str, tuple[Seen | None, CachedFile]] = {}
        self._held: IO[bytes] | None = None  # open while the folder is in use; None: a temporary folder
        self.kept_files = 0
        work = self._open(shared_as or uuid.uuid4().hex)
        self._content = work.resolve() / _CONTENT
        self.environment = {name: str(self._content / name) for name in variables}
        for folder in self.environment.values():
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)

    def seal(self) -> int:
        """Keep and sign what was compiled since; returns how many files that were. To be called while no
        process of this run compiles: a file half written would be kept."""
        if self._held is None:
            return 0
        try:
            with self._store.held():
                return self._seal()
        except (OSError, ValueError) as error:  # ValueError: files that no manifest can name together
            self._say(
                f"compiled code could not be kept in {self._store.folder}: {_words(error)}; "
                "the run is unharmed, and the next one compiles anew"
            )
            return 0

    def close(self) -> None:
        """Seal and remove the folder; where other processes of the run still use it, the last one does."""
        held, self._held = self._held, None
        if held is None:
            shutil.rmtree(self._content.parent, ignore_errors=True)
            return
        with held:
            try:
                alone = take_lock(held, wait=False) or self._private
            except BlockingIOError:
                return
            self._held = held
            self.seal()
            self._held = None
            if alone:
                shutil.rmtree(self._content.parent, ignore_errors=True)

    def _open(self, name: str) -> Path:
        folder = self._store.folder
        try:
            with self._store.held():
                self._sweep(folder / WORK_FOLDER)
                if shutil.disk_usage(folder).free < ROOM_BYTES:
                    raise OSError(errno.ENOSPC, f"less than {ROOM_BYTES >> 20} MiB are free")
                return self._join(folder / WORK_FOLDER / name)
        except OSError as error:
            temporary = Path(tempfile.mkdtemp(prefix="trueup-compile-"))
            self._say(
                f"compiled code cannot be kept in {folder}: {_words(error)}. This run compiles in "
                f"{temporary}, which is removed when it ends"
            )
            with contextlib.suppress(OSError):
                self._fill(temporary.resolve() / _CONTENT, writable=False)
            return temporary

    def _join(self, work: Path) -> Path:
        """Hold the run's folder, filled by whoever comes first: the store is held until it is full."""
        found = work.is_dir()
        work.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = (work / _LOCK).open("ab")
        try:
            take_lock(held, shared=True)
            if not found:
                self._fill(work.resolve() / _CONTENT, writable=True)
        except BaseException:
            held.close()
            if not found:
                shutil.rmtree(work, ignore_errors=True)
            raise
        self._held = held
        return work

    def _fill(self, content: Path, *, writable: bool) -> None:
        manifest = self._usable(writable=writable)
        if manifest is None:
            return
        damaged = self._store.copy_out(manifest, content)
        if damaged:
            self._say(
                f"compile cache {self.key}: damaged: {len(damaged)} of "
                f"{counted(len(manifest.files), 'file')} ({damaged[0]} is the first); compiled anew"
            )
        whole = {name: file for name, file in manifest.files.items() if name not in damaged}
        self._known = {name: (_seen(content / name), file) for name, file in whole.items()}
        self.kept_files = len(whole)
        if writable:
            self._store.write(manifest.model_copy(update={"files": whole, "last_used": now()}))

    def _usable(self, *, writable: bool) -> Manifest | None:
        """What is kept under the key and signed by this home, or trusted; anything else is dropped."""
        try:
            manifest = self._store.read(self.key)
            if manifest is None:
                if (self._store.folder / self.key).exists():
                    raise UnusableError("it has no manifest: a run was killed while it kept its first files")
                return None
            self._check_signature(manifest)
        except UnusableError as problem:
            self._drop(problem, writable=writable)
            return None
        if writable and (unnamed := self._store.remove_unnamed(manifest)):
            self._say(
                f"compile cache {self.key}: {counted(unnamed, 'unsigned file')} of a killed run removed"
            )
        return manifest

    def _check_signature(self, manifest: Manifest) -> None:
        try:
            self._store.check_signature(manifest)
        except NotSignedHereError as problem:
            if not self._trust:
                raise
            self._say(f"compile cache {self.key} is used on trust: {problem}")

    def _drop(self, problem: UnusableError, *, writable: bool) -> None:
        where = f" It is now {self._store.set_aside(self.key).name}" if writable else ""
        if isinstance(problem, NotSignedHereError):
            where += "; if you trust who made it, give it its name back and run with --trust-cache"
        self._say(f"compile cache {self.key} is not used: {problem}. All is compiled anew.{where}")

    def _seal(self) -> int:
        kept = self._mine()
        files = dict(kept.files) if kept else {}
        new = 0
        for name in _compiled(self._content):
            seen = _seen(self._content / name)
            if name in self._known and self._known[name] == (seen, files.get(name)):
                continue
            file = self._store.add(self.key, name, self._content)
            if file is None:
                continue
            self._known[name] = (seen, file)
            new += files.get(name) != file
            files[name] = file
        if new:
            created = kept.created if kept else now()
            self._store.write(Manifest(facts=self._facts, files=files, created=created, last_used=now()))
        return new

    def _mine(self) -> Manifest | None:
        """What other runs have signed by now; anything else gives way."""
        try:
            manifest = self._store.read(self.key)
            if manifest is not None:
                self._store.check_signature(manifest)
        except UnusableError as problem:
            self._drop(problem, writable=True)
            return None
        return manifest

    def _sweep(self, works: Path) -> None:
        """Remove the folders of runs that were killed: nobody holds them."""
        for work in works.glob("*"):
            with contextlib.suppress(OSError), (work / _LOCK).open("ab") as handle:
                if take_lock(handle, wait=False):
                    shutil.rmtree(work, ignore_errors=True)
                    self._say("what a killed run compiled and had not signed is removed")


def _compiled(content: Path) -> Iterator[str]:
    """Names of the plain files below a folder that are finished, without what compilers lock with."""
    for folder, folders, names in os.walk(content):
        folders[:] = [name for name in folders if not name.startswith("tmp.")]
        for path in (Path(folder, name) for name in names):
            name = path.relative_to(content).as_posix()
            unfinished = path.suffix in (".lock", ".tmp")
            if unfinished or path.is_symlink() or not path.is_file() or not is_plain(name):
                continue
            if path.suffix != libraries.SUFFIX or libraries.is_whole(path):
                yield name


def _seen(path: Path) -> Seen | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns


def _words(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
