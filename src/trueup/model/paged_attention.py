"""Attention of new tokens over a paged pool of keys and values, in fixed shapes.

B rows, Q new tokens in each, W blocks of context in each, N = B * Q, T = W * block size; J query heads, K key
and value heads, G = J / K, D numbers of a head; S slots of the pool, a token each.

Block 0 is nobody's: padding writes there. Every step makes one mask of numbers, never none: left out, kernels
assume what they like of causality. A masked score is the lowest number there is, whose weight after softmax
is exactly 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from .masks import additive_mask
from .step_batch import StepBatch

TALL = 768  # queries below each other from which a CPU's kernel takes blocks that its caches do not hold


@dataclass(frozen=True)
class KvPool:
    """Keys and values of every layer; a slot's keys stand before its values, so that one copy writes both and
    one fetches both."""

    layers: tuple[torch.Tensor, ...]  # (S, 2, K, D) each
    block_size: int

    @classmethod
    def new(
        cls,
        *,
        layers: int,
        blocks: int,
        block_size: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KvPool:
        shape = (blocks * block_size, 2, heads, head_dim)
        # zeros: a place that was never written is read with weight 0, and 0 times NaN is NaN
        return cls(tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)), block_size)

    @property
    def blocks(self) -> int:
        return len(self.layers[0]) // self.block_size

    @property
    def dtype(self) -> torch.dtype:
        return self.layers[0].dtype

    @property
    def bytes(self) -> int:
        return sum(layer.untyped_storage().nbytes() for layer in self.layers)


@dataclass(frozen=True)
class StepPlaces:
    """Of one step, the same for all layers."""

    shape: tuple[int, int]  # B, Q
    block_size: int
    turn_N1D: tuple[torch.Tensor, torch.Tensor]  # cosine, signed sine
    slots_N: torch.Tensor
    padding_N111: torch.Tensor  # of tokens that are nobody's
    blocks_M: torch.Tensor  # of all rows, one table after another
    context_MC: torch.Tensor  # where each layer in turn lays what these blocks hold
    mask_B1RT: torch.Tensor  # R = Q * G: the query heads of one key head below each other; or R = Q
    merged: bool  # R = Q * G

    @classmethod
    def of(cls, step: StepBatch, pool: KvPool, turn_2PD: torch.Tensor, groups: int) -> StepPlaces:
        device = turn_2PD.device
        positions_BQ, tables_BW = step.positions_BQ.to(device), step.tables_BW.to(device)
        positions_N, slots_N = positions_BQ.flatten(), step.slots_BQ.to(device).flatten()
        places_T = torch.arange(tables_BW.shape[1] * pool.block_size, device=device)
        seen_BQT = places_T <= positions_BQ.unsqueeze(-1)
        mask_BQT = additive_mask(seen_BQT, pool.dtype)
        rows, new = positions_BQ.shape
        merged = device.type != "cpu" or new * groups < TALL
        if merged:
            mask_BQT = mask_BQT.unsqueeze(2).expand(-1, -1, groups, -1).flatten(1, 2)
        return cls(
            shape=(rows, new),
            block_size=pool.block_size,
            turn_N1D=(
                turn_2PD[0].index_select(0, positions_N).unsqueeze(1),
                turn_2PD[1].index_select(0, positions_N).unsqueeze(1),
            ),
            slots_N=slots_N,
            padding_N111=(slots_N < pool.block_size)[:, None, None, None],
            blocks_M=tables_BW.flatten(),
            context_MC=pool.layers[0].new_empty(tables_BW.numel(), pool.layers[0][: pool.block_size].numel()),
            mask_B1RT=mask_BQT.unsqueeze(1),
            merged=merged,
        )

    def attend(
        self, qkv_NXD: torch.Tensor, pool_S2KD: torch.Tensor, *, heads: tuple[int, int], scaling: float
    ) -> torch.Tensor:
        """(N, J * D): writes the new keys and values where they belong and attends to what the tables name.

        `qkv_NXD`: queries, keys and values, J + 2K heads; changed in place. `heads`: (J, K).
        """
        queries, keys = heads
        rows, new = self.shape
        head_dim = qkv_NXD.shape[-1]
        turn(qkv_NXD[:, : queries + keys], self.turn_N1D)
        new_N2KD = qkv_NXD[:, queries:].view(-1, 2, keys, head_dim)
        # Padding after a NaN is NaN too, and all tables end with block 0: a weight of 0 times NaN is NaN.
        new_N2KD.masked_fill_(self.padding_N111, 0)
        pool_S2KD.index_copy_(0, self.slots_N, new_N2KD.to(pool_S2KD.dtype))
        by_block = pool_S2KD.view(-1, self.block_size * 2 * keys * head_dim)
        # Fresh memory for megabytes in every layer costs more than the copy; a compiler plans its own.
        kept = None if torch.compiler.is_compiling() else self.context_MC
        context_MC = torch.index_select(by_block, 0, self.blocks_M, out=kept)
        context_BT2KD = context_MC.view(rows, -1, 2, keys, head_dim)
        k_BKTD, v_BKTD = (part.transpose(1, 2) for part in context_BT2KD.unbind(2))
        q_BQJD = qkv_NXD[:, :queries].view(rows, new, queries, head_dim).to(pool_S2KD.dtype)
        mask = self.mask_B1RT
        if self.merged:
            q_BKRD = q_BQJD.view(rows, new, keys, -1, head_dim).transpose(1, 2).flatten(2, 3)
            seen_BKRD = scaled_dot_product_attention(q_BKRD, k_BKTD, v_BKTD, attn_mask=mask, scale=scaling)
            seen_BQKGD = seen_BKRD.view(rows, keys, new, -1, head_dim).transpose(1, 2)
            return seen_BQKGD.reshape(rows * new, -1).to(qkv_NXD.dtype)
        seen_BJQD: torch.Tensor = scaled_dot_product_attention(
            q_BQJD.transpose(1, 2), k_BKTD, v_BKTD, attn_mask=mask, scale=scaling, enable_gqa=True
        )
        return seen_BJQD.transpose(1, 2).reshape(rows * new, -1).to(qkv_NXD.dtype)


def turn(x_NXD: torch.Tensor, by: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Turn each pair (d, d + D/2) by its token's angle, in place; `by` as in `Frame.turn_2PD`."""
    cos_N1D, sin_N1D = by
    crossed = x_NXD.roll(x_NXD.shape[-1] // 2, dims=-1)
    x_NXD.mul_(cos_N1D).addcmul_(crossed, sin_N1D)
