"""`trueup` as one of several processes: each writes the id and the state of its run to OUT.RANK as JSON.

Arguments: out, then those of `trueup`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import trueup.cli
from trueup.train import run

execute = run.execute


def told(*arguments: Any, **named: Any) -> run.Outcome:
    outcome = execute(*arguments, **named)
    found = {"run": named["run_id"], "state": outcome.header.state}
    Path(f"{out}.{os.environ['RANK']}").write_text(json.dumps(found))
    return outcome


if __name__ == "__main__":
    out = sys.argv.pop(1)
    run.execute = told
    trueup.cli.main()
