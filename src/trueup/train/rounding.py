"""AdamW on weights and moments kept in bf16, computed in fp32 and rounded by chance.

bf16 has 8 significant bits: an update below half of the last one (1/512 of the weight) is lost when the sum
is rounded to the nearest number, every time, and a running mean that changes by 1/1000 a step never falls.
Rounded up or down by chance, in proportion to how near each neighbour is, the kept number is right on
average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

PIECE = 1 << 20  # numbers at a time: the fp32 copies and the random bits never are a second model
LOW_BITS = 0xFFFF  # those of an fp32 number that a bf16 number does not have


class RoundedAdamW(torch.optim.Optimizer):
    """torch's AdamW, step for step, in fp32; parameters and moments that are bf16 are rounded by chance.

    The chance is a function of `seed` and the number of the step alone, not of the random state: every rank
    rounds alike, whatever else it draws, and a resumed run goes on as it would have.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        seed: int = 0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._seed = seed

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter with a gradient. `closure` is not for this optimizer: ValueError."""
        if closure is not None:
            raise ValueError("this optimizer takes no closure")
        chances: dict[torch.device, torch.Generator] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self._state_of(parameter)
                state["step"] += 1
                number, device = int(state["step"]), parameter.device
                if device not in chances:
                    chances[device] = torch.Generator(device).manual_seed(_mixed(self._seed, number))
                pieces = (parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"])
                for piece in zip(*(_pieces(tensor) for tensor in pieces), strict=True):
                    _update(piece, group, number, chances[device])

    def _state_of(self, parameter: torch.Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def _mixed(seed: int, number: int) -> int:
    """32 bits, all that the CPU's generator takes of a seed."""
    return (seed * 0x9E3779B1 + number) & 0xFFFFFFFF


def _pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views of at most about PIECE numbers, along the first axis."""
    rows = tensor if tensor.dim() else tensor[None]
    count = max(1, PIECE * len(rows) // max(1, rows.numel()))
    pieces: tuple[torch.Tensor, ...] = rows.split(count)  # type: ignore[no-untyped-call]
    return pieces


def _update(
    piece: tuple[torch.Tensor, ...], group: dict[str, Any], number: int, chance: torch.Generator
) -> None:
    parameter, gradient, kept_mean, kept_square = piece
    slope = gradient.float()
    weight, mean, square = (kept.to(torch.float32, copy=True) for kept in (parameter, kept_mean, kept_square))
    (beta1, beta2), lr = group["betas"], group["lr"]
    weight.mul_(1 - lr * group["weight_decay"])
    mean.lerp_(slope, 1 - beta1)
    square.mul_(beta2).addcmul_(slope, slope, value=1 - beta2)
    root = (square.sqrt() / math.sqrt(1 - beta2**number)).add_(group["eps"])
    weight.addcdiv_(mean, root, value=-lr / (1 - beta1**number))
    if parameter.dtype != torch.bfloat16:
        parameter.copy_(weight)
        kept_mean.copy_(mean)
        kept_square.copy_(square)
        return
    bits = random_bits(weight, chance)
    for lane, (kept, exact) in enumerate(((parameter, weight), (kept_mean, mean), (kept_square, square))):
        kept.copy_(rounded_by_chance(exact, bits[..., lane]))


def random_bits(like: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
    """Four times 16 random bits for each number of `like`, as int16 along a last axis of its own."""
    bits = torch.empty((*like.shape, 1), dtype=torch.int64, device=like.device)
    bits.random_(torch.iinfo(torch.int64).min, None, generator=chance)
    return bits.view(torch.int16)


def rounded_by_chance(exact: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """bf16 numbers whose expected values are the fp32 ones of `exact`, from 16 random `bits` (int16) each.

    The bits are added to those that are cut off, and carry into the last that is kept as often as what is cut
    off is large. Numbers that bf16 has stay as they are; so do infinities and what is no number.
    """
    added = exact.view(torch.int32) + (bits.to(torch.int32) & LOW_BITS)
    cut = (added & ~LOW_BITS).view(torch.float32)
    return torch.where(exact.isfinite(), cut, exact).to(torch.bfloat16)
