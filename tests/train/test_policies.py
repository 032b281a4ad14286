"""Whole runs on the tiny model under each policy: they learn, leave as they should, and take the memory they
say."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trueup.train.stepper import gather, train_step

ALL = [
    ["precision.policy=fp32"],
    ["precision.policy=bf16"],
    ["precision.policy=bf16", "precision.stochastic_rounding=true"],
    ["precision.policy=bf16-master"],
    ["precision.policy=autocast"],
]
IDS = ["fp32", "bf16", "bf16, stochastic", "bf16-master", "autocast"]
# Bytes of a trained weight, of its two moments, of a frozen weight of the layers. Autocast's frozen weights
# are kept as its products take them, by our own layers alone.
BYTES = [(4, 8, 4), (2, 4, 2), (2, 4, 2), (4, 8, 2), (4, 8, 2)]


def train(session: Any, steps: int, lr: float = 2e-3) -> list[float]:
    losses: list[float] = []
    epoch = 0
    while len(losses) < steps:
        losses += [train_step(session, gather(session, planned), lr).loss for planned in session.epoch(epoch)]
        epoch += 1
    return losses[:steps]


@pytest.mark.parametrize("method", ["lora", "full"])
def test_every_policy_learns_what_fp32_learns(open_tiny: Any, method: str) -> None:
    found = {
        name: train(open_tiny(f"tune.method={method}", "train.tokens_per_step=192", *keys), 24)
        for name, keys in zip(IDS, ALL, strict=True)
    }
    exact = found["fp32"]
    assert sum(exact[-6:]) < 0.97 * sum(exact[:6])
    for losses in found.values():
        assert losses[0] == pytest.approx(exact[0], rel=1e-3)
        assert sum(losses[-6:]) == pytest.approx(sum(exact[-6:]), rel=0.02)


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize(("keys", "sizes"), list(zip(ALL, BYTES, strict=True)), ids=IDS)
def test_bytes_a_weight(open_tiny: Any, keys: list[str], sizes: tuple[int, int, int], method: str) -> None:
    session = open_tiny(f"tune.method={method}", *keys)
    train(session, 1)
    moments = session.optimizer.state
    for name, parameter in session.model.module.named_parameters():
        if "norm" in name:
            assert parameter.element_size() == 4
        elif parameter.requires_grad:
            kept = sum(moments[parameter][key].element_size() for key in ("exp_avg", "exp_avg_sq"))
            assert (parameter.element_size(), kept) == sizes[:2], name
        elif "proj" in name:
            assert parameter.element_size() == sizes[2], name


def test_two_runs_with_stochastic_rounding_are_one_and_another_seed_is_another(open_tiny: Any) -> None:
    def weights(seed: int) -> list[torch.Tensor]:
        session = open_tiny(*ALL[2], "tune.method=full")
        session.optimizer._seed = seed  # of the rounding alone
        train(session, 2)
        return [parameter.detach().clone() for _, parameter in session.model.trainable]

    first = weights(0)
    assert all(torch.equal(a, b) for a, b in zip(first, weights(0), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, weights(1), strict=True))
