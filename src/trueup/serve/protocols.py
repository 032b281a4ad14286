"""What the parts of serving need of each other: the engine of a model, the service of an engine, and what the
service tells of each request to whoever counts. B rows, N slots, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from .request import Output, Request

if TYPE_CHECKING:
    import torch

    from trueup.model.step_batch import StepBatch


class Runner(Protocol):
    """A model with a KV pool of its own. After `run` raised, the slots it was to write may hold anything;
    the engine has them cleared."""

    @property
    def drops_padding(self) -> bool:
        """Whether padding is not computed, and steps may have any shape."""
        ...

    def run(self, batch: StepBatch) -> torch.Tensor:
        """(B, V) fp32 logits of each row's last new token."""
        ...

    def processed_tokens(self, step: StepBatch) -> int:
        """How many tokens `run` computes of it, padding included where that is computed."""
        ...

    def clear(self, slots_N: torch.Tensor) -> None:
        """Zeroes these slots. They may hold a NaN, which would reach whoever has their block next even from a
        place that it does not attend to: a weight of 0 times NaN is NaN."""
        ...


@dataclass(frozen=True)
class EngineStats:
    """Counts since the engine was made, and what is under way. `blocks` are those requests can have, so that
    `blocks_used` over `blocks` reaches 1; cached blocks that no request holds are not used. Of
    `processed_tokens` all but the useful and the recomputed are padding."""

    waiting: int = 0
    running: int = 0
    blocks: int = 0
    blocks_used: int = 0
    preemptions: int = 0
    prefix_tokens_asked: int = 0  # prompt tokens of requests that were admitted
    prefix_tokens_hit: int = 0  # of these, found in the prefix cache
    useful_tokens: int = 0  # computed for the first time
    recomputed_tokens: int = 0  # computed again after a preemption
    processed_tokens: int = 0  # in all steps, padding included where it was computed
    generated_tokens: int = 0
    steps: int = 0
    failed_steps: int = 0
    rows_allowed: int = 0  # below the plan's where a device had no memory
    prefill_s: float = 0.0  # by the wall clock, in steps with several new tokens a row
    decode_s: float = 0.0  # likewise with one


class EngineLike(Protocol):
    """`engine.Engine` for one. Used by one thread."""

    def add(self, request: Request) -> object: ...
    def cancel(self, request_id: str) -> None: ...
    def step(self) -> Sequence[Output]: ...
    @property
    def has_work(self) -> bool: ...
    def stats(self) -> EngineStats: ...


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
