"""`trueup shapes plan RECIPE`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import typer

from .output import JSON_OPTION, print_json, print_rich, stdout_reserved
from .prepare import prepare_data_of
from .recipe import RECIPE_ARGUMENT, SET_OPTION

if TYPE_CHECKING:
    from trueup.data import Planner
    from trueup.recipe import Recipe
    from trueup.schema import ShapePlan

app = typer.Typer(help="Which shapes a job will show its device, and what each choice would cost.")


@app.callback()
def _shapes() -> None:
    pass  # keeps `plan` a command of its own: typer makes a lone command the group itself


@app.command()
def plan(
    recipe: str = RECIPE_ARGUMENT,
    overrides: list[str] = SET_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Say which shapes `trueup train` would take, and of every alternative why it would not."""
    from trueup.recipe import load_recipe

    loaded = load_recipe(recipe, overrides)
    with stdout_reserved():
        planner, found = _plan(loaded.recipe)
    assert planner.profile is not None
    if as_json:
        document: dict[str, Any] = {
            "job": {
                "examples": len(planner.data.lengths_N),
                "useful_tokens_per_epoch": planner.data.useful_tokens,
                "useful_tokens": planner.job_tokens,
                "tokens_per_step": planner.tokens_per_step,
            },
            "plan": found.model_dump(mode="json"),
            "profile": planner.profile.model_dump(mode="json"),
        }
        print_json(document)
        return
    from trueup.report.shapes import plan_text

    print_rich(plan_text(found, planner.profile, job_tokens=planner.job_tokens))


def _plan(recipe: Recipe) -> tuple[Planner, ShapePlan]:
    from trueup.data import evaluated
    from trueup.device import open_device
    from trueup.model.dims import expected_dims, most_positions
    from trueup.model.load import masked_by_config
    from trueup.train.compiling import compile_modes
    from trueup.train.shapes import make_planner

    from .price_book import price_of
    from .profiles import learnt

    prepared, _, config = prepare_data_of(recipe)
    training, validation = prepared.split("train"), prepared.split("validation")
    chosen_N = evaluated(validation, recipe.evaluate.max_tokens)
    with contextlib.closing(open_device(recipe.platform.device, threads=recipe.platform.threads)) as device:
        modes, _ = compile_modes(recipe.compile.mode, device)
        planner = make_planner(
            recipe,
            training,
            validation.lengths[chosen_N],
            device=device,
            dims=expected_dims(config, recipe.tune),
            profile=learnt(recipe, device),
            positions=most_positions(config),
            price=price_of(recipe),
            modes=modes,
            masked=masked_by_config(config, recipe.tune, device.kind),
        )
    return planner, planner.plan()
