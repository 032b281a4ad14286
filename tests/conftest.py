"""Fixtures shared by the rooms: a home of its own for each test, the command line, a tiny recipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is imported: workers share the cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("any-machine", deadline=None)  # a slow machine is no fault of an example's
settings.load_profile("any-machine")

TINY_RECIPE = """\
name: tiny
model: {path: tiny}
data: {source: DATA, max_length: 96, split: {validation: 0.2, test: 0.1}}
tune: {rank: 4}
shapes: {tokens_per_microbatch: 96}
train: {max_steps: 6, tokens_per_step: 192}
evaluate: {every: 3, max_tokens: 300}
price: {usd_per_hour: 3.6, source: a test}
"""


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document that stdout must be."""
        return json.loads(self.out)


Cli = Callable[..., Done]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "TRUEUP_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def cli(environment: dict[str, str]) -> Cli:
    """Run `trueup` in a process of its own, with this test's home."""

    def run(*arguments: str | Path, **more_environment: str) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "trueup", *map(str, arguments)],
            env={**environment, **more_environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def records() -> list[dict[str, str]]:
    """Sixty questions whose answers have lengths from 3 to 60 bytes."""
    return [
        {"prompt": f"What is {n}?", "completion": " ".join(f"{n + k}" for k in range(1 + 7 * n % 19))}
        for n in range(60)
    ]


@pytest.fixture
def data_file(tmp_path: Path, records: list[dict[str, str]]) -> Path:
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def recipe_file(tmp_path: Path, data_file: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY_RECIPE.replace("DATA", str(data_file)))
    return path


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small disk with the given options; skips where the tests may not mount."""
    mounts: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk{len(mounts)}"
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True
        )
        if done.returncode != 0:
            pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
        mounts.append(folder)
        return folder

    yield mount
    for folder in mounts:
        subprocess.run(["umount", "-l", str(folder)], check=True)
