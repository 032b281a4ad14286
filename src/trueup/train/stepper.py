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
from trueup.schema import Shape, SpanName, TrueupError

from .failure import NoMemoryError, is_out_of_memory
from .scaling import NOT_SCALED, LossScaler
from .session import Session

if TYPE_CHECKING:
    import torch

    from trueup.model.batch import BatchTensors


class NonFiniteError(TrueupError):
    """Loss or gradient stopped being a number: the update was not applied. `result` is what the step was,
    where it was one."""

    def __init__(self, message: str, result: StepResult | None = None) -> None:
        super().__init__(message)
        self.result = result


@dataclass(frozen=True)
class GlobalBatch:
    """What every rank knows of a step: the counts of the whole, and this rank's own micro-batches."""

    counts: TokenCounts
    own: tuple[MicroBatch, ...]
    micro_batches: int
    shape: tuple[int, int]  # the largest


@dataclass(frozen=True)
class StepResult:
    """`loss` in nats per supervised token; `grad_norm` before clipping, of the gradient without loss scale.
    `batch` is what was trained: it is in more micro-batches than was asked where memory ran out. A skipped
    step changed no weight; its loss and norm may be no numbers."""

    loss: float
    grad_norm: float
    batch: GlobalBatch
    communication_s: float = 0.0
    skipped: bool = False
    loss_scale: float = 1.0


def gather(session: Session, planned: Sequence[PlannedBatch]) -> GlobalBatch:
    """Count the global batch and assemble this rank's share of it."""
    world = session.world
    pad_id = session.prepared.pad.id
    own = tuple(assemble(session.training, batch, pad_id) for batch in world.share(planned))
    largest = max(planned, key=lambda batch: batch.processed_tokens)
    counts = count_tokens(planned, session.training, session.plan.chunk_rows)
    return GlobalBatch(counts, own, len(planned), largest.shape)


def train_step(
    session: Session, batch: GlobalBatch, lr: float, scaler: LossScaler = NOT_SCALED
) -> StepResult:
    """Forward and backward over the micro-batches, gradients summed over ranks, clipped, applied.

    Raises NonFiniteError where loss or gradient is not finite and no smaller loss scale is to be tried, and
    NoMemoryError, on every rank, where memory ran out on one before the update. After both the weights are as
    they were and there are no gradients.
    """
    import torch

    scale = scaler.scale
    try:
        loss_sum, refused = _accumulated(session, batch, scale)
        parameters = [parameter for _, parameter in session.model.trainable]
        communication_s = 0.0
        if session.world.size > 1:
            with session.timeline.span(SpanName.COMMUNICATION) as span:
                loss_sum, refused = _of_all_ranks(session, loss_sum, refused)
                if refused is None:
                    session.world.sum_gradients(parameters)
                session.device.synchronize()  # vendors queue collectives: the wait for them belongs here
            communication_s = span.seconds
        if refused is not None:
            raise refused
        _divide_gradients(parameters, scale)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, session.recipe.optimizer.clip or math.inf))
        loss = loss_sum / batch.counts.supervised
        if session.world.agree(not (math.isfinite(loss) and math.isfinite(norm))):
            result = StepResult(loss, norm, batch, communication_s, skipped=True, loss_scale=scale)
            # No scale of the loss mends a loss that is no number before it.
            if not math.isfinite(loss) or not scaler.bad_step():
                raise NonFiniteError(_not_applied(loss, norm, lr), result)
            return result
        for group in session.optimizer.param_groups:
            group["lr"] = lr
        session.optimizer.step()
    finally:
        session.optimizer.zero_grad(set_to_none=True)
    scaler.good_step()
    return StepResult(loss, norm, batch, communication_s, loss_scale=scale)


def accumulate(session: Session, batch: GlobalBatch, scale: float = 1.0) -> float:
    """Add this rank's part of the gradient, times `scale`; return its part of the summed loss, in nats.

    Raises NoMemoryError for the micro-batch that memory ran out for."""
    losses = [_backward(session, one, batch.counts.supervised, scale) for one in batch.own]
    return math.fsum(float(loss) for loss in losses)  # read at the end: reading waits for the device


def _backward(session: Session, micro_batch: MicroBatch, supervised: int, scale: float) -> torch.Tensor:
    try:
        loss = micro_batch_loss(session, micro_batch, "training")
        (loss / supervised * scale).backward()  # type: ignore[no-untyped-call]
        return loss.detach()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        cause = str(error)
    # Raised only here: the allocator's own error would hold the attempt's activations, by its traceback.
    raise NoMemoryError(cause, micro_batch.shape)


def _accumulated(session: Session, batch: GlobalBatch, scale: float) -> tuple[float, NoMemoryError | None]:
    """`accumulate`, with what was refused in place of an error: the other ranks have to be told first."""
    try:
        return accumulate(session, batch, scale), None
    except NoMemoryError as error:
        cause, shape = str(error), error.shape
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        cause, shape = str(error), batch.shape
    return 0.0, NoMemoryError(cause, shape)


def _of_all_ranks(
    session: Session, loss_sum: float, refused: NoMemoryError | None
) -> tuple[float, NoMemoryError | None]:
    """The loss over all ranks, and the same refusal on all where there was one: of the most tokens."""
    world = session.world
    shapes = [0.0] * (2 * world.size)
    if refused is not None:
        shapes[2 * world.rank : 2 * world.rank + 2] = map(float, refused.shape)
    loss_sum, *shapes = world.sum([loss_sum, *shapes])
    found: list[Shape] = [
        (int(rows), int(width)) for rows, width in zip(shapes[::2], shapes[1::2], strict=True)
    ]
    largest = max(found, key=lambda shape: shape[0] * shape[1])
    if not largest[0]:
        return loss_sum, None
    return loss_sum, NoMemoryError(
        "another rank ran out of memory" if refused is None else str(refused), largest
    )


def _divide_gradients(parameters: Sequence[torch.nn.Parameter], scale: float) -> None:
    import torch

    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if scale != 1.0 and gradients:
        torch._foreach_div_(gradients, scale)


def _not_applied(loss: float, norm: float, lr: float) -> str:
    return (
        f"the loss is {loss} and the gradient norm {norm} at learning rate {lr:g}; the update was not "
        "applied. Try a smaller optimizer.lr, or precision.policy: fp32"
    )


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
