"""Rows of the standard library's docstrings as the tiny model's tokens, which are bytes; and a model trained
on some of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch

STEPS, ROWS, LENGTH = 120, 8, 128
CALIBRATION = 150_000  # rows from here on were not trained on
HELD_OUT = 250_000  # nor were these, and no method looks at them


@cache
def text() -> bytes:
    """The built-in data set's texts, one after the other."""
    from trueup.data.stdlib_docs import records

    return b"\n".join(turn.content.encode() for record in records() for turn in record.turns)


def rows(count: int, length: int = LENGTH, *, start: int = 0) -> torch.Tensor:
    """(count, length) consecutive rows from byte `start` on."""
    part = text()[start : start + count * length]
    return torch.tensor(list(part)).view(count, length)


def train_on_docstrings(folder: Path) -> None:
    """A few steps of AdamW, in place."""
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        tokens_BT = rows(ROWS, start=step * ROWS * LENGTH)
        loss = model(input_ids=tokens_BT, labels=tokens_BT).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
