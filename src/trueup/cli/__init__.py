"""Commands: parse, call, print. Heavy imports are inside the commands that need them."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 the work failed, 2 the input was wrong."""
    from trueup.schema import TrueupError

    from .app import app

    try:
        app()
    except TrueupError as error:
        print(f"trueup: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        sys.exit(1)
