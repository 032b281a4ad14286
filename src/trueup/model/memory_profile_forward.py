"""The forward pass that transformers itself has, recorded: a prompt with its cache, then one more token.

B rows, T tokens in each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from trueup.schema.memory_trace import MemoryTrace

from .empty_cache import empty_cache
from .load import LoadedModel
from .memory_profile import MemoryRecorder, weights_of
from .memory_profile_where import Whereabouts

SEED = 0


@dataclass(frozen=True)
class ForwardAsk:
    """`chunk`: prompt tokens at a time, None for all at once; `last_logits`: of each row's last position
    alone, where the model can leave out the others."""

    rows: int
    length: int
    chunk: int | None = None
    last_logits: bool = False


def record_forward(loaded: LoadedModel, ask: ForwardAsk) -> MemoryTrace:
    """As `generate` begins, on random tokens."""
    model: Any = loaded.base
    where = Whereabouts(model)
    device = loaded.head_weight.device
    recorder = MemoryRecorder(device.type, where)
    generator = torch.Generator().manual_seed(SEED)
    tokens_BT = torch.randint(0, loaded.dims.vocab, (ask.rows, ask.length + 1), generator=generator)
    tokens_BT = tokens_BT.to(device)
    recorder.claim(weights_of(model), "weights")
    with torch.no_grad(), where.watching(), recorder:
        _run(model, tokens_BT, ask, recorder)
    return recorder.trace()


def _run(model: Any, tokens_BT: torch.Tensor, ask: ForwardAsk, recorder: MemoryRecorder) -> None:
    cache, options = empty_cache(model)
    if ask.last_logits:
        options["logits_to_keep"] = 1
    chunk = ask.chunk or ask.length
    starts = [*range(0, ask.length, chunk), ask.length]
    for start, end in pairwise([*starts, ask.length + 1]):
        part = "next token" if start == ask.length else f"prompt from token {start:,}"
        recorder.mark(part if len(starts) > 2 or start else "prompt")
        output = model(tokens_BT[:, start:end], **options)
        recorder.claim(_cached(cache), "kv_pool")
        del output


def _cached(cache: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for number, layer in enumerate(getattr(cache, "layers", ())):
        for part in (layer.keys, layer.values):
            if isinstance(part, torch.Tensor):
                yield f"cache.{number}", part
