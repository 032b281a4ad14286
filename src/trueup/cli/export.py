"""`trueup export RUN --adapter DIR | --merged DIR`."""

from __future__ import annotations

from pathlib import Path

import typer

from .output import JSON_OPTION, print_json, say, stdout_reserved
from .records import RUN_ARGUMENT, records_of


def export(
    ref: str = RUN_ARGUMENT,
    adapter: Path | None = typer.Option(
        None, "--adapter", help="Folder for the LoRA adapter, as peft reads it."
    ),
    merged: Path | None = typer.Option(
        None, "--merged", help="Folder for the whole model, adapters merged in."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Write a run's weights for other programs: the best by evaluation, else the last."""
    from trueup.schema import InputError

    if (adapter is None) == (merged is None):
        raise InputError("give either --adapter DIR or --merged DIR")
    with stdout_reserved():
        document = _export(ref, adapter, merged)
    if as_json:
        print_json(document)
    else:
        say(f"wrote {document['path']}: {document['kind']} of run {document['run']}, {document['weights']}")


def _export(ref: str, adapter: Path | None, merged: Path | None) -> dict[str, object]:
    from trueup.home import find_home
    from trueup.model.builtin import resolve_model
    from trueup.model.export import export_adapter_from_run, export_merged_from_run, read_weights_manifest
    from trueup.recipe import Recipe
    from trueup.schema import InputError
    from trueup.train.weights import kept

    home = find_home()
    (record,) = records_of([ref])
    run_id = record.header.id
    weights = kept(home.runs / run_id / "weights")
    if weights is None:
        raise InputError(
            f"run {run_id} keeps no weights here ({record.header.state}); a run imported from another "
            "machine brings its record, not its model"
        )
    recipe = Recipe.model_validate(record.header.recipe)
    resolved = resolve_model(recipe.model.path, home.path, say=say)
    if adapter is not None:
        export_adapter_from_run(weights, resolved, recipe.tune, adapter)
    elif merged is not None:
        export_merged_from_run(weights, resolved, recipe.tune, merged)
    about = read_weights_manifest(weights)["about"]
    return {
        "run": run_id,
        "path": str(adapter or merged),
        "kind": "adapter" if adapter else "merged model",
        "weights": f"{weights.name}, step {about['step']}",
        "step": about["step"],
    }
