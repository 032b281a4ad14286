"""Runs `trueup` in forks of one process that has imported everything: a run takes a second, not ten.

One JSON request a line on standard input: `argv`, `env`, `out` and `err` (files), `trouble` (see
`trouble.arm`), `kill_after_s`; with `background` the answer is the process's number and comes at once, and
{"kill": NUMBER} ends it. Else one JSON answer a line: the exit code, negative for a signal. The first run
tells which modules to import: `modules` names a file where a child leaves the names of its own.

No torch operation is done here, only imports, so there are no threads when it forks.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trouble

import trueup.cli
import trueup.train.run

POLL_S = 0.001
# The most of what a run imports; the first one tells the rest.
IMPORTED = (
    *("torch._dynamo", "transformers.models.llama.modeling_llama", "transformers.modeling_utils", "peft"),
    *("trueup.model.load", "trueup.store", "trueup.analysis.measure", "trueup.data.prepare"),
)


def child(request: dict[str, Any]) -> int:
    for number, file in ((1, request["out"]), (2, request["err"])):
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(handle, number)
        os.close(handle)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(request["env"])
    os.environ.pop("COLUMNS", None)
    sys.argv = ["trueup", *request["argv"]]
    end = trouble.arm(request.get("trouble", {}))
    try:
        trueup.cli.main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    end()
    if "modules" in request:
        Path(request["modules"]).write_text(json.dumps(sorted(sys.modules)))
    return code


def wait(pid: int, kill_after_s: float | None) -> int:
    deadline = None if kill_after_s is None else time.monotonic() + kill_after_s
    while True:
        ended, status = os.waitpid(pid, 0 if deadline is None else os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if deadline is not None and time.monotonic() >= deadline:
            os.kill(pid, signal.SIGKILL)
            deadline = None
        time.sleep(POLL_S)


def imported(names: Sequence[str]) -> None:
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.freeze()  # a child that looks through all that is imported copies it, page by page


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    imported(IMPORTED)
    for line in sys.stdin:
        request = json.loads(line)
        if "kill" in request:
            answers.write(json.dumps(wait(request["kill"], 0.0)) + "\n")
            continue
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = child(request)
            finally:
                os._exit(code)
        if request.get("background"):
            answers.write(json.dumps(pid) + "\n")
            continue
        code = wait(pid, request.get("kill_after_s"))
        if "modules" in request:
            imported(json.loads(Path(request["modules"]).read_text()))
        answers.write(json.dumps(code) + "\n")


if __name__ == "__main__":
    main()
