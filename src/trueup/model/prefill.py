"""Attention of prefill steps on a CPU, by a program of its own (`prefill_attention.cpp`): new tokens of
several rows without padding, each over the context that it sees and no more.

N new tokens of C rows, one row after another; J query heads, K key and value heads, X = J + 2K, D numbers of
a head; S slots of the pool.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from .cpu_program import ADDRESS, COUNT, FLOAT, MULTIPLE, address_of, fields_of
from .inference_weights import Frame
from .paged_attention import KvPool
from .step_batch import PackedStep

QUERIES = 48  # of a tile and one key head: as often is what is laid out of keys and values used
TILE_SCORES = 1 << 17  # of a tile, half of a second cache of a megabyte

COUNTS = "tokens rows width block_size threads heads keys head_dim positions tile context"
ADDRESSES = "firsts places slots tables turn scratch"


class _Prefill(ctypes.Structure):
    _fields_ = [*fields_of(COUNT, COUNTS), *fields_of(ADDRESS, ADDRESSES), ("scaling", FLOAT)]


@dataclass(frozen=True)
class PackedPlaces:
    """Of one step, the same for all layers. In its place for a CPU: `paged_attention.StepPlaces`."""

    library: ctypes.CDLL
    step: _Prefill
    named: tuple[Any, ...]  # what the addresses are of

    @classmethod
    def of(cls, step: PackedStep, pool: KvPool, frame: Frame, library: ctypes.CDLL) -> PackedPlaces:
        """Raises TrueupError for places that are not there. `pool`: fp32."""
        dims, positions = frame.dims, frame.turn_2PD.shape[1]
        step.check_places(positions=positions, slots=len(pool.layers[0]), block_size=pool.block_size)
        rows, width = step.tables_CW.shape
        groups, threads = dims.heads // dims.kv_heads, torch.get_num_threads()
        context = -(-(int(step.positions_N.max()) + 1) // MULTIPLE) * MULTIPLE
        tile = max(1, min(QUERIES, TILE_SCORES // context) // groups)
        counts = (len(step.tokens_N), rows, width, pool.block_size, threads)
        own = _Prefill(*counts, dims.heads, dims.kv_heads, dims.head_dim, positions, tile, context)
        scratch = torch.empty(threads * int(library.scratch_of(ctypes.byref(own))), dtype=torch.float32)
        named = (step.firsts_C, step.positions_N, step.slots_N, step.tables_CW, frame.turn_2PD, scratch)
        for name, tensor in zip(ADDRESSES.split(), named, strict=True):
            setattr(own, name, address_of(tensor))
        own.scaling = frame.scaling
        return cls(library, own, named)

    def attend(
        self, qkv_NXD: torch.Tensor, pool_S2KD: torch.Tensor, *, heads: tuple[int, int], scaling: float
    ) -> torch.Tensor:
        """As `StepPlaces.attend`; heads and scaling are the frame's here. `qkv_NXD`: contiguous, fp32; where
        it has more tokens than the step, the last are padding, whose output is 0."""
        seen_NP = qkv_NXD.new_empty(len(qkv_NXD), heads[0] * qkv_NXD.shape[-1])
        given = map(address_of, (pool_S2KD, qkv_NXD, seen_NP))
        self.library.attend_prefill(ctypes.byref(self.step), *map(ADDRESS, given))
        seen_NP[self.step.tokens :] = 0
        return seen_NP
