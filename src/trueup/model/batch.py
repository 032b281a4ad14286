"""What the training loop asks of a model: the summed loss of one micro-batch.

B rows, T positions in a row, N supervised positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .load import LoadedModel
from .loss import ROWS_AT_ONCE, chunked_loss
from .precision import Precision


@dataclass(frozen=True)
class BatchTensors:
    """One micro-batch on the device. Segments as in masks.py, 0 for padding; positions restart at 0 with each
    example."""

    tokens_BT: torch.Tensor
    positions_BT: torch.Tensor
    segments_BT: torch.Tensor
    rows_N: torch.Tensor
    targets_N: torch.Tensor

    @classmethod
    def from_arrays(
        cls,
        tokens_BT: Any,
        positions_BT: Any,
        segments_BT: Any,
        rows_N: Any,
        targets_N: Any,
        *,
        device: Any = "cpu",
    ) -> BatchTensors:
        """From anything `torch.as_tensor` takes, numpy arrays first of all; integers become int64."""
        arrays = (tokens_BT, positions_BT, segments_BT, rows_N, targets_N)
        return cls(*(torch.as_tensor(array, dtype=torch.int64, device=device) for array in arrays))


def batch_loss(
    loaded: LoadedModel, batch: BatchTensors, precision: Precision, *, chunk_rows: int = ROWS_AT_ONCE
) -> torch.Tensor:
    """Cross-entropy in nats summed over the micro-batch's supervised tokens, a scalar with a gradient path.

    A sum, so that the caller divides by the supervised tokens of the whole global batch (rule 2). Under
    `torch.no_grad()` it is the evaluation's loss, at the same cost in memory.
    """
    with precision.autocast(batch.tokens_BT.device.type):
        hidden_BTH = loaded.forward_hidden(batch.tokens_BT, batch.positions_BT, batch.segments_BT)
        head_VH = loaded.head_weight if loaded.decoder is None else loaded.decoder.head_weight_VH
        return chunked_loss(hidden_BTH, head_VH, batch.rows_N, batch.targets_N, chunk_rows=chunk_rows)
