"""A kept compile cache as one zip: manifest.json and files/SHA256, as in the store.

Names, sizes and digests are checked before the first byte is kept. Digests do not say who made the code: that
says the signature, or the person who gives --trust-cache.
"""

from __future__ import annotations

import hashlib
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from trueup.files.whole import needs_another_place, replacing_file
from trueup.schema import InputError, StorageError
from trueup.schema.counting import counted

from .manifest import CachedFile, Manifest, NotSignedHereError, UnusableError, now
from .store import FILES_FOLDER, MANIFEST_FILE, CacheStore

MAX_MANIFEST_BYTES = 64 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed, so that the same cache gives the same archive
_CHUNK_BYTES = 1 << 20


def export_cache(home: Path, key: str, out: Path) -> Manifest:
    """Write the cache to `out`. InputError where this home has not signed it, it is damaged, or `out` cannot
    be a file there; StorageError where the disk refuses."""
    store = CacheStore(home)
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise InputError(f"{out} cannot be written: give the name of a file in a folder that exists")
    with _explained(out):
        manifest = _exportable(store, key)
        with replacing_file(out) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_info(MANIFEST_FILE), manifest.text())
            for file in _distinct(manifest):
                with (
                    store.open_file(key, file) as read,
                    archive.open(_info(_entry(file)), "w", force_zip64=True) as write,
                ):
                    shutil.copyfileobj(read, write, _CHUNK_BYTES)
    return manifest


def import_cache(home: Path, path: Path, *, trust: bool) -> Manifest:
    """Bring a cache into a home, beside what it has under the same key, which stays. InputError, with nothing
    kept, where anything in the archive is not as it should be, or it is neither signed by this home nor
    trusted; StorageError where the disk refuses."""
    store = CacheStore(home)
    with _readable(path) as archive:
        manifest = _checked(archive)
        if not trust:
            _require_own(store, manifest, path)
        with _explained(store.folder), store.held():
            _require_room(store, manifest)
            here = _signed_here(store, manifest.key)
            try:
                for file in _distinct(manifest):
                    with archive.open(_entry(file)) as stream:
                        store.add_stream(manifest.key, stream)
                files = {**manifest.files, **(here.files if here else {})}
                store.write(manifest.model_copy(update={"files": files, "last_used": now()}))
            except BaseException:
                if here is None:
                    store.remove(manifest.key)
                else:
                    store.remove_unnamed(here)
                raise
    return manifest


def _require_own(store: CacheStore, manifest: Manifest, path: Path) -> None:
    try:
        store.check_signature(manifest)
    except NotSignedHereError as problem:
        raise InputError(
            f"{path} is not imported: {problem}. Compiled code is executed: if you trust who made it, import "
            "it with --trust-cache"
        ) from None


def _exportable(store: CacheStore, key: str) -> Manifest:
    try:
        manifest = store.read(key)
        if manifest is None:
            raise UnusableError("it has no manifest")
        store.check_signature(manifest)
    except UnusableError as problem:
        raise InputError(f"compile cache {key} is not exported: {problem}") from None
    if damaged := store.damaged(manifest):
        raise InputError(
            f"compile cache {key} is not exported: it has {counted(len(damaged), 'damaged file')}, the "
            f"first {damaged[0]}; the next run that uses it compiles them anew"
        )
    return manifest


def _signed_here(store: CacheStore, key: str) -> Manifest | None:
    """What this home has signed under the key; anything else there is set aside."""
    try:
        manifest = store.read(key)
        if manifest is not None:
            store.check_signature(manifest)
    except UnusableError:
        store.set_aside(key)
        return None
    return manifest


def _checked(archive: zipfile.ZipFile) -> Manifest:
    """The manifest, every entry read and held against it. Nothing is written."""
    infos = {info.filename: info for info in archive.infolist()}
    if len(infos) != len(archive.infolist()):
        raise InputError("the archive has an entry twice")
    if MANIFEST_FILE not in infos or infos[MANIFEST_FILE].file_size > MAX_MANIFEST_BYTES:
        raise InputError(f"the archive has no {MANIFEST_FILE}: it is none that `trueup cache export` wrote")
    with archive.open(MANIFEST_FILE) as stream:
        raw = stream.read(MAX_MANIFEST_BYTES + 1)
    try:
        manifest = Manifest.read(raw)
    except UnusableError as problem:
        raise InputError(f"the archive holds no compile cache: {problem}") from None
    files = {_entry(file): file for file in _distinct(manifest)}
    if unlike := sorted({MANIFEST_FILE, *files} ^ set(infos)):
        raise InputError(f"the archive's entries are not those of its {MANIFEST_FILE}: {unlike[0]!r}")
    for name, file in files.items():
        with archive.open(name) as stream:
            if not _is(stream, file):
                raise InputError(f"{name} in the archive is not what its manifest says: it is damaged")
    return manifest


def _is(stream: IO[bytes], file: CachedFile) -> bool:
    """Whether a stream holds this file. Never more of it is read than that: declared sizes may lie."""
    digest, left = hashlib.sha256(), file.bytes + 1
    while left > 0 and (chunk := stream.read(min(left, _CHUNK_BYTES))):
        digest.update(chunk)
        left -= len(chunk)
    return left == 1 and digest.hexdigest() == file.sha256


def _require_room(store: CacheStore, manifest: Manifest) -> None:
    free = shutil.disk_usage(store.folder).free
    if manifest.size_bytes > free:
        raise StorageError(
            f"the cache needs {manifest.size_bytes >> 20} MiB under {store.folder}, {free >> 20} are free; "
            "make room, or set TRUEUP_HOME to a folder on another disk"
        )


def _distinct(manifest: Manifest) -> list[CachedFile]:
    """Its files, each content once."""
    files = {file.sha256: file for file in manifest.files.values()}
    return [files[sha256] for sha256 in sorted(files)]


def _entry(file: CachedFile) -> str:
    return f"{FILES_FOLDER}/{file.sha256}"


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.compress_type, info.create_system, info.external_attr = zipfile.ZIP_DEFLATED, 3, 0o600 << 16
    return info


@contextmanager
def _readable(path: Path) -> Iterator[zipfile.ZipFile]:
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a file; give the zip that `trueup cache export` wrote")
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError) as error:
        raise InputError(f"{path} is not a readable archive: {error}") from None


@contextmanager
def _explained(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = InputError if needs_another_place(error) else StorageError
        raise kind(
            f"{place} could not be written: {error.strerror or error}. Nothing was changed; free some space, "
            "or name another place"
        ) from None
