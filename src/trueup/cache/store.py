"""The kept compile caches of a home: HOME/compile-cache/KEY/ with manifest.json and files/SHA256.

Files are kept under their digests, so that nothing is ever changed in place: a writer adds files and then
replaces the manifest, and one killed between the two leaves files that no manifest names. A cache is taken
out by copying, each file digested on the way: what a run uses is what was signed. All that changes the store
holds its one lock.

Some compilers write the path of the cache's folder into JSON files. There it is kept as PLACEHOLDER, and each
copy names its own folder again: a home may move, and no copy leads to another's files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import IO

from trueup.files.lock import take_lock
from trueup.files.whole import new_beside, replace_text, sha256_of

from .manifest import KEY_DIGITS, CachedFile, Manifest, NotSignedHereError, UnusableError
from .signing import make_key, read_key

FOLDER = "compile-cache"
MANIFEST_FILE = "manifest.json"
FILES_FOLDER = "files"
PLACEHOLDER = b"[[trueup compile cache]]"
KEY_PATTERN = re.compile(f"[0-9a-f]{{{KEY_DIGITS}}}")
ASIDE = ".aside"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class CacheEntry:
    """A row of `trueup cache list`. `problem`: why it will not be used, or None where it will."""

    key: str
    manifest: Manifest | None
    last_used: datetime
    problem: str | None


class CacheStore:
    """Methods raise OSError as the disk does; what to tell a person of it is for the caller."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.folder = home / FOLDER

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Alone with the store, which is made if absent. Waits for whoever has it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / "lock").open("ab") as handle:
            take_lock(handle)
            yield

    def keys(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        return sorted(path.name for path in self.folder.iterdir() if KEY_PATTERN.fullmatch(path.name))

    def entries(self) -> list[CacheEntry]:
        """Every kept cache, the last used first. Signatures are checked, file contents are not."""
        found = [self._entry(key) for key in self.keys()]
        return sorted(found, key=lambda entry: entry.last_used, reverse=True)

    def read(self, key: str) -> Manifest | None:
        """What is kept under a key, whoever signed it; None without a manifest. Raises UnusableError where it
        is no manifest of this key."""
        try:
            manifest = Manifest.read((self.folder / key / MANIFEST_FILE).read_bytes())
        except FileNotFoundError:
            return None
        if manifest.key != key:
            raise UnusableError(f"its manifest is of another cache, {manifest.key}")
        return manifest

    def check_signature(self, manifest: Manifest) -> None:
        """Raises NotSignedHereError unless this home signed it."""
        key = read_key(self._home)
        if not manifest.signature:
            raise NotSignedHereError("it is not signed")
        if key is None or not manifest.is_signed_with(key):
            raise NotSignedHereError("it was made elsewhere or changed: its signature is not this home's")

    def copy_out(self, manifest: Manifest, target: Path) -> list[str]:
        """Copy the files of a cache below `target`. Returns the names of those that are missing or not what
        the manifest says: these are not there."""
        damaged = []
        for name, told in manifest.files.items():
            out = target / name
            out.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            blob = self._blob(manifest.key, told.sha256)
            if not blob.is_file() or _copy_file(blob, out) != told:
                out.unlink(missing_ok=True)
                damaged.append(name)
            elif name.endswith(".json"):
                out.write_bytes(out.read_bytes().replace(PLACEHOLDER, _in_json(target)))
        return damaged

    def damaged(self, manifest: Manifest) -> list[str]:
        """Names of the files that are missing or not what the manifest says."""
        blobs = {name: self._blob(manifest.key, told.sha256) for name, told in manifest.files.items()}
        return [n for n, blob in blobs.items() if not blob.is_file() or sha256_of(blob) != blob.name]

    def add(self, key: str, name: str, root: Path) -> CachedFile | None:
        """Keep the file `name` below `root`; `write` must then name it. None, and not kept, where it has
        vanished or could not be told from one whose path was replaced."""
        try:
            with (root / name).open("rb") as stream:
                if not name.endswith(".json"):
                    return self.add_stream(key, stream)
                content = stream.read()
        except FileNotFoundError:
            return None
        if PLACEHOLDER in content:
            return None
        return self.add_stream(key, BytesIO(content.replace(_in_json(root), PLACEHOLDER)))

    def add_stream(self, key: str, stream: IO[bytes]) -> CachedFile:
        """Keep what a stream holds, whatever file that is."""
        files = self.folder / key / FILES_FOLDER
        files.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = new_beside(files / "new")
        try:
            found = _copy(stream, part)
            part.replace(self._blob(key, found.sha256))
        finally:
            part.unlink(missing_ok=True)
        return found

    def open_file(self, key: str, file: CachedFile) -> IO[bytes]:
        return self._blob(key, file.sha256).open("rb")

    def write(self, manifest: Manifest) -> None:
        """Sign and put in place, then remove files that it does not name."""
        key = read_key(self._home) or make_key(self._home)
        place = self.folder / manifest.key
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_text(place / MANIFEST_FILE, manifest.signed(key).text())
        self.remove_unnamed(manifest)

    def remove_unnamed(self, manifest: Manifest) -> int:
        """Remove files that no manifest names, as a killed writer leaves them; returns how many."""
        named = {file.sha256 for file in manifest.files.values()}
        folder = self.folder / manifest.key / FILES_FOLDER
        unnamed = [path for path in folder.glob("*") if path.name not in named] if folder.is_dir() else []
        for path in unnamed:
            path.unlink()
        return len(unnamed)

    def set_aside(self, key: str) -> Path:
        """Move a cache to where nothing uses it; what was set aside before under this key is removed."""
        aside = self.folder / f"{key}{ASIDE}"
        shutil.rmtree(aside, ignore_errors=True)
        (self.folder / key).rename(aside)
        return aside

    def remove(self, key: str) -> None:
        """Remove a cache."""
        shutil.rmtree(self.folder / key, ignore_errors=True)

    def prune(self, before: datetime | None, *, dry_run: bool) -> list[str]:
        """Remove the caches last used before an instant, or all; with each what was set aside under its key.
        Returns their keys."""
        if not self.folder.is_dir():
            return []
        with self.held():
            due = [entry.key for entry in self.entries() if before is None or entry.last_used < before]
            for key in () if dry_run else due:
                shutil.rmtree(self.folder / key)
            for aside in () if dry_run else self.folder.glob(f"*{ASIDE}"):
                if aside.name.removesuffix(ASIDE) in due or before is None or _changed(aside) < before:
                    shutil.rmtree(aside)
        return due

    def _blob(self, key: str, sha256: str) -> Path:
        return self.folder / key / FILES_FOLDER / sha256

    def _entry(self, key: str) -> CacheEntry:
        manifest, problem = None, None
        place = self.folder / key
        last_used = _changed(place)
        try:
            manifest = self.read(key)
            if manifest is None:
                raise UnusableError("it has no manifest: an interrupted run left it")
            last_used = manifest.last_used
            self.check_signature(manifest)
        except UnusableError as error:
            problem = str(error)
        return CacheEntry(key, manifest, last_used, problem)


def _changed(path: Path) -> datetime:
    return datetime.fromtimestamp(path.lstat().st_mtime, UTC)


def _copy_file(source: Path, target: Path) -> CachedFile:
    with source.open("rb") as stream:
        return _copy(stream, target)


def _copy(stream: IO[bytes], target: Path) -> CachedFile:
    """Copy, and say what was copied: of the very bytes, not of a second look at the file."""
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as out:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            out.write(chunk)
    return CachedFile(sha256=digest.hexdigest(), bytes=size)


def _in_json(path: Path) -> bytes:
    """A path as a JSON string has it, without the quotes."""
    return json.dumps(str(path))[1:-1].encode()
