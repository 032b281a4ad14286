"""A run is foretold before its first step, so that it can be held against what it was expected to take."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.analysis.memory_plan import MemoryAsk, Policy
from trueup.analysis.predict import by_calibration, by_datasheet
from trueup.analysis.predict_job import Job, StepWork
from trueup.analysis.predict_terms import Tuning
from trueup.analysis.residual import EVENT, prediction_event
from trueup.catalog import Accelerator, accelerator_for_device_name
from trueup.device import Device
from trueup.recipe import Recipe
from trueup.schema import (
    AttentionMode,
    Calibration,
    Measurement,
    ModelDims,
    PlatformProfile,
    Prediction,
    Price,
    ShapePlan,
    SpanName,
    unavailable,
)

from .session import Session
from .step_work import planned_steps, planned_work


def foretell(session: Session, calibration: Calibration | None) -> None:
    """Work out what a step of this run will take, and record it. Costs nothing where nothing can be told."""
    with session.timeline.span(SpanName.CALIBRATE):
        try:
            if calibration is None and _chip(session.device) is None:
                return
            predictions = predicted(session, calibration)
        except Exception as error:  # a run is worth more than its prediction: nothing depends on it
            session.timeline.event("note", f"the run was not foretold: {error}")
            return
        best = next((one for one in predictions if one.lines["step_s"].value is not None), None)
        if best is None:
            return
        value = best.lines["step_s"].value
        message = f"a step is foretold to take {value:.4g} s ({best.basis}: {best.platform})"
        session.timeline.event(EVENT, message, **prediction_event(predictions))


def predicted(session: Session, calibration: Calibration | None) -> list[Prediction]:
    """By this device's datasheet, and from what was calibrated on it."""
    recipe, device, plan = session.recipe, session.device, session.plan
    own_layers = session.choices["layers"].value == "own"
    attention: AttentionMode = "example" if own_layers else "row"
    job = job_of(
        recipe,
        session.model.dims,
        plan,
        planned_work(
            *(plan, session.arrangement, session.training),
            seed=recipe.train.seed,
            attention=attention,
            steps=recipe.train.max_steps,
        ),
        policy=session.precision.policy,
        attention=attention,
        longest=session.planner.data.longest,
        profile=session.planner.profile,
        ranks=session.world.size,
        price=session.price,
    )
    return [
        by_calibration(job, calibration, host=device.kind == "cpu", platform=device.name),
        by_datasheet(job, _chip(device), device.name),
    ]


def _chip(device: Device) -> Accelerator | None:
    """The catalog's, with its published ceilings. No CPU is in it."""
    return None if device.kind == "cpu" else accelerator_for_device_name(device.name)


def job_of(
    recipe: Recipe,
    dims: ModelDims,
    plan: ShapePlan,
    steps: Sequence[StepWork],
    *,
    policy: Policy,
    attention: AttentionMode,
    longest: int,
    profile: PlatformProfile | None,
    ranks: int,
    price: Price | None,
) -> Job:
    """What a prediction starts from. `steps` as planned; `longest`: the longest example."""
    rows, width = plan.largest if plan.training else (1, 1)
    tuning = Tuning.of(recipe.tune)
    compiles, ratio = _compiling(plan, profile)
    # Layers of our own have products compiled before the first step (warm_up.py).
    ready_tokens = max((rows * width for rows, width in plan.training), default=0)
    ready_tokens = ready_tokens if attention == "example" else 0
    ready_attention, ready_places = _ready_attention(ready_tokens)
    return Job(
        dims=dims,
        tuning=tuning,
        policy=policy,
        steps=steps,
        memory=MemoryAsk(
            dims=dims,
            tuning=tuning,
            policy=policy,
            rows=rows,
            width=width,
            head_rows=max((one.head_rows for step in steps for one in step), default=0),
            attention=attention,
            longest=longest,
            checkpointing=recipe.train.activation_checkpointing,
        ),
        planned=planned_steps(plan, recipe.train.max_steps),
        warmed_tokens=frozenset(rows * width for rows, width in plan.training),
        ready_tokens=ready_tokens,
        ready_attention=ready_attention,
        ready_places=ready_places,
        compiles=compiles,
        compiled_ratio=ratio,
        checkpointing=recipe.train.activation_checkpointing,
        ranks=ranks,
        price=price,
    )


def _ready_attention(tokens: int) -> tuple[int, int]:
    """(how many products of attention are made ready, places of the largest group with which they are)"""
    if not tokens:
        return 0, 0
    from trueup.model import attention  # loads torch

    return attention.ready_products(tokens), attention.ready_places(tokens)


def _compiling(plan: ShapePlan, profile: PlatformProfile | None) -> tuple[Measurement, Measurement | None]:
    """(seconds of compiling, compiled over eager step time). What no run has measured is not known."""
    if plan.compile == "none" and not (profile and profile.rules.static):
        nothing = Measurement(value=0.0, unit="s", kind="predicted", method="the plan compiles nothing")
        return nothing, None
    figures = None if profile is None else profile.compile.get(plan.compile)
    unknown = unavailable("s", "no earlier run of this model here tells what compiling takes")
    if figures is None:
        return unknown, unavailable("1", "no earlier run of this model here was compiled")
    timed = (figures.first_shape_s, figures.further_shape_s)
    if plan.compile_s is None or any(one.kind != "measured" for one in timed):
        return unknown, figures.step_ratio
    how = f"{len(plan.training)} training shapes, as earlier runs here compiled them"
    return Measurement(value=plan.compile_s, unit="s", kind="predicted", method=how), figures.step_ratio
