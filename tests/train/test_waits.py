"""A step does not wait for its device between micro-batches: an accelerator would stand idle meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from trueup.train.session import Session
from trueup.train.stepper import accumulate, gather, train_step

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal.default", "is_nonzero")


class Ops(TorchDispatchMode):
    """Names of what ran, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))

    @property
    def waits(self) -> list[int]:
        return [n for n, name in enumerate(self.names) if any(one in name for one in WAITS)]


@pytest.fixture
def session(open_tiny: Any) -> Session:
    """With transformers' layers, as on an accelerator: our own are for the CPU and look at segments."""
    found: Session = open_tiny("tune.dropout=0.1", "compile.mode=none", "train.tokens_per_step=288")
    assert found.model.decoder is None
    return found


def test_micro_batches_wait_for_nothing_and_their_losses_are_read_together(session: Session) -> None:
    batch = gather(session, session.epoch(0)[0])
    assert len(batch.own) == 3
    with Ops() as ops:
        accumulate(session, batch)
    last_product = max(n for n, name in enumerate(ops.names) if ".mm" in name)
    assert len(ops.waits) == len(batch.own)
    assert min(ops.waits) > last_product


def test_a_step_reads_its_losses_and_the_norm(session: Session) -> None:
    batch = gather(session, session.epoch(0)[0])
    train_step(session, batch, lr=1e-3)  # the first makes the optimizer's state
    with Ops() as ops:
        train_step(session, batch, lr=1e-3)
    assert len(ops.waits) == len(batch.own) + 1
