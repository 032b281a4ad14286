"""The small packed batch that two sides of a comparison are shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trueup.data.packed_sample import random_sample, sample_of
from trueup.schema import InputError


class Table:
    """Examples by hand: the tokens of example n are all n, the last is supervised."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int32)

    def example(self, n: int) -> tuple[Any, Any]:
        loss_T = np.zeros(self.lengths[n], dtype=np.bool_)
        loss_T[-1] = True
        return np.full(self.lengths[n], n), loss_T

    def content_order(self) -> Any:
        return np.arange(len(self.lengths))[::-1]


@given(st.lists(st.integers(2, 40), min_size=1, max_size=30), st.integers(2, 200))
@settings(max_examples=60, deadline=None)
def test_each_chosen_example_is_there_once_and_whole(lengths: list[int], tokens: int) -> None:
    table: Any = Table(lengths)
    batch = sample_of(table, 99, tokens=tokens)
    found = []
    for tokens_T, positions_T, segments_T in zip(
        batch.tokens_BT, batch.positions_BT, batch.segments_BT, strict=True
    ):
        for segment in range(1, segments_T.max() + 1):
            inside = segments_T == segment
            (example,) = set(tokens_T[inside].tolist())
            assert positions_T[inside].tolist() == list(range(lengths[example]))
            found.append(example)
        assert set(tokens_T[segments_T == 0].tolist()) <= {99}
    assert len(found) == len(set(found)) == batch.supervised_tokens
    assert batch.useful_tokens <= max(tokens, lengths[-1])
    assert sorted(found) == list(
        range(len(lengths) - len(found), len(lengths))
    )  # the first in content's order


@given(st.integers(14, 300), st.integers(0, 5), st.sampled_from([None, 7, 1000]))
@settings(max_examples=60, deadline=None)
def test_random_tokens_are_packed_rows(tokens: int, seed: int, longest: int | None) -> None:
    batch = random_sample(tokens=tokens, vocab=50, longest=longest, seed=seed)
    again = random_sample(tokens=tokens, vocab=50, longest=longest, seed=seed)
    assert (batch.tokens_BT == again.tokens_BT).all()
    assert batch.shape == (2, -(-tokens // 2))
    assert (batch.segments_BT.max(axis=1) >= 3).all()
    assert batch.segments_BT[1, -1] == 0
    assert longest is None or batch.positions_BT.max() < longest
    starts = (batch.positions_BT == 0) & (batch.segments_BT > 0)
    assert ((batch.loss_BT | starts) == (batch.segments_BT > 0)).all()
    assert not (batch.loss_BT & starts).any()


def test_too_few_tokens_for_packed_rows_are_refused() -> None:
    with pytest.raises(InputError, match="at least 14"):
        random_sample(tokens=13, vocab=50, longest=None, seed=0)
