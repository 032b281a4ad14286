"""A decoder layer of serving, and what stands before and after all of them: from tokens to the stream of
hidden states, and from the stream to logits.

N new tokens, H hidden size, F size of the feed-forward part, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from .inference_bytes import ByteLinear
from .inference_linear import Linear, Matrix, dense_linear, goes_as_bytes, linear_of
from .inference_stored import StoredMatrix, WidenedLinear, bytes_of
from .inference_weights import Frame, Weights
from .quantized import QuantizedWeight

EMBEDDING, HEAD, FINAL_NORM = "embed_tokens", "lm_head", "norm"


class Gate(Protocol):
    """silu(gate) * up, (N, F)."""

    def __call__(self, x_NH: torch.Tensor) -> torch.Tensor: ...
    @property
    def bytes(self) -> int: ...


class Places(Protocol):
    """Where a step's tokens and their contexts are: `paged_attention.StepPlaces`, or without padding
    `prefill.PackedPlaces`. `attend` may change `qkv_NXD`, and writes new keys and values into the pool."""

    def attend(
        self, qkv_NXD: torch.Tensor, pool_S2KD: torch.Tensor, *, heads: tuple[int, int], scaling: float
    ) -> torch.Tensor: ...


@dataclass(frozen=True)
class JoinedGate:
    gate_up: Linear

    def __call__(self, x_NH: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x_NH).chunk(2, dim=-1)
        return nn.functional.silu(gate).mul_(up)

    @property
    def bytes(self) -> int:
        return self.gate_up.bytes


@dataclass(frozen=True)
class SplitGate:
    """As two products, whose outputs lie whole: the sweeps over them are over contiguous memory."""

    gate: Linear
    up: Linear

    def __call__(self, x_NH: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(self.gate(x_NH), inplace=True).mul_(self.up(x_NH))

    @property
    def bytes(self) -> int:
        return self.gate.bytes + self.up.bytes


@dataclass(frozen=True)
class InferenceLayer:
    """The stream stays fp32; products are in `dtype`."""

    input_norm_H: torch.Tensor
    qkv: Linear
    out: Linear
    feed_norm_H: torch.Tensor
    gate: Gate
    down: Linear
    heads: tuple[int, int]
    scaling: float
    eps: float
    dtype: torch.dtype

    def __call__(self, stream_NH: torch.Tensor, pool_S2KD: torch.Tensor, places: Places) -> torch.Tensor:
        """The stream after this layer. May be `stream_NH` itself, changed."""
        qkv_NO = self.qkv(normed(stream_NH, self.input_norm_H, self.eps, self.dtype))
        qkv_NXD = qkv_NO.float().view(len(qkv_NO), sum(self.heads) + self.heads[1], -1)
        seen_NP = places.attend(qkv_NXD, pool_S2KD, heads=self.heads, scaling=self.scaling)
        stream_NH = self.out.added(seen_NP.to(self.dtype), stream_NH)
        gated_NF = self.gate(normed(stream_NH, self.feed_norm_H, self.eps, self.dtype))
        return self.down.added(gated_NF, stream_NH)

    def bytes(self) -> dict[str, int]:
        return {
            "attention": self.qkv.bytes + self.out.bytes,
            "mlp": self.gate.bytes + self.down.bytes,
            "norms": bytes_of(self.input_norm_H) + bytes_of(self.feed_norm_H),
        }


def normed(stream_NH: torch.Tensor, weight_H: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
    """RMSNorm, in fp32, and rounded to `dtype`; two sweeps fewer than torch's own makes on a CPU."""
    length_N1 = torch.linalg.vector_norm(stream_NH, dim=-1, keepdim=True)
    scale_N1 = length_N1.square_().mul_(1 / stream_NH.shape[-1]).add_(eps).rsqrt_()
    normed_NH: torch.Tensor = (stream_NH * scale_N1).mul_(weight_H).to(dtype)
    return normed_NH


@dataclass(frozen=True)
class Embedding:
    weight: torch.Tensor | StoredMatrix

    def __call__(self, tokens_N: torch.Tensor) -> torch.Tensor:
        """(N, H) fp32, nobody else's."""
        if isinstance(self.weight, StoredMatrix):
            return self.weight.rows(tokens_N)
        return nn.functional.embedding(tokens_N, self.weight).float()

    @property
    def bytes(self) -> int:
        return self.weight.bytes if isinstance(self.weight, StoredMatrix) else bytes_of(self.weight)


def build_embedding(
    weights: Weights, prefix: str, frame: Frame, dtype: torch.dtype, device: torch.device, *, fused: bool
) -> tuple[Embedding, Linear]:
    """The embedding and the head, which share one copy where the model ties them."""
    matrix = weights.matrix(f"{prefix}.{EMBEDDING}")
    if isinstance(matrix, QuantizedWeight):
        embedding = Embedding(StoredMatrix.of(matrix, device))
    else:
        embedding = Embedding(matrix.to(device, dtype, copy=True))
    if not frame.dims.tied_head:
        return embedding, linear_of((weights.matrix(HEAD),), (None,), dtype, device, fused=fused)
    return embedding, _shared_head(embedding.weight, matrix, device, fused=fused)


def _shared_head(
    stored: torch.Tensor | StoredMatrix, matrix: Matrix, device: torch.device, *, fused: bool
) -> Linear:
    if isinstance(stored, torch.Tensor):
        return dense_linear(stored, None, device, fused=fused, shared=True)
    assert isinstance(matrix, QuantizedWeight)
    if fused and goes_as_bytes(matrix, device):
        return ByteLinear(stored.values, stored.scales_OG.flatten(), None)
    return WidenedLinear(stored, None)


def build_layer(
    weights: Weights, name: str, frame: Frame, dtype: torch.dtype, device: torch.device, *, fused: bool
) -> InferenceLayer:
    """The layer of transformers' name, "model.layers.0" say."""

    def joined(*names: str) -> Linear:
        full = [f"{name}.{part}" for part in names]
        matrices = tuple(weights.matrix(part) for part in full)
        biases = tuple(weights.vector(f"{part}.bias") for part in full)
        return linear_of(matrices, biases, dtype, device, fused=fused)

    def norm(part: str) -> torch.Tensor:
        found = weights.vector(f"{name}.{part}.weight")
        assert found is not None
        return found.to(device, torch.float32, copy=True)

    return InferenceLayer(
        input_norm_H=norm("input_layernorm"),
        qkv=joined("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        out=joined("self_attn.o_proj"),
        feed_norm_H=norm("post_attention_layernorm"),
        gate=_gate(weights, name, dtype, device, fused=fused),
        down=joined("mlp.down_proj"),
        heads=(frame.dims.heads, frame.dims.kv_heads),
        scaling=frame.scaling,
        eps=frame.eps,
        dtype=dtype,
    )


def _gate(weights: Weights, name: str, dtype: torch.dtype, device: torch.device, *, fused: bool) -> Gate:
    names = [f"{name}.mlp.{part}" for part in ("gate_proj", "up_proj")]
    matrices = [weights.matrix(part) for part in names]
    biases = [weights.vector(f"{part}.bias") for part in names]
    pairs = list(zip(matrices, biases, strict=True))
    if fused and all(isinstance(matrix, torch.Tensor) for matrix in matrices):
        gate, up = (linear_of((matrix,), (bias,), dtype, device, fused=fused) for matrix, bias in pairs)
        return SplitGate(gate, up)
    return JoinedGate(linear_of(tuple(matrices), tuple(biases), dtype, device, fused=fused))
