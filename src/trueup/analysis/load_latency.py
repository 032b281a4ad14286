"""Latencies of a load's whole answers: percentiles with their intervals, and how each was taken.

A percentile's interval is that of order statistics (David and Nagaraja 2003, section 7.1). It assumes no
shape, but that requests are independent, which under queueing they are not: it is `within_run` and feeds no
verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum

from trueup.schema import Measurement, RequestResult

from .load_limits import e2e_s, tpot_s, ttft_s
from .load_names import FORMULAS, load_figure, load_missing
from .statistics import P99_NEEDS, percentile

Found = dict[str, Measurement]

_CI = "within_run: order statistics of values taken as independent"
_PERCENTILES = ((50, "p50_s"), (90, "p90_s"), (99, "p99_s"))
_LEVEL = 0.05


def of_latency(whole: Sequence[RequestResult]) -> Found:
    """TTFT, TPOT, ITL and E2E of the whole answers."""
    untold = sum(one.output_tokens is None for one in whole)
    no_count = f"the server told no token count of {untold} answers" if untold else "no answer has two tokens"
    gaps = [gap for one in whole for gap in one.gaps_s]
    found = _summary("ttft", [s for one in whole if (s := ttft_s(one)) is not None], FORMULAS["ttft"])
    found |= _summary(
        "tpot", [s for one in whole if (s := tpot_s(one)) is not None], FORMULAS["tpot"], why_none=no_count
    )
    found |= _summary("itl", gaps, _how_itl(whole), why_none="no answer came in more than one chunk")
    found |= _summary("e2e", [e2e_s(one) for one in whole], FORMULAS["e2e"])
    return found


def tokens_per_chunk(whole: Sequence[RequestResult]) -> float | None:
    """Of the answers whose tokens are counted."""
    told = [one for one in whole if one.output_tokens is not None and one.chunks]
    if not told:
        return None
    return sum(one.output_tokens or 0 for one in told) / sum(one.chunks for one in told)


def order_interval(values: Sequence[float], percent: float) -> tuple[float, float] | None:
    """The two of the values between which the percentile lies with 95% confidence; None where there are too
    few to bound it on both sides."""
    from scipy.special import bdtr

    n, p = len(values), percent / 100
    ordered = sorted(values)
    # Of n values, at most i lie below the percentile with probability bdtr(i, n, p).
    low = _first(n, lambda i: float(bdtr(i, n, p)) > _LEVEL / 2)
    high = _first(n, lambda i: float(bdtr(i, n, p)) >= 1 - _LEVEL / 2)
    return (ordered[low - 1], ordered[high]) if low > 0 and high < n else None


def _first(n: int, holds: Callable[[int], bool]) -> int:
    """The smallest i below n for which it holds, n where there is none; once it holds it goes on to."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _summary(name: str, values: Sequence[float], formula: str, *, why_none: str = "no whole answer") -> Found:
    n = len(values)
    if not n:
        names = (*(suffix for _, suffix in _PERCENTILES), "max_s", "mean_s")
        return {f"{name}_{suffix}": load_missing(f"{name}_{suffix}", why_none, n=0) for suffix in names}
    found: Found = {}
    for percent, suffix in _PERCENTILES:
        if percent == 99 and n < P99_NEEDS:
            reason = f"{n} values; a 99th percentile needs {P99_NEEDS}. The longest is {max(values):.6g} s"
            found[f"{name}_{suffix}"] = load_missing(f"{name}_{suffix}", reason, n=n, method=formula)
            continue
        found[f"{name}_{suffix}"] = load_figure(
            f"{name}_{suffix}",
            percentile(values, percent),
            "measured",
            formula,
            n=n,
            ci=order_interval(values, percent),
            ci_method=_CI,
        )
    found[f"{name}_max_s"] = load_figure(f"{name}_max_s", max(values), "measured", formula, n=n)
    found[f"{name}_mean_s"] = load_figure(f"{name}_mean_s", fsum(values) / n, "measured", formula, n=n)
    return found


def _how_itl(whole: Sequence[RequestResult]) -> str:
    """What a gap is of: a token where each chunk holds one, and came in a read of its own."""
    each, gaps = tokens_per_chunk(whole), [gap for one in whole for gap in one.gaps_s]
    how = FORMULAS["itl"]
    if each is None:
        how += "; how many tokens a chunk holds is not known"
    elif each > 1.005:
        how += f"; a chunk holds {each:.4g} tokens on average, so it is longer than a token's"
    else:
        how += "; a chunk holds one token"
    together = sum(gap == 0 for gap in gaps)
    if together:
        how += f"; {together / len(gaps):.1%} came together with the chunk before"
    return how
