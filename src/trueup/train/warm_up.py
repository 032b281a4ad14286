"""Before the first step: every shape of the plan, compiled and run, then dummy steps until they are steady.

Everything is real but the data: forward, backward, collectives, clipping, optimizer, on random tokens. The
largest shape comes first, so that out-of-memory shows at once. Weights, optimizer state, gradients and random
state are, bit for bit, as they were afterwards: warming up cannot change what is trained.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from trueup.analysis.steady import FEWEST, STEADY, find_plateau
from trueup.data import MicroBatch
from trueup.recipe.models import WarmUpSection
from trueup.schema import Shape, SpanName

from .compiling import compile_for, other_plan, tell_fallbacks
from .session import Session
from .stepper import micro_batch_loss
from .together import together

CPU_STEPS = 1
ACCELERATOR_MINUTES = 1.0
LIKE_THE_LAST = 0.05  # relative: what two dummy steps may differ by where there are too few for statistics


def warmed_up(session: Session, say: Callable[[str], None]) -> Session:
    """The session, compiled and warmed up: under its plan, or the next that every rank's device takes."""
    while True:
        compiled = compile_for(session)
        session.compiles.poll()  # what the plan before this one could not compile
        before = len(session.compiles.fallbacks)
        try:
            warm_up(session)
            with together(session.world):
                tell_fallbacks(session, before, say)
            session.compiles.warm()
            return replace(session, compiled=compiled)
        except BaseException as error:
            if compiled is not None:
                compiled.undo()
            if not isinstance(error, Exception):
                raise
            plan = other_plan(session, error)
        say(plan.reason)
        session = session.with_plan(plan)
        session.device.reset_peak()


def warm_up(session: Session) -> None:
    """Run every shape of the plan, and then dummy steps."""
    with session.timeline.span(SpanName.WARM_UP), _as_it_was(session):
        shapes = sorted(session.plan.training, key=lambda shape: -shape[0] * shape[1])
        dummies = dummy_limits(session.recipe.warm_up, session.device.kind)[0]
        # The largest comes again when the optimizer's memory is taken; a single shape does as dummy steps.
        with together(session.world):
            session.model.get_ready(max((rows * width for rows, width in session.plan.training), default=0))
        again = shapes[:1] if len(shapes) > 1 or not dummies else []
        for shape in again + shapes:
            _step(session, shape)
            session.compiles.poll()
        if session.plan.static or session.device.kind != "cpu":  # an eager CPU has nothing to get ready
            with together(session.world):
                _evaluation_shapes(session)
        _until_steady(session)
        session.device.synchronize()


@contextmanager
def _as_it_was(session: Session) -> Iterator[None]:
    """Put back what warming up touches. The weights are never touched: see `_step`."""
    import torch

    optimizer, device = session.optimizer, session.device
    state, rates = optimizer.state, [group["lr"] for group in optimizer.param_groups]
    gradients = [(parameter, parameter.grad) for _, parameter in session.model.trainable]
    accelerators = [] if device.kind == "cpu" else [device.index]
    try:
        with torch.random.fork_rng(accelerators, device_type=device.torch_device.type):
            optimizer.state = defaultdict(dict)
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                group["lr"] = 0.0
            yield
    finally:
        optimizer.state = state
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for parameter, gradient in gradients:
            parameter.grad = gradient
        session.model.module.train()


def _step(session: Session, shape: Shape) -> None:
    """One optimizer step over a micro-batch of this shape. The optimizer is shown zero gradients at a rate of
    zero, so that what it adds to each weight is zero: not one bit of it changes."""
    import torch

    session.stop_if_asked()
    with together(session.world):
        for batch in _filled(session, shape):
            micro_batch_loss(session, batch, "training").backward()  # type: ignore[no-untyped-call]
    parameters = [parameter for _, parameter in session.model.trainable]
    session.world.sum_gradients(parameters)
    with together(session.world):
        torch.nn.utils.clip_grad_norm_(parameters, session.recipe.optimizer.clip or math.inf)
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
        session.optimizer.step()
        session.optimizer.zero_grad(set_to_none=True)


def _evaluation_shapes(session: Session) -> None:
    import torch

    session.model.module.eval()
    with torch.no_grad():
        for shape in session.plan.evaluation:
            session.stop_if_asked()
            for batch in _filled(session, shape):
                micro_batch_loss(session, batch, "evaluation")
            session.compiles.poll()
    session.model.module.train()


def _until_steady(session: Session) -> None:
    """The same small step again and again until its time is steady, or a limit of the recipe is met."""
    most, limit_s = dummy_limits(session.recipe.warm_up, session.device.kind)
    epoch = session.epoch(0)
    if not most or not len(epoch):
        return
    usual = epoch[0][0].shape  # on every rank, so that all take as long
    times: list[float] = []
    began, ended = session.timeline.now(), ""
    while not ended:
        start = session.timeline.now()
        _step(session, usual)
        session.device.synchronize()
        times.append(session.timeline.now() - start)
        session.compiles.poll()
        if is_steady(times, most):
            ended = "their time was steady"
        elif len(times) >= most:
            ended = f"the limit of {most} steps"
        elif session.timeline.now() - began >= limit_s:
            ended = f"the limit of {limit_s / 60:g} minutes"
        ended = session.world.from_leader(ended)
    message = f"{len(times)} dummy steps, until {ended}"
    session.timeline.event("warm_up", message, steps=len(times), first_s=times[0], last_s=times[-1])


def dummy_limits(asked: WarmUpSection, device_kind: str) -> tuple[float, float]:
    """Most dummy steps and most seconds of them. Where the recipe gives neither, a few steps on a CPU, and a
    minute on an accelerator, which takes that long to be as hot as it will get."""
    if asked.steps is None and asked.minutes is None:
        return (CPU_STEPS, math.inf) if device_kind == "cpu" else (math.inf, 60 * ACCELERATOR_MINUTES)
    steps = math.inf if asked.steps is None else asked.steps
    return steps, math.inf if asked.minutes is None else 60 * asked.minutes


def is_steady(times_s: Sequence[float], most: float) -> bool:
    """Whether dummy steps have reached the level they will hold. Where fewer are allowed than statistics
    need, two in a row that are alike will do."""
    if most < FEWEST:
        return len(times_s) >= 2 and abs(times_s[-1] / times_s[-2] - 1) <= LIKE_THE_LAST
    return find_plateau(times_s).verdict == STEADY


def _filled(session: Session, shape: Shape) -> Iterator[MicroBatch]:
    """Micro-batches of this shape. A device that takes static shapes only sees the head's as well: one for
    each number of rows that the plan may send through it."""
    vocab, most = session.model.dims.vocab, shape[0] * (shape[1] - 1)
    yield random_batch(shape, vocab, supervised=most)
    if session.device.static_shapes_only:
        chunk = session.plan.chunk_rows or 1
        for rows in session.plan.head_rows:
            if rows + chunk <= most:  # the whole batch above has the most chunks
                yield random_batch(shape, vocab, supervised=rows)


def random_batch(shape: Shape, vocab: int, *, supervised: int) -> MicroBatch:
    """Full rows of random tokens. With all of them supervised no real batch of this shape needs more memory;
    the first of a row never is."""
    import numpy as np

    rows, width = shape
    loss_BT = np.zeros(shape, dtype=np.bool_)
    loss_BT[:, 1:] = (np.arange(rows * (width - 1)) < supervised).reshape(rows, width - 1)
    return MicroBatch(
        tokens_BT=np.random.default_rng(0).integers(0, vocab, shape, dtype=np.int64),
        positions_BT=np.tile(np.arange(width, dtype=np.int64), (rows, 1)),
        segments_BT=np.ones(shape, dtype=np.int32),
        loss_BT=loss_BT,
        example_ids=(),
        attention_sum_sq=rows * width * width,
    )
