"""Before the first step: each shape of the first epoch, largest first, so that out-of-memory shows at once.

Forward and backward on random tokens, with as much memory set aside as the optimizer will take. Weights,
optimizer state and random state are as they were afterwards: warming up cannot change what is trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trueup.data import MicroBatch
from trueup.schema import SpanName

from .session import Session
from .stepper import to_device

if TYPE_CHECKING:
    import torch

REPEATS_OF_LARGEST = 2  # the first touches the memory, the second finds it touched
MOMENTS = 2  # AdamW keeps two numbers beside each trained parameter, from its first step on


def warm_up(session: Session) -> set[tuple[int, int]]:
    """Run each shape of the first epoch forward and backward; returns the shapes that have now been seen."""
    import torch

    from trueup.model.batch import batch_loss

    random_state = torch.random.fork_rng(
        devices=_devices(session), device_type=session.device.torch_device.type
    )
    with session.timeline.span(SpanName.WARM_UP), random_state:
        moments = [] if session.optimizer.state else _moments(session)
        shapes = sorted(shapes_of(session), key=lambda shape: -shape[0] * shape[1])
        for shape in shapes[:1] * (REPEATS_OF_LARGEST - 1) + shapes:
            session.stop_if_asked()
            batch = to_device(session, _dense(shape, session.model.dims.vocab))
            loss = batch_loss(session.model, batch, session.precision)
            loss.backward()  # type: ignore[no-untyped-call]
            session.optimizer.zero_grad(set_to_none=True)
        session.device.synchronize()
        moments.clear()
    return set(shapes)


def _moments(session: Session) -> list[torch.Tensor]:
    """Memory of the optimizer's size, touched: what is only reserved costs nothing and so shows nothing."""
    import torch

    return [torch.ones_like(p) for _, p in session.model.trainable for _ in range(MOMENTS)]


def shapes_of(session: Session) -> set[tuple[int, int]]:
    """(rows, width) of every micro-batch of an epoch; of the strategy `longest` only the largest."""
    return set(session.plan.training)


def _dense(shape: tuple[int, int], vocab: int) -> MicroBatch:
    """Full rows, every token supervised: no real batch of this shape needs more memory."""
    import numpy as np

    rows, width = shape
    loss_BT = np.ones(shape, dtype=np.bool_)
    loss_BT[:, 0] = False
    return MicroBatch(
        tokens_BT=np.random.default_rng(0).integers(0, vocab, shape, dtype=np.int64),
        positions_BT=np.tile(np.arange(width, dtype=np.int64), (rows, 1)),
        segments_BT=np.ones(shape, dtype=np.int32),
        loss_BT=loss_BT,
        example_ids=(),
        attention_sum_sq=rows * width * width,
    )


def _devices(session: Session) -> list[int]:
    """Accelerators whose random state is put back; the CPU's always is."""
    return [] if session.device.kind == "cpu" else [session.device.index]
