"""Prepared examples as a person can read them: each token's own piece of the text, and whether it is learned.

A token is not always a whole character: byte-level tokenizers cut emoji and Chinese inside a character. Such
a character is shown at the last of its tokens, the ones before it hold no text. T: tokens of one example."""

from __future__ import annotations

from typing import Any

from .prepare import Prepared
from .vocabulary import Tokenizer, special_tokens

_UNFINISHED = "\ufffd"  # what half a character decodes to, and a character of its own


def shown_examples(
    prepared: Prepared, tokenizer: Tokenizer, count: int, split: str = "train"
) -> list[dict[str, Any]]:
    """The first `count` examples of a split as the model will see them, in the order of the data:
    `[{"text", "tokens": [{"id", "text", "loss", "special"}]}]`. The texts of the tokens make up the text."""
    table = prepared.split(split)
    special = frozenset(special_tokens(tokenizer).values())
    shown = []
    for i in range(min(count, len(table))):
        tokens_T, loss_T = table.example(i)
        ids = [int(token) for token in tokens_T]
        pieces = _pieces(tokenizer, ids, special)
        tokens = [
            {"id": token, "text": piece, "loss": bool(loss), "special": token in special}
            for token, piece, loss in zip(ids, pieces, loss_T, strict=True)
        ]
        shown.append({"text": "".join(pieces), "tokens": tokens})
    return shown


def _pieces(tokenizer: Tokenizer, ids: list[int], special: frozenset[int]) -> list[str]:
    """What each token adds to the text of those before it."""
    pieces: list[str] = []
    before: list[int] = []  # the last whole piece: some tokenizers leave a space out at the start of a text
    waiting: list[int] = []
    for n, token in enumerate(ids):
        if token in special:
            pieces.append(_decode(tokenizer, [token]))
            before = [token]
            continue
        waiting.append(token)
        text = _after(tokenizer, before, waiting)
        if text.endswith(_UNFINISHED) and n + 1 < len(ids) and ids[n + 1] not in special:
            longer = _after(tokenizer, before, [*waiting, ids[n + 1]])
            if longer == text or not longer.startswith(text):  # the next token goes on with the character
                pieces.append("")
                continue
        pieces.append(text)
        before, waiting = waiting, []
    return pieces


def _after(tokenizer: Tokenizer, before: list[int], ids: list[int]) -> str:
    head, text = _decode(tokenizer, before), _decode(tokenizer, [*before, *ids])
    return text[len(head) :] if text.startswith(head) else _decode(tokenizer, ids)


def _decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
