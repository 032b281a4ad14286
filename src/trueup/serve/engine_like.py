"""What the service needs of an engine, `engine.Engine` for one, and the counts it reads of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .request import Output, Request


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
    processed_tokens: int = 0  # rows * new tokens of every step, padding included
    generated_tokens: int = 0
    steps: int = 0
    failed_steps: int = 0
    rows_allowed: int = 0  # below the plan's where a device had no memory
    prefill_s: float = 0.0  # by the wall clock, in steps with several new tokens a row
    decode_s: float = 0.0  # likewise with one


class EngineLike(Protocol):
    """Used by one thread."""

    def add(self, request: Request) -> object: ...
    def cancel(self, request_id: str) -> None: ...
    def step(self) -> Sequence[Output]: ...
    @property
    def has_work(self) -> bool: ...
    def stats(self) -> EngineStats: ...
