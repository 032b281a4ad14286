"""Tokens to text, one at a time, so that what has been sent is always a whole beginning of the answer.

A byte-level tokenizer's tokens are bytes: a character's first bytes are held back until the last has come,
and bytes that can be no character any more become U+FFFD at once, as they do in a whole decode. Joined, what
a stream gives is the tokenizer's own decode of all the tokens, special tokens left out.

Other tokenizers are decoded by windows of tokens. That agrees with the whole decode for text that is text.
Where byte tokens add up to no character, some decoders change what stood before (a whole run turns to
U+FFFD): what was sent is never sent again, and the stream goes on behind it.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

# A Hugging Face tokenizer (PreTrainedTokenizerBase). Any: its methods carry no annotations.
Tokenizer = Any
BROKEN = "\N{REPLACEMENT CHARACTER}"
MOST_HELD = 16  # tokens; a character has four bytes, and a run without one this long will not become one


class TextStream(Protocol):
    """One answer's text."""

    def feed(self, token: int) -> str:
        """What this token makes certain; often empty."""

    def finish(self) -> str:
        """What was held back: no more tokens come."""


def text_streams(tokenizer: Tokenizer) -> Callable[[], TextStream]:
    """What opens a stream for each answer of this tokenizer."""
    pieces = byte_pieces(tokenizer)
    if pieces is None:
        return lambda: WindowText(tokenizer)
    return lambda: ByteText(pieces)


class ByteText:
    """Of a byte-level tokenizer, whose tokens' bytes `piece` gives."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        return self._decoder.decode(self._piece(token))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowText:
    """Of any tokenizer: the text of the newest tokens, less the text they had before.

    A window starts where the last text was given out, so that a decoder which drops a text's first space does
    not drop one within the answer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._given = 0  # of the window: tokens whose text is given out

    def feed(self, token: int) -> str:
        self._window.append(token)
        text = self._text(self._window)
        held = len(self._window) - self._given
        if text.endswith(BROKEN) and held <= MOST_HELD:
            return ""
        return self._give(text)

    def finish(self) -> str:
        return self._give(self._text(self._window))

    def _give(self, text: str) -> str:
        before = self._text(self._window[: self._given])
        if not text.startswith(before):  # the decoder thinks otherwise of what was sent
            before = text[: len(before)]
        if before:
            self._window = self._window[self._given :]
        self._given = len(self._window)
        return text[len(before) :]

    def _text(self, tokens: Sequence[int]) -> str:
        return decoded(self._tokenizer, tokens)


def decoded(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """The tokenizer's own whole decode, special tokens left out and spaces left alone."""
    return str(tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def byte_pieces(tokenizer: Tokenizer) -> Callable[[int], bytes] | None:
    """What gives the bytes of a byte-level tokenizer's token: empty for special tokens and ids of none.
    None for a tokenizer of another kind."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not _is_byte_level(json.loads(backend.to_str()).get("decoder")):
        return None
    bytes_of = _letter_bytes()
    special = {index for index, added in backend.get_added_tokens_decoder().items() if added.special}

    @cache
    def piece(token: int) -> bytes:
        text = None if token in special else backend.id_to_token(token)
        if text is None:
            return b""
        if any(letter not in bytes_of for letter in text):  # an added token, written as it is
            return str(text).encode()
        return bytes(bytes_of[letter] for letter in text)

    return piece


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    if decoder is None:
        return False
    if decoder["type"] == "Sequence":
        return len(decoder["decoders"]) == 1 and _is_byte_level(decoder["decoders"][0])
    return bool(decoder["type"] == "ByteLevel")


@cache
def _letter_bytes() -> dict[str, int]:
    """Byte of each letter that stands for one in a byte-level vocabulary."""
    from trueup.model.tiny import byte_letters

    return {letter: byte for byte, letter in enumerate(byte_letters())}
