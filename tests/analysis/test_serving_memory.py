"""Serving memory from dimensions: worked figures, and what `fit` says: it fits, and one more does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trueup.analysis.allocator import ModelledAllocator
from trueup.analysis.serving_memory import (
    HEADROOM,
    ServingAsk,
    all_blocks,
    needs_bytes,
    serving_lines,
    value_of,
)
from trueup.analysis.serving_memory_device import MICRO_CODE_BYTES
from trueup.analysis.serving_memory_fit import fit, kv_blocks
from trueup.analysis.serving_memory_weights import WEIGHT_SCHEMES
from trueup.catalog import accelerators
from trueup.catalog.models import published_models
from trueup.model.dims import expected_dims
from trueup.recipe.models import TuneSection
from trueup.schema import Measurement, ModelDims
from trueup.serve.plan import plan_serving

GIB = 2**30


def dims_of(model: str = "llama-3.1-8b") -> ModelDims:
    return expected_dims(dict(published_models()[model].config), TuneSection(method="full"))


EIGHT_B, SMALL = ServingAsk(dims_of(), 4096, 8), ServingAsk(dims_of("smollm2-135m"), 1024, 4)
asks = st.builds(
    ServingAsk,
    dims=st.sampled_from([dims_of(name) for name in ("llama-3.1-8b", "smollm2-135m", "llama-2-7b")]),
    context=st.integers(1, 9000),
    concurrency=st.integers(1, 300),
    quant=st.sampled_from(WEIGHT_SCHEMES),
    kv=st.sampled_from(["fp32", "bf16"]),
    device=st.sampled_from(["cpu", "cuda", "neuron"]),
    chip=st.sampled_from([None, "trainium2"]),
    block_size=st.sampled_from([1, 4, 16, 64]),
    prefill_chunk=st.integers(1, 2048),
)


def value(ask: ServingAsk, name: str) -> float:
    return value_of(serving_lines(ask), name)


# --- worked figures -----------------------------------------------------------------------------------------


def test_a_token_of_llama_8b_takes_131072_bytes_of_bf16_keys_and_values() -> None:
    assert EIGHT_B.block_bytes == 16 * 131_072
    assert all_blocks(EIGHT_B) == 8 * 256 + 1
    assert value(EIGHT_B, "kv_pool_bytes") == 2049 * 16 * 131_072


def test_llama_8b_in_bf16_takes_2_bytes_a_parameter() -> None:
    parts = ("layers_bytes", "embedding_bytes", "head_bytes", "norms_bytes")
    norms = 65 * 4096  # in fp32
    assert sum(value(EIGHT_B, part) for part in parts) == 2 * 8_030_261_248 + 2 * norms


def test_int8_weights_take_a_byte_each_and_a_scale_an_output() -> None:
    ask = replace(EIGHT_B, quant="int8")
    outputs = 32 * (4096 + 1024 + 1024 + 4096 + 14336 + 14336 + 4096)
    assert value(ask, "layers_bytes") == 6_979_321_856 + 4 * outputs
    assert value(ask, "head_bytes") == 128256 * 4096 + 4 * 128256
    assert value(ask, "embedding_bytes") == 2 * 128256 * 4096  # not rounded: it is not the head
    assert value(ask, "norms_bytes") == 4 * 65 * 4096


def test_int4_weights_take_half_a_byte_each_and_a_scale_for_every_32_inputs() -> None:
    ask = replace(EIGHT_B, quant="int4")
    assert value(ask, "layers_bytes") == 6_979_321_856 / 2 + 4 * 6_979_321_856 / 32
    assert value(replace(ask, group=128), "layers_bytes") == 6_979_321_856 / 2 + 4 * 6_979_321_856 / 128


def test_an_embedding_that_is_the_head_is_there_once_and_is_rounded_with_it() -> None:
    ask = replace(SMALL, quant="int8")
    assert value(ask, "embedding_bytes") == 49152 * 576 + 4 * 49152
    assert value(ask, "head_bytes") == 0
    assert "is the embedding itself" in serving_lines(ask)["head_bytes"].method


def test_int8_is_at_most_35_percent_of_fp32() -> None:
    parts = ("layers_bytes", "embedding_bytes", "head_bytes", "norms_bytes")
    whole, small = (
        sum(value(replace(SMALL, device="cpu", quant=quant), part) for part in parts)
        for quant in ("fp32", "int8")
    )
    assert small <= 0.35 * whole


def test_headroom_is_a_tenth_of_everything_else_and_the_lines_add_up() -> None:
    lines = serving_lines(EIGHT_B)
    known = sum(
        line.value or 0.0 for name, line in lines.items() if name not in ("needs_bytes", "headroom_bytes")
    )
    assert value_of(lines, "headroom_bytes") == pytest.approx(HEADROOM * known)
    assert value_of(lines, "needs_bytes") == pytest.approx(known + value_of(lines, "headroom_bytes"))


def test_every_line_has_its_arithmetic_or_its_reason() -> None:
    for device in ("cpu", "cuda", "neuron"):
        for line in serving_lines(replace(EIGHT_B, device=device)).values():
            assert line.reason if line.value is None else line.method


# --- devices ------------------------------------------------------------------------------------------------


def test_neuron_has_its_lines_and_only_the_published_one_has_a_value() -> None:
    lines = serving_lines(replace(EIGHT_B, device="neuron", chip="trainium2"))
    assert lines["code_bytes"].value == 8 * MICRO_CODE_BYTES == 8 * 96 * 2**20
    assert lines["code_bytes"].kind == "quoted"
    for name in ("scratchpad_bytes", "dma_rings_bytes", "collectives_bytes"):
        assert "only once the model is compiled" in (lines[name].reason or "")
    assert lines["rounding_bytes"].value is None
    assert "not in it: rounding, scratchpad, dma_rings, collectives" in lines["needs_bytes"].method


def test_an_unknown_neuron_chip_has_no_guessed_code() -> None:
    assert serving_lines(replace(EIGHT_B, device="neuron"))["code_bytes"].value is None


def test_the_rounding_of_weights_and_pool_covers_the_modelled_allocator() -> None:
    ask = replace(EIGHT_B, device="cuda")
    allocator = ModelledAllocator()
    tensors = [*ask.stored.groups, (32, ask.pool_blocks * ask.block_bytes // 32)]
    for count, size in tensors:
        for _ in range(count):
            allocator.allocate(size)
    asked = sum(count * size for count, size in tensors)
    assert value(ask, "rounding_bytes") >= allocator.now.reserved - asked


# --- the largest step ---------------------------------------------------------------------------------------


@given(asks, st.integers(2, 96))
def test_the_plan_counts_at_least_the_worst_step_of_any_serving_plan(ask: ServingAsk, shapes: int) -> None:
    """Out of memory after a good warm-up is a step that the warm-up did not run."""
    ask = replace(ask, context=max(2, ask.context))
    served = plan_serving(
        max_context=ask.context,
        blocks=all_blocks(ask),
        concurrency=ask.concurrency,
        block_size=ask.block_size,
        prefill_chunk=max(2, ask.prefill_chunk),
        most_shapes=1 << 30,
    )
    real = replace(ask, prefill_chunk=max(2, ask.prefill_chunk), steps=served.shapes())
    bound = replace(real, steps=None)
    for name in ("activations_bytes", "logits_bytes"):
        assert value(bound, name) >= value(real, name)
    assert needs_bytes(bound) >= needs_bytes(real)


def test_the_step_that_counts_is_not_the_last_one_run() -> None:
    small, large = (1, 16, 1), (8, 1, 256)
    both = value(replace(EIGHT_B, steps=(large, small)), "activations_bytes")
    assert both == value(replace(EIGHT_B, steps=(large,)), "activations_bytes")
    assert both > value(replace(EIGHT_B, steps=(small,)), "activations_bytes")


# --- what fits ----------------------------------------------------------------------------------------------


@given(asks)
def test_more_of_anything_never_needs_less(ask: ServingAsk) -> None:
    needs = needs_bytes(ask)
    assert needs_bytes(replace(ask, context=ask.context + 1)) >= needs
    assert needs_bytes(replace(ask, concurrency=ask.concurrency + 1)) >= needs
    assert needs_bytes(replace(ask, kv="fp32")) >= needs
    assert needs_bytes(replace(ask, blocks=all_blocks(ask) + 1)) >= needs


@settings(max_examples=40)
@given(asks, st.floats(1e7, 4e11))
def test_what_fits_does_and_one_more_does_not(ask: ServingAsk, has: float) -> None:
    found = fit(ask, has, positions=8192)
    assert found.fits == (needs_bytes(ask) <= has)
    assert found.longest_context is not None
    assert found.most_concurrency is not None
    for field, most, end in (
        ("context", found.longest_context, 8192),
        ("concurrency", found.most_concurrency, None),
    ):
        if most:
            assert needs_bytes(replace(ask, **{field: most})) <= has
        if most != end:
            assert needs_bytes(replace(ask, **{field: most + 1})) > has


@settings(max_examples=40)
@given(asks, st.floats(1e7, 4e11))
def test_what_is_said_to_help_does(ask: ServingAsk, has: float) -> None:
    found = fit(ask, has, positions=131072)
    assert not (found.fits and found.changes)
    for change in found.changes:
        assert change.needs_bytes < found.needs_bytes
        assert change.fits == (change.needs_bytes <= has)
    assert [one.fits for one in found.changes] == sorted((one.fits for one in found.changes), reverse=True)


def test_a_refusal_says_what_it_needs_has_and_what_would_fit() -> None:
    found = fit(replace(EIGHT_B, context=8192, concurrency=16), 34 * GIB, positions=131072)
    assert found.fits is False
    assert found.why.startswith("needs ")
    assert "has 34.00 GiB" in found.why
    assert "131,072 B a token" in found.why
    fitting = [one.what for one in found.changes if one.fits]
    assert "int8 weights" in fitting
    assert f"a context of {found.longest_context:,} tokens" in fitting
    assert f"{found.most_concurrency} sequences at once" in fitting


def test_the_process_itself_is_told_of_a_processor_counted_or_not() -> None:
    ask = replace(SMALL, device="cpu")
    assert "; not counted: the process itself, Python and PyTorch (" in fit(ask, 34 * GIB).why
    measured = Measurement(value=0.5 * GIB, unit="bytes", kind="measured")
    assert ", the process itself 512.00 MiB" in fit(replace(ask, process=measured), 34 * GIB).why
    assert "process" not in fit(SMALL, 34 * GIB).why


def test_keys_and_values_of_fp32_are_told_to_be_bf16() -> None:
    found = fit(replace(EIGHT_B, kv="fp32", concurrency=64), 40 * GIB)
    assert "bf16 keys and values" in [one.what for one in found.changes]
    assert "int8 weights and bf16 keys and values" in [one.what for one in found.changes]


def test_the_longest_context_ends_at_the_models_positions() -> None:
    assert fit(SMALL, 1e13, positions=8192).longest_context == 8192


def test_memory_that_nobody_publishes_is_neither_a_yes_nor_a_no() -> None:
    found = fit(EIGHT_B, None)
    assert (found.fits, found.longest_context, found.most_concurrency, found.changes) == (
        None,
        None,
        None,
        (),
    )


def test_weights_that_fill_the_device_leave_no_sequence() -> None:
    found = fit(EIGHT_B, 10 * GIB)
    assert (found.longest_context, found.most_concurrency) == (0, 0)
    assert kv_blocks(EIGHT_B, 10 * GIB).longest_request == 0


# --- the pool -----------------------------------------------------------------------------------------------


@given(asks, st.floats(1e7, 4e11))
def test_the_pool_takes_what_is_left_and_no_block_more(ask: ServingAsk, has: float) -> None:
    found = kv_blocks(ask, has)
    assert 0 <= found.blocks <= found.wanted == all_blocks(ask)
    if found.blocks:
        assert needs_bytes(replace(ask, blocks=found.blocks)) <= has
    if found.blocks < found.wanted:
        assert needs_bytes(replace(ask, blocks=found.blocks + 1)) > has


def test_a_prompt_of_1002_tokens_can_never_be_served_by_50_blocks() -> None:
    """63 of 16 tokens are needed."""
    ask = replace(SMALL, context=1002, concurrency=5)
    rest = needs_bytes(replace(ask, blocks=0))
    one_block = needs_bytes(replace(ask, blocks=51)) - needs_bytes(replace(ask, blocks=50))
    found = kv_blocks(ask, rest + 50.5 * max(one_block, 1.1 * ask.block_bytes))
    assert found.blocks <= 51
    assert found.longest_request < 1002


def test_a_pool_for_all_sequences_serves_the_whole_context() -> None:
    found = kv_blocks(SMALL, 1e12)
    assert (found.blocks, found.longest_request) == (4 * 64 + 1, 1024)


@pytest.mark.parametrize("chip", ["trainium1", "a100-40gb", "h100"])
def test_llama_8b_in_bf16_fits_chips_of_32_gib_and_more(chip: str) -> None:
    memory = accelerators()[chip].memory_bytes
    assert memory is not None
    assert fit(EIGHT_B, memory).fits
