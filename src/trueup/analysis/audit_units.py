"""Units of published figures: `USD/h`, `tokens/s`, `USD per million tokens`, `kWh`.

Words, prefixes, plurals and dimensions are pint's, over the definitions below. The grammar is our own, since
in pint's `USD per million tokens` the tokens are multiplied: here a division applies to all the words after
it, up to the next division. Things that are counted and not priced or timed one by one (nodes, chips, runs)
have no dimension; tokens, records, requests, steps and every currency have one of their own, so that they are
never mixed up.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import pint
from pint.util import to_units_container

from trueup.schema import InputError

_DEFINITIONS = """
nano- = 1e-9 = n-
micro- = 1e-6 = µ- = u-
milli- = 1e-3 = m-
kilo- = 1000 = k-
mega- = 1000000 = M-
giga- = 1000000000 = G-
tera- = 1000000000000 = T-
peta- = 1000000000000000 = P-
kibi- = 1024 = Ki-
mebi- = 1048576 = Mi-
gibi- = 1073741824 = Gi-
tebi- = 1099511627776 = Ti-
second = [time] = s = sec
minute = 60 * second = min
hour = 60 * minute = h = hr
day = 24 * hour = d
week = 7 * day
dollar = [dollar] = USD
cent = 0.01 * dollar
euro = [euro] = EUR
sterling = [sterling] = GBP
yuan = [yuan] = CNY
yen = [yen] = JPY
rupee = [rupee] = INR
token = [token]
record = [record] = example = _ = sample
request = [request] = query = queries
sequence = [sequence]
step = [step]
parameter = [parameter] = param
flop = [flop] = FLOP
byte = [information] = B
bit = 0.125 * byte
watt = [power] = W
joule = watt * second = J
watthour = watt * hour = Wh
percent = 0.01
hundred = 100
thousand = 1000
million = 1000000
billion = 1000000000
trillion = 1000000000000
"""
COUNTED = frozenset(
    [
        "accelerator",
        "answer",
        "chip",
        "core",
        "device",
        "document",
        "epoch",
        "experiment",
        "gpu",
        "GPU",
        "instance",
        "job",
        "layer",
        "machine",
        "message",
        "node",
        "process",
        "prompt",
        "question",
        "replica",
        "run",
        "seed",
        "server",
        "time",
        "trial",
        "user",
        "worker",
        "x",
    ]
)
_DISCRETE = COUNTED | {
    *("token", "record", "example", "sample", "request", "query", "queries", "sequence", "step", "parameter"),
    "param",
}
_SIGNS = {"%": "percent", "$": "USD", "€": "EUR", "£": "GBP"}
_PIECE = re.compile(r"\s*(?:(?P<word>[A-Za-zµ_]+|[%$€£])|(?P<number>\d+)|(?P<mark>[/()]))")
_LONGEST = 120  # characters; no unit of a published figure is longer


@dataclass(frozen=True)
class Unit:
    """A unit as it was written; one of it is `factor` of the root units `dims`. `discrete`: of whole
    things."""

    text: str
    factor: Fraction
    dims: pint.Unit
    discrete: bool = False


@cache
def _registry() -> pint.UnitRegistry[Any]:
    registry: pint.UnitRegistry[Any] = pint.UnitRegistry(None, non_int_type=Fraction)
    counted = [f"{word} = 1" for word in sorted(COUNTED)]
    registry.load_definitions([*_DEFINITIONS.strip().splitlines(), *counted])
    return registry


def no_dimension() -> pint.Unit:
    """The dimension of plain numbers and ratios."""
    return _registry().Unit("")


def read_unit(text: str) -> Unit:
    """The unit that `text` names; the empty text is a plain number. InputError where it is none."""
    if len(text) > _LONGEST:
        raise InputError(f"a unit of {len(text)} characters is none: '{text[:40]}…'")
    pieces = _pieces(text)
    if not pieces:
        return Unit("", Fraction(1), no_dimension(), discrete=True)
    factor, dims, rest = _quotient(text, pieces)
    if rest:
        raise InputError(f"the unit '{text}' has a ')' too many")
    discrete = len(pieces) == 1 and _singular(pieces[0]) in _DISCRETE
    return Unit(" ".join(text.split()), factor, dims, discrete)


def dims_text(dims: pint.Unit) -> str:
    """Root units as people write them: `dollar/token`, `second^2`, `plain number`."""
    # Powers are whole numbers here; pint's own type allows any number, complex ones included.
    powers = sorted((name, int(power.real)) for name, power in to_units_container(dims).items())
    above = "·".join(_power_text(name, power) for name, power in powers if power > 0)
    below = "".join(f"/{_power_text(name, -power)}" for name, power in powers if power < 0)
    return f"{above or '1'}{below}" if powers else "plain number"


def _power_text(name: str, power: int) -> str:
    return name if power == 1 else f"{name}^{power}"


def _pieces(text: str) -> list[str]:
    pieces, at = [], 0
    stripped = text.rstrip()
    while at < len(stripped):
        found = _PIECE.match(stripped, at)
        if found is None:
            raise InputError(
                f"'{text}' is no unit: '{stripped[at:].strip()[:20]}' is not understood; write it like "
                "USD/h, tokens/s, USD per million tokens"
            )
        pieces.append(found[0].strip())
        at = found.end()
    return ["/" if piece == "per" else piece for piece in pieces]


def _quotient(text: str, pieces: list[str]) -> tuple[Fraction, pint.Unit, list[str]]:
    """Products divided by one another, left to right, up to the end or a closing bracket."""
    factor, dims, rest = _product(text, pieces)
    while rest and rest[0] == "/":
        below, below_dims, rest = _product(text, rest[1:], required=True)
        factor, dims = factor / below, dims / below_dims
    return factor, dims, rest


def _product(
    text: str, pieces: list[str], *, required: bool = False
) -> tuple[Fraction, pint.Unit, list[str]]:
    factor, dims, rest = Fraction(1), no_dimension(), pieces
    while rest and rest[0] not in ("/", ")"):
        piece, rest = rest[0], rest[1:]
        if piece == "(":
            inner, inner_dims, rest = _quotient(text, rest)
            if not rest:
                raise InputError(f"the unit '{text}' lacks a ')'")
            rest = rest[1:]
        elif piece.isdecimal() and len(rest) + 1 < len(pieces):
            raise InputError(
                f"'{text}' is no unit: a number in it stands after a division, as in USD/(1000 tokens); "
                "write what is 16 x 175 W, or 1 h 20 min, as two figures and a formula"
            )
        else:
            inner, inner_dims = _one(text, piece)
        factor, dims = factor * inner, dims * inner_dims
    if required and len(rest) == len(pieces):
        raise InputError(f"the unit '{text}' lacks something after '/'")
    return factor, dims, rest


def _one(text: str, piece: str) -> tuple[Fraction, pint.Unit]:
    if piece.isdecimal():
        if int(piece) == 0:
            raise InputError(f"the unit '{text}' divides by zero or is of nothing")
        return Fraction(int(piece)), no_dimension()
    return _word(_SIGNS.get(piece, piece))


@cache
def _word(word: str) -> tuple[Fraction, pint.Unit]:
    registry = _registry()
    try:
        factor, dims = registry.get_root_units(registry.parse_units(word))
    except (pint.UndefinedUnitError, pint.DefinitionSyntaxError, ValueError, TypeError):
        known = sorted({*re.findall(r"[A-Za-z]+", re.sub(r"\[.*?\]|\S+-", "", _DEFINITIONS)), *COUNTED})
        close = difflib.get_close_matches(word, known, n=2, cutoff=0.6)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(known)}"
        raise InputError(f"unknown unit '{word}'; {hint}") from None
    assert isinstance(factor, int | Fraction)  # as the registry was told
    return Fraction(factor), dims


def _singular(word: str) -> str:
    return word if word in _DISCRETE else word.removesuffix("s")
