"""The precision is chosen by what the device is fast at, and says why."""

from __future__ import annotations

import pytest
import torch

from trueup.model.precision import Policy, choose_precision


class Device:
    def __init__(self, fast: bool) -> None:
        self.fast = fast

    def fast_bf16(self) -> tuple[bool, str]:
        return (True, "it has AVX-512-BF16") if self.fast else (False, "no AVX-512-BF16 or AMX")


@pytest.mark.parametrize(
    ("policy", "fast", "dtype"),
    [
        ("auto", True, "bfloat16"),
        ("auto", False, "float32"),
        ("fp32", True, "float32"),
        ("autocast", False, "bfloat16"),
    ],
)
def test_choice_and_reason(policy: Policy, fast: bool, dtype: str) -> None:
    precision = choose_precision(policy, Device(fast))
    assert precision.compute_dtype == dtype
    assert precision.policy == ("autocast" if dtype == "bfloat16" else "fp32")
    assert Device(fast).fast_bf16()[1] in precision.reason
    assert ("recipe" in precision.reason) == (policy != "auto")
    with precision.autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert str(product.dtype) == f"torch.{dtype}"
