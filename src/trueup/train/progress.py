"""What a person sees while a run trains. Silent when nobody is looking."""

from __future__ import annotations

from typing import TextIO

from trueup.analysis.totals import seconds_of
from trueup.schema import Evaluation, Price, Step


class Progress:
    """One line that is rewritten: step, loss, useful tokens/s, time left, dollars so far.

    Evaluations and notes get lines of their own. Where `stream` is not a terminal, only those are printed.
    """

    def __init__(self, stream: TextIO | None, total_steps: int, price: Price | None) -> None:
        self._stream = stream
        self._live = stream is not None and stream.isatty()
        self._total_steps = total_steps
        self._price = price
        self._line_shown = False
        self._useful_tokens = 0  # of this process's steps, as the seconds are
        self._seconds = 0.0

    def step(self, step: Step, *, wall_s: float, limit_s: float | None, training_s: float) -> None:
        """`training_s`: what the steps up to this one cost, those of earlier processes included."""
        if not self._live:
            return
        self._useful_tokens += step.useful_tokens
        self._seconds += seconds_of(step)
        rate = self._useful_tokens / self._seconds if self._seconds > 0 else 0.0
        left_s = training_s / step.step * (self._total_steps - step.step)
        if limit_s is not None:
            left_s = min(left_s, max(0.0, limit_s - wall_s))
        parts = [
            f"step {step.step}/{self._total_steps}",
            f"loss {step.loss:.3f}",
            f"{rate:,.0f} useful tokens/s",
            f"{_clock(left_s)} left",
        ]
        if self._price is not None:
            parts.append(f"${self._price.usd_per_hour * wall_s / 3600:.4f} so far")
        self._write("\r\033[K" + "  ".join(parts))
        self._line_shown = True

    def evaluation(self, evaluation: Evaluation) -> None:
        best = "  best so far" if evaluation.best and evaluation.step else ""
        self.note(
            f"step {evaluation.step}: perplexity {evaluation.perplexity:.2f} "
            f"on {evaluation.tokens} supervised tokens of {evaluation.split}{best}"
        )

    def note(self, text: str) -> None:
        if self._line_shown:
            self._write("\r\033[K")
            self._line_shown = False
        self._write(text + "\n")

    def close(self) -> None:
        if self._line_shown:
            self._write("\n")
            self._line_shown = False

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()


def _clock(seconds: float) -> str:
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole:02d}" if hours else f"{minutes}:{whole:02d}"
