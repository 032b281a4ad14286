"""A step's terms: products interpolated between what was measured, counts that follow from dimensions."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_records import SMOL

from trueup.analysis.predict_terms import (
    TERMS,
    MicroBatchWork,
    ProductTable,
    Tuning,
    sizes_of,
    step_terms,
)
from trueup.schema import ModelDims, ProductTime

SIDES = (16, 256, 4096)
TABLE = ProductTable(
    tuple(
        ProductTime(m=m, k=k, n=n, seconds=1e-6 + 2.0 * m * k * n / 1e12)
        for m, k, n in product(SIDES, repeat=3)
        if m * k * n <= 256 * 4096 * 4096
    )
)
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


@pytest.mark.parametrize("size", [(16, 256, 4096), (256, 256, 256), (4096, 4096, 256)])
def test_a_measured_size_has_its_measured_seconds(size: tuple[int, int, int]) -> None:
    measured = {(one.m, one.k, one.n): one.seconds for one in TABLE.times}
    assert TABLE.seconds(size) == pytest.approx(measured[size])


def test_the_first_product_of_a_size_takes_what_was_measured_beyond_the_others() -> None:
    table = ProductTable(
        tuple(
            one.model_copy(update={"first_s": one.seconds + 1e-6 * (one.m + one.k + one.n)})
            for one in TABLE.times
        )
    )
    assert table.first_seconds((16, 256, 4096)) == pytest.approx(1e-6 * (16 + 256 + 4096))
    between = table.first_seconds((64, 256, 256))
    assert table.first_seconds((16, 256, 256)) < between < table.first_seconds((256, 256, 256))
    assert table.first_seconds((9000, 9000, 9000)) > 0  # beyond all that was measured


def test_where_first_products_were_not_timed_they_take_nothing_more() -> None:
    assert TABLE.first_seconds((100, 100, 100)) == 0


def test_sizes_follow_from_the_tokens_of_a_micro_batch() -> None:
    one, other = sizes_of(SMOL, LORA, 512), sizes_of(SMOL, LORA, 504)
    assert one
    assert not one & other
    assert sizes_of(SMOL, LORA, 512) == one
    assert len(sizes_of(FULL_DIMS, FULL, 512)) <= 3 * len(SMOL.linear_layers)


@given(st.tuples(*[st.integers(1, 20000)] * 3), st.integers(0, 2))
def test_a_larger_product_never_takes_less(size: tuple[int, int, int], side: int) -> None:
    larger = tuple(one * 2 if at == side else one for at, one in enumerate(size))
    assert TABLE.seconds((larger[0], larger[1], larger[2])) >= TABLE.seconds(size) * (1 - 1e-9)


def test_beyond_the_largest_seconds_grow_with_the_flops() -> None:
    assert TABLE.seconds((8192, 4096, 4096)) == pytest.approx(2 * TABLE.seconds((4096, 4096, 4096)))


def test_a_size_too_large_to_be_measured_goes_by_flops_from_a_smaller_one() -> None:
    assert TABLE.seconds((4096, 4096, 4096)) == pytest.approx(16 * TABLE.seconds((256, 4096, 4096)), rel=1e-6)


def test_two_micro_batches_have_twice_the_terms_of_one_but_one_optimizer_step() -> None:
    one = step_terms(SMOL, LORA, [micro_batch()], TABLE)
    two = step_terms(SMOL, LORA, [micro_batch()] * 2, TABLE)
    once = {"trained", "tensors", "steps"}
    assert {name for name in one if two[name] == pytest.approx(one[name])} == once
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
