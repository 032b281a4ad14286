"""Compiled code goes with a checkpoint, and is used where this home signed it, or on trust."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trueup.cache import CacheStore
from trueup.train.compile_cache import compile_cache
from trueup.train.saves import COMPILE_CACHE, checkpoints_of
from trueup.train.session import Session

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


@pytest.fixture
def session(open_tiny: Any, home: Path) -> Session:
    (home / "run").mkdir()
    return open_tiny("compile.mode=layer")


@pytest.fixture
def resume(session: Session, home: Path, tmp_path: Path) -> Any:
    """Of a checkpoint in which a first run left what it compiled."""
    with compile_cache(session, home, trust=False, say=print) as seal:
        (Path(os.environ[VARIABLE]) / "kernel.o").write_bytes(b"code")
        seal()
    folder = tmp_path / "00000040"
    folder.mkdir()
    shutil.copy(checkpoints_of(session.run_folder) / COMPILE_CACHE, folder)
    return SimpleNamespace(folder=folder)


def found(session: Session, home: Path, resume: Any, *, trust: bool = False) -> tuple[list[str], list[str]]:
    """Names of the compiled files that a run finds, and what is said of them."""
    said: list[str] = []
    with compile_cache(session, home, trust=trust, say=said.append, resume=resume):
        return [path.name for path in Path(os.environ[VARIABLE]).iterdir()], said


def test_an_empty_cache_is_filled_from_the_checkpoint(session: Session, home: Path, resume: Any) -> None:
    shutil.rmtree(CacheStore(home).folder)
    names, said = found(session, home, resume)
    assert names == ["kernel.o"]
    assert [message.endswith("1 file of earlier runs") for message in said] == [True]


def test_what_another_home_signed_is_used_on_trust_alone(
    session: Session, resume: Any, tmp_path: Path
) -> None:
    names, said = found(session, tmp_path / "b", resume)
    assert names == []
    assert "not used" in said[0]
    assert "--trust-cache" in said[0]
    names, _ = found(session, tmp_path / "c", resume, trust=True)
    assert names == ["kernel.o"]


def test_a_damaged_one_is_dropped_and_said(session: Session, home: Path, resume: Any) -> None:
    shutil.rmtree(CacheStore(home).folder)
    (resume.folder / COMPILE_CACHE).write_bytes(b"not a zip")
    names, said = found(session, home, resume)
    assert names == []
    assert "compiled code of the checkpoint is not used" in said[0]


def test_one_for_other_shapes_is_said_to_be_of_no_use(session: Session, home: Path, resume: Any) -> None:
    shutil.rmtree(CacheStore(home).folder)
    other = replace(session, plan=session.plan.model_copy(update={"training": ((1, 8),)}))
    names, said = found(other, home, resume)
    assert names == []
    assert "of no use here" in said[0]


def test_a_disk_that_takes_no_copy_does_not_stop_the_run(session: Session, home: Path) -> None:
    shutil.rmtree(session.run_folder)
    session.run_folder.write_text("not a folder")
    said: list[str] = []
    with compile_cache(session, home, trust=False, say=said.append) as seal:
        (Path(os.environ[VARIABLE]) / "kernel.o").write_bytes(b"code")
        seal()
    assert "checkpoints carry no compiled code" in said[0]
