"""A signal ends a run wherever it lands."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

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


def lose(number: signal.Signals) -> None:
    kept = Finalised(number)
    del kept


def lose_and_wait(number: signal.Signals, over: threading.Event) -> None:
    lose(number)
    over.wait()


@pytest.fixture
def over() -> Iterator[threading.Event]:
    """Set only where nothing else ends a wait for it."""
    event = threading.Event()
    watchdog = threading.Timer(LONG_ENOUGH_S, event.set)
    watchdog.start()
    yield event
    watchdog.cancel()


@pytest.mark.parametrize("number", Interruption.SIGNALS)
def test_a_signal_that_lands_in_a_finaliser_takes_effect_a_moment_later(
    number: signal.Signals, over: threading.Event, capfd: pytest.CaptureFixture[str]
) -> None:
    before = sys.unraisablehook
    with pytest.raises(Interrupted, match=f"{number.name} received"), Interruption():
        lose_and_wait(number, over)
    assert not over.is_set(), "the wait went on"
    assert sys.unraisablehook is before
    assert capfd.readouterr().err == ""


def test_a_second_signal_that_lands_in_a_finaliser_still_ends_the_run_at_once(over: threading.Event) -> None:
    with Interruption() as interruption:
        interruption.polite = True
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted, match="SIGINT received"):
            lose_and_wait(signal.SIGINT, over)


def test_a_first_signal_that_lands_in_a_finaliser_stays_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the time it is sent again, the run may be one that ends at the next safe place."""
    interruption, sent = Interruption(), threading.Event()
    send_again = interruption._send_again
    monkeypatch.setattr(interruption, "_send_again", lambda _: sent.set())
    with interruption:
        lose(signal.SIGTERM)
        sent.wait()
        interruption.polite = True
        send_again(signal.SIGTERM)
    assert interruption.requested == "SIGTERM received"


def test_a_signal_lost_at_the_very_end_is_not_sent_to_who_comes_after() -> None:
    interruption = Interruption()
    with interruption:
        pass
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        interruption._send_again(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == []


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
