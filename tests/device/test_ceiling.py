"""Measuring a ceiling is no part of what is trained."""

from __future__ import annotations

import torch

from trueup.device import matmul_ceiling
from trueup.device.cpu import CpuDevice


def test_measuring_the_ceiling_leaves_the_random_state_as_it_was() -> None:
    """How many sizes are tried depends on the clock: dropout would come out otherwise in each run."""
    before = torch.get_rng_state()
    assert matmul_ceiling(CpuDevice(threads=1), "fp32", budget_s=0.01).flops_per_s > 0
    assert torch.equal(torch.get_rng_state(), before)
