"""Between a client's text and the engine's tokens: prompts in, tokens of the answer out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from trueup.schema import InputError

from .text import BROKEN, TextStream, Tokenizer, byte_pieces, text_streams

Messages = list[dict[str, str]]
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class PromptError(InputError):
    """A prompt that cannot become tokens; `where` is the place of the message at fault, if one is."""

    def __init__(self, message: str, where: int | None = None) -> None:
        super().__init__(message)
        self.where = where


class Codec:
    """A served model's tokenizer and chat template. `render` writes messages as the model was trained on
    them, ready for its answer; it may raise anything, as templates are programs. `vocabulary` counts the rows
    of the model's embedding."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        render: Callable[[Messages], str],
        end_ids: frozenset[int],
        vocabulary: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._render = render
        self._piece = byte_pieces(tokenizer)
        self._control = _pattern_of(tokenizer)
        self.end_ids = end_ids
        self.vocabulary = vocabulary
        self.text_stream: Callable[[], TextStream] = text_streams(tokenizer)
        self._longest = max(map(len, tokenizer.get_vocab()), default=1)

    def text(self, prompt: str) -> tuple[int, ...]:
        """Tokens of a plain prompt, with what the tokenizer puts before a text. Special tokens written out in
        the prompt are taken as such. Raises PromptError where there is nothing to continue."""
        return self._some(self._tokenizer(prompt)["input_ids"])

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Tokens of a conversation. Raises PromptError for a message that the template refuses or whose text
        holds a special token: it would end or begin a turn."""
        for where, message in enumerate(messages):
            hit = self._control.search(message["content"]) if self._control is not None else None
            if hit is not None:
                raise PromptError(f"the text contains the special token {hit.group()!r}", where)
        try:
            text = self._render([dict(message) for message in messages])
        except Exception as error:  # a template is a program
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise PromptError(f"the model's chat template refuses these messages: {lines[0]}") from error
        return self._some(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def surely_longer(self, characters: int, tokens: int) -> bool:
        """Whether so much text is more than so many tokens, as can be told before it becomes tokens. Where a
        normaliser may shorten the text, nothing can."""
        return self._piece is not None and characters > tokens * self._longest

    def known(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """A prompt given as tokens. Raises PromptError for ids that the model has no row for."""
        wrong = next((token for token in tokens if not 0 <= token < self.vocabulary), None)
        if wrong is not None:
            raise PromptError(
                f"token id {wrong} is not of this model: its ids are 0 to {self.vocabulary - 1}"
            )
        return self._some(tokens)

    def bytes_of(self, token: int) -> bytes:
        """What one token stands for in the answer's text; of a special token its name."""
        piece = self._piece(token) if self._piece is not None else b""
        if piece:
            return piece
        name = str(self._tokenizer.convert_ids_to_tokens(token) or "")
        if (byte := _BYTE_TOKEN.fullmatch(name)) is not None:
            return bytes([int(byte[1], 16)])
        if self._piece is not None:
            return name.encode()
        text = str(self._tokenizer.decode([token], skip_special_tokens=False))
        spaced = name.startswith("\N{LOWER ONE EIGHTH BLOCK}") and not text.startswith(" ")
        return (" " * spaced + text.replace(BROKEN, "")).encode()

    @staticmethod
    def _some(tokens: Sequence[int]) -> tuple[int, ...]:
        if not tokens:
            raise PromptError("the prompt is empty: there is nothing to continue; give at least one token")
        return tuple(tokens)


def shown(piece: bytes) -> str:
    """A token's bytes as text; those of a part of a character as escapes: `\\xf0\\x9f`."""
    return piece.decode("utf-8", "backslashreplace")


def _pattern_of(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    special = {str(token) for token in tokenizer.all_special_tokens}
    special |= {str(a.content) for a in getattr(tokenizer, "added_tokens_decoder", {}).values() if a.special}
    words = sorted((word for word in special if word), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, words))) if words else None
