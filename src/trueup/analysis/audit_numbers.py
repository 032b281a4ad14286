"""Numbers of an audit's sentences: four significant digits, thousands separated, decimal prefixes."""

from __future__ import annotations

import math

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def four_digits(value: float) -> str:
    """1,235; 18.4; 0.001797; 1.2e-07."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude < -5 or magnitude >= 15:
        return f"{value:.4g}"
    decimals = max(0, 3 - magnitude)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def scaled(value: float, unit: str) -> str:
    """480.9 TFLOP/s; 128.5 GB."""
    for size, prefix in _PREFIXES:
        if abs(value) >= size:
            return f"{four_digits(value / size)} {prefix}{unit}"
    return f"{four_digits(value)} {unit}"
