"""Copies of a run that was really made, as other runs of a home."""

from __future__ import annotations

import json
import shutil
from pathlib import Path


def only_run(home: Path) -> Path:
    (folder,) = (home / "runs").iterdir()
    return folder


def add_copy(
    source: Path, run_id: str, name: str, *, minute: int, dear: float, repeat: int, state: str = "finished"
) -> None:
    folder = source.with_name(run_id)
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("checkpoints"))
    header = json.loads((folder / "run.json").read_text())
    header |= {
        "id": run_id,
        "name": name,
        "state": state,
        "started_at": f"2026-11-01T10:{minute:02}:00+00:00",
    }
    header["recipe"]["train"]["seed"] = repeat
    header["recipe"]["tune"]["rank"] = 4 * int(dear)
    (folder / "run.json").write_text(json.dumps(header))
    measured = json.loads((folder / "measurements.json").read_text())
    measured["usd_per_million_useful_tokens"]["value"] *= dear * (1 + 0.001 * repeat)
    (folder / "measurements.json").write_text(json.dumps(measured))
