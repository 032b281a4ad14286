"""What the service tells of each request, for whoever counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

How = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Finished:
    """One request that is over. `decode_s` is from its first token to its last, `per_token_s` that for each
    token after the first, `queue_s` from its arrival to the engine's first work on it, `prefill_s` from there
    to its first token; None where there was no such token, or nobody looked."""

    how: How
    prompt_tokens: int
    generated_tokens: int
    max_tokens: int
    e2e_s: float
    decode_s: float | None
    per_token_s: float | None
    queue_s: float | None = None
    prefill_s: float | None = None


class Observer(Protocol):
    """Called in the engine's thread; must be quick and must not raise."""

    def first_token(self, after_s: float, prompt_tokens: int) -> None:
        """Once in a request's life, however often it was preempted."""

    def tokens(self, count: int, after_s: float | None) -> None:
        """So many tokens at once, `after_s` seconds after those before them; None: they are the first."""

    def finished(self, request: Finished) -> None: ...


class Quiet:
    """Counts nothing."""

    def first_token(self, after_s: float, prompt_tokens: int) -> None:
        pass

    def tokens(self, count: int, after_s: float | None) -> None:
        pass

    def finished(self, request: Finished) -> None:
        pass
