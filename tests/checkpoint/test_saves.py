"""What a recipe makes of saving: what is removed at the place where checkpoints are copied to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from remote_folders import RUN, save

from trueup.checkpoint.carry import leave_later
from trueup.checkpoint.remote import Remote
from trueup.recipe import load_recipe
from trueup.train import saves

Upload = Callable[[Path], None]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "checkpoints"
    folder.parent.mkdir()
    return folder


@pytest.fixture
def far(tmp_path: Path) -> Remote:
    return Remote(str(tmp_path / "far"))


@pytest.fixture
def upload(recipe_file: Path, far: Remote) -> Upload:
    """As the writer calls it, by a recipe that keeps two."""
    found = saves._upload(load_recipe(recipe_file, [f"checkpoint.to={far.address}"]).recipe, RUN)
    assert found is not None
    return found


def test_an_older_one_that_is_sent_late_takes_no_later_one_away(
    root: Path, far: Remote, upload: Upload
) -> None:
    late = save(root, 4, best=4)
    upload(save(root, 6, best=4))
    newest = save(root, 8, best=4)
    upload(late)
    assert far.steps(RUN) == [4, 6]
    upload(newest)
    assert far.steps(RUN) == [4, 6, 8]


def test_steps_that_the_run_went_back_before_go(root: Path, far: Remote, upload: Upload) -> None:
    for step in (4, 6, 8):
        upload(save(root, step, best=4))
    leave_later(root, 4)
    upload(save(root, 5, best=4))
    assert far.steps(RUN) == [4, 5]
