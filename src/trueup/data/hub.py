"""A data set from the Hugging Face hub, through the package `datasets` (extra `hub`).

`hub:OWNER/NAME` is the train split of its default configuration; `hub:OWNER/NAME#SPLIT` another split,
`hub:OWNER/NAME@REVISION#SPLIT` one of a commit, branch or tag. The package downloads it and keeps it as Arrow
files in its own cache; these are read as any other Arrow files, and the digest is of their content. Data sets
that need code of their own to be run are refused by the package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from trueup.schema import InputError, MissingExtraError

from .containers import DataFile
from .locate import Located

PREFIX = "hub:"
_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?(#(?P<split>[\w.]+))?")


def locate_hub(source: str) -> Located:
    """The cached Arrow files of a data set, downloaded where they are not there yet.

    Raises MissingExtraError, and InputError: a name that is none, no network, no such data set or split.
    """
    parts = _NAME.fullmatch(source.removeprefix(PREFIX))
    if parts is None:
        raise InputError(f"data.source '{source}': expected hub:OWNER/NAME, hub:OWNER/NAME@REVISION#SPLIT")
    found = _load(source, parts["name"], parts["revision"], parts["split"] or "train")
    paths = [Path(item["filename"]) for item in found.cache_files]
    if not paths:
        raise InputError(f"data.source '{source}' holds no records")
    files = [DataFile(path, f"{parts['name']}/{path.name}", "arrow") for path in paths]
    return Located(source, files)


def _load(source: str, name: str, revision: str | None, split: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingExtraError("datasets", "hub", f"data.source '{source}'") from None
    try:
        return datasets.load_dataset(name, split=split, revision=revision)
    except Exception as error:  # the package raises those of its HTTP clients beside its own
        first = str(error).splitlines()[0] if str(error) else "no reason given"
        raise InputError(
            f"data.source '{source}' could not be loaded from the hub: {type(error).__name__}: {first}. It "
            "needs a network, or the data set in the package's cache; check the name, the split and HF_TOKEN"
        ) from error
