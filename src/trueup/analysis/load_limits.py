"""What a load was asked to be: limits on latency, whether an answer kept them, and whether it is closed."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from trueup.schema import Frozen, RequestResult, RunHeader


class Limits(Frozen):
    """Seconds; None where there is no limit."""

    ttft_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    tpot_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    e2e_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @property
    def words(self) -> str:
        named = {"TTFT": self.ttft_s, "TPOT": self.tpot_s, "E2E": self.e2e_s}
        told = [f"{name} ≤ {limit:g} s" for name, limit in named.items() if limit is not None]
        return " and ".join(told) or "no limit was stated"


def closed(header: RunHeader) -> bool:
    """Whether a number of requests was kept in flight, so that the next waits for an answer."""
    load = header.recipe.get("load")
    return isinstance(load, Mapping) and load.get("arrivals") == "closed"


def limits_of(header: RunHeader) -> Limits:
    """Those the run was made with."""
    load = header.recipe.get("load")
    given = load.get("limits") if isinstance(load, Mapping) else None
    return Limits(**given) if isinstance(given, Mapping) else Limits()


def ttft_s(one: RequestResult) -> float | None:
    return None if one.first_s is None else one.first_s - one.due_s


def e2e_s(one: RequestResult) -> float:
    return one.done_s - one.due_s


def tpot_s(one: RequestResult) -> float | None:
    """None where the server told no count, of an answer of one token, which has none, and of one whose tokens
    all came at once, which shows nothing of the time between them."""
    if one.first_s is None or one.last_s is None or one.output_tokens is None or one.output_tokens < 2:
        return None
    if one.last_s <= one.first_s:
        return None
    return (one.last_s - one.first_s) / (one.output_tokens - 1)


def within(one: RequestResult, limits: Limits) -> bool | None:
    """Whether a whole answer kept all limits; None where that cannot be told, for want of a token count."""
    verdicts: list[bool | None] = [
        _kept(ttft_s(one), limits.ttft_s),
        True if one.output_tokens == 1 or _at_once(one) else _kept(tpot_s(one), limits.tpot_s),
        _kept(e2e_s(one), limits.e2e_s),
    ]
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _at_once(one: RequestResult) -> bool:
    """Whoever asked waited for no token after the first, whatever the server did."""
    return one.first_s is not None and one.first_s == one.last_s


def _kept(value: float | None, limit: float | None) -> bool | None:
    if limit is None:
        return True
    return None if value is None else value <= limit
