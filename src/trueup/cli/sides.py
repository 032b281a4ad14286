"""From what a person calls one side of a comparison to what is run, or was run and saved."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from trueup.home import find_home
from trueup.schema import CompileMode, InputError, TrueupError
from trueup.schema.choices import AskedAttention, AskedDevice, AskedPrecision

from .output import say

if TYPE_CHECKING:
    from trueup.model.parity import Side
    from trueup.model.parity_file import OutputFile
    from trueup.model.parity_subject import Subject

CHOICES: dict[str, tuple[str, ...]] = {
    "device": get_args(AskedDevice),
    "precision": get_args(AskedPrecision),
    "attention": get_args(AskedAttention),
    "compile": get_args(CompileMode),
}
KEYS = (*CHOICES, "threads")
_SIDE = re.compile(r"(?P<subject>.+?)(?::(?P<keys>[a-z_]+=.*))?", re.DOTALL)


@dataclass(frozen=True)
class Asked:
    """One side as the command line gives it."""

    text: str
    subject: str
    options: Mapping[str, str]
    threads: int | None = None


@dataclass(frozen=True)
class Opened:
    """One side: what to run and its subject, or what was run and saved."""

    text: str
    subject: Subject | None
    run: Side | OutputFile


def parse_side(text: str) -> Asked:
    """`SUBJECT[:key=value,...]`. Raises InputError for a key or value that does not exist."""
    match = _SIDE.fullmatch(text)
    if match is None:
        raise InputError("a side of the comparison is empty; give a run, a checkpoint or a model")
    options: dict[str, str] = {}
    for pair in (match["keys"] or "").split(",") if match["keys"] else ():
        key, _, value = pair.partition("=")
        if key not in KEYS:
            raise InputError(f"{text}: no key {key!r}{_nearest(key, KEYS)}; keys are {', '.join(KEYS)}")
        if key in options:
            raise InputError(f"{text}: {key} is given twice")
        known = CHOICES.get(key, (value,))
        if value not in known:
            raise InputError(f"{text}: {key}={value}{_nearest(value, known)}; give {', '.join(known)}")
        options[key] = value
    threads = options.pop("threads", None)
    if threads is not None and (not threads.isdecimal() or not 1 <= int(threads) <= 4096):
        raise InputError(f"{text}: threads={threads}; give a number of threads, 1 or more")
    return Asked(text, match["subject"], options, int(threads) if threads else None)


def _nearest(word: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def open_side(text: str) -> Opened:
    """Raises InputError for what is no side, StorageError for a damaged file or checkpoint."""
    asked = parse_side(text)
    path = Path(asked.subject).expanduser()
    if not path.is_file():
        subject = _subject(asked.subject)
        return Opened(text, subject, subject.side(text, asked.options, asked.threads))
    if asked.options or asked.threads:
        raise InputError(f"{text}: a file holds what was run already; leave out the keys")
    from trueup.model.parity_file import OutputFile

    saved = OutputFile(path)
    saved.verify()
    return Opened(text, None, saved)


def _subject(name: str) -> Subject:
    """A model's or checkpoint's folder, a built-in model, or a run."""
    from trueup.model.builtin import BUILTINS, resolve_model
    from trueup.model.parity_subject import of_checkpoint_folder, of_model

    home = find_home().path
    folder = Path(name).expanduser()
    if folder.is_dir() and (found := of_checkpoint_folder(folder, home, say)) is not None:
        return found
    if name in BUILTINS or folder.is_dir():
        _say_of_run_named(name)
        return of_model(resolve_model(name, home, say=say))
    run, _, which = name.rpartition("@") if "@" in name else (name, "", "")
    return _of_run(run, which, name)


def _say_of_run_named(name: str) -> None:
    from .records import open_store

    try:
        with open_store() as store:
            run_id = store.resolve(name)
    except TrueupError:  # no such run, or no store here: nothing could be confused
        return
    if run_id != name:
        say(f"note: {name} is the model; the run of that name is {run_id}")


def _of_run(ref: str, which: str, text: str) -> Subject:
    from trueup.checkpoint.choose import chosen
    from trueup.model.parity_subject import of_checkpoint

    from .records import records_of

    try:
        (record,) = records_of([ref])
    except InputError as error:
        raise InputError(
            f"{text}: {error}; it is no folder of a model or checkpoint and no built-in model either"
        ) from None
    home, run_id = find_home(), record.header.id
    try:
        folder, manifest, word = chosen(home.runs / run_id, which, say)
    except InputError as error:
        raise InputError(f"{text}: {error}") from None
    weights = f"{word} of run {run_id}, step {manifest.step}"
    return of_checkpoint(folder, manifest, weights, home.path, say)
