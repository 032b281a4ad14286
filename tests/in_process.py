"""`trueup` within the tests' own process: a new one takes seconds of imports. What it did, and what a refusal
must be."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import pytest

import trueup.cli

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str


Main = Callable[..., Done]


def call(*arguments: str | Path, home: Path, folder: Path | None = None) -> Done:
    """Run `trueup` as if the process began now, with this home, in this folder."""
    began = time.perf_counter()
    environment = {"TRUEUP_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (
        pytest.MonkeyPatch.context() as patch,
        TemporaryFile("w+", encoding="utf-8") as out,
        TemporaryFile("w+", encoding="utf-8") as err,
    ):
        for name, value in environment.items():
            patch.setenv(name, value)
        if folder is not None:
            patch.chdir(folder)
        patch.setattr(sys, "argv", ["trueup", *map(str, arguments)])
        patch.setattr("trueup.telemetry.origin._age_from_kernel", lambda: time.perf_counter() - began)
        if arguments[0] == "train":  # a second of each run
            patch.setattr("trueup.train.session.CEILING_BUDGET_S", 0.02)
            patch.setattr("trueup.train.session.BUSY_NEIGHBOURS", 1.0)  # other tests run beside this one
        with _sent_to({1: out, 2: err}):
            code = _main()
        out.seek(0)
        err.seek(0)
        return Done(code, out.read(), err.read())


def _main() -> int:
    handlers = [signal.getsignal(number) for number in SIGNALS]
    code: Any = 0
    try:
        trueup.cli.main()
    except SystemExit as exit_:
        code = exit_.code or 0
    finally:
        for number, handler in zip(SIGNALS, handlers, strict=True):
            signal.signal(number, handler)
    return int(code)


@contextmanager
def _sent_to(files: Mapping[int, IO[str]]) -> Iterator[None]:
    """Standard output and error, of Python and of C code, go to these files."""
    before, kept = (sys.stdout, sys.stderr), {number: os.dup(number) for number in files}
    for stream in before:
        stream.flush()
    for number, file in files.items():
        os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in files)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:
                stream.flush()
        sys.stdout, sys.stderr = before
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)


def refused(done: Done, code: int, *parts: str) -> None:
    """It ended with this code, in words that hold all `parts`, with nothing on stdout and no traceback."""
    assert done.code == code, done
    assert "Traceback" not in done.err
    for part in parts:
        assert part in done.err, done.err
    assert done.out == ""


def files_of(folder: Path) -> set[str]:
    """Every file below a folder, by its path from there."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
