"""A few tokens through a freshly loaded model, to learn whether its architecture does what training relies
on.

Two things are relied on: hidden states times the head's weight are the model's logits (no scaling,
soft-capping or bias in between), and a 4-D mask with restarting positions keeps packed examples apart.
Architectures differ, and one that ignores either would train on a wrong loss without any message. Costs
three forward passes of eight tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trueup.schema import InputError

if TYPE_CHECKING:
    from .load import LoadedModel

TOLERANCE = 1e-3  # of the largest logit; fp32 rounding stays orders of magnitude below


@torch.no_grad()
def probe(loaded: LoadedModel) -> None:
    """Raises InputError for an architecture on which packed rows or the chunked loss would be wrong."""
    was_training = loaded.module.training
    loaded.module.eval()
    vocab = loaded.head_weight.shape[0]
    tokens = (torch.arange(8, device=loaded.head_weight.device) * 7 + 3) % vocab
    alone = [_logits(loaded, part[None], torch.zeros_like(part)[None]) for part in (tokens[:5], tokens[5:])]
    segments = torch.tensor([[0] * 5 + [1] * 3], device=tokens.device)
    packed = _logits(loaded, tokens[None], segments)
    direct = loaded.base(input_ids=tokens[None, :5], use_cache=False).logits
    loaded.module.train(was_training)
    if _differs(direct, alone[0]):
        raise InputError(
            f"{loaded.resolved.name}: its logits are not its hidden states times its head (scaled or capped "
            f"logits); the loss would be wrong, so this architecture is not supported"
        )
    if _differs(packed, torch.cat(alone, dim=1)):
        raise InputError(
            f"{loaded.resolved.name}: examples packed into one row influence each other in this "
            f"architecture, so it is not supported"
        )


def _logits(loaded: LoadedModel, tokens_BT: torch.Tensor, segments_BT: torch.Tensor) -> torch.Tensor:
    index = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
    starts_BT = torch.where(segments_BT == segments_BT.roll(1, dims=1), 0, index).cummax(dim=1).values
    hidden_BTH = loaded.forward_hidden(tokens_BT, index - starts_BT, segments_BT)
    return hidden_BTH @ loaded.head_weight.T


def _differs(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() > TOLERANCE * b.abs().max())
