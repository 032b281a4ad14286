"""A tokenizer of SentencePiece's kind (Llama 2, Mistral 7B) as pieces with scores, llama.cpp's `llama`.

In tokenizer.json it is BPE with byte fallback and ▁ for a space. llama.cpp keeps no merges: it joins the two
neighbours whose piece has the highest score, of equal ones the leftmost, as SentencePiece does. That is the
same tokenizer only where every way to make a piece is a merge and the merges are in the order of their
pieces; a BPE trained without SentencePiece has but one merge a piece, and is refused.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

SPACE = "▁"
BYTES = tuple(f"<0x{value:02X}>" for value in range(256))
_RUNS = 40  # a run of one character is cut in several ways of equal score: runs of up to so many are tried


class NotExactError(Exception):
    """A tokenizer that pieces with scores do not describe; the message says what it is."""


def is_sentencepiece(spec: dict[str, Any]) -> bool:
    """Whether a tokenizer.json is of this kind."""
    return spec["model"]["type"] == "BPE" and bool(spec["model"].get("byte_fallback"))


def space_prefix(spec: dict[str, Any], *, starts_special: bool) -> bool:
    """Whether a reader has to put a space before a text and after each special token.

    `starts_special`: all that the model is given begins with a special token. Then a tokenizer that puts the
    space only at the very beginning puts none. Raises NotExactError for any other treatment of spaces.
    """
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = {"type": "Prepend", "prepend": SPACE}
    normalizer, split = spec["normalizer"], spec["pre_tokenizer"]
    if split is None and normalizer == {"type": "Sequence", "normalizers": [prepend, replace]}:
        return True
    if split is None and normalizer in (replace, {"type": "Sequence", "normalizers": [replace]}):
        return False
    if normalizer is None and split is not None and split["type"] == "Metaspace":
        scheme = split["prepend_scheme"]
        if split["replacement"] == SPACE and not split["split"]:
            if scheme == "never" or (scheme == "first" and starts_special):
                return False
            if scheme == "first":
                raise NotExactError(
                    "a tokenizer that puts a space before the first word only, and no chat template that "
                    "begins with a special token"
                )
        raise NotExactError(f"a tokenizer that splits text by Metaspace with the scheme {scheme!r}")
    raise NotExactError("a tokenizer with byte fallback that treats spaces in a way of its own")


def scores(spec: dict[str, Any]) -> dict[str, float]:
    """The score of every piece: the earlier it is made by merges, the higher; 0 where no merge makes it.

    Raises NotExactError where scores would make other pieces than the merges do.
    """
    model, special = spec["model"], {one["content"] for one in spec["added_tokens"]}
    vocabulary = model["vocab"]
    if model.get("ignore_merges") or model.get("dropout"):
        raise NotExactError("a tokenizer that does not go by its merges alone")
    if not all(byte in vocabulary for byte in BYTES):
        raise NotExactError("a tokenizer with byte fallback but without a token for every byte")
    pairs = [tuple(one.split(" ", 1)) if isinstance(one, str) else tuple(one) for one in model["merges"]]
    found: dict[str, float] = {}
    last = None
    for left, right in pairs:
        piece = left + right
        if piece != last and piece in found:
            raise NotExactError("a tokenizer whose merges are in an order that no scores give")
        found.setdefault(piece, -float(len(found) + 1))
        last = piece
    known = set(pairs)
    for piece in vocabulary:
        if piece in special or piece in BYTES:
            continue
        if not all(character in vocabulary for character in piece):
            raise NotExactError(f"a tokenizer with the token {piece!r} and none for each of its characters")
        for cut in range(1, len(piece)):
            halves = (piece[:cut], piece[cut:])
            if halves not in known and all(half in vocabulary for half in halves):
                raise NotExactError(
                    f"a BPE tokenizer that does not make {piece!r} of {halves[0]!r} and {halves[1]!r}, which "
                    "llama.cpp would"
                )
    return found


def pieces_of(
    text: str,
    vocabulary: dict[str, int],
    score: dict[str, float],
    *,
    special: list[str],
    prefix: bool,
) -> list[int]:
    """Token ids as llama.cpp makes them of `text`, special tokens recognised; for a check, not fast."""
    pattern = "|".join(re.escape(one) for one in sorted(special, key=len, reverse=True))
    ids: list[int] = []
    for part in re.split(f"({pattern})", text) if pattern else [text]:
        if part in special:
            ids.append(vocabulary[part])
        elif part:
            for piece in _joined((" " if prefix else "") + part, vocabulary, score):
                known = vocabulary.get(piece)
                as_bytes = [vocabulary[BYTES[value]] for value in piece.encode()] if known is None else []
                ids += as_bytes if known is None else [known]
    return ids


def _joined(text: str, vocabulary: dict[str, int], score: dict[str, float]) -> list[str]:
    pieces = list(text.replace(" ", SPACE))
    while True:
        pairs = [
            (score.get(one + other, 0.0), -place)
            for place, (one, other) in enumerate(pairwise(pieces))
            if one + other in vocabulary
        ]
        if not pairs:
            return pieces
        place = -max(pairs)[1]
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]


def runs_of(vocabulary: dict[str, int]) -> list[str]:
    """Texts of one repeated character, where two of it are a piece."""
    doubled = [
        piece[0].replace(SPACE, " ") for piece in vocabulary if len(piece) == 2 and piece[0] == piece[1]
    ]
    return [character * length for character in doubled for length in range(3, _RUNS + 1)]
