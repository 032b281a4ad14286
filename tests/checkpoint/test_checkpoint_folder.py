"""What a checkpoint holds, and that what is not as it was written is found."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import random
import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_records import ORIGIN, contents, make_run, snapshot, tensors, value_in, write

from trueup.checkpoint.carry import leave_later
from trueup.checkpoint.folder import (
    DamagedCheckpointError,
    best_of,
    folder_name,
    load_tensors,
    newest_whole,
    read_manifest,
    remove_checkpoint,
    steps,
    verified,
    write_checkpoint,
)
from trueup.checkpoint.manifest import CheckpointManifest, sealed, unsealed
from trueup.checkpoint.snapshot import Snapshot
from trueup.schema import InputError, StorageError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


@pytest.fixture
def root(run: Path) -> Path:
    return run / "checkpoints"


def full_snapshot(run: Path) -> Snapshot:
    cache = run / "cache.zip"
    cache.write_bytes(b"compiled code")
    record = tuple(run / name for name in ("run.json", "steps.jsonl", "evaluations.jsonl"))
    return snapshot(40, record=record, attached={"compile/cache.zip": cache})


# --- What is in it ----------------------------------------------------------------------------------------


def test_tensors_come_back_bit_for_bit(root: Path) -> None:
    values = torch.tensor([0.1, math.nan, -0.0, math.inf, 1e-45])
    given = {"weights": {"w": values, "b": values.bfloat16(), "none": torch.empty(0, 2)}, "random": {}}
    folder = write_checkpoint(root, snapshot(1, tensors={**tensors(), **given}))
    for stem, named in {**tensors(), **given}.items():
        found = load_tensors(folder, stem)
        assert found.keys() == named.keys()
        for name, tensor in named.items():
            assert found[name].dtype == tensor.dtype
            assert found[name].shape == tensor.shape
            raw = found[name].contiguous().view(-1).view(torch.uint8)
            assert torch.equal(raw, tensor.contiguous().view(-1).view(torch.uint8))


def test_the_manifest_says_what_the_snapshot_said(root: Path) -> None:
    state = {
        "python_random": [3, [2**32 - 1] * 3, None],
        "big": 2**127,
        "losses": [0.1, 1e-300, 2.5],
        "never": {"best": math.inf},
        "text": "Zoë \u2028 \ud800",
    }
    given = snapshot(40, state=state, best_step=20, eval_loss=0.1 + 0.2, why=("every", "best"))
    manifest = verified(write_checkpoint(root, given))
    assert manifest.origin == ORIGIN
    assert (manifest.step, manifest.best_step, manifest.eval_loss) == (40, 20, 0.1 + 0.2)
    assert manifest.why == ("every", "best")
    assert manifest.state == state
    assert {*manifest.files} == {"weights.safetensors", "optimizer.safetensors", "random.safetensors"}


def test_a_loss_that_is_no_number_comes_back_as_it_was(root: Path) -> None:
    manifest = verified(write_checkpoint(root, snapshot(1, eval_loss=math.nan, state={"loss": math.nan})))
    assert manifest.eval_loss is not None
    assert math.isnan(manifest.eval_loss)
    assert math.isnan(manifest.state["loss"])


def test_long_lines_and_files_without_any_are_cut_at_the_last_newline(run: Path, root: Path) -> None:
    long = b'{"a": "' + b"x" * (3 << 20) + b'"}\n'
    for content, kept in ((long * 2 + b"x" * (2 << 20), long * 2), (b"no line", b""), (b"", b"")):
        (run / "samples.jsonl").write_bytes(content)
        folder = write_checkpoint(root, snapshot(1, record=(run / "samples.jsonl",)))
        assert gzip.decompress((folder / "record/samples.jsonl.gz").read_bytes()) == kept


def test_the_same_snapshot_gives_the_same_files(run: Path, root: Path) -> None:
    first = contents(write_checkpoint(root, full_snapshot(run)))
    again = contents(write_checkpoint(root, full_snapshot(run)))
    del first["manifest.json"], again["manifest.json"]  # it says when it was made
    assert first == again
    assert first["record/steps.jsonl.gz"][4:8] == b"\0" * 4  # no time in gzip's header


def test_step_in_name_and_manifest_are_the_snapshots(root: Path) -> None:
    """Megatron-Bridge#3267: the step number was read late and named another checkpoint."""
    folder = write_checkpoint(root, snapshot(1234567))
    assert folder == root / "01234567"
    assert read_manifest(folder).step == 1234567
    assert steps(root) == [1234567]
    folder.rename(root / folder_name(1234568))
    with pytest.raises(DamagedCheckpointError, match="it says step 1234567"):
        read_manifest(root / "01234568")


@pytest.mark.parametrize("name", ["../up", "/abs", "manifest.json", "weights.safetensors", "a//b", ""])
def test_an_attached_file_has_a_name_of_its_own_below_the_folder(run: Path, root: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot have a file"):
        write_checkpoint(root, snapshot(1, attached={name: run / "run.json"}))
    assert not root.exists()


def test_a_manifest_names_nothing_outside_its_folder() -> None:
    fields = {"origin": ORIGIN, "step": 1, "best_step": None, "eval_loss": None, "why": (), "created": ""}
    digest = {"sha256": "0" * 64, "bytes": 1}
    with pytest.raises(ValueError, match="below the checkpoint's folder"):
        CheckpointManifest(**fields, state={}, files={"record/../../x.gz": digest})


def test_files_can_be_read_by_those_who_may_read_the_folder(root: Path) -> None:
    folder = write_checkpoint(root, snapshot(1))
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert modes == {folder.stat().st_mode & 0o666}


# --- Damage -----------------------------------------------------------------------------------------------


def flip(path: Path, position: int, bit: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1 << bit
    path.write_bytes(raw)


def test_any_byte_of_any_file(run: Path, root: Path) -> None:
    """First and last bytes, and others at random; one bit of each."""
    write(root, 20)
    folder = write_checkpoint(root, full_snapshot(run))
    whole = contents(folder)
    assert len(whole) == 7
    chance = random.Random(5)
    for name, raw in whole.items():
        some = {0, len(raw) - 1, *(chance.randrange(len(raw)) for _ in range(12))}
        for position in some:
            flip(folder / name, position, chance.randrange(8))
            with pytest.raises(DamagedCheckpointError) as caught:
                verified(folder)
            assert caught.value.file == name
            assert name in str(caught.value)
            (folder / name).write_bytes(raw)
    verified(folder)


def test_every_byte_of_the_manifest(root: Path) -> None:
    """Also where JSON stays valid and says the same: spaces, the digest itself, the last newline."""
    raw = (write_checkpoint(root, snapshot(40)) / "manifest.json").read_bytes()
    assert json.loads(raw)["step"] == 40
    assert [*json.loads(raw)][-1] == "sha256"
    assert unsealed(raw).step == 40
    chance = random.Random(7)
    for position in range(len(raw)):
        changed = bytearray(raw)
        changed[position] ^= chance.randrange(1, 256)
        with pytest.raises(ValueError, match="digest"):
            unsealed(bytes(changed))
    for changed in (raw[:-1], raw + b"\n", raw[: len(raw) // 2], b"", b"{}", b"\xff"):
        with pytest.raises(ValueError, match="digest"):
            unsealed(bytes(changed))


@pytest.mark.parametrize("name", ["weights.safetensors", "record/steps.jsonl.gz", "manifest.json"])
@pytest.mark.parametrize("how", ["flipped", "truncated", "longer", "missing", "a folder"])
def test_the_previous_whole_one_is_taken_and_said(run: Path, root: Path, name: str, how: str) -> None:
    """pytorch-lightning#20953: a torn file was loaded, or the run did not start."""
    write(root, 20)
    file = write_checkpoint(root, full_snapshot(run)) / name
    raw = file.read_bytes()
    if how == "flipped":
        flip(file, len(raw) // 2, 3)
    elif how in ("truncated", "longer"):
        file.write_bytes(raw[:-1] if how == "truncated" else raw + b"\0")
    else:
        file.unlink()
        if how == "a folder":
            file.mkdir()
    said: list[str] = []
    found = newest_whole(root, said.append)
    assert found is not None
    assert found[0] == root / "00000020"
    assert found[1].step == 20
    assert len(said) == 1
    assert said[0].startswith(f"checkpoint 00000040: its file {name} is damaged")
    assert said[0].endswith("going back to the one before it, of step 20")


def test_where_all_are_damaged_there_is_none(root: Path) -> None:
    write(root, 20, 40)
    for step in (20, 40):
        flip(root / folder_name(step) / "random.safetensors", 9, 1)
    said: list[str] = []
    assert newest_whole(root, said.append) is None
    assert len(said) == 2
    assert said[1].endswith("there is none before it")


def test_the_newest_below_a_step(root: Path) -> None:
    write(root, 20, 40, 60)
    found = newest_whole(root, pytest.fail, before=60)
    assert found is not None
    assert found[1].step == 40
    assert newest_whole(root, pytest.fail, before=20) is None


def test_no_folder_is_no_checkpoint_and_other_names_are_none(tmp_path: Path) -> None:
    assert steps(tmp_path / "none") == []
    assert newest_whole(tmp_path / "none", pytest.fail) is None
    assert best_of(tmp_path / "none") is None
    for name in ("00000040.incomplete", "000000041", "40", "00000042.left", "compile-cache.zip"):
        (tmp_path / name).mkdir()
    (tmp_path / "00000043").touch()
    assert steps(tmp_path) == []
    with pytest.raises(StorageError, match="cannot be read"):
        steps(tmp_path / "00000043")


def test_one_of_a_newer_format_is_not_damage(root: Path) -> None:
    write(root, 20, 40)
    newer = read_manifest(root / "00000040").model_copy(update={"format": 2})
    (root / "00000040/manifest.json").write_bytes(sealed(newer))
    with pytest.raises(InputError, match="update trueup"):
        newest_whole(root, pytest.fail)


def test_one_nested_too_deeply_is_damage(root: Path) -> None:
    """Whoever writes a manifest can give it the right digest."""
    write(root, 20, 40)
    content = (root / "00000040/manifest.json").read_bytes().partition(b',\n "sha256"')[0]
    deep = content + b',\n "deep": ' + b"[" * 100_000 + b"]" * 100_000
    digest = hashlib.sha256(deep + b"\n}").hexdigest()
    (root / "00000040/manifest.json").write_bytes(deep + f',\n "sha256": "{digest}"\n}}\n'.encode())
    said: list[str] = []
    found = newest_whole(root, said.append)
    assert found is not None
    assert found[1].step == 20
    assert "nested too deeply" in said[0]


def test_the_best_is_the_one_the_newest_readable_names(root: Path) -> None:
    write(root, 20, best_step=20)
    write(root, 40, best_step=40)
    write(root, 60, best_step=40)
    assert best_of(root) == (root / "00000040", read_manifest(root / "00000040"))
    flip(root / "00000060/manifest.json", 30, 0)
    assert best_of(root) == (root / "00000040", read_manifest(root / "00000040"))
    flip(root / "00000040/weights.safetensors", 30, 0)
    assert best_of(root) is None
    write(root, 80)
    assert best_of(root) is None


def test_tensors_that_cannot_be_read_name_their_file(root: Path) -> None:
    folder = write_checkpoint(root, snapshot(1))
    (folder / "weights.safetensors").write_bytes(b"torn")
    for stem in ("weights", "absent"):
        with pytest.raises(DamagedCheckpointError, match=stem):
            load_tensors(folder, stem)


# --- Old and new ------------------------------------------------------------------------------------------


def test_a_step_done_again_replaces_its_checkpoint(root: Path) -> None:
    write(root, 20, 40)
    write_checkpoint(root, snapshot(40, value=7.0))
    assert value_in(root / "00000040") == 7.0
    assert sorted(path.name for path in root.iterdir()) == ["00000020", "00000040"]


def test_all_is_on_the_disk_before_it_gets_its_name(
    run: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut, unlike a kill, loses what was not flushed."""
    calls: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def recorded_fsync(handle: int) -> None:
        calls.append(("fsync", os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    def recorded_rename(source: Path, target: Path) -> None:
        calls.append(("rename", str(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "rename", recorded_rename)
    folder = write_checkpoint(root, full_snapshot(run))
    renamed = calls.index(("rename", str(folder)))
    flushed = {path for call, path in calls[:renamed] if call == "fsync"}
    part = f"{folder}.incomplete"
    below = (path.relative_to(folder) for path in folder.rglob("*"))
    assert {part, *(f"{part}/{path}" for path in below)} <= flushed
    assert calls[renamed + 1 :] == [("fsync", str(root))]


def test_what_killed_writers_left_goes_with_the_next(root: Path) -> None:
    write(root, 20, 40)
    (root / "00000030.incomplete/record").mkdir(parents=True)
    (root / "00000060.incomplete").mkdir()
    shutil.copytree(root / "00000020", root / "00000020.replaced")
    (root / "00000040").rename(root / "00000040.replaced")
    (root / "compile-cache.zip").touch()
    write(root, 60)
    names = sorted(path.name for path in root.iterdir())
    assert names == ["00000020", "00000040", "00000060", "compile-cache.zip"]
    assert value_in(root / "00000040") == 40.0


@pytest.mark.parametrize("how", ["a file", "a link", "a link to nothing"])
@pytest.mark.parametrize("name", ["00000040.incomplete", "00000040.replaced", "00000040", "00000020.left"])
def test_what_is_no_folder_has_no_name_of_a_checkpoint_for_long(root: Path, name: str, how: str) -> None:
    """A backup, or a copy that broke off, may leave it there; no save fails for it."""
    write(root, 20)
    elsewhere = root.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    if how == "a file":
        (root / name).write_text("not ours")
    else:
        (root / name).symlink_to(elsewhere if how == "a link" else elsewhere / "nothing")
    write(root, 40)
    leave_later(root, 20)
    write(root, 40)
    assert value_in(root / "00000040") == 40.0
    assert (elsewhere / "kept").exists()
    remove_checkpoint(root, 40)
    assert steps(root) == [20]
    assert not [path.name for path in root.iterdir() if path.name.endswith(("incomplete", "replaced"))]


def test_a_reader_finds_the_one_a_killed_writer_had_put_aside(root: Path) -> None:
    write(root, 40)
    (root / "00000040").rename(root / "00000040.replaced")
    assert steps(root) == [40]
    found = newest_whole(root, pytest.fail)
    assert found is not None
    assert found[0] == root / "00000040"


def test_removing(root: Path) -> None:
    write(root, 20, 40)
    (root / "00000020.incomplete").mkdir()
    remove_checkpoint(root, 20)
    assert [path.name for path in root.iterdir()] == ["00000040"]
    with pytest.raises(StorageError, match="step 20 could not be removed"):
        remove_checkpoint(root, 20)
