"""One optimizer step over the micro-batches of a global batch.

The loss is the sum over every supervised token of the global batch divided by their number, whatever the
split into micro-batches and ranks: accumulation and ranks are invisible in the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trueup.data import MicroBatch, PlannedBatch, TokenCounts, assemble, count_tokens
from trueup.schema import SpanName, TrueupError

from .session import Session

if TYPE_CHECKING:
    import torch

    from trueup.model.batch import BatchTensors


class NonFiniteError(TrueupError):
    """Loss or gradient stopped being a number: the update was not applied."""


@dataclass(frozen=True)
class GlobalBatch:
    """What every rank knows of a step: the counts of the whole, and this rank's own micro-batches."""

    counts: TokenCounts
    own: tuple[MicroBatch, ...]
    micro_batches: int
    shape: tuple[int, int]  # the largest


@dataclass(frozen=True)
class StepResult:
    """`loss` in nats per supervised token; `grad_norm` before clipping."""

    loss: float
    grad_norm: float
    communication_s: float = 0.0


def gather(session: Session, planned: Sequence[PlannedBatch]) -> GlobalBatch:
    """Count the global batch and assemble this rank's share of it."""
    world = session.world
    pad_id = session.prepared.pad.id
    own = tuple(assemble(session.training, batch, pad_id) for batch in world.share(planned))
    largest = max(planned, key=lambda batch: batch.processed_tokens)
    counts = count_tokens(planned, session.training, session.plan.chunk_rows)
    return GlobalBatch(counts, own, len(planned), largest.shape)


def train_step(session: Session, batch: GlobalBatch, lr: float) -> StepResult:
    """Forward and backward over the micro-batches, gradients summed over ranks, clipped, applied.

    Raises NonFiniteError, with the weights as they were, when loss or gradient is not finite.
    """
    import torch

    loss_sum = accumulate(session, batch)
    parameters = [parameter for _, parameter in session.model.trainable]
    communication_s = 0.0
    if session.world.size > 1:
        with session.timeline.span(SpanName.COMMUNICATION) as span:
            session.world.sum_gradients(parameters)
            (loss_sum,) = session.world.sum([loss_sum])
            session.device.synchronize()  # vendors queue collectives: the wait for them belongs here
        communication_s = span.seconds
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, session.recipe.optimizer.clip or math.inf))
    loss = loss_sum / batch.counts.supervised
    if not (math.isfinite(loss) and math.isfinite(norm)):
        session.optimizer.zero_grad(set_to_none=True)
        raise NonFiniteError(
            f"the loss is {loss} and the gradient norm {norm} at learning rate {lr:g}; the update was not "
            "applied. Try a smaller optimizer.lr, or precision.policy: fp32"
        )
    for group in session.optimizer.param_groups:
        group["lr"] = lr
    session.optimizer.step()
    session.optimizer.zero_grad(set_to_none=True)
    return StepResult(loss, norm, communication_s)


def accumulate(session: Session, batch: GlobalBatch) -> float:
    """Add this rank's part of the gradient; return its part of the summed loss, in nats."""
    losses = []
    for micro_batch in batch.own:
        loss = micro_batch_loss(session, micro_batch, "training")
        (loss / batch.counts.supervised).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    return math.fsum(float(loss) for loss in losses)  # read at the end: reading waits for the device


def micro_batch_loss(
    session: Session, micro_batch: MicroBatch, phase: Literal["training", "evaluation"]
) -> torch.Tensor:
    """The summed loss of one micro-batch, in nats: what training and evaluation, and the warm-up of both, run
    alike. What is compiled on the way is told with phase and shape."""
    from trueup.model.batch import batch_loss

    session.compiles.working_on(phase, micro_batch.shape)
    return batch_loss(session.model, to_device(session, micro_batch), session.precision)


def to_device(session: Session, micro_batch: MicroBatch) -> BatchTensors:
    """The micro-batch as tensors on the session's device."""
    from trueup.model.batch import BatchTensors

    return BatchTensors.from_arrays(
        micro_batch.tokens_BT,
        micro_batch.positions_BT,
        micro_batch.segments_BT,
        *micro_batch.targets(session.plan.chunk_rows),
        device=session.device.torch_device,
    )
