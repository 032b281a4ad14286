"""Our own forward pass against transformers': the same loss and gradients for every shape, exactly no
influence between packed neighbours, and the model's own forward pass where it is built otherwise."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from model_batches import (
    BF16,
    FP32,
    LENGTHS,
    LORA,
    Gradients,
    assert_close,
    batch_of,
    bucketed,
    examples_of,
    loaded_model,
    loss_and_gradients,
    one_by_one,
    packed,
    padded,
)
from torch.autograd import gradcheck

from trueup.model import attention
from trueup.model.attention import attend, examples_for, groups_of, places_for, spans_of
from trueup.model.batch import batch_loss
from trueup.model.builtin import ResolvedModel
from trueup.model.layers import Adapter, add_and_norm, gated, project
from trueup.model.load import LoadedModel, load_model, masked_by_config, read_config, with_own_decoder
from trueup.recipe.models import TuneSection


def own(loaded: LoadedModel, dtype: str = "float32") -> LoadedModel:
    quick, why = with_own_decoder(loaded, dtype)
    assert quick.decoder is not None, why
    return quick


@pytest.mark.parametrize(("wide", "within"), [(True, 1e-9), (False, 1e-5)], ids=["fp64", "fp32"])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_every_shape_gives_the_loss_and_gradients_of_transformers_one_by_one(
    tiny: ResolvedModel, method: Literal["lora", "full"], wide: bool, within: float
) -> None:
    section = TuneSection(
        method=method, rank=4, targets=("q_proj", "v_proj", "o_proj", "up_proj", "down_proj")
    )
    loaded = loaded_model(tiny, section, wide=wide)
    examples = examples_of(0, LENGTHS)
    expected = loss_and_gradients(loaded, one_by_one(examples))
    quick = own(loaded, "float64" if wide else "float32")
    shapes = [one_by_one(examples), padded(examples), padded(examples, left=4), packed(examples)]
    for batches in [*shapes, packed(examples, rows=1), bucketed(examples)]:
        assert_close(loss_and_gradients(quick, batches), expected, within)


def test_examples_longer_than_a_block_of_queries(
    tiny: ResolvedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "BLOCK", 8)
    monkeypatch.setattr(attention, "KEEP", 8)
    monkeypatch.setattr(attention, "LEAST_PLACES", 4)
    loaded = loaded_model(tiny, wide=True)
    examples = examples_of(2, [37, 8, 16, 1, 25])
    expected = loss_and_gradients(loaded, one_by_one(examples))
    assert_close(loss_and_gradients(own(loaded, "float64"), packed(examples)), expected, 1e-9)


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_packed_neighbours_have_exactly_no_influence(tiny: ResolvedModel, changed: int) -> None:
    """trl#1230, trl#3067, transformers#25452: perturb one example of a row, the others' hidden states do not
    move by one bit."""
    quick = own(loaded_model(tiny))
    examples = examples_of(4, [9, 14, 6])
    bounds = [0, 9, 23, 29]
    hidden = []
    for shift in (0, 1):
        row = [((ids + shift * (n == changed)) % 256, loss) for n, (ids, loss) in enumerate(examples)]
        batch = batch_of([row], 32)
        hidden.append(quick.forward_hidden(batch.tokens_BT, batch.positions_BT, batch.segments_BT)[0])
    for n in range(3):
        same = torch.equal(hidden[0][bounds[n] : bounds[n + 1]], hidden[1][bounds[n] : bounds[n + 1]])
        assert same == (n != changed)


def test_later_tokens_have_exactly_no_influence(tiny: ResolvedModel) -> None:
    """transformers#48296: attention with a mask that was silently not causal."""
    quick = own(loaded_model(tiny))
    (ids, loss) = examples_of(5, [20])[0]
    changed = ids.copy()
    changed[12:] = (changed[12:] + 1) % 256
    hidden = []
    for tokens in (ids, changed):
        batch = batch_of([[(tokens, loss)]], 24)
        hidden.append(quick.forward_hidden(batch.tokens_BT, batch.positions_BT, batch.segments_BT)[0])
    assert torch.equal(hidden[0][:12], hidden[1][:12])
    assert not torch.equal(hidden[0][12:20], hidden[1][12:20])


@pytest.mark.parametrize("method", ["lora", "full"])
def test_bf16_is_no_further_from_fp32_than_transformers_is(
    tiny: ResolvedModel, method: Literal["lora", "full"]
) -> None:
    section = TuneSection(method=method, rank=4)
    examples = examples_of(6, [40, 33, 21, 60, 12])
    exact = loss_and_gradients(loaded_model(tiny, section), one_by_one(examples))
    theirs = loss_and_gradients(loaded_model(tiny, section), packed(examples), BF16)
    ours = loss_and_gradients(own(loaded_model(tiny, section), "bfloat16"), packed(examples), BF16)

    def error(found: tuple[float, Gradients]) -> float:
        squares = [float((found[1][name] - g).square().sum()) for name, g in exact[1].items()]
        return sum(squares) ** 0.5

    assert abs(ours[0] - exact[0]) <= 2e-3 * exact[0]
    assert 0 < error(ours) <= 1.25 * error(theirs)


@pytest.mark.parametrize("layers", ["transformers", "own"])
def test_activation_checkpointing_changes_memory_and_nothing_else(tiny: ResolvedModel, layers: str) -> None:
    examples = packed(examples_of(0, LENGTHS))
    found, saved = [], []
    for checkpointing in (False, True):
        loaded = load_model(tiny, LORA, seed=1, activation_checkpointing=checkpointing)
        if layers == "own":
            loaded = own(loaded)
        kept: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, kept=kept: (kept.append(t.numel()), t)[1], lambda t: t
        ):
            batch_loss(loaded, examples[0], FP32)
        saved.append(sum(kept))
        found.append(loss_and_gradients(loaded, examples))
    assert saved[1] < saved[0] / 2
    assert found[0][0] == found[1][0]
    for name, gradient in found[0][1].items():
        assert torch.equal(found[1][1][name], gradient), name


def test_frozen_weights_are_kept_once_and_in_the_products_precision(tiny: ResolvedModel) -> None:
    quick = own(loaded_model(tiny), "bfloat16")
    decoder = quick.decoder
    assert decoder is not None
    layer = quick.base.model.layers[0]
    shared = decoder.layers[0].qkv.weight_OI
    assert shared is not None
    parts = [getattr(layer.self_attn, name).base_layer.weight for name in ("q_proj", "k_proj", "v_proj")]
    assert {part.dtype for part in parts} == {torch.bfloat16}
    assert {part.untyped_storage().data_ptr() for part in parts} == {shared.untyped_storage().data_ptr()}
    assert all(p.dtype == torch.float32 for _, p in quick.trainable)


@pytest.mark.parametrize("family", ["mistral", "qwen2"])
def test_other_families_built_like_llama(tmp_path: Any, family: str) -> None:
    """Qwen2 has biases on queries, keys and values."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        family, vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    model.save_pretrained(tmp_path)
    loaded = loaded_model(ResolvedModel(tmp_path, "made here", "made by a test"), wide=True)
    examples = examples_of(0, LENGTHS)
    expected = loss_and_gradients(loaded, one_by_one(examples))
    assert_close(loss_and_gradients(own(loaded, "float64"), packed(examples)), expected, 1e-9)


def test_adapters_that_drop_out_inputs_keep_transformers_layers(tiny: ResolvedModel) -> None:
    loaded = load_model(tiny, TuneSection(rank=4, dropout=0.1))
    same, why = with_own_decoder(loaded, "float32")
    assert same.decoder is None
    assert "drop out" in why
    assert masked_by_config(read_config(tiny), loaded.section, "cpu")


def test_the_config_alone_tells_of_a_llama_that_it_will_have_our_layers(tiny: ResolvedModel) -> None:
    assert loaded_model(tiny).masked_because is None
    assert not masked_by_config(read_config(tiny), LORA, "cpu")
    assert not masked_by_config(read_config(tiny), TuneSection(method="full", dropout=0.1), "cpu")
    assert masked_by_config(read_config(tiny), LORA, "cuda")


def test_a_model_built_otherwise_keeps_its_own_layers(tmp_path: Any) -> None:
    """Qwen3 norms queries and keys: a decoder that left it out would train another model."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=1, head_dim=8,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    resolved = ResolvedModel(tmp_path, "made here", "made by a test")
    same, why = with_own_decoder(load_model(resolved, LORA), "float32")
    assert same.decoder is None
    assert "q_norm" in why
    assert masked_by_config(read_config(resolved), LORA, "cpu")


def test_a_model_that_computes_something_else_keeps_its_own_layers(tiny: ResolvedModel) -> None:
    loaded = load_model(tiny, LORA)
    for layer in loaded.base.model.layers:
        layer.mlp.forward = lambda x, feed=layer.mlp: feed.down_proj(feed.up_proj(x))
    same, why = with_own_decoder(loaded, "bfloat16")
    assert same.decoder is None
    assert "do not compute" in why
    assert loaded.base.model.layers[0].mlp.up_proj.weight.dtype == torch.float32


# --- each part by numerical differentiation ---------------------------------------------------------------


def wide(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    ).requires_grad_()


@pytest.mark.parametrize(("block", "keep", "places"), [(3, 0, 1), (8, 8, 4), (8, 0, 8)])
def test_gradient_of_attention(block: int, keep: int, places: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "BLOCK", block)
    monkeypatch.setattr(attention, "KEEP", keep)
    monkeypatch.setattr(attention, "LEAST_PLACES", places)
    angles = torch.rand(9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).repeat(1, 2)

    def run(qkv_NO: torch.Tensor) -> torch.Tensor:
        spans = ((0, 7), (7, 8), (8, 9))
        groups = groups_of(spans, angles.cos(), angles.sin(), scaling=0.5)
        return attend(qkv_NO, groups, heads=(2, 1), bf16=False)

    assert gradcheck(run, (wide(9, 16),))


def test_gradient_of_the_norm() -> None:
    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return add_and_norm(*tensors, eps=1e-5, dtype=torch.float64)

    assert gradcheck(run, (wide(4, 6), wide(4, 6, seed=1), wide(6, seed=2)))
    assert gradcheck(lambda x, w: run(x, None, w), (wide(4, 6), wide(6, seed=2)))  # type: ignore[arg-type]


def test_gradient_of_the_gate() -> None:
    assert gradcheck(gated, (wide(3, 8),))


@pytest.mark.parametrize("bias", [False, True])
def test_gradient_of_a_projection_with_adapters(bias: bool) -> None:
    weight = wide(7, 5).detach()
    offset = wide(7, seed=4).detach() if bias else None

    def run(
        x: torch.Tensor, a1: torch.Tensor, b1: torch.Tensor, a2: torch.Tensor, b2: torch.Tensor
    ) -> torch.Tensor:
        return project(x, weight, offset, [Adapter(a1, b1, 2.0, 0, 3), Adapter(a2, b2, 0.5, 5, 7)])

    inputs = (wide(4, 5, seed=1), wide(2, 5), wide(3, 2, seed=2), wide(1, 5), wide(2, 1, seed=3))
    assert gradcheck(run, inputs)


def test_spans_are_runs_of_one_number_within_a_row_and_not_padding() -> None:
    segments = torch.tensor([[1, 1, 2, 0], [0, 0, 1, 1]])
    assert spans_of(segments) == ((0, 2), (2, 3), (6, 8))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=12))
@example([65] * 5)
def test_groups_hold_every_example_once_at_the_least_cost(lengths: list[int]) -> None:
    ends = np.cumsum(lengths).tolist()
    spans = list(zip([0, *ends[:-1]], ends, strict=True))
    groups = attention._grouped(spans)
    assert sorted(span for _, members in groups for span in members) == spans
    assert all(end - start <= places for places, members in groups for start, end in members)

    def cost(sizes: list[list[int]]) -> int:
        return sum(attention.GROUP_SCORES + examples_for(len(part)) * max(part) ** 2 for part in sizes)

    rounded = sorted(places_for(length) for length in lengths)
    between = [a != b for a, b in itertools.pairwise(rounded)]  # those of one size stay together
    cuts = itertools.product(*([False, True] if differ else [False] for differ in between))
    found = cost([[places] * len(members) for places, members in groups])
    assert found == min(cost(_cut(rounded, cut)) for cut in cuts)


def _cut(values: list[int], cuts: tuple[bool, ...]) -> list[list[int]]:
    parts = [[values[0]]]
    for value, cut in zip(values[1:], cuts, strict=True):
        if cut:
            parts.append([value])
        else:
            parts[-1].append(value)
    return parts


@given(st.integers(1, 5000))
def test_sizes_in_use_are_few_and_little_too_large(size: int) -> None:
    assert size <= places_for(size) <= max(size + 15, 1.25 * size + 1)
    assert size <= examples_for(size) <= 1.5 * size
    assert places_for(places_for(size)) == places_for(size)
    assert examples_for(examples_for(size)) == examples_for(size)
    assert len({places_for(n) for n in range(1, 1025)}) <= 24
    assert len({examples_for(n) for n in range(1, 1025)}) <= 20


def test_after_getting_ready_a_packed_row_meets_no_new_group(tiny: ResolvedModel) -> None:
    """What oneDNN compiles between a step's activations would hold their memory apart for good."""
    common = set(attention._common_groups(256))
    rng = np.random.default_rng(0)
    met = []
    for _ in range(200):
        lengths = rng.integers(8, 120, size=12)
        ends = np.cumsum(lengths)
        ends = ends[ends <= 256].tolist()
        spans = list(zip([0, *ends[:-1]], ends, strict=True))
        met += [(examples_for(len(members)), places) for places, members in attention._grouped(spans)]
    assert sum(group in common for group in met) >= 0.95 * len(met)
    own(loaded_model(tiny)).get_ready(64)
