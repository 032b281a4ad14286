"""The block-causal mask against its definition."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from trueup.model.masks import additive_mask, block_causal_mask

rows = st.integers(1, 12).flatmap(
    lambda length: st.lists(
        st.lists(st.integers(-1, 3), min_size=length, max_size=length), min_size=1, max_size=3
    )
)


@given(rows)
def test_a_token_sees_its_own_segment_up_to_itself(segments: list[list[int]]) -> None:
    mask = block_causal_mask(torch.tensor(segments))
    assert mask.shape == (len(segments), 1, len(segments[0]), len(segments[0]))
    for b, row in enumerate(segments):
        for query, own in enumerate(row):
            assert mask[b, 0, query].tolist() == [
                key <= query and other == own for key, other in enumerate(row)
            ]


@given(rows)
def test_no_token_sees_nothing(segments: list[list[int]]) -> None:
    mask = block_causal_mask(torch.tensor(segments))
    assert mask.any(dim=-1).all()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        added = additive_mask(mask, dtype)
        assert added.dtype == dtype
        assert torch.equal(torch.softmax(added.float(), -1) > 0, mask)
