"""Events are the same however the socket cuts them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.load.sse import EventReader, EventTooLongError

STREAM = (
    b": keep-alive\n\n"
    b"data: one\n\n"
    b"event: delta\r\nid: 7\r\ndata:two\r\n\r\n"
    b"data: three\ndata: and more\n\n"
    b"retry: 10\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [b"one", b"two", b"three\nand more", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM))))
def test_any_cuts_give_the_same_events(cuts: list[int]) -> None:
    reader = EventReader()
    edges = [0, *sorted(cuts), len(STREAM)]
    found = [data for a, b in pairwise(edges) for data in reader.feed(STREAM[a:b])]
    assert found == EVENTS


def test_what_the_end_cuts_off_is_told_apart_from_events() -> None:
    reader = EventReader()
    assert reader.feed(b"data: one\n\ndata: [DO") == [b"one"]
    assert reader.feed(b"NE]") == []
    assert reader.rest() == b"[DONE]"


def test_a_line_in_small_pieces_is_one_line() -> None:
    reader = EventReader()
    found = [data for byte in b"data: " + b"x" * 5000 + b"\n\n" for data in reader.feed(bytes([byte]))]
    assert found == [b"x" * 5000]


@pytest.mark.parametrize("line", [b"data: " + b"x" * 501, b": " + b"x" * 501, b"data: x\n" * 400])
def test_a_long_event_is_refused_though_it_ends_in_the_same_piece(line: bytes) -> None:
    with pytest.raises(EventTooLongError, match="more than 500 bytes"):
        EventReader(most_bytes=500).feed(line + b"\n\n")


def test_many_short_events_are_no_long_one() -> None:
    assert len(EventReader(most_bytes=500).feed(b"data: short\n\n" * 1000)) == 1000


@pytest.mark.parametrize("piece", [b"x" * 100, b"data: " + b"y" * 60 + b"\n"])
def test_an_event_without_end_is_refused(piece: bytes) -> None:
    reader = EventReader(most_bytes=500)
    for _ in range(4):
        reader.feed(piece)
    with pytest.raises(EventTooLongError, match="500 bytes"):
        reader.feed(piece * 5)
