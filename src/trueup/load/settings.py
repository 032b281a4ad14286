"""What a load is: how requests arrive, how long they are, what an answer is to keep."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from trueup.analysis.load_limits import Limits
from trueup.schema import Frozen

from .arrivals import poisson, ramp, replayed, until
from .client import Ask
from .prompts import FilePrompt, WordCost, text_of
from .trace import Trace, scaled

Arrivals = Literal["poisson", "ramp", "trace", "closed"]
MOST_REQUESTS = 1_000_000


class LoadSettings(Frozen):
    """As the run's record keeps it. Seconds, tokens, requests a second.

    Open loads: `poisson` at `rate`, `ramp` from `rate` to `rate_end` within `duration_s`, `trace` at the
    trace's own instants times `time_scale`. `closed`: `concurrency` requests in flight, in the end
    `concurrency_end`. Lengths are the trace's times `length_scale`, those of the prompts of a file, or the
    same for all.
    """

    arrivals: Arrivals
    rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    rate_end: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    concurrency: int | None = Field(default=None, ge=1, le=10_000)
    concurrency_end: int | None = Field(default=None, ge=1, le=10_000)
    requests: int | None = Field(default=None, ge=1, le=MOST_REQUESTS)
    duration_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    seed: int = 0
    trace: str | None = None  # the file's name
    trace_digest: str | None = None
    time_scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    length_scale: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    prompt_tokens: int | None = Field(default=None, ge=1)
    output_tokens: int | None = Field(default=None, ge=1)
    prompts: str | None = None  # the file's name
    prompts_digest: str | None = None
    warm_up: int = Field(default=4, ge=0, le=1000)
    chat: bool = False
    ignore_eos: bool = True
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    timeout_s: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _arrivals_have_what_they_need(self) -> LoadSettings:
        if self.arrivals == "closed":
            if self.concurrency is None:
                raise ValueError("a closed load needs a concurrency")
        elif self.arrivals == "trace":
            if self.trace is None:
                raise ValueError("arrivals of a trace need a trace")
        elif self.rate is None or (self.arrivals == "ramp" and (not self.rate_end or not self.duration_s)):
            raise ValueError(f"arrivals by {self.arrivals} need a rate, and a ramp its end and a duration")
        if self.requests is None and self.duration_s is None and self.arrivals != "trace":
            raise ValueError("a load needs an end: a number of requests or a duration")
        return self

    @property
    def open(self) -> bool:
        return self.arrivals != "closed"


def instants_of(settings: LoadSettings, trace: Trace | None) -> list[float]:
    """When each request of an open load is due, in seconds since the load began."""
    most = settings.requests or MOST_REQUESTS
    if settings.arrivals == "trace":
        assert trace is not None
        replay = iter(replayed(trace.rows, settings.time_scale))
        return until(replay, settings.requests, settings.duration_s)
    if settings.arrivals == "ramp":
        first, last, over_s = settings.rate, settings.rate_end, settings.duration_s
        assert first is not None
        assert last is not None
        assert over_s is not None
        return until(ramp(first, last, over_s, settings.seed), most, None)
    assert settings.rate is not None
    return until(poisson(settings.rate, settings.seed), most, settings.duration_s)


class Plan:
    """The requests of a load, made one at a time: a closed load by the clock has no known number of them."""

    def __init__(
        self,
        settings: LoadSettings,
        cost: WordCost,
        trace: Trace | None = None,
        prompts: list[FilePrompt] | None = None,
    ) -> None:
        self._settings = settings
        self._cost = cost
        self._trace = trace
        self._prompts = prompts

    def ask(self, index: int, due_s: float | None = None, *, warm_up: bool = False) -> Ask:
        """The request with this number; lengths and prompts begin anew where the trace or the file ends. A
        warm-up request has the same length as the load's own and another text."""
        settings = self._settings
        if self._prompts is not None:
            prompt = self._prompts[index % len(self._prompts)]
            output = prompt.output_tokens or settings.output_tokens
            return Ask(index, prompt.text, None, output, due_s, warm_up)
        tokens, output = self._lengths(index)
        seed = settings.seed if not warm_up else -1 - settings.seed
        words = self._cost.words_for(tokens)
        text = text_of(words, seed, index)
        return Ask(index, text, tokens, output, due_s, warm_up, self._cost.tokens_of(words))

    def _lengths(self, index: int) -> tuple[int, int]:
        settings = self._settings
        if self._trace is None:
            assert settings.prompt_tokens is not None
            assert settings.output_tokens is not None
            return max(self._cost.least, settings.prompt_tokens), settings.output_tokens
        row = self._trace.rows[index % len(self._trace.rows)]
        scale = settings.length_scale or 1.0
        return scaled(row.prompt_tokens, scale, self._cost.least), scaled(row.output_tokens, scale)
