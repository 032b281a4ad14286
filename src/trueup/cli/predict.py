"""`trueup predict RECIPE`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .output import JSON_OPTION, print_json, print_rich, say, stdout_reserved
from .platforms import Platform, find_platform
from .recipe import RECIPE_ARGUMENT, SET_OPTION
from .records import PRICE_SOURCE_OPTION, price_given

if TYPE_CHECKING:
    from trueup.analysis.memory_plan import Fit
    from trueup.analysis.predict_job import Job
    from trueup.recipe import Recipe
    from trueup.schema import Measurement, ModelDims, Prediction

FULL_ROWS = (
    "Count rows of data.max_length without padding, all of it supervised: the most that a step can take. "
    "Needs neither data nor weights."
)
USD_PER_HOUR_OPTION = typer.Option(
    None, "--usd-per-hour", help="Price of the whole platform, instead of the recipe's or the catalog's."
)


def predict(
    recipe: str = RECIPE_ARGUMENT,
    overrides: list[str] = SET_OPTION,
    platform: str | None = typer.Option(
        None, "--platform", help="A calibrated platform, a cloud instance or a chip. Default: this machine."
    ),
    fit: bool = typer.Option(
        False, "--fit", help="Also say what the largest micro-batch and row that fit are."
    ),
    full_rows: bool = typer.Option(False, "--full-rows", help=FULL_ROWS),
    usd_per_hour: float | None = USD_PER_HOUR_OPTION,
    price_source: str = PRICE_SOURCE_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Say what a step will take before it is run, by the datasheet and as calibrated."""
    from trueup.recipe import load_recipe

    price = price_given(usd_per_hour, price_source)
    loaded = load_recipe(recipe, overrides)
    with stdout_reserved(), contextlib.ExitStack() as opened:
        found = find_platform(platform, loaded.recipe, opened)
        if price is not None:
            found = replace(found, price=price, notes=())
        for note in found.notes:
            say(f"note: {note}")
        job, config = _job(loaded.recipe, found, full_rows=full_rows)
        predictions = _predictions(job, found)
        fitting = _fit(job, config, found) if fit else None
    if as_json:
        print_json(_document(job, found, predictions, fitting, full_rows))
        return
    from trueup.report.predict import fit_text, predict_text

    print_rich(predict_text(predictions, about=_about(job, found, full_rows)))
    if fitting is not None:
        print_rich(fit_text(fitting))
    if found.calibration is None and platform is None:  # last, where it is seen
        say("this machine is not calibrated, so half of the figures are missing: run `trueup calibrate`")


def _predictions(job: Job, platform: Platform) -> list[Prediction]:
    from trueup.analysis.predict import by_calibration, by_datasheet

    return [
        by_datasheet(job, platform.chip, platform.title),
        by_calibration(job, platform.calibration, host=platform.host, platform=platform.title),
    ]


# --- the job ------------------------------------------------------------------------------------------------


def _job(recipe: Recipe, platform: Platform, *, full_rows: bool) -> tuple[Job, dict[str, Any]]:
    job, config = _full_rows(recipe, platform) if full_rows else _planned(recipe, platform)
    return replace(job, no_price=platform.no_price), config


def _planned(recipe: Recipe, platform: Platform) -> tuple[Job, dict[str, Any]]:
    """From prepared data, in the shapes that training would take there."""
    from trueup.data import evaluated
    from trueup.model.dims import expected_dims, most_positions
    from trueup.model.load import masked_by_config
    from trueup.train.foresight import job_of
    from trueup.train.shapes import make_planner
    from trueup.train.step_work import planned_work

    prepared, config = _prepared(recipe)
    training, validation = prepared.split("train"), prepared.split("validation")
    chosen_N = evaluated(validation, recipe.evaluate.max_tokens)
    dims = expected_dims(config, recipe.tune)
    planner = make_planner(
        recipe,
        training,
        validation.lengths[chosen_N],
        device=platform.device,
        dims=dims,
        profile=platform.learnt,
        positions=most_positions(config),
        price=platform.price,
        modes=platform.modes,
        masked=masked_by_config(config, recipe.tune, platform.device.kind),
    )
    plan = planner.plan()
    assert planner.profile is not None
    attention = planner.profile.attention if plan.compile == "none" else "row"
    steps = planned_work(
        *(plan, planner.data.arranged(plan), training),
        seed=recipe.train.seed,
        attention=attention,
        steps=recipe.train.max_steps,
    )
    job = job_of(
        *(recipe, dims, plan, steps),
        policy=platform.policy,
        attention=attention,
        longest=planner.data.longest,
        profile=planner.profile,
        ranks=platform.ranks,
        price=platform.price,
    )
    return job, config


def _prepared(recipe: Recipe) -> tuple[Any, dict[str, Any]]:
    from trueup.data import find_prepared
    from trueup.home import find_home
    from trueup.model.builtin import resolve_model
    from trueup.model.load import load_tokenizer, read_config
    from trueup.schema import InputError

    home = find_home()
    resolved = resolve_model(recipe.model.path, home.path, network=False, say=say)
    config = read_config(resolved)
    found = find_prepared(
        recipe.data, load_tokenizer(resolved), home.data, vocab_size=int(config["vocab_size"])
    )
    if found is None:
        raise InputError(
            "this recipe's data have not been prepared, and without their lengths nothing is known of "
            "padding and attention: run `trueup prepare` with the same recipe first, or give --full-rows"
        )
    return found, config


def _full_rows(recipe: Recipe, platform: Platform) -> tuple[Job, dict[str, Any]]:
    """Micro-batches as large as the recipe asks, of full rows. Asks neither data nor weights."""
    from trueup.analysis.memory_plan import MemoryAsk
    from trueup.analysis.predict_job import Job
    from trueup.analysis.predict_terms import Tuning
    from trueup.schema import AttentionMode
    from trueup.train.step_work import counted

    config = _config(recipe)
    dims = _dims(recipe, config)
    width = recipe.data.max_length
    rows = max(1, recipe.shapes.tokens_per_microbatch // width)
    count = max(1, recipe.train.tokens_per_step // (rows * width))
    attention: AttentionMode = "example" if platform.host else "row"
    head = rows * (width - 1)
    one = counted([width] * rows, rows=rows, width=width, supervised=head, head=head, attention=attention)
    tuning = Tuning.of(recipe.tune)
    job = Job(
        dims=dims,
        tuning=tuning,
        policy=platform.policy,
        steps=[(one,) * count],
        memory=MemoryAsk(
            dims=dims,
            tuning=tuning,
            policy=platform.policy,
            rows=rows,
            width=width,
            head_rows=head,
            attention=attention,
            checkpointing=recipe.train.activation_checkpointing,
        ),
        compiles=_compiling(platform),
        checkpointing=recipe.train.activation_checkpointing,
        ranks=platform.ranks,
        price=platform.price,
    )
    return job, config


def _compiling(platform: Platform) -> Measurement:
    from trueup.schema import Measurement, unavailable

    if platform.device.static_shapes_only:
        return unavailable("s", "nobody publishes what compiling a shape takes there")
    return Measurement(value=0.0, unit="s", kind="predicted", method="eager steps: nothing is compiled")


def _config(recipe: Recipe) -> dict[str, Any]:
    """The model's config.json, or what the catalog has of it."""
    from trueup.catalog.models import published_model, published_models
    from trueup.home import find_home
    from trueup.model.builtin import BUILTINS, resolve_model
    from trueup.model.folder import config_of
    from trueup.schema import InputError

    path = recipe.model.path
    folder = Path(path).expanduser()
    if folder.is_dir():
        return config_of(folder)
    published = published_model(path)
    if published is not None:
        say(f"dimensions of {published.title}: {published.source}, {published.as_of}")
        return dict(published.config)
    if path in BUILTINS:
        return config_of(resolve_model(path, find_home().path, network=False, say=say).folder)
    raise InputError(
        f"model.path {path}: no such folder, and the catalog does not hold this model's dimensions; it holds "
        f"{', '.join(published_models())}"
    )


def _dims(recipe: Recipe, config: dict[str, Any]) -> ModelDims:
    from trueup.model.dims import expected_dims
    from trueup.schema import InputError

    try:
        return expected_dims(config, recipe.tune)
    except KeyError as error:
        raise InputError(
            f"{recipe.model.path}: config.json has no {error}; a Llama-class model is expected"
        ) from None


# --- what fits ----------------------------------------------------------------------------------------------


def _fit(job: Job, config: dict[str, Any], platform: Platform) -> Fit:
    from trueup.analysis.memory_plan import largest_fit
    from trueup.model.dims import most_positions
    from trueup.schema import InputError

    if platform.memory_bytes is None:
        raise InputError(f"--fit: nobody says how much memory {platform.title} has")
    return largest_fit(job.memory, platform.memory_bytes, positions=most_positions(config))


# --- what is printed ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class About:
    """The first lines of the answer."""

    title: str
    lines: tuple[str, ...]


def _about(job: Job, platform: Platform, full_rows: bool) -> About:
    from trueup.schema.counting import counted_as

    tuned = f"LoRA r{job.tuning.rank}" if job.tuning.method == "lora" else "full fine-tuning"
    shapes = sorted({(one.rows, one.width) for step in job.steps for one in step}, reverse=True)
    shown = ", ".join(f"{rows} x {width}" for rows, width in shapes[:4]) + (" …" if len(shapes) > 4 else "")
    count = sum(len(step) for step in job.steps) / max(1, len(job.steps))
    each = f"{counted_as(f'{count:.4g}', 'micro-batch', 'micro-batches')} of {shown} a step"
    source = "full rows, as asked" if full_rows else f"{len(job.steps)} planned steps"
    devices = f", {job.ranks} devices" if job.ranks > 1 else ""
    return About(
        title=f"{job.dims.parameters / 1e6:,.4g} M parameters, {tuned}, {job.policy}, on {platform.title}"
        f"{devices}",
        lines=(f"{each}; {source}",),
    )


def _document(
    job: Job, platform: Platform, predictions: list[Prediction], fitting: Fit | None, full_rows: bool
) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "platform": platform.title,
        "job": {
            "model": job.dims.model_dump(mode="json"),
            "precision": job.policy,
            "attention": job.memory.attention,
            "steps": len(job.steps),
            "full_rows": full_rows,
            "micro_batch": [job.memory.rows, job.memory.width],
            "ranks": job.ranks,
        },
        "predictions": [one.model_dump(mode="json") for one in predictions],
        "fit": None if fitting is None else asdict(fitting),
    }
