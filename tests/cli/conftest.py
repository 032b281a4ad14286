"""Homes that hold something, the command line inside this process, small disks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from in_process import Done, Main, call

RECIPE = """\
name: tiny
model: {path: tiny}
data: {source: DATA, max_length: 96, split: {validation: 0.2, test: 0.1}}
tune: {rank: 4}
shapes: {tokens_per_microbatch: 96}
train: {max_steps: 4, tokens_per_step: 96}
price: {usd_per_hour: 3.6, source: a test}
"""


@pytest.fixture
def main(home: Path) -> Main:
    """`trueup` within this process, with this test's home."""

    def run(*arguments: str | Path, home: Path = home) -> Done:
        done = call(*arguments, home=home)
        assert "Traceback" not in done.err, done.err
        return done

    return run


@pytest.fixture(scope="session")
def finished_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which a plain recipe was trained: one run, named `tiny`. Not to be changed: copy it."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "records.jsonl").write_text(
        "".join(f'{{"prompt": "What is {n}?", "completion": "{n} and {n + 1}"}}\n' for n in range(60))
    )
    (folder / "tiny.yaml").write_text(RECIPE.replace("DATA", str(folder / "records.jsonl")))
    (folder / "home").mkdir()
    subprocess.run(
        [sys.executable, "-m", "trueup", "train", str(folder / "tiny.yaml")],
        env={**os.environ, "TRUEUP_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=300,
        check=True,
    )
    return folder / "home"


@pytest.fixture
def finished(finished_home: Path, home: Path) -> Path:
    """This test's home, with the finished run in it."""
    shutil.copytree(finished_home, home, dirs_exist_ok=True)
    return home


@pytest.fixture
def built(finished_home: Path, home: Path) -> Path:
    """This test's home, with the built-in model in it and no run."""
    shutil.copytree(finished_home / "models", home / "models")
    return home
