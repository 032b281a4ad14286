"""Checkpoints may come from elsewhere: nothing that runs code as it is read is used on them."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_records import make_run, snapshot, tensors

import trueup
from trueup.checkpoint.choose import chosen
from trueup.checkpoint.folder import checkpoints_of, load_tensors, write_checkpoint
from trueup.checkpoint.record import restore_record

SOURCE = Path(trueup.__file__).parent
READS_CODE = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
# Between a process and those it started itself, over their pipes.
OWN_PIPES = {"data/shard_worker.py", "data/workers.py"}


def imported(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def calls(tree: ast.Module) -> set[str]:
    functions = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {ast.unparse(one) for one in functions if isinstance(one, ast.Attribute)}


def test_no_module_reads_pickles() -> None:
    files = {path.relative_to(SOURCE).as_posix(): path for path in SOURCE.rglob("*.py")}
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in files.items()}
    assert {name for name, tree in trees.items() if imported(tree) & READS_CODE} == OWN_PIPES
    assert not {name for name, tree in trees.items() if calls(tree) & {"torch.load", "torch.save"}}


def test_a_checkpoint_is_read_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run")
    record = (run / "run.json", run / "steps.jsonl")
    write_checkpoint(checkpoints_of(run), snapshot(4, record=record))

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("something is unpickled")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, refused)
    folder, manifest, _ = chosen(run, "last", print)
    for stem, expected in tensors().items():
        assert load_tensors(folder, stem).keys() == expected.keys()
    assert restore_record(folder, manifest, tmp_path / "elsewhere", print) == ["run.json", "steps.jsonl"]
