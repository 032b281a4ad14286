"""In which precision weights are kept and products are done, and why.

Whatever the policy, these are fp32: the stream of hidden states between the layers, norms and their weights,
the statistics of softmax, the loss.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

from trueup.schema import Frozen
from trueup.schema.choices import AskedPrecision, PrecisionPolicy

DtypeName = Literal["float32", "bfloat16"]


class KnowsBf16(Protocol):
    """What this room needs to know of a device."""

    def fast_bf16(self) -> tuple[bool, str]:
        """Whether bf16 matrix products are faster here than fp32 ones, and how that is known."""
        ...


class Precision(Frozen):
    """The choice, made once and stored with the run. `policy` is what is done, never 'auto';
    `compute_dtype` is that of the matrix products."""

    policy: PrecisionPolicy
    compute_dtype: DtypeName
    reason: str

    @property
    def trained_dtype(self) -> DtypeName:
        """In which trained weights are kept, their gradients summed, and the optimizer's moments kept."""
        return "bfloat16" if self.policy == "bf16" else "float32"

    @property
    def frozen_dtype(self) -> DtypeName:
        """In which weights that are not trained are kept."""
        return "bfloat16" if self.policy in ("bf16", "bf16-master") else "float32"

    def autocast(self, device_type: str = "cpu") -> AbstractContextManager[Any]:
        """The context in which forward passes run: torch.autocast to bf16, or nothing for fp32.

        Under every bf16 policy it is what rounds the products' inputs, activations and fp32 weights alike.
        """
        if self.compute_dtype == "float32":
            return nullcontext()
        import torch

        return torch.autocast(device_type, dtype=torch.bfloat16)


def choose_precision(policy: AskedPrecision, device: KnowsBf16) -> Precision:
    """`auto` takes bf16 products with fp32 masters where the device is fast at bf16, else fp32; an explicit
    policy is obeyed, and what the device says of bf16 is kept in the reason so that a slow choice explains
    itself."""
    fast, why = device.fast_bf16()
    if policy == "auto":
        policy, reason = "bf16-master" if fast else "fp32", why
    else:
        reason = f"asked for by the recipe; the device: {why}"
    compute: DtypeName = "float32" if policy == "fp32" else "bfloat16"
    return Precision(policy=policy, compute_dtype=compute, reason=reason)
