"""What is measured belongs to what it is named after: memory peaks to training, queued work to its span."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from trueup.device import CpuDevice
from trueup.model import batch as model_batch
from trueup.schema import SpanName
from trueup.train import session as train_session
from trueup.train.stepper import gather, train_step
from trueup.train.warm_up import warm_up
from trueup.train.world import World

MOMENTS = 2  # AdamW keeps two numbers beside each trained parameter, from its first step on


class TwoRanks(World):
    """A world of two whose other rank contributes nothing."""

    def sum(self, values: list[float]) -> list[float]:
        return values

    def agree(self, decision: bool) -> bool:
        return decision

    def sum_gradients(self, parameters: Any) -> None:
        pass


def test_memory_peaks_are_of_training_not_of_the_ceilings_matrices(
    open_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def noted(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any, **kwargs: Any) -> Any:
            done.append(what)
            return call(*args, **kwargs)

        return noting

    monkeypatch.setattr(train_session, "matmul_ceiling", noted("ceiling", train_session.matmul_ceiling))
    monkeypatch.setattr(CpuDevice, "reset_peak", noted("reset", CpuDevice.reset_peak))
    open_tiny()
    assert done == ["ceiling", "reset"]


def test_queued_collectives_are_waited_for_as_communication(
    open_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vendor's collective returns when it is queued; without a wait its time would count as compute."""
    session = replace(open_tiny(), world=TwoRanks(size=2))
    waited_in: list[str] = []
    span_of = session.timeline._open
    monkeypatch.setattr(CpuDevice, "synchronize", lambda self: waited_in.append(span_of[-1].name))
    result = train_step(session, gather(session, session.epoch(0)[0]), lr=1e-3)
    assert waited_in == [SpanName.COMMUNICATION]
    assert result.communication_s > 0


@pytest.mark.parametrize("method", ["lora", "full"])
def test_warm_up_needs_the_memory_that_the_optimizer_will_take(
    open_tiny: Any, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    session = open_tiny(f"tune.method={method}")
    trained = sum(p.numel() for _, p in session.model.trainable)
    held: list[int] = []
    loss_of = model_batch.batch_loss

    def counting(*args: Any, **kwargs: Any) -> torch.Tensor:
        state = session.optimizer.state.values()
        held.append(sum(x.numel() for one in state for x in one.values() if x.dim()))
        return loss_of(*args, **kwargs)

    monkeypatch.setattr(model_batch, "batch_loss", counting)
    warm_up(session)
    assert held[0] == 0
    assert min(held[1:]) >= MOMENTS * trained  # the largest shape comes twice: the second time beside them
    assert not session.optimizer.state
