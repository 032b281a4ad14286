"""Examples of a data set as the model sees them, with the loss mask in colour: for the terminal, and pieces
of HTML for the page. An example is what `trueup.data.show` gives: `{"text", "tokens": [{"id", "text", "loss",
"special"}]}`."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from markupsafe import Markup, escape
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

Example = Mapping[str, Any]

LEARNED, CONTEXT = "bold green", "dim"
OPEN, CLOSE = "«", "»"  # around what is learned, where there are no colours
_GLYPHS = {"\n": "↵\n", "\t": "⇥", "\r": "␍", "\x7f": "␡"}
_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_JOINERS = "\u200c\u200d"  # letters of some scripts and emoji are made with them


def visible(text: str) -> str:
    """Text from data with everything in it to be seen and nothing in effect: a line break as ↵ and a break,
    control characters and marks that turn the direction of text as signs or code points."""
    return "".join(_glyph(char) for char in text)


def _glyph(char: str) -> str:
    if char in _GLYPHS:
        return _GLYPHS[char]
    if char < " ":
        return chr(0x2400 + ord(char))
    if unicodedata.category(char) in _INVISIBLE and char not in _JOINERS:
        return f"⟨U+{ord(char):04X}⟩"
    return char


class ExamplesText:
    """The examples for a terminal: what is learned bold and green, the rest dim. Without colours it stands
    between « and »."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples = examples

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        colours = console.is_terminal and not console.no_color and console.color_system is not None
        if not self.examples:
            yield Text("\nno training example to show", style=CONTEXT)
            return
        marked = "bold green" if colours else f"between {OPEN} and {CLOSE}"
        yield Text(f"\nas the model sees it: {marked} is learned; ↵ is a line break", style=CONTEXT)
        for number, example in enumerate(self.examples, start=1):
            yield Text.assemble((f"\nexample {number}", "bold"), f" · {size(example)}")
            yield self._text(example, colours)

    def _text(self, example: Example, colours: bool) -> Text:
        text = Text(overflow="fold")
        for learned, tokens in stretches(example["tokens"]):
            style = LEARNED if learned else CONTEXT
            before, after = (OPEN, CLOSE) if learned and not colours else ("", "")
            text.append(before)
            for special, alike in groupby(tokens, key=lambda token: bool(token["special"])):
                shown = visible("".join(token["text"] for token in alike))
                text.append(shown, style=f"{style} underline" if special else style)
            text.append(after)
        if text.plain.endswith("\n"):
            text.right_crop(1)  # the console ends the line itself
        return text


def stretches(tokens: Sequence[Mapping[str, Any]]) -> Iterator[tuple[bool, list[Mapping[str, Any]]]]:
    """Neighbouring tokens that are learned, or are not, together."""
    for learned, found in groupby(tokens, key=lambda token: bool(token["loss"])):
        yield learned, list(found)


def size(example: Example) -> str:
    tokens = example["tokens"]
    learned = sum(bool(token["loss"]) for token in tokens)
    return f"{len(tokens):,} tokens, {learned:,} learned"


def example_html(example: Example, most_tokens: int) -> Markup:
    """One example: a `mark` around each learned stretch, an `i` around each token with its id as a tooltip, a
    `b` in it where the token is a special one. At most the first `most_tokens` are shown."""
    parts: list[str] = []
    for learned, tokens in stretches(example["tokens"][:most_tokens]):
        inside = "".join(map(_token_html, tokens))
        parts.append(f"<mark>{inside}</mark>" if learned else inside)
    left = len(example["tokens"]) - most_tokens
    if left > 0:
        parts.append(f'<span class="quiet"> … and {left:,} more tokens</span>')
    return Markup("".join(parts))


def _token_html(token: Mapping[str, Any]) -> str:
    text = escape(visible(token["text"]))
    inside = f"<b>{text}</b>" if token["special"] else text
    return f"<i title={int(token['id'])}>{inside}</i>"
