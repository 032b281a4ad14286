"""In which precision the arithmetic is done, and why. Weights and optimizer state are fp32 either way."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

from trueup.schema import Frozen

Policy = Literal["auto", "fp32", "autocast"]


class KnowsBf16(Protocol):
    """What this room needs to know of a device."""

    def fast_bf16(self) -> tuple[bool, str]:
        """Whether bf16 matrix products are faster here than fp32 ones, and how that is known."""
        ...


class Precision(Frozen):
    """The choice, made once and stored with the run. `policy` is what is done, never 'auto'."""

    policy: Literal["fp32", "autocast"]
    compute_dtype: Literal["float32", "bfloat16"]
    reason: str

    def autocast(self, device_type: str = "cpu") -> AbstractContextManager[Any]:
        """The context in which forward passes run: torch.autocast to bf16, or nothing for fp32."""
        if self.policy == "fp32":
            return nullcontext()
        import torch

        return torch.autocast(device_type, dtype=torch.bfloat16)


def choose_precision(policy: Policy, device: KnowsBf16) -> Precision:
    """`auto` takes bf16 where the device is fast at it; an explicit policy is obeyed, and what the device
    says of bf16 is kept in the reason so that a slow choice explains itself."""
    fast, why = device.fast_bf16()
    if policy == "auto":
        use_bf16, reason = fast, why
    else:
        use_bf16, reason = policy == "autocast", f"asked for by the recipe; the device: {why}"
    if use_bf16:
        return Precision(policy="autocast", compute_dtype="bfloat16", reason=reason)
    return Precision(policy="fp32", compute_dtype="float32", reason=reason)
