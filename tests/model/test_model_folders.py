"""Folders and names that cannot be used say why, and nothing in them is ever run."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trueup.model.builtin import ResolvedModel, require_known, resolve_model
from trueup.schema import InputError, StorageError


@pytest.fixture
def folder(tmp_path: Path, tiny: ResolvedModel) -> Path:
    return Path(shutil.copytree(tiny.folder, tmp_path / "mine"))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def lfs_pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def index_with(folder: Path, **weight_map: str) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_a_local_folder_is_used_as_it_is(folder: Path, tmp_path: Path) -> None:
    resolved = resolve_model(str(folder), tmp_path / "home")
    assert resolved.folder == folder
    assert resolved.name == "mine"
    assert not (tmp_path / "home").exists()


def test_a_sharded_folder_is_used(folder: Path, tmp_path: Path) -> None:
    index_with(folder, a="model-00001-of-00002.safetensors")
    assert resolve_model(str(folder), tmp_path).folder == folder


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "not a readable JSON object"),
        (lambda f: (f / "config.json").write_text("[]"), "not a readable JSON object"),
        (lambda f: edit_config(f, architectures=["BertForMaskedLM"]), "BertForMaskedLM is not a causal"),
        (lambda f: edit_config(f, architectures=None), "no 'architectures'"),
        (only_pickle, "pickled files .*pytorch_model.bin"),
        (lambda f: (f / "model.safetensors").unlink(), "no weights"),
        (lfs_pointer, "Git LFS pointer"),
        (cut, "cut off or damaged"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "not a safetensors file"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\x04\0\0\0\0\0\0\0nope"), "header cannot be read"),
        (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer"),
        (
            lambda f: index_with(f, a="model-00001-of-00002.safetensors", b="gone.safetensors"),
            "1 of 2 .*gone",
        ),
        (lambda f: index_with(f, a="../elsewhere.safetensors"), "must name files of this folder"),
        (lambda f: index_with(f), "must name files of this folder"),
    ],
)
def test_a_folder_that_cannot_be_used(
    folder: Path, tmp_path: Path, damage: Callable[[Path], Any], expected: str
) -> None:
    damage(folder)
    with pytest.raises(InputError, match=expected):
        resolve_model(str(folder), tmp_path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("./nowhere/model", "no such folder"),
        ("/nowhere/at/all", "no such folder"),
        ("smolm2-135m", "did you mean the built-in 'smollm2-135m'"),
        ("someone/some-model", "network is off"),
    ],
)
def test_a_name_that_is_nothing(tmp_path: Path, name: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        resolve_model(name, tmp_path, network=False)


def test_what_is_no_model_is_known_before_anything_is_made(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tiny", str(folder)):
        require_known(name)
    with pytest.raises(InputError, match="no such folder"):
        require_known("./nowhere/model")
    asked: list[str] = []

    def answer(self: object, name: str, **_: Any) -> None:
        asked.append(name)
        if name != "someone/some-model":
            raise OSError("404 Client Error")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", answer)
    monkeypatch.setattr("huggingface_hub.snapshot_download", Hub(FileNotFoundError()))
    require_known("someone/some-model")
    with pytest.raises(InputError, match="did not give a model of that name: 404"):
        require_known("someone/sone-model")
    assert asked == ["someone/some-model", "someone/sone-model"]
    monkeypatch.setattr("huggingface_hub.snapshot_download", Hub(folder))
    require_known("someone/in-the-cache")
    assert len(asked) == 2
    assert list(tmp_path.iterdir()) == [folder]


def test_a_file_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(InputError, match="a file; a model is a folder"):
        resolve_model(str(tmp_path / "model.gguf"), tmp_path)


class Hub:
    """Stands where huggingface_hub.snapshot_download is."""

    def __init__(self, answer: Path | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[str, bool]] = []

    def __call__(self, name: str, *, local_files_only: bool, **_: Any) -> str:
        self.asked.append((name, local_files_only))
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)


def test_a_hub_name_becomes_its_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(folder)
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub)
    resolved = resolve_model("someone/some-model", tmp_path)
    assert resolved.folder == folder
    assert resolved.name == "someone/some-model"
    assert hub.asked == [("someone/some-model", False)]


def test_what_the_hub_gives_is_checked_too(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_pickle(folder)
    monkeypatch.setattr("huggingface_hub.snapshot_download", Hub(folder))
    with pytest.raises(InputError, match="pickled"):
        resolve_model("someone/some-model", tmp_path)


@pytest.mark.parametrize("error", [OSError("no route to host\nand more"), RuntimeError("no route to host")])
def test_a_hub_that_fails_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", Hub(error))
    with pytest.raises(InputError, match=r"hub did not give a model.*no route to host") as caught:
        resolve_model("someone/some-model", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_full_hub_cache_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", Hub(OSError(errno.ENOSPC, "No space left on device"))
    )
    with pytest.raises(StorageError, match="No space left"):
        resolve_model("someone/some-model", tmp_path)
