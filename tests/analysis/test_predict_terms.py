"""A step's terms: counts that follow from dimensions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prediction_samples import TABLE
from run_records import SMOL

from trueup.analysis.predict_terms import (
    HEAD_ROW_STEP,
    HEAD_ROWS_AT_ONCE,
    HEAD_WORDS,
    TERMS,
    MicroBatchWork,
    Tuning,
    head_sizes,
    head_weight_sizes,
    sizes_of,
    step_terms,
)
from trueup.schema import ModelDims

LORA = Tuning("lora", 16, ("q_proj", "k_proj", "v_proj", "o_proj"))
FULL = Tuning("full")
FULL_DIMS = ModelDims(
    **(
        SMOL.model_dump()
        | {"parameters": 134_515_008, "trainable_parameters": 134_515_008, "lora_parameters": 0}
    )
)


def micro_batch(rows: int = 2, width: int = 256, head: int = 100) -> MicroBatchWork:
    return MicroBatchWork(
        rows=rows,
        width=width,
        useful=rows * width,
        supervised=head,
        head_rows=head,
        attention_sum_sq=rows * width * width,
        scores=rows * width * width,
        scores_again=rows * width,
        groups=1,
        examples=rows,
    )


def test_sizes_follow_from_the_tokens_of_a_micro_batch() -> None:
    one, other = sizes_of(SMOL, LORA, 512), sizes_of(SMOL, LORA, 504)
    assert one
    assert not one & other
    assert sizes_of(SMOL, LORA, 512) == one
    assert len(sizes_of(FULL_DIMS, FULL, 512)) <= 3 * len(SMOL.linear_layers)


def test_two_micro_batches_have_twice_the_terms_of_one_but_one_optimizer_step() -> None:
    one = step_terms(FULL_DIMS, FULL, [micro_batch()], TABLE)
    two = step_terms(FULL_DIMS, FULL, [micro_batch()] * 2, TABLE)
    once = {"trained", "tensors", "steps"}
    assert {name for name in one if 0 < two[name] == pytest.approx(one[name])} == once
    assert all(two[name] == pytest.approx(2 * one[name]) for name in one if name not in once)


def test_full_tuning_has_the_weights_own_gradients() -> None:
    full = step_terms(FULL_DIMS, FULL, [micro_batch()], TABLE)
    lora = step_terms(SMOL, LORA, [micro_batch()], TABLE)
    assert full["products"] > 1.3 * lora["products"]
    assert full["adapters"] == 0
    assert lora["adapters"] > 0


def test_checkpointing_runs_the_layers_forward_once_more() -> None:
    usual = step_terms(FULL_DIMS, FULL, [micro_batch()], TABLE)
    again = step_terms(FULL_DIMS, FULL, [micro_batch()], TABLE, checkpointing=True)
    assert usual["products"] < again["products"] < 1.5 * usual["products"]
    assert again["head"] == usual["head"]


@pytest.mark.parametrize("head", [0, 1, 512, 513, 2000])
def test_the_head_counts_the_rows_that_go_through_it(head: int) -> None:
    found = step_terms(SMOL, LORA, [micro_batch(8, 512, head)], TABLE)
    assert found["head_words"] == head * SMOL.vocab
    assert (found["head"] > 0) == (head > 0)


@pytest.mark.parametrize("tuning", [LORA, FULL])
def test_every_term_is_one_that_is_fitted(tuning: Tuning) -> None:
    dims = SMOL if tuning.method == "lora" else FULL_DIMS
    assert set(step_terms(dims, tuning, [micro_batch()], TABLE)) <= set(TERMS)


def test_an_adapter_on_more_layers_has_more_products() -> None:
    attention = step_terms(SMOL, LORA, [micro_batch()], TABLE)["adapters"]
    everywhere = replace(LORA, targets=(*LORA.targets, "gate_proj", "up_proj", "down_proj"))
    assert step_terms(SMOL, everywhere, [micro_batch()], TABLE)["adapters"] > attention


def test_the_head_is_done_in_the_pieces_that_the_loss_takes() -> None:
    from trueup.model import loss

    assert (HEAD_ROWS_AT_ONCE, HEAD_WORDS, HEAD_ROW_STEP) == (loss.ROWS_AT_ONCE, loss.WORDS, loss.ROW_STEP)


def test_the_head_is_made_ready_for_every_number_of_rows_in_use() -> None:
    found = head_sizes(SMOL, 500)
    assert {one.m for one in found} == set(range(HEAD_ROW_STEP, HEAD_ROWS_AT_ONCE + 1, HEAD_ROW_STEP))
    assert {one.layout for one in found} == {"linear", "inputs"}


def test_a_trained_heads_gradient_has_a_size_for_each_number_of_rows() -> None:
    one, other = (head_weight_sizes(FULL_DIMS, FULL, micro_batch(8, 512, head)) for head in (100, 600))
    assert {size.k for size in one} == {128}
    assert {size.k for size in other} == {512, 96}
    assert not head_weight_sizes(SMOL, LORA, micro_batch())


def test_every_layout_of_a_product_is_its_own_size() -> None:
    layouts = {one.layout for one in sizes_of(FULL_DIMS, FULL, 512)}
    assert layouts == {"linear", "inputs", "weight"}
