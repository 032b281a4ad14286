"""Commands: parse, call, print. Heavy imports are inside the commands that need them."""

from __future__ import annotations

import signal
import sys
from types import FrameType


class _Stopped(BaseException):
    """Ctrl-C or SIGTERM. Of our own kind, so that no library answers it in its own way and every `finally`
    on the way out removes what is half-written."""


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 the work failed, 2 the input was wrong, 3 over budget."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    _received.clear()
    try:
        _run()
    except SystemExit:
        raise
    except BaseException:  # _Stopped, or what a library made of it: those in Rust panic
        if not _received:
            raise
        print(f"trueup: {_received[0]} received; stopped, and nothing half-written is left", file=sys.stderr)
        sys.exit(1)


_received: list[str] = []  # the signal that was to end this command


def _stop(number: int, frame: FrameType | None) -> None:
    _received.append(signal.Signals(number).name)
    for caught in (signal.SIGINT, signal.SIGTERM):
        signal.signal(caught, signal.SIG_IGN)  # cleaning up takes a moment; once is enough
    raise _Stopped(signal.Signals(number).name)


def _run() -> None:
    from trueup.schema import TrueupError

    from .garbage import uncollected

    try:
        with uncollected():  # until the command begins
            from .app import command_tree

            command_tree(sys.argv[1:])()
    except TrueupError as error:
        print(f"trueup: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        sys.exit(1)
