"""`trueup train` speaks before it loads what takes seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# PyTorch is not there: the command ends where it would load it.
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from trueup.cli import main; main()"


@pytest.mark.parametrize(("rank", "said"), [(None, True), ("0", True), ("1", False)])
def test_the_first_line_comes_before_pytorch_is_loaded(
    environment: dict[str, str], recipe_file: Path, rank: str | None, said: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "train", str(recipe_file)],
        env={**environment, **({} if rank is None else {"RANK": rank})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "torch" in done.stderr.splitlines()[-1]
    assert (done.stderr.splitlines()[0] == "loading PyTorch") is said
