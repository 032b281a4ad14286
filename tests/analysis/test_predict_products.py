"""Products between, beside and beyond the sizes that were measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prediction_samples import TABLE

from trueup.analysis.predict_products import Product, ProductTable


@pytest.mark.parametrize("size", [(16, 256, 4096), (256, 256, 256), (4096, 4096, 256)])
def test_a_measured_size_has_its_measured_seconds(size: tuple[int, int, int]) -> None:
    measured = {(one.m, one.k, one.n): one.seconds for one in TABLE.times}
    assert TABLE.seconds(Product(*size)) == pytest.approx(measured[size])


def test_the_first_product_of_a_size_takes_what_was_measured_beyond_the_others() -> None:
    table = ProductTable(
        tuple(
            one.model_copy(update={"first_s": one.seconds + 1e-6 * (one.m + one.k + one.n)})
            for one in TABLE.times
        )
    )
    assert table.first_seconds(Product(16, 256, 4096)) == pytest.approx(1e-6 * (16 + 256 + 4096))
    between = table.first_seconds(Product(64, 256, 256))
    assert table.first_seconds(Product(16, 256, 256)) < between < table.first_seconds(Product(256, 256, 256))
    assert table.first_seconds(Product(9000, 9000, 9000)) > 0  # beyond all that was measured


def test_where_first_products_were_not_timed_they_take_nothing_more() -> None:
    assert TABLE.first_seconds(Product(100, 100, 100)) == 0


@given(st.tuples(*[st.integers(1, 20000)] * 3), st.integers(0, 2))
def test_a_larger_product_never_takes_less(size: tuple[int, int, int], side: int) -> None:
    larger = tuple(one * 2 if at == side else one for at, one in enumerate(size))
    assert TABLE.seconds(Product(larger[0], larger[1], larger[2])) >= TABLE.seconds(Product(*size)) * (
        1 - 1e-9
    )


def test_beyond_the_largest_seconds_grow_with_the_flops() -> None:
    assert TABLE.seconds(Product(8192, 4096, 4096)) == pytest.approx(
        2 * TABLE.seconds(Product(4096, 4096, 4096))
    )


def test_a_size_too_large_to_be_measured_goes_by_flops_from_a_smaller_one() -> None:
    assert TABLE.seconds(Product(4096, 4096, 4096)) == pytest.approx(
        16 * TABLE.seconds(Product(256, 4096, 4096)), rel=1e-6
    )


def test_a_layout_that_was_measured_has_its_own_seconds() -> None:
    other = tuple(
        one.model_copy(update={"layout": "weight", "seconds": 3 * one.seconds}) for one in TABLE.times
    )
    table = ProductTable((*TABLE.times, *other))
    size = (100, 300, 2000)
    assert table.seconds(Product(*size, "weight")) == pytest.approx(3 * table.seconds(Product(*size)))
    assert table.seconds(Product(*size, "inputs")) == table.seconds(Product(*size))  # not measured


def test_programs_take_what_was_measured_and_something_between() -> None:
    table = ProductTable(
        tuple(one.model_copy(update={"program_bytes": 6e5 + one.m * one.k / 10}) for one in TABLE.times)
    )
    assert table.program_bytes(Product(16, 256, 4096)) == pytest.approx(6e5 + 16 * 256 / 10)
    assert 6e5 < table.program_bytes(Product(300, 300, 300)) < 6e5 + 4096 * 4096 / 10


def test_where_programs_were_not_measured_they_take_nothing() -> None:
    assert TABLE.program_bytes(Product(100, 100, 100)) == 0
