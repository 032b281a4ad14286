"""Which token may look at which. B rows, T positions in a row.

A row holds one example, or several packed one after another; `segments_BT` numbers them, and padding has a
number of its own (any that no example of the row has). A token sees itself and the earlier tokens of its
own segment, nothing else. Padding therefore sees padding: no row of the mask is empty, which softmax would
turn into NaN. The mask is always explicit: left out, the attention kernels assume one causal segment a row.
"""

from __future__ import annotations

import torch


def block_causal_mask(segments_BT: torch.Tensor) -> torch.Tensor:
    """Boolean (B, 1, T, T); True where the query (third axis) may attend to the key (fourth axis)."""
    length = segments_BT.shape[1]
    same_BTT = segments_BT[:, :, None] == segments_BT[:, None, :]
    causal_TT = torch.ones(length, length, dtype=torch.bool, device=segments_BT.device).tril()
    return (same_BTT & causal_TT)[:, None]


def additive_mask(mask_B1TT: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same mask as numbers to add to attention scores: 0 where True, the lowest finite number of
    `dtype` where False. After softmax that is exactly 0, so a masked token has no influence at all, not
    even a small one."""
    lowest = torch.finfo(dtype).min
    return torch.zeros(mask_B1TT.shape, dtype=dtype, device=mask_B1TT.device).masked_fill_(~mask_B1TT, lowest)
