"""Measuring ceilings and products is no part of what is trained, and tells first products apart."""

from __future__ import annotations

import pytest
import torch

from trueup.device import ceiling, matmul_ceiling, product_times
from trueup.device.cpu import CpuDevice


def test_measuring_the_ceiling_leaves_the_random_state_as_it_was() -> None:
    """How many sizes are tried depends on the clock: dropout would come out otherwise in each run."""
    before = torch.get_rng_state()
    assert matmul_ceiling(CpuDevice(threads=1), "fp32", budget_s=0.01).flops_per_s > 0
    assert torch.equal(torch.get_rng_state(), before)


def test_the_first_product_of_each_size_is_timed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling, "SIDES", {"cpu": (16, 48)})
    found = product_times(CpuDevice(threads=1), "fp32", budget_s=0.01)
    assert len(found) == 8
    assert all(one.first_s is not None and one.first_s > 0 for one in found)
