"""Rule 1 at the level of the model: padded, bucketed and packed batches give the loss and gradients of
one-by-one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_batches import (
    BF16,
    FP32,
    LENGTHS,
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

from trueup.model.batch import BatchTensors, batch_loss
from trueup.model.builtin import ResolvedModel
from trueup.model.load import Attention, LoadedModel
from trueup.model.precision import Precision
from trueup.recipe.models import TuneSection


@cache
def model_of(
    resolved: ResolvedModel, method: Literal["lora", "full"], attention: Attention, wide: bool
) -> LoadedModel:
    section = TuneSection(
        method=method, rank=4, targets=("q_proj", "k_proj", "v_proj", "o_proj", "down_proj")
    )
    return loaded_model(resolved, section, attention=attention, wide=wide)


def assert_same(
    loaded: LoadedModel, batches: list[BatchTensors], expected: list[BatchTensors], within: float
) -> None:
    found = loss_and_gradients(loaded, batches)
    assert_close(found, loss_and_gradients(loaded, expected), within)
    assert found[1].keys() == dict(loaded.trainable).keys()


@pytest.mark.parametrize(("wide", "within"), [(True, 1e-9), (False, 1e-5)], ids=["fp64", "fp32"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_every_shape_gives_the_same_loss_and_gradients(
    tiny: ResolvedModel, method: Literal["lora", "full"], attention: Attention, wide: bool, within: float
) -> None:
    loaded = model_of(tiny, method, attention, wide)
    examples = examples_of(0, LENGTHS)
    alone = one_by_one(examples)
    for batches in (
        padded(examples),
        padded(examples, left=4),
        packed(examples),
        packed(examples, 1),
        bucketed(examples),
    ):
        assert_same(loaded, batches, alone, within)


def test_a_tied_head_gathers_both_gradients(tied: ResolvedModel) -> None:
    examples = examples_of(5, LENGTHS)
    assert_same(model_of(tied, "full", "sdpa", True), packed(examples), one_by_one(examples), 1e-9)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(2, 24), min_size=1, max_size=7),
    seed=st.integers(0, 1000),
    rows=st.integers(1, 3),
)
def test_any_lengths_in_any_number_of_rows(
    tiny: ResolvedModel, lengths: list[int], seed: int, rows: int
) -> None:
    loaded = model_of(tiny, "lora", "sdpa", True)
    # One of nine tokens is always there: in examples of two, only the first token is trained; it attends to
    # nothing but itself, so that queries and keys would have no gradient to compare.
    examples = examples_of(seed, [9, *lengths])
    assert_same(loaded, packed(examples, min(rows, len(examples))), one_by_one(examples), 1e-9)


def test_the_loss_is_the_one_transformers_computes(tiny: ResolvedModel) -> None:
    loaded = model_of(tiny, "lora", "sdpa", False)
    examples = examples_of(1, LENGTHS)
    expected = 0.0
    for ids, supervised in examples:
        labels = torch.tensor(np.where(supervised, ids, -100))[None]
        with torch.no_grad():
            mean = loaded.module(input_ids=torch.tensor(ids)[None], labels=labels).loss
        expected += mean.item() * int(supervised.sum())
    with torch.no_grad():
        ours = batch_loss(loaded, packed(examples)[0], FP32).item()
    assert ours == pytest.approx(expected, rel=1e-5)


def test_the_comparison_sees_examples_that_see_each_other(tiny: ResolvedModel) -> None:
    loaded = model_of(tiny, "lora", "sdpa", True)
    examples = examples_of(2, LENGTHS)
    batch = packed(examples, 1)[0]
    merged = replace(batch, segments_BT=torch.ones_like(batch.segments_BT))
    right, _ = loss_and_gradients(loaded, [batch])
    assert abs(loss_and_gradients(loaded, [merged])[0] / right - 1) > 1e-4


@pytest.mark.parametrize("precision", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("lengths", [[9, 14, 6], [200, 130, 150]])
def test_a_neighbour_has_exactly_no_influence(
    tiny: ResolvedModel, attention: Attention, precision: Precision, lengths: list[int]
) -> None:
    """trl#1230: examples packed into one row attended to each other."""
    loaded = model_of(tiny, "lora", attention, False)
    first, second, third = examples_of(3, lengths)
    other = (examples_of(4, lengths)[0][0], first[1])
    hidden = []
    for neighbour in (first, other):
        batch = batch_of([[neighbour, second, third]], sum(lengths) + 5)
        with torch.no_grad(), precision.autocast():
            hidden.append(loaded.forward_hidden(batch.tokens_BT, batch.positions_BT, batch.segments_BT))
    start, end = lengths[0], sum(lengths)
    assert torch.equal(hidden[0][:, start:end], hidden[1][:, start:end])
    assert not torch.equal(hidden[0][:, :start], hidden[1][:, :start])


def test_no_gradient_reaches_a_neighbour(tiny: ResolvedModel) -> None:
    loaded = model_of(tiny, "full", "sdpa", False)
    neighbour = (np.arange(10, 20), np.zeros(10, dtype=bool))
    learner = (np.arange(100, 112), np.ones(12, dtype=bool))
    loss_and_gradients(loaded, [batch_of([[neighbour, learner]], 26)])
    gradient = loaded.base.get_input_embeddings().weight.grad
    assert gradient[10:20].abs().max() == 0
    assert gradient[100:111].abs().min(dim=1).values.max() > 0


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padding_gives_no_nan_even_in_a_row_without_examples(
    tiny: ResolvedModel, attention: Attention
) -> None:
    loaded = model_of(tiny, "lora", attention, False)
    batch = batch_of([examples_of(6, [4]), []], 9, left=2)
    loss, gradients = loss_and_gradients(loaded, [batch])
    assert np.isfinite(loss)
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def test_a_batch_without_supervised_tokens_adds_nothing(tiny: ResolvedModel) -> None:
    loaded = model_of(tiny, "lora", "sdpa", True)
    examples = examples_of(7, [8, 11])
    silent = [(ids, np.zeros(len(ids), dtype=bool)) for ids, _ in examples_of(8, [6, 5])]
    loss, gradients = loss_and_gradients(loaded, packed(silent))
    assert loss == 0
    assert all(gradient.abs().max() == 0 for gradient in gradients.values())
    assert_same(loaded, packed(silent) + packed(examples), packed(examples), 1e-12)
