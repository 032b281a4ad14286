"""FLOP and byte formulas against worked values for Llama-3.1-8B, and their invariants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.analysis.flops import (
    block_matmul_parameters,
    forward_flops,
    head_parameters,
    head_row_flops,
    kv_bytes_per_token,
    matmul_parameters,
    recomputed_flops,
    training_flops,
    training_memory_bytes,
)
from trueup.schema import ModelDims

N = 8_030_261_248
N_LORA = 13_631_488


def llama_8b(*, trainable: int = N, lora: int = 0) -> ModelDims:
    return ModelDims(
        layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=14336, vocab=128256,
        tied_head=False, parameters=N + lora, trainable_parameters=trainable, lora_parameters=lora,
    )  # fmt: skip


FULL = llama_8b()
LORA = llama_8b(trainable=N_LORA, lora=N_LORA)


def per_token(dims: ModelDims) -> float:
    return training_flops(dims, tokens=1, head_rows=1, attention_sum_sq=0)


def test_matmul_parameters() -> None:
    assert matmul_parameters(FULL) == pytest.approx(7.505e9, rel=1e-4)


def test_full_fine_tuning_is_6n() -> None:
    assert per_token(FULL) == 6 * matmul_parameters(FULL) == pytest.approx(45.0e9, rel=1e-3)


def test_lora_is_4n_plus_its_own_6n() -> None:
    assert per_token(LORA) == 4 * matmul_parameters(FULL) + 6 * N_LORA
    assert 4 * matmul_parameters(FULL) == pytest.approx(30.0e9, rel=1e-3)


def test_activation_checkpointing_makes_it_8n_or_6n() -> None:
    """But for the head, whose rows are not computed again."""
    head = 2 * head_parameters(FULL)
    for dims, factor in ((FULL, 8), (LORA, 6)):
        again = recomputed_flops(dims, tokens=1, attention_sum_sq=0)
        adapters = (6 + 2) * dims.lora_parameters
        assert per_token(dims) + again == factor * matmul_parameters(FULL) - head + adapters


def test_counting_lora_as_6n_would_inflate_mfu() -> None:
    """litgpt 404: MFU above 1 because frozen weights were counted as trained."""
    assert per_token(FULL) / per_token(LORA) == pytest.approx(1.5, rel=0.01)
    length = 2048
    with_attention = [
        training_flops(d, tokens=length, head_rows=length, attention_sum_sq=length**2, causal=False)
        for d in (FULL, LORA)
    ]
    assert with_attention[0] / with_attention[1] == pytest.approx(1.45, abs=0.01)


def test_attention_at_2048() -> None:
    length = 2048
    full = training_flops(FULL, tokens=0, head_rows=0, attention_sum_sq=length**2, causal=False) / length
    causal = training_flops(FULL, tokens=0, head_rows=0, attention_sum_sq=length**2) / length
    assert full == pytest.approx(3.2e9, rel=0.01)
    assert causal == full / 2


def test_rows_that_skip_the_head_cost_no_head() -> None:
    all_rows = training_flops(LORA, tokens=100, head_rows=100, attention_sum_sq=0)
    few_rows = training_flops(LORA, tokens=100, head_rows=30, attention_sum_sq=0)
    assert all_rows - few_rows == pytest.approx(70 * head_row_flops(LORA)) == 70 * 4 * head_parameters(LORA)


def test_partly_frozen_lies_between() -> None:
    half = llama_8b(trainable=N // 2)
    assert per_token(half) == pytest.approx(5 * matmul_parameters(FULL))


def test_forward_is_a_third_of_full_training() -> None:
    training = training_flops(FULL, tokens=64, head_rows=16, attention_sum_sq=2048)
    assert forward_flops(FULL, tokens=64, head_rows=16, attention_sum_sq=2048) * 3 == pytest.approx(training)


@given(st.lists(st.integers(1, 512), min_size=1, max_size=8), st.booleans())
def test_packed_examples_cost_what_they_cost_alone(lengths: list[int], lora: bool) -> None:
    dims = LORA if lora else FULL
    alone = sum(training_flops(dims, tokens=n, head_rows=n, attention_sum_sq=n * n) for n in lengths)
    packed = training_flops(
        dims, tokens=sum(lengths), head_rows=sum(lengths), attention_sum_sq=sum(n * n for n in lengths)
    )
    assert packed == pytest.approx(alone)


def test_kv_cache() -> None:
    assert kv_bytes_per_token(FULL) == 131_072


def test_training_memory() -> None:
    assert training_memory_bytes(FULL) == 16 * N
    assert training_memory_bytes(FULL, state="bf16") == 8 * N
    assert training_memory_bytes(LORA) == 2 * N + 16 * N_LORA
    assert training_memory_bytes(FULL, full_logits_tokens=8) - training_memory_bytes(FULL) == 80 * 128256


def test_block_count_grows_with_layers() -> None:
    assert block_matmul_parameters(FULL.model_copy(update={"layers": 64})) == 2 * block_matmul_parameters(
        FULL
    )
