"""A run that compiles opens the home's cache for what it is, and leaves the environment as it was."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from trueup.cache import CacheStore, key_of
from trueup.schema import ShapePlan
from trueup.telemetry import MemorySink
from trueup.train.compile_cache import _name_for_all, compile_cache, compile_facts
from trueup.train.session import Session
from trueup.train.world import World

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


@pytest.fixture
def session(open_tiny: Any, home: Path) -> Session:
    (home / "run").mkdir()
    return open_tiny("compile.mode=layer")


def events(session: Session) -> list[str]:
    sink = session.timeline._sink
    assert isinstance(sink, MemorySink)
    return [event.message for event in sink.events]


def test_a_run_that_compiles_nothing_makes_no_cache(open_tiny: Any, home: Path) -> None:
    said: list[str] = []
    session = open_tiny("compile.mode=none")
    before = dict(os.environ)
    with compile_cache(session, home, trust=False, say=said.append) as seal:
        assert dict(os.environ) == before
        seal()
    assert said == []
    assert not (home / "compile-cache").exists()


def test_what_is_compiled_is_kept_and_found_by_the_next(
    session: Session, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "/somewhere/else")
    key, said = key_of(compile_facts(session)), []
    with compile_cache(session, home, trust=False, say=said.append) as seal:
        folder = Path(os.environ[VARIABLE])
        assert home in folder.parents
        (folder / "kernel.o").write_bytes(b"code")
        seal()
        assert len(CacheStore(home).entries()) == 1
    assert os.environ[VARIABLE] == "/somewhere/else"
    assert said == []
    with compile_cache(session, home, trust=False, say=said.append):
        assert (Path(os.environ[VARIABLE]) / "kernel.o").read_bytes() == b"code"
    assert said == [f"compile cache {key}: 1 file of earlier runs"]
    assert events(session)[-1:] == said


def test_a_failed_run_leaves_what_it_compiled(session: Session, home: Path) -> None:
    def fail() -> None:
        with compile_cache(session, home, trust=False, say=print):
            (Path(os.environ[VARIABLE]) / "kernel.o").write_bytes(b"code")
            raise MemoryError

    with pytest.raises(MemoryError):
        fail()
    (entry,) = CacheStore(home).entries()
    assert entry.manifest is not None
    assert len(entry.manifest.files) == 1


def test_what_changes_the_code_changes_the_key(session: Session) -> None:
    def other(**change: Any) -> str:
        plan: ShapePlan = session.plan.model_copy(update=change)
        return key_of(compile_facts(replace(session, plan=plan)))

    mine = key_of(compile_facts(session))
    assert other() == mine
    assert other(reason="another") == mine
    assert other(compile="model") != mine
    assert other(training=((2, 16),)) != mine
    assert other(head_rows=(1, 2)) != mine


@pytest.mark.parametrize("other", ["torch", "python", "device", "model", "precision"])
def test_what_is_compiled_for_another_machine_or_model_has_another_key(
    session: Session, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    mine = key_of(compile_facts(session))
    if other == "torch":
        monkeypatch.setattr("torch.__version__", "2.0.0")
    elif other == "python":
        monkeypatch.setattr("platform.python_version", lambda: "3.0.0")
    elif other == "device":
        found = session.device.compiled_for()
        monkeypatch.setattr(type(session.device), "compiled_for", lambda self: {**found, "driver": "another"})
    elif other == "model":
        dims = session.model.dims.model_copy(update={"layers": session.model.dims.layers + 1})
        session = replace(session, model=replace(session.model, dims=dims))
    else:
        session = replace(session, precision=session.precision.model_copy(update={"policy": "bf16"}))
    assert key_of(compile_facts(session)) != mine


@dataclass(frozen=True)
class InTurn(World):
    """Ranks that are asked one after the other, the leading one first."""

    shared: tuple[list[float], ...] = ([],)

    def sum(self, values: list[float]) -> list[float]:
        self.shared[0].extend(values)
        return [sum(self.shared[0])]


def test_ranks_agree_on_a_name_that_no_other_run_has() -> None:
    names = []
    for _ in range(2):
        shared: tuple[list[float], ...] = ([],)
        names.append({_name_for_all(InTurn(rank=rank, size=3, shared=shared)) for rank in range(3)})
    assert [len(of_run) for of_run in names] == [1, 1]
    assert names[0] != names[1]
    assert _name_for_all(World()) is None
