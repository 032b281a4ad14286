"""The built-in source: the docstrings of the running Python's standard library, as questions and answers.

About 3,100 records on Python 3.11 to 3.14, with the long tail of instruction data: median 33 tokens an
answer, 99th percentile about 550, longest about 2,700 (SmolLM2's tokenizer). The same records every time for
one build of Python; another minor version or another system differs by its own modules. What is read, and
what is not, is in stdlib_harvest.py, which runs in an interpreter of its own."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from trueup.schema import TrueupError

from .records import Record, Turn

NAME = "stdlib-docs"
TIMEOUT_S = 120.0

_HARVEST = Path(__file__).with_name("stdlib_harvest.py")
_QUESTIONS = {
    "module": "What is the module `{}` for?",
    "class": "What does `{}` do?",
    "function": "What does `{}` do?",
    "method": "What does `{}` do?",
}


def identity() -> str:
    """What the records depend on: the Python build, the system, and how docstrings are read. Cheap: nothing
    is harvested, so a cache can be asked first."""
    parts = (sys.version, sys.platform, _HARVEST.read_text(encoding="utf-8"), json.dumps(_QUESTIONS))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def records() -> list[Record]:
    """Harvest in a clean child interpreter, in a fixed order.

    Raises TrueupError when the child fails, is killed or takes longer than TIMEOUT_S.
    """
    # -I: no user site, no variables. -S: no site packages. -B: no bytecode written.
    command = [sys.executable, "-I", "-S", "-B", str(_HARVEST)]
    try:
        done = subprocess.run(command, capture_output=True, env={}, timeout=TIMEOUT_S, check=True)
        docs = json.loads(done.stdout)["docs"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        raise TrueupError(
            f"could not read the standard library's docstrings: {error}. To see why, run: {' '.join(command)}"
        ) from error
    return [
        Record(
            (Turn("user", _QUESTIONS[kind].format(name)), Turn("assistant", text)),
            origin=f"{NAME}:{name}",
        )
        for name, kind, text in docs
    ]
