"""What a run works with, opened in the order in which it is needed. Each stretch of it is a span."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.data import Arrangement, Epoch, PlannedBatch, Planner, Prepared, TokenTable, evaluated, prepare
from trueup.device import Device, MatmulCeiling, matmul_ceiling, open_device
from trueup.recipe import Recipe
from trueup.schema import InputError, PlatformProfile, Price, ShapePlan, SpanName
from trueup.schema.choices import AskedPrecision
from trueup.telemetry import CompileLog, HostLoad, Timeline

from .compiling import compile_modes
from .interruption import Interruption
from .optimizer import make_optimizer
from .shapes import make_planner, shared_plan
from .world import World, join_world

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from trueup.model.builtin import ResolvedModel
    from trueup.model.compile import Compiled
    from trueup.model.load import LoadedModel
    from trueup.model.precision import Precision

CEILING_BUDGET_S = 1.0
BUSY_NEIGHBOURS = 0.1  # share of the CPU
FUSED_ADAMW = ("cpu", "cuda")  # device kinds for which torch has a fused kernel


@dataclass(frozen=True)
class Places:
    """Folders a run uses. Models and data are shared between runs; `run` is its own."""

    home: Path  # built-in models are kept in its `models` folder
    data: Path
    run: Path


@dataclass(frozen=True)
class Choice:
    """Something decided once for the whole run, and why."""

    value: str
    reason: str

    def as_dict(self) -> dict[str, str]:
        return {"value": self.value, "reason": self.reason}


@dataclass(frozen=True)
class Session:
    """Everything the loop needs. Immutable but for what torch keeps inside model and optimizer."""

    recipe: Recipe
    world: World
    device: Device
    timeline: Timeline
    price: Price | None
    prepared: Prepared
    model: LoadedModel
    optimizer: torch.optim.Optimizer
    precision: Precision
    ceiling: MatmulCeiling
    training: TokenTable
    validation: TokenTable
    planner: Planner
    plan: ShapePlan
    evaluated_N: NDArray[np.int64]  # numbers of the validation examples that are evaluated on
    compiles: CompileLog
    interruption: Interruption
    run_folder: Path
    strict_shapes: bool = False  # a compile after the warm-up ends the run
    compiled: Compiled | None = None  # once warmed up, where the plan compiles
    choices: dict[str, Choice] = field(default_factory=dict)

    def stop_if_asked(self) -> None:
        """Raise Interrupted between two pieces of work. With several ranks only the loop asks, for all at
        once: a rank that left alone would leave the others waiting for it."""
        if self.world.size == 1:
            self.interruption.check()

    @cached_property
    def arrangement(self) -> Arrangement:
        """The training examples in the plan's shapes."""
        return self.planner.data.arranged(self.plan)

    @cached_property
    def evaluation(self) -> Epoch:
        """What is evaluated on, in the same batches every time."""
        planned = self.planner.data.evaluation(self.plan)
        return planned.of_table(self.validation.lengths, self.evaluated_N)

    def epoch(self, epoch: int) -> Sequence[tuple[PlannedBatch, ...]]:
        """The optimizer steps of one epoch: a pure function of (seed, epoch), the same on every rank. Each is
        made when asked for: step n of epoch e is found without those before it."""
        seed = self.recipe.train.seed
        return self.arrangement.epoch(seed, epoch, self.plan.micro_batches_per_step).steps

    def with_plan(self, plan: ShapePlan) -> Session:
        """This session under another plan for the same data: for a device that refused a shape, or a compiler
        that failed."""
        model, chosen = self.model, {**self.choices, "shapes": Choice(plan.strategy, plan.reason)}
        if plan.compile != self.plan.compile:
            chosen["compile"] = Choice(plan.compile, plan.reason)
        if plan.compile != self.plan.compile or model.attention == "flex":
            model, chosen["layers"] = _layers(model, plan, self.precision)
        return replace(self, model=model, plan=plan, choices=chosen)


@dataclass(frozen=True)
class Decided:
    """What a run that is resumed had decided: made anew it could come out otherwise, and change the result.
    None: to be decided anew."""

    plan: ShapePlan | None
    precision: AskedPrecision
    data_digest: str | None
    model_digest: str | None = None
    other_evaluation: bool = False  # the recipe's evaluation has changed since: the plan may be for others


def find_device(recipe: Recipe, *, threads: int | None = None) -> tuple[World, Device]:
    """The device the recipe asks for, and the processes that share the work. Nothing is recorded yet:
    a device that is not there is a mistake in the recipe, not a failed run. `threads` is what a run that is
    resumed had chosen."""
    import os

    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = open_device(recipe.platform.device, threads=recipe.platform.threads or threads, index=local_rank)
    return join_world(device.collective_backend), device


def open_session(
    recipe: Recipe,
    *,
    world: World,
    device: Device,
    timeline: Timeline,
    price: Price | None,
    places: Places,
    say: Callable[[str], None],
    interruption: Interruption,
    profile: PlatformProfile | None = None,
    strict_shapes: bool = False,
    decided: Decided | None = None,
) -> Session:
    """Prepare the data, load the model, choose the shapes, measure this machine's ceiling: all before the
    first step. `profile` is what earlier runs taught of this model on this device, where there were any;
    `decided` what was, of a run that is resumed."""
    modes, why_modes = compile_modes(recipe.compile.mode, device)  # a mistake, if it is one, before any work
    compiles = CompileLog(timeline, vendor=device.compile_records)
    opening = _Opening(recipe, world, device, timeline, places, say, decided)
    base, tokenizer, precision = opening.find_model()
    prepared = opening.prepare_data(base, tokenizer)
    training, validation = prepared.split("train"), prepared.split("validation")
    model = opening.load_model(base, tokenizer, precision)
    with timeline.span(SpanName.PREPARE):
        evaluated_N = evaluated(validation, recipe.evaluate.max_tokens)
        planner = make_planner(
            recipe,
            training,
            validation.lengths[evaluated_N],
            device=device,
            dims=model.dims,
            profile=profile,
            positions=model.max_positions,
            modes=modes,
            price=price,
            masked=model.masked_because is not None,
        )
        plan = _kept_plan(decided, planner) or shared_plan(planner.plan, world)
    with timeline.span(SpanName.LOAD):
        model, layers = _layers(model, plan, precision)
        optimizer = make_optimizer(model.trainable, recipe, precision, fused=device.kind in FUSED_ADAMW)
    ceiling = opening.measure_ceiling(precision)
    threads, why_threads = device.choose_threads()
    return Session(
        *(recipe, world, device, timeline, price, prepared, model, optimizer, precision, ceiling),
        *(training, validation, planner, plan, evaluated_N, compiles, interruption),
        run_folder=places.run,
        strict_shapes=strict_shapes,
        choices={
            "device": Choice(device.kind, f"{recipe.platform.device} in the recipe; {device.name}"),
            "precision": Choice(precision.policy, precision.reason),
            "threads": Choice(str(threads), why_threads),
            "shapes": Choice(plan.strategy, plan.reason),
            "layers": layers,
            "compile": Choice(plan.compile, why_modes),
        },
    )


@dataclass(frozen=True)
class _Opening:
    """The stretches of opening a session that need little of what the others made."""

    recipe: Recipe
    world: World
    device: Device
    timeline: Timeline
    places: Places
    say: Callable[[str], None]
    decided: Decided | None

    def find_model(self) -> tuple[ResolvedModel, Any, Precision]:
        """The base model's folder, its tokenizer, and the precision it is loaded in."""
        with self.timeline.span(SpanName.LOAD):
            from trueup.model.builtin import resolve_model
            from trueup.model.load import load_tokenizer
            from trueup.model.precision import choose_precision

            policy = self.decided.precision if self.decided else self.recipe.precision.policy
            precision = choose_precision(policy, self.device)
            base = self.world.leader_first(
                lambda: resolve_model(self.recipe.model.path, self.places.home, say=self.say)
            )
            return base, load_tokenizer(base), precision

    def prepare_data(self, base: ResolvedModel, tokenizer: Any) -> Prepared:
        """The data in tokens. InputError where a run that is resumed had others, or another base model."""
        from trueup.model.folder import digest_of
        from trueup.model.load import read_config

        with self.timeline.span(SpanName.PREPARE):
            vocab_size = int(read_config(base)["vocab_size"])
            prepared = self.world.leader_first(
                lambda: prepare(self.recipe.data, tokenizer, self.places.data, vocab_size=vocab_size)
            )
            for message in prepared.messages:
                self.timeline.event("note", message)
                self.say(message)
            if left_out := prepared.facts.dropped:
                parts = ", ".join(f"{reason.replace('_', ' ')} {n:,}" for reason, n in left_out.items())
                self.say(f"records left out: {parts} (`trueup prepare` lists them)")
            if self.decided is not None:
                _require_same(self.decided, prepared.facts.digest, digest_of(base.folder))
            return prepared

    def load_model(self, base: ResolvedModel, tokenizer: Any, precision: Precision) -> LoadedModel:
        from trueup.model.load import load_model

        with self.timeline.span(SpanName.LOAD):
            seed_everything(self.recipe.train.seed)
            model = load_model(
                base,
                self.recipe.tune,
                torch_device=self.device.torch_device,
                seed=self.recipe.train.seed,
                precision=precision,
                activation_checkpointing=self.recipe.train.activation_checkpointing,
                tokenizer=tokenizer,
            )
            return model

    def measure_ceiling(self, precision: Precision) -> MatmulCeiling:
        """This machine's matmul ceiling as it is now; what makes it no ceiling is said, and on the bill."""
        with self.timeline.span(SpanName.CALIBRATE):
            dtype = "bf16" if precision.compute_dtype == "bfloat16" else "fp32"
            load = HostLoad()
            ceiling = matmul_ceiling(self.device, dtype, budget_s=CEILING_BUDGET_S)
            others = load.read().get("others_cpu_share", 0.0)
            if self.device.kind == "cpu" and others > BUSY_NEIGHBOURS:
                message = (
                    f"neighbours used {others:.0%} of the CPU while the ceiling was measured: it is too low, "
                    "and useful compute and MFU come out too high"
                )
                self.timeline.event("contended_ceiling", message, others_cpu_share=others)
                self.say(message)
            self.device.reset_peak()  # its matrices can be larger than the model: peaks are of training
            return ceiling


def _layers(model: LoadedModel, plan: ShapePlan, precision: Precision) -> tuple[LoadedModel, Choice]:
    """The model with the layers that suit the plan, and why these."""
    from trueup.model.load import with_own_decoder

    if plan.compile == "none":
        model, why = with_own_decoder(model, precision.compute_dtype)
        if model.decoder is not None:
            return model, Choice("own", why)
    else:
        why = "an explicit block-causal mask: what is compiled has fixed shapes"
    if model.head_weight.device.type == "cuda":
        from trueup.model.flex import with_attention_for

        model, why = with_attention_for(plan, model, precision)
    return model, Choice("transformers", why)


def seed_everything(seed: int) -> None:
    import random

    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _kept_plan(decided: Decided | None, planner: Planner) -> ShapePlan | None:
    """The plan of the run that is resumed; None where another is to be made."""
    if decided is None or decided.plan is None or not decided.other_evaluation:
        return None if decided is None else decided.plan
    return planner.evaluating(decided.plan)


def _require_same(decided: Decided, data: str, model: str) -> None:
    """InputError where data or base model are not what the run was trained on."""
    for what, source, then, now in (
        ("other data", "data.source", decided.data_digest, data),
        ("another base model", "model.path", decided.model_digest, model),
    ):
        if then is not None and then != now:
            raise InputError(
                f"the run was trained on {what}: its digest was {then[:12]}, and what {source} gives "
                f"now has {now[:12]}. Bring the old one back, or start a new run without --resume"
            )
