"""AdamW over what is trained, with its moments in the precision that the weights are kept in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trueup.recipe import Recipe

if TYPE_CHECKING:
    import torch

    from trueup.model.precision import Precision


def make_optimizer(
    trainable: list[tuple[str, torch.nn.Parameter]], recipe: Recipe, precision: Precision, *, fused: bool
) -> torch.optim.Optimizer:
    """AdamW over the trainable parameters. Weight decay is for matrices: norms and biases are left out.

    `state[parameter]` holds `step`, `exp_avg` and `exp_avg_sq`, the moments in the parameter's dtype. With
    the recipe's stochastic rounding under policy bf16 it is our own step, else torch's, `fused` where there
    is such a kernel for the device.
    """
    import torch

    settings = recipe.optimizer
    matrices = [p for _, p in trainable if p.dim() >= 2]
    vectors = [p for _, p in trainable if p.dim() < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if precision.policy == "bf16" and recipe.precision.stochastic_rounding:
        from .rounding import RoundedAdamW

        return RoundedAdamW(
            groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, seed=recipe.train.seed
        )
    return torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=fused)
