"""The server that `trueup load MODEL` starts: its command, and which options of it are the load's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trueup.schema import InputError

from .output import say

if TYPE_CHECKING:
    from trueup.load.server import OwnServer

HOST = "127.0.0.1"
REFUSED = {
    "--port": "the load takes a free port and asks there; for a port of yours start `trueup serve` and give "
    "`trueup load` its URL",
    "--host": f"the load asks at {HOST}; for another address start `trueup serve` and give `trueup load` its "
    "URL",
    "--end-with": "the load ends its server itself",
    "--check": "it would serve nothing; `trueup serve MODEL --check` is a command of its own",
    "--json": "it goes with --check; the load's own --json prints the run",
    "-h": "it would serve nothing; `trueup serve --help` shows the options",
    "--help": "it would serve nothing; `trueup serve --help` shows the options",
}


def require_passable(options: Sequence[str]) -> None:
    """InputError for an option of `trueup serve` with which the load would not find its server."""
    for option in options:
        name = option.partition("=")[0]
        if name in REFUSED:
            raise InputError(f"--serve-option={option}: {REFUSED[name]}; leave it out")


def server_of(model: str, options: Sequence[str], port: int, log: Path) -> OwnServer:
    """Started when it is entered. It ends with this process, even where that is killed."""
    from trueup.load.server import OwnServer

    require_passable(options)
    ours = ["--host", HOST, "--port", str(port), "--end-with", str(os.getpid())]
    return OwnServer([sys.executable, "-m", "trueup", "serve", model, *ours, *options], log, say)
