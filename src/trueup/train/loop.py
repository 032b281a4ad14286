"""The measured loop: a list of verbs, each a span on the timeline."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from trueup.data import PlannedBatch
from trueup.schema import Evaluation, SpanName, Step
from trueup.schema.protocols import Sink
from trueup.telemetry import Span

from .compiling import stop_if_compiled
from .evaluate import evaluate
from .interruption import Interrupted
from .progress import Progress
from .schedule import learning_rate
from .session import Session
from .stepper import GlobalBatch, StepResult, gather, train_step
from .stop import StopRule
from .weights import BEST, LAST, keep, keep_periodic


@dataclass
class Tally:
    """What the loop remembers between steps."""

    seen_shapes: set[tuple[int, int]]  # by the warm-up, or by a step since
    step: int = 0
    useful_tokens: int = 0
    training_s: float = 0.0
    best_loss: float = math.inf
    evaluated_at: int = -1
    last_evaluation_s: float = 0.0
    labels: list[str] = field(default_factory=list)  # of what happened since the last step


def run_loop(session: Session, rule: StopRule, sink: Sink, progress: Progress) -> str:
    """Train, warmed up, until a stop condition is met; returns which. Weights kept: best, last, periodic."""
    tally = Tally(seen_shapes=set(session.plan.training))
    try:
        reason = _run_steps(session, rule, sink, progress, tally)
    except Interrupted as interrupted:
        if interrupted.safe and tally.step:
            keep(session, LAST, step=tally.step)
        raise
    keep(session, LAST, step=tally.step)
    stop_if_compiled(session)
    return reason


def _run_steps(session: Session, rule: StopRule, sink: Sink, progress: Progress, tally: Tally) -> str:
    timeline, recipe = session.timeline, session.recipe
    _evaluate(session, tally, sink, progress)
    batches = planned_steps(session)
    while True:
        with timeline.span(SpanName.DATA_WAIT) as wait:
            batch = gather(session, next(batches))
        with timeline.span(SpanName.STEP) as span:
            lr = _learning_rate(session, rule, tally.step + 1)
            result = train_step(session, batch, lr)
        step = _record(session, tally, batch, result, lr, wait=wait, span=span)
        sink.step(step)
        progress.step(step, wall_s=timeline.now(), limit_s=rule.wall_s, training_s=tally.training_s)
        _stop_if_interrupted(session)
        stop_if_compiled(session)
        reason = _reason_to_end(session, rule, tally)
        if reason or _due(tally.step, recipe.evaluate.every):
            _evaluate(session, tally, sink, progress)
        if _due(tally.step, recipe.checkpoint.every):
            keep_periodic(session, tally.step)
            tally.labels.append("after_checkpoint")
        if reason:
            return reason


def planned_steps(session: Session) -> Iterator[tuple[PlannedBatch, ...]]:
    """The optimizer steps of epoch after epoch, as planned. The stop rule ends it, not this."""
    epoch = 0
    while True:
        yield from session.epoch(epoch)
        epoch += 1


def _learning_rate(session: Session, rule: StopRule, step: int) -> float:
    recipe = session.recipe
    return learning_rate(
        step, total_steps=rule.total_steps, peak=recipe.optimizer.lr, schedule=recipe.schedule
    )


def _record(
    session: Session,
    tally: Tally,
    batch: GlobalBatch,
    result: StepResult,
    lr: float,
    *,
    wait: Span,
    span: Span,
) -> Step:
    labels = tuple(tally.labels)
    if batch.shape not in tally.seen_shapes:
        labels = (*labels, "first_shape")
        tally.seen_shapes.add(batch.shape)
    if session.compiles.poll():
        labels = (*labels, "compile")
    tally.labels.clear()
    tally.step += 1
    tally.useful_tokens += batch.counts.useful
    tally.training_s += wait.seconds + span.own_s + result.communication_s
    return Step(
        step=tally.step,
        start_s=span.start_s,
        step_s=span.own_s,
        data_wait_s=wait.seconds,
        communication_s=result.communication_s,
        loss=result.loss,
        grad_norm=result.grad_norm,
        lr=lr,
        useful_tokens=batch.counts.useful,
        supervised_tokens=batch.counts.supervised,
        processed_tokens=batch.counts.processed,
        head_rows=batch.counts.head_rows,
        attention_sum_sq=batch.counts.attention_sum_sq,
        micro_batches=batch.micro_batches,
        shape=batch.shape,
        labels=labels,
    )


def _stop_if_interrupted(session: Session) -> None:
    """Raise Interrupted, on every rank, when the leading one was asked to end."""
    requested = session.interruption.requested
    if session.world.agree(requested is not None):
        raise Interrupted(requested or "the leading rank was interrupted", safe=True)


def _reason_to_end(session: Session, rule: StopRule, tally: Tally) -> str | None:
    """The leading rank decides for all: clocks differ between processes."""
    reason = rule.reason(
        step=tally.step,
        wall_s=session.timeline.now(),
        useful_tokens=tally.useful_tokens,
        reserve_s=tally.last_evaluation_s,
    )
    if session.world.agree(reason is not None):
        return reason or "the leading rank ended the run"
    return None


def _evaluate(session: Session, tally: Tally, sink: Sink, progress: Progress) -> Evaluation | None:
    if tally.evaluated_at == tally.step:
        return None
    evaluation = evaluate(session, tally.step, tally.best_loss)
    if evaluation is None:
        return None
    tally.evaluated_at = tally.step
    tally.last_evaluation_s = evaluation.seconds
    tally.labels.append("after_evaluate")
    sink.evaluation(evaluation)
    stop_if_compiled(session)
    progress.evaluation(evaluation)
    if evaluation.best:
        tally.best_loss = evaluation.loss
        if tally.step:  # before the first step there is nothing of this run's to keep
            keep(session, BEST, step=tally.step, loss=evaluation.loss)
    return evaluation


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
