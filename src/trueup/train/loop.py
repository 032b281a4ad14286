"""The measured loop: a list of verbs, each a span on the timeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trueup.checkpoint.carry import leave_later
from trueup.checkpoint.folder import checkpoints_of, newest_whole
from trueup.data import PlannedBatch
from trueup.schema import Evaluation, SpanName, Step, TrueupError
from trueup.schema.protocols import Sink
from trueup.telemetry import Span

from .compiling import stop_if_compiled
from .evaluate import evaluate
from .guard import Guard, NewSamples
from .interruption import Interrupted
from .orders import NOTHING, Orders, agreed
from .progress import Progress
from .recovery import Recovery, RollBack
from .resume import restore
from .saves import ASKED, LAST, MINUTES, SIGNAL, Saves
from .schedule import learning_rate
from .session import Session
from .state import Tally
from .stepper import StepResult
from .stop import StopRule


@dataclass(frozen=True)
class Ending:
    """How training ended, after which step. `stopped`: before its time, by the guard or by a person, and it
    can be resumed."""

    state: Literal["finished", "stopped"]
    reason: str
    step: int


@dataclass
class Loop:
    """The session and what stands beside it while it trains. The guard is the leading rank's alone."""

    session: Session
    rule: StopRule
    sink: Sink
    progress: Progress
    saves: Saves
    recovery: Recovery
    guard: Guard | None
    new_samples: NewSamples
    tally: Tally
    last_step: Step | None = None  # as recorded by this process


def run_loop(loop: Loop) -> Ending:
    """Train, warmed up, from where the tally is until a stop condition is met; returns which."""
    loop.tally.seen_shapes |= set(loop.session.plan.training)
    try:
        ending = _run_steps(loop)
    except Interrupted as interrupted:
        if interrupted.safe:
            loop.saves.save(loop.tally, (SIGNAL,))
        raise
    stop_if_compiled(loop.session)
    return ending


def _run_steps(loop: Loop) -> Ending:
    tally, session = loop.tally, loop.session
    if not tally.step:
        _evaluate(loop)
    elif ending := _after_step(loop, NOTHING):  # what an interrupt after this step kept from being done
        return ending
    batches = planned_steps(session, tally.step)
    while True:
        try:
            _step(loop, next(batches))
        except RollBack as asked:
            _roll_back(loop, asked)
            batches = planned_steps(session, tally.step)
            continue
        _stop_if_interrupted(session)
        stop_if_compiled(session)
        if ending := _after_step(loop, _obey(loop)):
            return ending


def _after_step(loop: Loop, orders: Orders) -> Ending | None:
    """Evaluate and save where it is time to, and end."""
    tally = loop.tally
    reason = None if orders.stop else _reason_to_end(loop)
    due = _due(tally.step, loop.session.recipe.evaluate.every)
    evaluation = _evaluate(loop) if reason or due else None
    loop.saves.save(tally, _why_save(loop, evaluation, orders, reason))
    if orders.stop:
        return Ending("stopped", orders.stop, tally.step)
    return Ending("finished", reason, tally.step) if reason else None


def _step(loop: Loop, planned: tuple[PlannedBatch, ...]) -> None:
    session, recovery, number = loop.session, loop.recovery, loop.tally.step + 1
    with session.timeline.span(SpanName.DATA_WAIT) as wait:
        batch = recovery.gather(session, planned)
    with session.timeline.span(SpanName.STEP) as span:
        lr = _learning_rate(loop)
        result = recovery.step(session, planned, batch, lr, step=number)
    step = _record(loop, result, lr, wait=wait, span=span)
    loop.sink.step(step)
    loop.last_step = step
    loop.progress.step(
        step, wall_s=session.timeline.now(), limit_s=loop.rule.wall_s, training_s=loop.tally.training_s
    )
    recovery.look(session, result, lr, step=number)


def planned_steps(session: Session, done: int = 0) -> Iterator[tuple[PlannedBatch, ...]]:
    """The optimizer steps of epoch after epoch, as planned, after the first `done`. The stop rule ends it,
    not this."""
    epoch, first = divmod(done, session.plan.steps_per_epoch)
    while True:
        steps = session.epoch(epoch)
        yield from (steps[n] for n in range(first, len(steps)))
        epoch, first = epoch + 1, 0


def _learning_rate(loop: Loop) -> float:
    recipe, step = loop.session.recipe, loop.tally.step + 1
    lr = learning_rate(
        step, total_steps=loop.rule.total_steps, peak=recipe.optimizer.lr, schedule=recipe.schedule
    )
    return loop.tally.lr_factor * lr


def _record(loop: Loop, result: StepResult, lr: float, *, wait: Span, span: Span) -> Step:
    tally, batch = loop.tally, result.batch
    labels = tuple(tally.labels)
    if batch.shape not in tally.seen_shapes:
        labels = (*labels, "first_shape")
        tally.seen_shapes.add(batch.shape)
    if loop.session.compiles.poll():
        labels = (*labels, "compile")
    tally.labels.clear()
    tally.step += 1
    tally.useful_tokens += 0 if result.skipped else batch.counts.useful
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
        skipped=result.skipped,
        loss_scale=result.loss_scale,
        labels=labels,
    )


def _roll_back(loop: Loop, asked: RollBack) -> None:
    """To the last checkpoint before things went wrong, on every rank, with a smaller learning rate. Raises
    TrueupError where there is none."""
    session, tally = loop.session, loop.tally
    failed_at, factor = tally.step, tally.lr_factor * session.recipe.failure.rollback_lr
    root = checkpoints_of(session.run_folder)
    with session.timeline.span(SpanName.CHECKPOINT):
        loop.saves.wait()
        session.world.wait_for_all()  # for what the leading rank writes
        found = newest_whole(root, loop.progress.note, before=asked.before)
        session.world.wait_for_all()
        if found is None:
            raise TrueupError(f"{asked}. There is no checkpoint to roll back to: set checkpoint.every")
        folder, manifest = found
        restore(session, folder, manifest, tally)
        loop.recovery.restore(manifest.state["recovery"])
        if session.world.leads:
            leave_later(root, manifest.step)
            loop.saves.upload(folder)
    tally.lr_factor = factor
    tally.labels.append("after_rollback")
    loop.saves.mark_saved(tally)
    where = f"rolled back from step {failed_at} to step {manifest.step}"
    message = f"{where}, at {factor:g} of the learning rate: {asked}"
    session.timeline.event("rollback", message, step=manifest.step, failed_at=failed_at, lr_factor=factor)
    loop.progress.note(message)


def _stop_if_interrupted(session: Session) -> None:
    """Raise Interrupted, on every rank, when the leading one was asked to end."""
    requested = session.interruption.requested
    if session.world.agree(requested is not None):
        raise Interrupted(requested or "the leading rank was interrupted", safe=True)


def _obey(loop: Loop) -> Orders:
    """What the guard, or somebody from outside, asks for. A pause is waited out here."""
    orders = _look(loop)
    if not orders.pause or orders.stop:
        return orders
    if orders.checkpoint:
        loop.saves.save(loop.tally, (ASKED,))
    with loop.session.timeline.span(SpanName.PAUSE):
        while orders.pause and not orders.stop:
            _stop_if_interrupted(loop.session)
            orders = _wait(loop)
            if orders.checkpoint:
                loop.saves.save(loop.tally, (ASKED,))
    loop.tally.labels.append("after_pause")
    return orders


def _look(loop: Loop) -> Orders:
    orders = NOTHING
    if loop.guard is not None:
        orders = loop.guard.look(
            loop.last_step, loop.new_samples(), checkpoint_in_flight=loop.saves.in_flight
        )
    return agreed(orders, loop.session.world)


def _wait(loop: Loop) -> Orders:
    orders = NOTHING
    if loop.guard is not None:
        asked_to_end = loop.session.interruption
        orders = loop.guard.wait_out_pause(loop.new_samples, lambda: asked_to_end.requested)
    return agreed(orders, loop.session.world)


def _reason_to_end(loop: Loop) -> str | None:
    """The leading rank decides for all: clocks differ between processes. Time in which no process of the run
    lived is not held against it."""
    session, tally = loop.session, loop.tally
    reason = loop.rule.reason(
        step=tally.step,
        wall_s=session.timeline.now() - session.timeline.down_s,
        useful_tokens=tally.useful_tokens,
        reserve_s=tally.last_evaluation_s,
    )
    if session.world.agree(reason is not None):
        return reason or "the leading rank ended the run"
    return None


def _why_save(
    loop: Loop, evaluation: Evaluation | None, orders: Orders, reason: str | None
) -> tuple[str, ...]:
    session, why = loop.session, loop.saves.due(loop.tally, evaluation)
    if session.recipe.checkpoint.minutes is not None and session.world.agree(loop.saves.minutes_are_over()):
        why = (*why, MINUTES)
    if orders.checkpoint or orders.stop:
        why = (*why, ASKED)
    return (*why, LAST) if reason else why


def _evaluate(loop: Loop) -> Evaluation | None:
    session, tally = loop.session, loop.tally
    if tally.evaluated_at == tally.step:
        return None
    evaluation = evaluate(session, tally.step, tally.best_loss)
    if evaluation is None:
        return None
    tally.evaluated_at, tally.eval_loss = tally.step, evaluation.loss
    tally.last_evaluation_s = evaluation.seconds
    tally.labels.append("after_evaluate")
    loop.sink.evaluation(evaluation)
    stop_if_compiled(session)
    loop.progress.evaluation(evaluation)
    if evaluation.best:
        tally.best_loss = evaluation.loss
        tally.best_step = tally.step or None  # before the first step there is nothing of this run's to keep
    return evaluation


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
