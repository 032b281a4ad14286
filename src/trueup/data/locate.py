"""From `data.source` to the files it names, in the order they are read, and the digest of their content.

A source is one file, a folder (read with its subfolders), a glob, a folder that `datasets` saved, or
`hub:OWNER/NAME`. Files are read in the order of their paths within the source. The digest is of the content
and kind of each file in that order: the same files in another folder, or under other names that sort the same
way, are the same data set; in another order they are another, since `data.limit` and the order of training
depend on it."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trueup.schema import InputError

from .containers import COMPRESSIONS, KINDS, DataFile, file_of

FILES_SHOWN = 10  # of a list in a message
_SAVED = "state.json"  # what `Dataset.save_to_disk` writes beside its Arrow files
_SAVED_SPLITS = "dataset_dict.json"
_DESCRIPTIONS = frozenset(
    {f"{stem}{suffix}" for stem in ("readme", "license", "licence") for suffix in ("", ".txt", ".rst")}
    | {"dataset_info.json", "dataset_infos.json"}
)
_READABLE = f"{', '.join(KINDS)}; all but the last three may end in {' or '.join(COMPRESSIONS)}"


@dataclass
class Located:
    """Files in reading order; `notes` say what was passed over."""

    name: str
    files: list[DataFile]
    notes: list[str] = field(default_factory=list)


def locate(source: str) -> Located:
    """Raises InputError: nothing there, not readable, a kind that is not read, nothing to read."""
    path = Path(source).expanduser()
    try:
        if path.is_dir():
            return _folder(path)
        if path.exists() or not glob.has_magic(source):
            return Located(path.name, [_single(path, source)])
        return _glob(source)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; check data.source") from error


def content_digest(files: Iterable[DataFile]) -> str:
    """Raises InputError where a file cannot be read or is gone."""
    digest = hashlib.sha256()
    for file in files:
        try:
            with file.path.open("rb") as opened:
                content = hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as error:
            raise InputError(f"{file.path}: cannot be read: {error.strerror}; check data.source") from error
        digest.update(f"{file.container} {content}\n".encode())
    return digest.hexdigest()


def _single(path: Path, source: str) -> DataFile:
    if not path.exists():
        hint = " (a data set on the hub is written hub:OWNER/NAME)" if source.count("/") == 1 else ""
        raise InputError(f"{path}: no such file (looked from {Path.cwd()}); check data.source{hint}")
    if not path.is_file():  # a pipe would be read twice, and be empty the second time
        raise InputError(f"{path} is a pipe or device; data.source takes a file, a folder or a glob")
    file = file_of(path, path.name)
    if file is None:
        raise InputError(f"data.source '{source}' is not a kind of file that is read ({_READABLE})")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty; expected one JSON record per line, or a JSON list of records")
    return file


def _glob(source: str) -> Located:
    pattern = str(Path(source).expanduser())
    found = [Path(match) for match in glob.glob(pattern, recursive=True)]
    if not found:
        raise InputError(f"data.source '{source}' matches no file (looked from {Path.cwd()})")
    root = Path(pattern)
    while glob.has_magic(str(root)):
        root = root.parent
    members = [member for match in found for member in (_members(match) if match.is_dir() else [match])]
    return _collected(source, root, dict.fromkeys(members))


def _folder(path: Path) -> Located:
    if (path / _SAVED_SPLITS).is_file():
        splits = _loaded(path / _SAVED_SPLITS).get("splits", [])
        if not splits:
            raise InputError(f"{path / _SAVED_SPLITS} names no splits; save the data set again")
        if len(splits) > 1:
            raise InputError(
                f"{path} holds the splits {', '.join(splits)}; name one: data.source: {path}/{splits[0]}"
            )
        path = path / splits[0]
    if (path / _SAVED).is_file():
        return _saved(path)
    return _collected(path.name or path.resolve().name, path, _members(path))  # "." has no name


def _saved(path: Path) -> Located:
    """A folder of `Dataset.save_to_disk`: the files its state names, since others may be leftovers."""
    state = _loaded(path / _SAVED)
    try:
        names = [str(item["filename"]) for item in state["_data_files"]]
    except (KeyError, TypeError):
        raise InputError(f"{path / _SAVED} names no data files; save the data set again") from None
    if not names:
        raise InputError(f"{path} holds no data files: a saved data set without records")
    gone = [name for name in names if not (path / name).is_file()]
    if gone:
        raise InputError(f"{path}: {_list(gone)} of {_SAVED} missing; save the data set again")
    return Located(path.name, [DataFile(path / name, name, "arrow") for name in names])


def _loaded(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def _members(folder: Path) -> list[Path]:
    """Files below a folder, through links too, those that are hidden or in hidden folders left out. A folder
    that cannot be listed is an OSError: its files would be missing unsaid."""

    def refuse(error: OSError) -> None:
        raise error

    found: list[Path] = []
    seen: set[str] = set()
    for root, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(root)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if real not in seen else []
        found += [Path(root, name) for name in names if not name.startswith(".") and real not in seen]
        seen.add(real)
    return found


def _collected(name: str, root: Path, members: Iterable[Path]) -> Located:
    """Members as data files, in the order of their paths below the root. Descriptions and empty files are
    passed over and noted; another kind of file is refused, since it may be data that was meant to be read."""
    files: list[DataFile] = []
    passed: list[str] = []
    empty: list[str] = []
    unknown: list[str] = []
    named = sorted((path.relative_to(root).as_posix(), path) for path in members)
    for within, path in named:
        shown = os.fsencode(within).decode("utf-8", "replace")  # a name may be any bytes
        file = file_of(path, shown)
        if path.name.lower() in _DESCRIPTIONS or path.suffix.lower() == ".md":
            passed.append(shown)
        elif path.is_file() and path.stat().st_size == 0:
            empty.append(shown)
        elif file is None or not path.is_file():
            unknown.append(shown)
        else:
            files.append(file)
    if unknown:
        raise InputError(
            f"data.source '{name}': {_list(unknown)} cannot be read. Readable: {_READABLE}. Take these files "
            f"out, or name the others with a glob such as {root}/*.jsonl"
        )
    if not files:
        raise InputError(f"{root} holds no data files ({len(empty)} empty). Readable: {_READABLE}")
    notes = [f"passed over, being descriptions: {_list(passed)}"] if passed else []
    notes += [f"passed over, being empty: {_list(empty)}"] if empty else []
    return Located(name, files, notes)


def _list(names: list[str]) -> str:
    more = f" and {len(names) - FILES_SHOWN} more" if len(names) > FILES_SHOWN else ""
    return ", ".join(names[:FILES_SHOWN]) + more
