"""A signal ends a run wherever it lands."""

import os
import signal
import sys
import time
from collections.abc import Callable

import pytest

from trueup.train.interruption import Interrupted, Interruption

LONG_ENOUGH_S = 20


class Finalised:
    """Receives a signal in its finaliser, where Python lets no exception out."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        for _ in range(1000):
            pass


def lose_and_wait(number: signal.Signals) -> None:
    kept = Finalised(number)
    del kept
    time.sleep(LONG_ENOUGH_S)


@pytest.mark.parametrize("number", Interruption.SIGNALS)
def test_a_signal_that_lands_in_a_finaliser_takes_effect_a_moment_later(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    before = sys.unraisablehook
    with pytest.raises(Interrupted, match=f"{number.name} received"), Interruption():
        lose_and_wait(number)
    assert sys.unraisablehook is before
    assert capfd.readouterr().err == ""


def test_other_errors_of_finalisers_are_told_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[BaseException | None] = []
    hook: Callable[[sys.UnraisableHookArgs], None] = lambda args: told.append(args.exc_value)  # noqa: E731
    monkeypatch.setattr(sys, "unraisablehook", hook)

    class Broken:
        def __del__(self) -> None:
            raise ValueError("in a finaliser")

    with Interruption():
        kept = Broken()
        del kept
    assert [str(error) for error in told] == ["in a finaliser"]
