"""More runs for a home that has one: copies of it under other ids, at other times and prices."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from in_process import Main


def only_run(home: Path) -> Path:
    (folder,) = (home / "runs").iterdir()
    return folder


def changed(folder: Path, **changes: Any) -> dict[str, Any]:
    """The run's header with these fields changed, written back."""
    path = folder / "run.json"
    header: dict[str, Any] = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(header))
    return header


def copied(home: Path, run_id: str, name: str, *, usd_per_hour: float = 3.6, **changes: Any) -> None:
    """A copy of the home's first run; `changes` are of its header."""
    first = sorted((home / "runs").iterdir(), key=lambda folder: len(folder.name))[-1]
    folder = home / "runs" / run_id
    shutil.copytree(first, folder)
    price = {"usd_per_hour": usd_per_hour, "source": "a test", "kind": "quoted", "as_of": None}
    changed(folder, id=run_id, name=name, price=price, **changes)


def document(main: Main, *arguments: str) -> Any:
    done = main(*arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)
