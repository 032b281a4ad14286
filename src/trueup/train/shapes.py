"""The shape plan of a run: what it follows from, gathered, and the same on every rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from trueup.analysis.profile import estimated_profile
from trueup.data import JobData, Planner, TokenTable, job_tokens
from trueup.device import Device
from trueup.recipe import Recipe
from trueup.schema import CompileMode, ModelDims, PlatformProfile, Price, ShapePlan, TrueupError

from .stop import wall_limit
from .world import World


def make_planner(
    recipe: Recipe,
    training: TokenTable,
    evaluation_lengths_N: NDArray[np.int32],
    *,
    device: Device,
    dims: ModelDims,
    profile: PlatformProfile | None,
    positions: int | None,
    price: Price | None,
    modes: tuple[CompileMode, ...],
    masked: bool,
) -> Planner:
    """Without a profile learnt from runs, published figures are asked. `masked`: eager attention is computed
    over whole rows, not over each example."""
    from trueup.model.loss import CHUNK_ROWS

    known = profile or estimated_profile(device.kind, device.name, dims, static=device.static_shapes_only)
    known = known.model_copy(update={"attention": "row" if masked else "example"})
    data = JobData(training.lengths, training.supervised, evaluation_lengths_N)
    wall_s, _ = wall_limit(recipe.train.stop, price)
    return Planner(
        data=data,
        shapes=recipe.shapes,
        tokens_per_step=recipe.train.tokens_per_step,
        job_tokens=job_tokens(recipe.train, data.useful_tokens, known, wall_s),
        chunk_rows=CHUNK_ROWS,
        profile=known,
        modes=modes,
        positions=positions,
    )


def shared_plan(make: Callable[[], ShapePlan], world: World) -> ShapePlan:
    """The plan that the leading rank makes, on every rank: what a profile says may differ between processes,
    and ranks with different plans would wait for each other forever. Raises TrueupError on all of them where
    the leading one finds none."""
    made: ShapePlan | TrueupError
    try:
        made = make()
    except TrueupError as error:
        made = error
    found = world.from_leader(made.model_dump_json() if isinstance(made, ShapePlan) else "")
    if found:
        return ShapePlan.model_validate_json(found)
    raise made if isinstance(made, TrueupError) else TrueupError("the leading process found no shape plan")
