"""From what a person calls one side of a comparison to the model, its weights and how to run them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.home import find_home
from trueup.schema import InputError, TrueupError

from .output import say

if TYPE_CHECKING:
    from trueup.checkpoint.manifest import CheckpointManifest
    from trueup.model.builtin import ResolvedModel
    from trueup.model.load import LoadedModel
    from trueup.recipe import Recipe
    from trueup.recipe.models import TuneSection

CHOICES: dict[str, tuple[str, ...]] = {
    "device": ("auto", "cpu", "cuda", "neuron"),
    "precision": ("auto", "fp32", "bf16", "bf16-master", "autocast"),
    "attention": ("auto", "sdpa", "eager", "own"),
    "compile": ("none", "layer", "model"),
}
KEYS = (*CHOICES, "threads")
_SIDE = re.compile(r"(?P<subject>.+?)(?::(?P<keys>[a-z_]+=.*))?", re.DOTALL)
BEST, LAST = "best", "last"


@dataclass(frozen=True)
class Asked:
    """One side as the command line gives it."""

    text: str
    subject: str
    options: Mapping[str, str]
    threads: int | None = None


@dataclass(frozen=True)
class Subject:
    """`put` puts the subject's own weights over the base model's; `recipe` is that of the run they are of."""

    resolved: ResolvedModel
    section: TuneSection
    weights: str
    put: Callable[[LoadedModel], object] | None = None
    recipe: Recipe | None = None


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
        if key in CHOICES and value not in CHOICES[key]:
            known = CHOICES[key]
            raise InputError(f"{text}: {key}={value}{_nearest(value, known)}; give {', '.join(known)}")
        options[key] = value
    threads = options.pop("threads", None)
    if threads is not None and (not threads.isdecimal() or not 1 <= int(threads) <= 4096):
        raise InputError(f"{text}: threads={threads}; give a number of threads, 1 or more")
    return Asked(text, match["subject"], options, int(threads) if threads else None)


def _nearest(word: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def find_subject(name: str) -> Subject:
    """A model's or checkpoint's folder, a built-in model, or a run. Raises InputError for what is none."""
    from trueup.model.builtin import BUILTINS, resolve_model
    from trueup.recipe.models import TuneSection

    home = find_home().path
    folder = Path(name).expanduser()
    if folder.is_dir() and (found := _checkpoint_in(folder)) is not None:
        return found
    if name in BUILTINS or folder.is_dir():
        _say_of_run_named(name)
        resolved = resolve_model(name, home, say=say)
        return Subject(resolved, TuneSection(method="full"), "the model's own weights")
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

    from .records import records_of

    try:
        (record,) = records_of([ref])
    except InputError as error:
        raise InputError(
            f"{text}: {error}; it is no folder of a model or checkpoint and no built-in model either"
        ) from None
    run_id = record.header.id
    try:
        folder, manifest, word = chosen(find_home().runs / run_id, which, say)
    except InputError as error:
        raise InputError(f"{text}: {error}") from None
    return _of_checkpoint(folder, manifest, f"{word} of run {run_id}, step {manifest.step}")


def _checkpoint_in(folder: Path) -> Subject | None:
    from trueup.checkpoint.folder import verified
    from trueup.checkpoint.manifest import MANIFEST_FILE

    if not (folder / MANIFEST_FILE).is_file() or (folder / "config.json").is_file():
        return None
    manifest = verified(folder)
    return _of_checkpoint(folder, manifest, f"checkpoint of run {manifest.origin.run}, step {manifest.step}")


def _of_checkpoint(folder: Path, manifest: CheckpointManifest, weights: str) -> Subject:
    from trueup.checkpoint.folder import load_tensors
    from trueup.checkpoint.manifest import WEIGHTS
    from trueup.model.builtin import resolve_model
    from trueup.model.load import put_weights
    from trueup.recipe import Recipe

    recipe = Recipe.model_validate(manifest.origin.recipe)
    resolved = resolve_model(recipe.model.path, find_home().path, say=say)

    def put(loaded: Any) -> None:
        put_weights(loaded, load_tensors(folder, WEIGHTS))

    return Subject(resolved, recipe.tune, weights, put, recipe)
