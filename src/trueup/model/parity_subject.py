"""What a side of a comparison is of: a model as it is, or one with the weights of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueup.checkpoint.folder import load_tensors, verified
from trueup.checkpoint.manifest import MANIFEST_FILE, WEIGHTS, CheckpointManifest
from trueup.recipe import Recipe
from trueup.recipe.models import TuneSection

from .builtin import ResolvedModel, resolve_model
from .load import LoadedModel, put_weights
from .parity import Side

Say = Callable[[str], None]


@dataclass(frozen=True)
class Subject:
    """`put` puts the subject's own weights over the base model's; `recipe` is that of the run they are of."""

    resolved: ResolvedModel
    section: TuneSection
    weights: str
    put: Callable[[LoadedModel], object] | None = None
    recipe: Recipe | None = None

    def side(self, text: str, options: Mapping[str, str], threads: int | None) -> Side:
        """`options`: fields of `Side`. The precision is the run's own where none is asked for."""
        own = {} if self.recipe is None else {"precision": self.recipe.precision.policy}
        chosen: dict[str, Any] = {**own, **options}
        return Side(text, self.resolved, self.section, self.weights, self.put, threads=threads, **chosen)


def of_model(resolved: ResolvedModel) -> Subject:
    """Every parameter counts as trained."""
    return Subject(resolved, TuneSection(method="full"), "the model's own weights")


def of_checkpoint_folder(folder: Path, home: Path, say: Say) -> Subject | None:
    """None where the folder is no checkpoint's. Raises DamagedCheckpointError."""
    if not (folder / MANIFEST_FILE).is_file() or (folder / "config.json").is_file():
        return None
    manifest = verified(folder)
    weights = f"checkpoint of run {manifest.origin.run}, step {manifest.step}"
    return of_checkpoint(folder, manifest, weights, home, say)


def of_checkpoint(folder: Path, manifest: CheckpointManifest, weights: str, home: Path, say: Say) -> Subject:
    """Of a whole one; `weights` says in words which they are. Raises InputError where there is no base model
    for it."""
    recipe = Recipe.model_validate(manifest.origin.recipe)
    resolved = resolve_model(recipe.model.path, home, say=say)

    def put(loaded: LoadedModel) -> None:
        put_weights(loaded, load_tensors(folder, WEIGHTS))

    return Subject(resolved, recipe.tune, weights, put, recipe)
