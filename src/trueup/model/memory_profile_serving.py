"""Steps of the engine's model, recorded: a prompt, whole or in chunks, and a next token.

B rows, Q new tokens in each, W blocks of context in each.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from trueup.schema.memory_trace import MemoryTrace

from .memory_profile import MemoryRecorder
from .memory_profile_served import shown, weights_of_served
from .memory_profile_where import Whereabouts
from .step_batch import StepBatch

if TYPE_CHECKING:
    from .inference import InferenceModel

SEED = 0


@dataclass(frozen=True)
class ServingRun:
    """`chunk`: prompt tokens of a row in one step, None for all at once. `kv_bytes`: 4 or 2 for fp32 or bf16
    keys and values."""

    rows: int
    length: int
    block_size: int
    kv_bytes: int
    chunk: int | None = None

    @property
    def blocks_of_row(self) -> int:
        return -(-(self.length + 1) // self.block_size)


def record_serving(model: InferenceModel, run: ServingRun) -> MemoryTrace:
    """On random tokens, with a pool that holds just these rows. Every step has the whole context's shape."""
    dtype = torch.bfloat16 if run.kv_bytes == 2 else torch.float32
    pool = model.new_pool(run.rows * run.blocks_of_row + 1, run.block_size, dtype)
    where = Whereabouts()
    recorder = MemoryRecorder(model.device.type, where)
    recorder.claim(weights_of_served(model), "weights")
    recorder.claim(((f"kv_pool.{n}", layer) for n, layer in enumerate(pool.layers)), "kv_pool")
    watched = shown(model, where)
    generator = torch.Generator().manual_seed(SEED)
    tokens_BT = torch.randint(0, model.dims.vocab, (run.rows, run.length + 1), generator=generator)
    chunk = run.chunk or run.length
    starts = [*range(0, run.length, chunk), run.length]
    for start, end in pairwise([*starts, run.length + 1]):
        part = "next token" if start == run.length else f"prompt from token {start:,}"
        recorder.mark(part if len(starts) > 2 or start else "prompt")
        where.between = "the step itself"
        batch = batch_of(run, tokens_BT, start, end)
        with recorder:
            watched.run(batch)
        del batch
    return recorder.trace()


def batch_of(run: ServingRun, tokens_BT: torch.Tensor, start: int, end: int) -> StepBatch:
    """The step that computes these tokens of every row; row b has blocks of its own, in order."""
    own_W = torch.arange(run.blocks_of_row)
    tables_BW = 1 + torch.arange(run.rows)[:, None] * run.blocks_of_row + own_W
    positions_Q = torch.arange(start, end)
    slots_BQ = tables_BW[:, positions_Q // run.block_size] * run.block_size + positions_Q % run.block_size
    return StepBatch(
        tokens_BQ=tokens_BT[:, start:end].clone(),
        positions_BQ=positions_Q.repeat(run.rows, 1),
        slots_BQ=slots_BQ,
        tables_BW=tables_BW,
        lengths_B=torch.full((run.rows,), end),
        last_B=torch.full((run.rows,), end - start - 1),
    )
