"""What goes into the engine and comes out of it: requests, how to sample them, and what a step gave."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from trueup.schema import InputError, TrueupError

FinishReason = Literal["stop", "length", "cancelled", "error"]


class RefusedError(TrueupError):
    """A request that can never fit, told at once: `needs` and `has` in `unit` (tokens or blocks)."""

    def __init__(self, message: str, *, needs: int, has: int, unit: Literal["tokens", "blocks"]) -> None:
        super().__init__(message)
        self.needs = needs
        self.has = has
        self.unit = unit


@dataclass(frozen=True)
class Sampling:
    """How one request is continued. `temperature` 0 takes the likeliest token; `top_k` 0 and `top_p` 1 are
    off; where both are on, top_p is a share of what top_k left. Without a `seed` the engine draws one.
    `logprobs` n asks for the chosen token's and the n likeliest's, before temperature and cuts."""

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        """Raises InputError, which names the setting and its range."""
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        heat = self.temperature
        _require(math.isfinite(heat) and heat >= 0, "temperature", heat, "a finite number, at least 0")
        _require(self.top_k >= 0, "top_k", self.top_k, "at least 0 (0: off)")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1 (1: off)")
        _require(self.logprobs is None or self.logprobs >= 0, "logprobs", self.logprobs, "at least 0")


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise InputError(f"sampling: {name} is {value}; expected {expected}")


@dataclass(frozen=True)
class Request:
    """`id` is unique among the requests under way; `prompt` has at least one token."""

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling


@dataclass(frozen=True)
class Token:
    """One generated token; `top` has the likeliest tokens with their log-probabilities, best first."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Output:
    """What one step gave one request. A stop token is the last of `tokens`. `finish` is set in a request's
    last output and no other; `cached_tokens` are those of its prompt that the prefix cache had. `waited_s` is
    from the engine's taking it to its first admission; None where it was not admitted, or nobody looked."""

    request_id: str
    tokens: tuple[Token, ...]
    finish: FinishReason | None
    prompt_tokens: int
    cached_tokens: int
    reason: str | None = None  # of "error"
    waited_s: float | None = None
