"""A home with the tiny model in it, and small disks that fill up or refuse."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trueup.model.builtin import ResolvedModel, resolve_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ResolvedModel:
    return resolve_model("tiny", tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def tied(tmp_path_factory: pytest.TempPathFactory) -> ResolvedModel:
    """Tiny with its head tied to its embedding."""
    from trueup.model.tiny import write_tiny

    folder = tmp_path_factory.mktemp("tied")
    write_tiny(folder, tied_head=True)
    return resolve_model(str(folder), folder)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a tmpfs with the given options; skips where the tests may not mount."""
    mounts: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"mount{len(mounts)}"
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
        subprocess.run(["umount", str(folder)], check=True)
