"""Held-out loss, exact per token whatever the batch shape. No logits are kept, so memory does not grow."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trueup.data import assemble
from trueup.schema import Evaluation, SpanName

from .session import Session
from .stepper import NonFiniteError, micro_batch_loss

SPLIT = "validation"


@dataclass(frozen=True)
class HeldOut:
    """Summed cross-entropy in nats over `tokens` supervised tokens."""

    loss_sum: float
    tokens: int

    @property
    def loss(self) -> float:
        return self.loss_sum / self.tokens


def held_out(session: Session) -> HeldOut:
    """Loss of the evaluation plan's examples, summed over micro-batches and ranks."""
    import torch

    module = session.model.module
    loss_sum, tokens = 0.0, 0
    module.eval()
    try:
        with torch.no_grad():
            for planned in session.world.share(session.evaluation.batches):
                session.stop_if_asked()
                batch = assemble(session.validation, planned, session.prepared.pad.id)
                loss_sum += float(micro_batch_loss(session, batch, "evaluation"))
                tokens += batch.supervised_tokens
    finally:
        module.train()
    loss_sum, total = session.world.sum([loss_sum, float(tokens)])
    return HeldOut(loss_sum, round(total))


def evaluate(session: Session, step: int, best_loss: float) -> Evaluation | None:
    """Evaluate after `step` steps and say whether it is the best so far. None where nothing is held out."""
    if not session.evaluation.batches:
        return None
    with session.timeline.span(SpanName.EVALUATE) as span:
        result = held_out(session)
    if not math.isfinite(result.loss):
        raise NonFiniteError(
            f"the held-out loss after step {step} is {result.loss}; try a smaller optimizer.lr"
        )
    return Evaluation(
        step=step,
        at_s=session.timeline.now(),
        split=SPLIT,
        loss=result.loss,
        perplexity=math.exp(min(result.loss, 700.0)),  # exp overflows beyond; the loss itself is exact
        tokens=result.tokens,
        seconds=span.seconds,
        best=result.loss < best_loss,
    )
