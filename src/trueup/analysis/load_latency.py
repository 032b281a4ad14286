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
from .names import P99_NEEDS
from .statistics import percentile

Found = dict[str, Measurement]

_CI = "within_run: order statistics of values taken as independent"
_PERCENTILES = ((50, "p50_s"), (90, "p90_s"), (99, "p99_s"))
_LEVEL = 0.05
NEARLY_ONE = 1.005  # tokens in a chunk: an end without text, say, makes it differ a little from 1
TOGETHER = "so many chunks came in one read with the chunk before that the time between them is not known"


def of_latency(whole: Sequence[RequestResult]) -> Found:
    """TTFT, TPOT, ITL and E2E of the whole answers."""
    gaps = [gap for one in whole for gap in one.gaps_s]
    found = _summary("ttft", [s for one in whole if (s := ttft_s(one)) is not None], _how_ttft(whole))
    found |= _summary(
        "tpot",
        [s for one in whole if (s := tpot_s(one)) is not None],
        _how_tpot(whole),
        why_none=_why_no_tpot(whole),
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
        if (why := _why_no_percentile(name, percent, values)) is not None:
            found[f"{name}_{suffix}"] = load_missing(f"{name}_{suffix}", why, n=n, method=formula)
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


def _why_no_percentile(name: str, percent: int, values: Sequence[float]) -> str | None:
    if percent == 99 and len(values) < P99_NEEDS:
        return (
            f"{len(values)} values; a 99th percentile needs {P99_NEEDS}. The longest is {max(values):.6g} s"
        )
    return TOGETHER if name == "itl" and percentile(values, percent) <= 0 else None


def _how_ttft(whole: Sequence[RequestResult]) -> str:
    at_once = _at_once(whole)
    if not at_once:
        return FORMULAS["ttft"]
    return f"{FORMULAS['ttft']}; all text of {at_once} of {len(whole)} answers came at once, with the first"


def _how_tpot(whole: Sequence[RequestResult]) -> str:
    """What of the formula does not hold for these answers."""
    each, how = tokens_per_chunk(whole), FORMULAS["tpot"]
    if each is not None and each > NEARLY_ONE:
        how += (
            "; chunks hold several tokens, those of the first came within TTFT: a token took longer than this"
        )
    if at_once := _at_once(whole):
        how += f"; without {at_once} of {len(whole)} answers, whose tokens all came at once"
    return how


def _why_no_tpot(whole: Sequence[RequestResult]) -> str:
    if untold := sum(one.output_tokens is None for one in whole):
        return f"no token count that can be believed of {untold} answers"
    if at_once := _at_once(whole):
        return f"all tokens of {at_once} answers came at once: the times between them are not known"
    return "no answer has two tokens"


def _at_once(whole: Sequence[RequestResult]) -> int:
    """Answers of two tokens or more, or of an unknown number, that came whole in an instant."""
    return sum(
        one.first_s is not None and one.last_s == one.first_s and one.output_tokens not in (0, 1)
        for one in whole
    )


def _how_itl(whole: Sequence[RequestResult]) -> str:
    """What a gap is of: a token where each chunk holds one, and came in a read of its own."""
    each, gaps = tokens_per_chunk(whole), [gap for one in whole for gap in one.gaps_s]
    how = FORMULAS["itl"]
    if each is None:
        how += "; how many tokens a chunk holds is not known"
    elif each > NEARLY_ONE:
        how += f"; a chunk holds {each:.4g} tokens on average, so it is longer than a token's"
    elif each < 1 / NEARLY_ONE:
        how += (
            f"; {each:.4g} tokens are counted for a chunk with text: the server cuts tokens up, repeats text "
            "or counts too few, so it is not a token's"
        )
    else:
        how += "; a chunk holds one token by the server's count"
    together = sum(gap == 0 for gap in gaps)
    if together:
        how += f"; {together / len(gaps):.1%} came together with the chunk before"
    return how
