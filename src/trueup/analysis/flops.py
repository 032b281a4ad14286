"""Model FLOPs and bytes of a Llama-class model. A multiply-add counts as two FLOPs.

Letters: L layers, h hidden, H heads, K key-value heads, d head size, f intermediate size, V vocabulary.
Sources: matmul and attention FLOPs, PaLM (Chowdhery et al. 2022), appendix B; a weight costs 2 FLOPs a token
forward, 2 for the gradient of its input and 2 for its own gradient, which a frozen weight does not need.
Model FLOPs leave out what is recomputed, and norms, rotary embedding and softmax.
"""

from __future__ import annotations

from typing import Literal

from trueup.schema import ModelDims

OptimizerState = Literal["mixed", "fp32", "bf16"]

_STATE_BYTES_PER_PARAMETER = {
    "mixed": 16.0,
    "fp32": 16.0,
    "bf16": 8.0,
}  # weight, gradient, two moments, master
_FROZEN_BYTES_PER_PARAMETER = {"mixed": 2.0, "fp32": 4.0, "bf16": 2.0}


def block_matmul_parameters(dims: ModelDims) -> int:
    """Weights of all decoder layers: L(2hHd + 2hKd + 3hf)."""
    attention = 2 * dims.hidden * dims.heads * dims.head_dim + 2 * dims.hidden * dims.kv_heads * dims.head_dim
    return dims.layers * (attention + 3 * dims.hidden * dims.intermediate)


def head_parameters(dims: ModelDims) -> int:
    """Weights of the output head, hV, tied or not. The embedding lookup is no matmul and has none."""
    return dims.hidden * dims.vocab


def matmul_parameters(dims: ModelDims) -> int:
    """N_mm: decoder layers and head."""
    return block_matmul_parameters(dims) + head_parameters(dims)


def training_flops(
    dims: ModelDims, *, tokens: float, head_rows: float, attention_sum_sq: float, causal: bool = True
) -> float:
    """Model FLOPs of forward and backward over `tokens` tokens, of which `head_rows` go through the head.

    `attention_sum_sq` is the sum of squared example lengths: packed examples do not see each other, so
    attention costs 12·L·H·d·Σs² (half of it when causal), not 12·L·H·d·tokens·row length.
    """
    per_weight = _flops_per_weight(dims)
    return (
        per_weight * block_matmul_parameters(dims) * tokens
        + per_weight * head_parameters(dims) * head_rows
        + 6.0 * dims.lora_parameters * tokens
        + 3.0 * _attention_forward(dims, attention_sum_sq, causal)
    )


def head_row_flops(dims: ModelDims) -> float:
    """Training FLOPs of one row through the head, forward and backward."""
    return _flops_per_weight(dims) * head_parameters(dims)


def forward_flops(
    dims: ModelDims, *, tokens: float, head_rows: float, attention_sum_sq: float, causal: bool = True
) -> float:
    """Model FLOPs of a forward pass alone, as in evaluation. Arguments as in `training_flops`."""
    return (
        2.0 * block_matmul_parameters(dims) * tokens
        + 2.0 * head_parameters(dims) * head_rows
        + 2.0 * dims.lora_parameters * tokens
        + _attention_forward(dims, attention_sum_sq, causal)
    )


def recomputed_flops(
    dims: ModelDims, *, tokens: float, attention_sum_sq: float, causal: bool = True
) -> float:
    """FLOPs of running the decoder layers forward once more, which activation checkpointing does; the head is
    not part of it. They are no model FLOPs."""
    return forward_flops(dims, tokens=tokens, head_rows=0.0, attention_sum_sq=attention_sum_sq, causal=causal)


def kv_bytes_per_token(dims: ModelDims, *, bytes_per_value: float = 2.0) -> float:
    """Key-value cache of one token over all layers: 2·L·K·d·bytes."""
    return 2.0 * dims.layers * dims.kv_heads * dims.head_dim * bytes_per_value


def training_memory_bytes(
    dims: ModelDims, *, state: OptimizerState = "mixed", full_logits_tokens: int = 0
) -> float:
    """Bytes of weights, gradients and AdamW state, without activations.

    Per trained parameter 16 bytes (mixed precision with master weights, or fp32) or 8 (all bf16); a frozen
    one costs its weight alone. `full_logits_tokens` adds 10·V bytes for each token whose logits exist.
    """
    frozen = max(0, dims.parameters - dims.trainable_parameters)
    return (
        _FROZEN_BYTES_PER_PARAMETER[state] * frozen
        + _STATE_BYTES_PER_PARAMETER[state] * dims.trainable_parameters
        + 10.0 * dims.vocab * full_logits_tokens
    )


def _flops_per_weight(dims: ModelDims) -> float:
    """6 for a trained weight, 4 for a frozen one, between them where only a share is trained."""
    trained = max(0, dims.trainable_parameters - dims.lora_parameters)
    base = max(1, dims.parameters - dims.lora_parameters)
    return 4.0 + 2.0 * min(1.0, trained / base)


def _attention_forward(dims: ModelDims, sum_sq: float, causal: bool) -> float:
    full = 4.0 * dims.layers * dims.heads * dims.head_dim * sum_sq
    return full / 2 if causal else full
