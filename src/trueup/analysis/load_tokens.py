"""Tokens of a load's whole answers, as the server counts them, and their rates. Input and output stand apart:
where the counts of one cannot be believed, the other's still can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import fsum

from trueup.schema import Measurement, RequestResult

from .load_latency import tokens_per_chunk
from .load_names import UNSEEN, load_figure, load_missing
from .load_rates import Stretch, rate

Found = dict[str, Measurement]

_INPUT = ("input_tokens", "input_tokens_per_s", "prompt_tokens_off_max")
_OUTPUT = ("output_tokens", "output_tokens_per_s", "tokens_per_chunk", "cut_short_count")
_COUNTED = "the server's usage, summed over whole answers"


def of_tokens(whole: Sequence[RequestResult], stretch: Stretch | None) -> Found:
    n = len(whole)
    if not whole or stretch is None:
        names = (*_INPUT, *_OUTPUT, "total_tokens_per_s")
        return {name: load_missing(name, "no whole answer", n=n) for name in names}
    no_input = why_untold(whole, lambda one: one.prompt_tokens)
    no_output = why_untold(whole, lambda one: one.output_tokens)
    inputs = [(one.first_s or one.done_s, float(one.prompt_tokens or 0)) for one in whole]
    outputs = [part for one in whole for part in _spread(one)]
    found = _missing(_INPUT, no_input, n) if no_input else _of_input(whole, inputs, stretch)
    found |= _missing(_OUTPUT, no_output, n) if no_output else _of_output(whole, outputs, stretch)
    either = no_output or no_input
    found |= (
        _missing(("total_tokens_per_s",), either, n)
        if either
        else {
            "total_tokens_per_s": rate("total_tokens_per_s", [*inputs, *outputs], stretch, "all tokens", n=n)
        }
    )
    return found


def why_untold(whole: Sequence[RequestResult], count_of: Callable[[RequestResult], int | None]) -> str | None:
    """Why the answers have no sum of these counts; None where each has one."""
    without = [one for one in whole if count_of(one) is None]
    if not without:
        return None
    doubt = next((one.doubt for one in without if one.doubt), None)
    if doubt is None:
        return f"{len(without)} of {len(whole)} answers came without the server's usage"
    return f"{len(without)} of {len(whole)} answers have no count that can be; the first: {doubt}"


def _missing(names: Sequence[str], reason: str, n: int) -> Found:
    return {name: load_missing(name, reason, n=n) for name in names}


def _of_input(
    whole: Sequence[RequestResult], inputs: Sequence[tuple[float, float]], stretch: Stretch
) -> Found:
    asked = [(one, one.asked_prompt_tokens) for one in whole if one.asked_prompt_tokens is not None]
    total, n = fsum(tokens for _, tokens in inputs), len(whole)
    off = "prompt_tokens_off_max"
    return {
        "input_tokens": load_figure("input_tokens", total, "measured", _COUNTED, n=n),
        "input_tokens_per_s": rate("input_tokens_per_s", inputs, stretch, "input tokens", n=n),
        off: load_figure(
            off,
            max(abs((one.prompt_tokens or 0) - wanted) for one, wanted in asked),
            "measured",
            "|the server's usage − what was wanted|",
            n=len(asked),
        )
        if asked
        else load_missing(off, "the prompts were given, without a length"),
    }


def _of_output(
    whole: Sequence[RequestResult], outputs: Sequence[tuple[float, float]], stretch: Stretch
) -> Found:
    total, n = fsum(tokens for _, tokens in outputs), len(whole)
    short = sum((one.output_tokens or 0) < (one.asked_output_tokens or 0) for one in whole)
    per_chunk = "output tokens over chunks with text"
    counted = f"{_COUNTED}; {UNSEEN}" if _more_than_text(whole) else _COUNTED
    return {
        "output_tokens": load_figure("output_tokens", total, "measured", counted, n=n),
        "output_tokens_per_s": rate("output_tokens_per_s", outputs, stretch, "output tokens", n=n),
        "tokens_per_chunk": load_figure(
            "tokens_per_chunk", tokens_per_chunk(whole) or 0.0, "measured", per_chunk
        ),
        "cut_short_count": load_figure(
            "cut_short_count", short, "measured", "usage below max_tokens, counted"
        ),
    }


def _more_than_text(whole: Sequence[RequestResult]) -> bool:
    """No token that is shown has less than a byte, and each answer may have an end that is not."""
    told = [one for one in whole if one.text_bytes is not None]
    return sum(one.output_tokens or 0 for one in told) > sum(1 + (one.text_bytes or 0) for one in told)


def _spread(one: RequestResult) -> list[tuple[float, float]]:
    """An answer's tokens over its chunks, evenly: (when, how many)."""
    if one.first_s is None:
        return [(one.done_s, float(one.output_tokens or 0))]
    times = list(accumulate(one.gaps_s, initial=one.first_s))
    return [(at_s, (one.output_tokens or 0) / len(times)) for at_s in times]
