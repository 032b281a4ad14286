"""A micro-batch in smaller ones: every example once and whole, in the same order, within the limit wherever
that is possible."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trueup.data import PlannedBatch
from trueup.train.split import within


def batch_of(rows: list[list[int]], lengths: list[int], width: int | None = None) -> PlannedBatch:
    totals = [sum(lengths[n] for n in row) for row in rows]
    return PlannedBatch(tuple(tuple(row) for row in rows), width or max(totals), sum(totals))


@st.composite
def batches(draw: st.DrawFn) -> tuple[PlannedBatch, list[int]]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    lengths = draw(st.lists(st.integers(1, 40), min_size=sum(sizes), max_size=sum(sizes)))
    rows, first = [], 0
    for size in sizes:
        rows.append(list(range(first, first + size)))
        first += size
    widest = max(sum(lengths[n] for n in row) for row in rows)
    return batch_of(rows, lengths, widest + draw(st.integers(0, 20))), lengths


@settings(max_examples=150, deadline=None, derandomize=True)
@given(batches(), st.integers(1, 300), st.sampled_from([1, 8, 16]))
def test_pieces_hold_the_same_examples_in_the_same_order(
    made: tuple[PlannedBatch, list[int]], tokens: int, multiple: int
) -> None:
    batch, lengths = made
    pieces = within([batch], tokens, np.asarray(lengths), multiple=multiple)
    assert [n for piece in pieces for n in piece.examples] == list(batch.examples)
    assert sum(piece.useful_tokens for piece in pieces) == batch.useful_tokens
    for piece in pieces:
        longest = max(sum(lengths[n] for n in row) for row in piece.rows)
        assert longest <= piece.width <= batch.width
        assert piece.processed_tokens <= tokens or not could_be_cut(piece, lengths, multiple)


def could_be_cut(piece: PlannedBatch, lengths: list[int], multiple: int) -> bool:
    """Whether its rows, or the examples of its only row, could be in micro-batches of fewer tokens."""
    (row, *more) = piece.rows
    parts = [[row[:cut], row[cut:]] for cut in range(1, len(row))] or [[row]]
    widths = [max(-(-sum(lengths[n] for n in part) // multiple) * multiple for part in cut) for cut in parts]
    return bool(more) or min(widths) < piece.width


def test_what_fits_is_left_alone_and_the_rest_is_cut_by_rows() -> None:
    lengths = np.asarray([10, 12, 9, 16, 5])
    fits, large = batch_of([[4]], [10, 12, 9, 16, 5]), batch_of([[0], [1], [2], [3]], [10, 12, 9, 16, 5])
    pieces = within([fits, large], 32, lengths, multiple=8)
    assert pieces[0] is fits
    assert [piece.rows for piece in pieces[1:]] == [((0,), (1,)), ((2,), (3,))]
    assert [piece.width for piece in pieces[1:]] == [16, 16]


def test_a_single_row_is_cut_between_examples_where_the_halves_are_most_alike() -> None:
    lengths = [30, 10, 10, 30]
    pieces = within([batch_of([[0, 1, 2, 3]], lengths)], 40, np.asarray(lengths), multiple=8)
    assert [(piece.rows, piece.width) for piece in pieces] == [(((0, 1),), 40), (((2, 3),), 40)]


def test_an_example_is_never_cut() -> None:
    pieces = within([batch_of([[0]], [64])], 32, np.asarray([64]), multiple=8)
    assert [(piece.rows, piece.width) for piece in pieces] == [(((0,),), 64)]


def test_a_lonely_example_loses_its_padding() -> None:
    pieces = within([batch_of([[0]], [20], width=128)], 64, np.asarray([20]), multiple=8)
    assert [(piece.rows, piece.width) for piece in pieces] == [(((0,),), 24)]


def test_where_shapes_are_fixed_only_those_of_the_plan_are_made() -> None:
    lengths = np.asarray([10, 12, 9, 16, 5])
    large = PlannedBatch(((0,), (1,), (2,), (3,), (4,), (), (), ()), 16, 52)
    pieces = within([large], 64, lengths, multiple=8, shapes=[(8, 16), (3, 16), (4, 32)])
    assert [piece.rows for piece in pieces] == [((0,), (1,), (2,)), ((3,), (4,), ())]
    assert {piece.shape for piece in pieces} == {(3, 16)}
    assert within([large], 64, lengths, multiple=8, shapes=[(8, 16), (4, 32)]) == (large,)
