"""Prompts of a wanted number of tokens, for a server whose tokenizer nobody here has.

All words have three letters and a space before them. Byte-pair vocabularies hold each as one token and
vocabularies of bytes as four, so a prompt of n words costs overhead + n x cost tokens. Both numbers are found
by asking the server for its own count of two prompts; a third tells whether they hold.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from trueup.schema import InputError
from trueup.schema.counting import counted, counted_as

_LETTERS = (
    "the and for are but not you all can had her was one our out day get has him his how man new now old see "
    "two way who boy did its let put say she too use any may yes top low big war god set six men few got far"
)
WORDS = tuple(_LETTERS.split())
PROBE_WORDS = (4, 16, 10)  # two to find the cost by, one to check it
MOST_PROMPTS = 1_000_000


@dataclass(frozen=True)
class WordCost:
    """Tokens of a prompt of n words: overhead + n x each. `told`: how it is known."""

    overhead: float = 0.0
    each: float = 1.0
    exact: bool = False
    told: str = "the server told no counts: a word is taken for a token"

    def words_for(self, tokens: int) -> int:
        """Words of a prompt of so many tokens: the nearest number, and at least one."""
        return max(1, round((tokens - self.overhead) / self.each))

    def tokens_of(self, words: int) -> int | None:
        """Tokens of a prompt of so many words; None where the server's counts do not tell."""
        return round(self.overhead + words * self.each) if self.exact else None

    @property
    def least(self) -> int:
        """Tokens of the shortest prompt."""
        return max(1, round(self.overhead + self.each))


@dataclass(frozen=True)
class FilePrompt:
    """A prompt as a file has it, and the most tokens its answer may have, where it says so."""

    text: str
    output_tokens: int | None


def text_of(words: int, seed: int, index: int) -> str:
    """A prompt of so many words, another for each index: two requests share no more than a first word, so
    that a prefix cache has nothing to give."""
    draw = random.Random(f"{seed} {index}")
    return " ".join((WORDS[0], *draw.choices(WORDS, k=words - 1)))


def cost_of(counts: dict[int, int | None]) -> WordCost:
    """From the server's counts of the probes, by their number of words."""
    few, many, check = (counts.get(words) for words in PROBE_WORDS)
    if few is None or many is None or check is None:
        return WordCost()
    each = (many - few) / (PROBE_WORDS[1] - PROBE_WORDS[0])
    if each <= 0:
        return WordCost(
            told=f"the server counts {counted(few, 'token')} in {PROBE_WORDS[0]} words and {many} in more"
        )
    overhead = few - PROBE_WORDS[0] * each
    exact = each == int(each) and check == overhead + PROBE_WORDS[2] * each
    told = f"the server's own counts: {counted_as(f'{overhead:g}', 'token')} and {each:g} a word" + (
        "" if exact else ", which its count of a third prompt does not bear out: lengths are near, not exact"
    )
    return WordCost(overhead, each, exact, told)


def read_prompts(path: Path) -> list[FilePrompt]:
    """Of a JSON lines file: `prompt`, and `max_tokens` where it is to be the file's; of any other file, a
    prompt a line. InputError, naming the line, for anything else."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # not at the line ends that JSON may hold
    except FileNotFoundError:
        raise InputError(f"--prompts {path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--prompts {path}: cannot be read: {error}") from None
    read = _from_json if path.suffix in (".jsonl", ".json") else _from_text
    found = [read(line, f"{path}:{n}") for n, line in enumerate(lines[:MOST_PROMPTS], 1) if line.strip()]
    if not found:
        raise InputError(f"--prompts {path}: it holds no prompt")
    return found


def _from_text(line: str, where: str) -> FilePrompt:
    return FilePrompt(line, None)


def _from_json(line: str, where: str) -> FilePrompt:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{where}: not JSON; a line is an object with a `prompt`") from None
    text = row.get("prompt") if isinstance(row, dict) else None
    if not isinstance(text, str) or not text:
        raise InputError(f"{where}: expected a `prompt`, a text that is not empty")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError(f"{where}: the prompt has half a character (a surrogate), which none can send")
    most = row.get("max_tokens")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise InputError(f"{where}: max_tokens {most!r}; expected a whole number from 1")
    return FilePrompt(text, most)
