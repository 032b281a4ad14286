"""Splitting an example that is longer than the limit into pieces that each fit.

Of a conversation the last answer is split. Each piece begins with everything before that answer; a later one
goes on with the last quarter of the answer's room from the piece before, as context without loss, and then
with what comes next. So every token of the answer is learned exactly once, each after the question and what
was just said, and the end of the turn only in the last piece, where the answer truly ends. A conversation
whose part before the last answer leaves less than a quarter of the limit cannot be split.

Of plain text each piece goes on where the last one ended; its first token, the only context it has from
there, is the last of the piece before.

A piece ends at the end of a sentence when `sentence` asks so and one ends in the second half of its room,
else between two tokens. Shapes: T tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONTEXT_SHARE = 4  # one part in so many of a piece's room repeats what came before
LEAST_ROOM_SHARE = 4  # one part in so many of the limit must be left for the answer

Decode = Callable[[Sequence[int]], str]
Piece = tuple[NDArray[np.int32], NDArray[np.bool_]]

_ENDING = re.compile(r"(?:(?P<spaced>[.!?…])|[。！？；])[)\]\"'”’»」』）]*(?P<after>\s*)\Z|\n\s*\Z")
_TOKENS_BEFORE, _TOKENS_AFTER = 12, 4  # looked at on each side of a place


@dataclass(frozen=True)
class Frame:
    """What is repeated before each piece: the first `start` tokens; and how much of the piece before."""

    start: int
    context: int
    room: int

    @classmethod
    def of_answer(cls, answer_T: NDArray[np.bool_], limit: int) -> Frame | None:
        """Around the last answer, or None where what is before it leaves too little room. `answer_T` is true
        of every answer's tokens."""
        last = int(np.flatnonzero(answer_T)[-1])
        outside = np.flatnonzero(~answer_T[: last + 1])
        start = int(outside[-1]) + 1 if len(outside) else 0
        room = limit - start
        if room < max(2, limit // LEAST_ROOM_SHARE):
            return None
        return cls(start, room // CONTEXT_SHARE, room)

    @classmethod
    def of_text(cls, limit: int) -> Frame:
        return cls(0, 1, limit)


def split_example(
    tokens_T: NDArray[np.int32],
    loss_T: NDArray[np.bool_],
    frame: Frame,
    sentence_end: Callable[[NDArray[np.int32], int], bool] | None,
) -> list[Piece]:
    """The pieces of one example, in order. Tokens without loss after the last one with loss are left off
    where they do not fit."""
    pieces: list[Piece] = []
    head_T, at, context = tokens_T[: frame.start], frame.start, 0
    while loss_T[at:].any():
        end = min(at + frame.room - context, len(tokens_T))
        if sentence_end is not None and loss_T[end:].any():
            half = at + (end - at) // 2
            end = next((k for k in range(end, half, -1) if sentence_end(tokens_T, k)), end)
        head_loss_T = loss_T[: frame.start] if not pieces else np.zeros(frame.start, dtype=np.bool_)
        pieces.append(
            (
                np.concatenate([head_T, tokens_T[at - context : end]]),
                np.concatenate([head_loss_T, np.zeros(context, dtype=np.bool_), loss_T[at:end]]),
            )
        )
        at = end
        context = min(frame.context, at - frame.start)
    return pieces


def sentence_ends(decode: Decode) -> Callable[[NDArray[np.int32], int], bool]:
    """Whether a sentence ends before token k: a full stop and its like with white space after it, an East
    Asian one, or a line break. `decode` gives the text of token ids."""

    def ends(tokens_T: NDArray[np.int32], k: int) -> bool:
        start = max(0, k - _TOKENS_BEFORE)
        before = decode(tokens_T[start:k].tolist())
        hit = _ENDING.search(before)
        if hit is None:
            return False
        if hit["spaced"] is None or hit["after"]:
            return True
        both = decode(tokens_T[start : k + _TOKENS_AFTER].tolist())
        return both.startswith(before) and both[len(before) :][:1].isspace()

    return ends
