"""What a run's saving makes of uploads: what goes at the place they go to, and who waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_records import snapshot
from remote_folders import RUN, save

from trueup.checkpoint.carry import leave_later
from trueup.checkpoint.folder import steps
from trueup.checkpoint.remote import Remote
from trueup.checkpoint.retention import Retention
from trueup.checkpoint.writer import CheckpointWriter
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


def test_going_back_waits_for_no_upload(root: Path) -> None:
    """Other ranks wait meanwhile. What is left aside while it is on its way is no failure."""
    began, end = threading.Event(), threading.Event()
    told: list[str] = []

    def upload(folder: Path) -> None:
        began.set()
        assert end.wait(60)
        (folder / "manifest.json").read_bytes()

    def tell(kind: str, message: str, **data: Any) -> None:
        told.append(kind)

    writer = CheckpointWriter(root, retention=Retention(), tell=tell, upload=upload)
    writer.save(snapshot(40))
    assert began.wait(60)
    running: Any = None  # the session, which waiting has no use for
    run = saves.Saves(running, writer, None, remember=dict, settle=lambda: None)
    waiting = threading.Thread(target=run.wait, daemon=True)
    waiting.start()
    waiting.join(10)
    went_on = not waiting.is_alive()
    leave_later(root, 20)
    end.set()
    writer.finish()
    assert went_on
    assert steps(root) == []
    assert told == ["checkpoint"]
