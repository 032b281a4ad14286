"""Numbers and names as people read them: 3 to 4 significant digits, units spelled out, dates short.

Exact values belong to `--json` and to the `title` of an element in the page; here the aim is legibility.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the terminal starts fast: pydantic is not imported for annotations
    from trueup.schema import Measurement

# Bill lines, in plain words. A name that is not here is shown with its underscores as spaces.
LINE_LABELS = {
    "useful_compute": "useful compute, at ceiling",
    "below_peak": "below-peak kernels",
    "compute": "compute (ceiling not known)",
    "padding": "padding",
    "head_padding": "head padding",
    "recompute": "recompute",
    "compile": "compile",
    "warm_up": "warm-up",
    "load": "load",
    "prepare": "prepare",
    "data_wait": "data wait",
    "communication": "communication",
    "evaluation": "evaluation",
    "checkpoint": "checkpoint",
    "pause": "pause",
    "lost_work": "lost work (steps done again, left out)",
    "down_time": "down time",
    "record": "record",
    "other": "other",
    "one_off": "one-off work, spread over runs",
    "start": "starting and ending the load",
    "answering": "answering requests",
    "no_request": "no request in flight",
}

KIND_ORDER = ("measured", "derived", "quoted", "estimated", "predicted", "unavailable")

_SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_DECIMAL_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_PERCENT_NAMES = ("_share", "mfu", "hfu", "jitter")
# Marks that turn the direction of text: they can make a name read as another.
_DIRECTION_MARKS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f")


def clean(text: object) -> str:
    """Text from data, fit for one line: no control characters (escape sequences), no direction marks."""
    out = []
    for char in str(text):
        if char in "\n\t\r":
            out.append(" ")
        elif char not in _DIRECTION_MARKS and unicodedata.category(char) not in ("Cc", "Cs"):
            out.append(char)
    return "".join(out)


def line_label(name: str) -> str:
    return LINE_LABELS.get(name, words(name))


def words(name: str) -> str:
    """A snake-case name with spaces."""
    return clean(name).replace("_", " ")


def number(value: float, digits: int = 4) -> str:
    """`digits` significant digits, thousands separated, no trailing zeros: 0.08161, 1,235, 18.4."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude >= 15 or magnitude < -5:
        return f"{value:.{digits}g}"
    decimals = max(0, digits - 1 - magnitude)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def duration(seconds: float) -> str:
    """3 min 12 s; 2 h 05 min; 18.4 s; 340 ms."""
    if not math.isfinite(seconds):
        return str(seconds)
    if seconds < 0:
        return "−" + duration(-seconds)
    if seconds == 0:
        return "0 s"
    if seconds < 1e-3:
        return f"{number(seconds * 1e6, 3)} µs"
    if seconds < 0.9995:
        return f"{number(seconds * 1e3, 3)} ms"
    if seconds < 59.95:
        return f"{number(seconds, 3)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"


def dollars(usd: float, decimals: int | None = None) -> str:
    """$0.2034, $1.375, $1,250.00: four significant digits and never fewer than cents, or a fixed count."""
    if decimals is None:
        decimals = dollar_decimals(usd)
    sign = "−" if usd < 0 else ""
    return f"{sign}${abs(usd):,.{decimals}f}"


def dollar_decimals(usd: float) -> int:
    """How many decimals show this amount to four significant digits, and never fewer than cents."""
    if usd == 0 or not math.isfinite(usd):
        return 2
    return min(12, max(2, 3 - math.floor(math.log10(abs(usd)))))


def money(found: Measurement, decimals: int | None = None) -> str:
    """An amount in the currency its unit begins with: $1.375, or 1.375 EUR; a dash where there is none."""
    if found.value is None:
        return "–"
    currency = found.unit.partition("/")[0]
    text = dollars(found.value, decimals)
    return text if currency == "USD" else f"{text.replace('$', '')} {clean(currency)}"


def share(value: float) -> str:
    """18.4 %; a share too small to show is `<0.1 %`, not 0."""
    percent = value * 100
    if 0 < percent < 0.05:
        return "<0.1 %"
    return f"{percent:.1f} %"


def scaled(value: float, steps: tuple[tuple[float, str], ...], base: str, joined: str = "") -> str:
    for size, prefix in steps:
        if abs(value) >= size:
            return f"{number(value / size, 3)} {prefix}{joined}"
    return f"{number(value, 3)} {base}"


def quantity(value: float, unit: str, name: str = "") -> str:
    """A value in its unit. `name` tells a share (shown in per cent) from a plain ratio; both have unit 1."""
    if not math.isfinite(value):
        return str(value)
    if unit == "s":
        return duration(value)
    if unit == "bytes":
        return scaled(value, _BINARY, "bytes")
    if unit == "bytes/s":
        return scaled(value, _DECIMAL_BYTES, "bytes/s", "/s")
    if unit == "1":
        return share(value) if is_share(name) else number(value)
    if unit.upper().startswith("USD"):
        return (dollars(value) + " " + clean(unit[3:]).replace("/", "per ")).strip()
    if unit in ("FLOP/s", "FLOP", "FLOPs", "J", "W", "Hz"):
        return scaled(value, _SI, unit, unit)
    if unit in ("count", ""):
        return number(value)
    if abs(value) >= 1e7:
        return scaled(value, _SI, unit, " " + clean(unit))
    return f"{number(value)} {clean(unit)}"


def quantity_within(value: float, ci: tuple[float, float] | None, unit: str, name: str = "") -> str:
    """As `quantity`, with more digits where so few would put a ratio outside its own interval."""
    text = quantity(value, unit, name)
    if ci is None or unit != "1" or is_share(name) or not math.isfinite(value):
        return text
    told = (number(value, digits) for digits in range(4, 18))
    return next((one for one in told if ci[0] <= float(one.replace(",", "")) <= ci[1]), text)


def is_share(name: str) -> bool:
    return any(mark in name for mark in _PERCENT_NAMES)


def interval(ci: tuple[float, float], unit: str, name: str = "") -> str:
    """145.1 to 151 tokens/s: the unit once where both ends share it; ends that differ are shown to differ."""
    low, high = (quantity(edge, unit, name) for edge in ci)
    if low == high and ci[0] != ci[1]:
        return _fine_interval(ci, unit, name)
    low_number, _, low_unit = low.partition(" ")
    return f"{low_number} to {high}" if high.partition(" ")[2] == low_unit else f"{low} to {high}"


def _fine_interval(ci: tuple[float, float], unit: str, name: str) -> str:
    """In the unit itself, with as many digits as tell the ends apart."""
    scale, word = (
        (100.0, "%") if unit == "1" and is_share(name) else (1.0, "" if unit == "1" else clean(unit))
    )
    pairs = ([number(edge * scale, digits) for edge in ci] for digits in range(4, 18))
    low, high = next((pair for pair in pairs if pair[0] != pair[1]), [repr(edge * scale) for edge in ci])
    return f"{low} to {high} {word}".rstrip()


def date(iso: str) -> str:
    """2026-11-29T10:15:30.123Z as 2026-11-29 10:15 UTC; anything else as it is."""
    text = clean(iso)
    if len(text) >= 16 and text[4] == "-" and text[10] in "T ":
        return f"{text[:10]} {text[11:16]} UTC" if text.endswith(("Z", "+00:00")) else text
    return text


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested mappings as dotted keys with their values as text; a list of plain values on one line."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flat(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, (list, tuple)) and any(isinstance(inner, (Mapping, list)) for inner in value):
        for index, inner in enumerate(value):
            yield from flat(inner, f"{prefix}.{index}" if prefix else str(index))
    elif isinstance(value, (list, tuple)):
        yield prefix, ", ".join(plain(inner) for inner in value) or "none"
    else:
        yield prefix, plain(value)


def plain(value: Any) -> str:
    """A setting as text: null, yes and no as words, a float without noise."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if math.isfinite(value) else str(value)
    return clean(value)
