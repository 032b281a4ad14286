"""The modelled caching allocator: worked segments, and what holds for any sequence of tensors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.analysis.allocator import (
    AllocatorFigures,
    ModelledAllocator,
    reserved_at_most,
    rounded,
    segment_bytes,
)

KIB, MIB = 1 << 10, 1 << 20
SIZES = st.one_of(st.integers(1, 4 * KIB), st.integers(1, 3 * MIB), st.integers(1, 40 * MIB))


@pytest.mark.parametrize(
    ("asked", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # what is left of the segment is too little to split off
    ],
)
def test_the_first_tensor_takes_its_block_and_segment(asked: int, allocated: int, reserved: int) -> None:
    allocator = ModelledAllocator()
    allocator.allocate(asked)
    assert (allocator.now.requested, allocator.now.allocated, allocator.now.reserved) == (
        asked,
        allocated,
        reserved,
    )


def test_small_tensors_share_a_segment_of_two_mib() -> None:
    allocator = ModelledAllocator()
    for _ in range(4):
        allocator.allocate(512 * KIB)
    assert allocator.now == AllocatorFigures(2 * MIB, 2 * MIB, 2 * MIB, 0)
    allocator.allocate(1)
    assert allocator.now.reserved == 4 * MIB


def test_what_is_left_of_a_large_segment_is_split_only_above_one_mib() -> None:
    allocator = ModelledAllocator()
    allocator.allocate(11 * MIB)  # of 12: the last MiB stays in the block
    assert allocator.now.unreleasable == 0
    allocator.allocate(5 * MIB)  # of 20: 15 are split off
    assert allocator.now.unreleasable == 15 * MIB


def test_the_smallest_free_block_that_is_large_enough_is_taken() -> None:
    allocator = ModelledAllocator()
    wide, narrow = allocator.allocate(14 * MIB), allocator.allocate(12 * MIB)
    allocator.free(wide)
    allocator.free(narrow)
    allocator.allocate(11 * MIB)
    allocator.allocate(13 * MIB)
    assert allocator.now.reserved == 26 * MIB


def test_free_neighbours_become_one_block_again() -> None:
    allocator = ModelledAllocator()
    handles = [allocator.allocate(5 * MIB) for _ in range(4)]
    for handle in (handles[0], handles[2], handles[1]):
        allocator.free(handle)
    assert allocator.now.unreleasable == 15 * MIB
    allocator.allocate(15 * MIB)
    assert allocator.now.reserved == 20 * MIB


def test_a_hole_between_tensors_cannot_be_given_back_and_is_external_fragmentation() -> None:
    allocator = ModelledAllocator()
    handles = [allocator.allocate(5 * MIB) for _ in range(4)]
    allocator.free(handles[1])
    allocator.allocate(6 * MIB)  # does not fit into the hole
    assert allocator.now.reserved == 40 * MIB
    assert allocator.now.external == 40 * MIB - 21 * MIB
    assert allocator.now.unreleasable == 5 * MIB + 14 * MIB


@given(st.lists(st.tuples(SIZES, st.integers(0, 3)), max_size=60))
def test_any_sequence_keeps_the_order_of_the_figures_and_ends_empty(steps: list[tuple[int, int]]) -> None:
    allocator, held = ModelledAllocator(), list[tuple[int, int]]()
    reserved = 0
    for size, frees in steps:
        held.append((allocator.allocate(size), size))
        for _ in range(min(frees, len(held)) if frees > 1 else 0):
            allocator.free(held.pop(0)[0])
        now = allocator.now
        assert now.requested == sum(own for _, own in held)
        assert now.allocated >= sum(rounded(own) for _, own in held)
        assert now.internal >= 0
        assert 0 <= now.unreleasable <= now.external
        assert now.reserved >= reserved
        reserved = now.reserved
    for handle, _ in held:
        allocator.free(handle)
    assert (allocator.now.requested, allocator.now.allocated, allocator.now.unreleasable) == (0, 0, 0)


@given(st.lists(st.tuples(st.integers(1, 9), SIZES), max_size=8))
def test_the_bound_holds_whatever_the_groups_share(groups: list[tuple[int, int]]) -> None:
    allocator = ModelledAllocator()
    for count, size in groups:
        for _ in range(count):
            allocator.allocate(size)
    assert allocator.now.reserved <= reserved_at_most(groups)


@given(st.integers(1, 60), SIZES, st.one_of(st.integers(0, 2 * MIB), st.integers(0, 30 * MIB)))
def test_larger_tensors_are_never_bounded_by_less(count: int, size: int, more: int) -> None:
    assert reserved_at_most([(count, size)]) <= reserved_at_most([(count, size + more)])
    assert reserved_at_most([(count, size)]) <= reserved_at_most([(count + 1, size)])


@given(SIZES)
def test_a_segment_holds_its_block(size: int) -> None:
    assert segment_bytes(rounded(size)) >= rounded(size) >= size
