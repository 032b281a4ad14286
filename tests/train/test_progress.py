"""What a person sees while training: one live line on a terminal, only evaluations elsewhere."""

from __future__ import annotations

import io

import pytest

from trueup.schema import Evaluation, Price, Step
from trueup.train.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def a_step(number: int) -> Step:
    return Step(
        step=number,
        start_s=float(number),
        step_s=1.0,
        data_wait_s=0.0,
        loss=2.5,
        grad_norm=1.0,
        lr=1e-3,
        useful_tokens=500,
        supervised_tokens=300,
        processed_tokens=512,
        head_rows=300,
        attention_sum_sq=50_000,
        micro_batches=1,
        shape=(1, 512),
    )


EVALUATION = Evaluation(
    step=2, at_s=9.0, split="validation", loss=3.0, perplexity=20.0855, tokens=2127, seconds=1.0, best=True
)


def show(stream: io.StringIO, limit_s: float | None = None) -> str:
    progress = Progress(stream, total_steps=10, price=Price(usd_per_hour=3.6, source="a test"))
    for number in (1, 2):
        progress.step(a_step(number), wall_s=100.0, limit_s=limit_s, training_s=float(number))
    progress.evaluation(EVALUATION)
    progress.close()
    return stream.getvalue()


def test_a_terminal_shows_step_loss_rate_time_left_and_dollars() -> None:
    shown = show(Terminal())
    last = shown.split("\r\033[K")[2]
    assert last == "step 2/10  loss 2.500  500 useful tokens/s  0:08 left  $0.1000 so far"


def test_a_resumed_run_shows_its_rate_of_now_and_the_time_left_by_the_whole() -> None:
    stream = Terminal()
    progress = Progress(stream, total_steps=10, price=None)
    for number in (5, 6):  # the process before took 4 s for a step
        progress.step(a_step(number), wall_s=100.0, limit_s=None, training_s=16.0 + number - 4)
    last = stream.getvalue().split("\r\033[K")[2]
    assert last == "step 6/10  loss 2.500  500 useful tokens/s  0:12 left"


def test_a_limit_shortens_the_time_left() -> None:
    assert "0:03 left" in show(Terminal(), limit_s=103.0)


def test_elsewhere_only_evaluations_are_printed() -> None:
    assert show(io.StringIO()) == (
        "step 2: perplexity 20.09 on 2127 supervised tokens of validation  best so far\n"
    )


@pytest.mark.parametrize("stream", [None])
def test_nobody_watching_is_silent(stream: None) -> None:
    progress = Progress(stream, total_steps=10, price=None)
    progress.step(a_step(1), wall_s=1.0, limit_s=None, training_s=1.0)
    progress.note("nothing")
    progress.close()
    assert not progress._line_shown
