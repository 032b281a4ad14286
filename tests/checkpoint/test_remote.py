"""Checkpoints at another place: what is there is whole or said not to be, wherever the place is."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from remote_folders import FILES, RUN, content, save
from s3_endpoint import BUCKET, Endpoint, point_at

from trueup.checkpoint.folder import read_manifest
from trueup.checkpoint.manifest import MANIFEST_FILE, sealed
from trueup.checkpoint.remote import DamagedRemoteError, Remote, is_remote, parse, pull_newest
from trueup.checkpoint.remote_files import Retry
from trueup.schema import InputError, StorageError


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint().serving() as endpoint:
        yield endpoint


@pytest.fixture(params=["folder", "memory", "s3"])
def address(
    request: pytest.FixtureRequest, far: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> str:
    if request.param == "s3":
        point_at(endpoint, monkeypatch)
        endpoint.reset()
        return f"s3://{BUCKET}/some/prefix"
    return str(far) if request.param == "folder" else f"memory://{uuid.uuid4().hex}/prefix"


@pytest.fixture
def far(tmp_path: Path) -> Path:
    """A place that is a folder, for what is the same everywhere."""
    return tmp_path / "far"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The checkpoints of the run that saves. What is pulled goes to `back`."""
    folder = tmp_path / "run" / "checkpoints"
    folder.parent.mkdir()
    return folder


@pytest.fixture
def back(tmp_path: Path) -> Path:
    return tmp_path / "back" / "checkpoints"


def spoil(remote: Remote, name: str, root: Path) -> None:
    """Change one byte of a file that was uploaded."""
    path = root.parent / "spoilt"
    data = bytearray(remote._files.read(name) or b"")
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    remote._files.put(path, name)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_comes_back_is_what_was_saved(address: str, root: Path, back: Path) -> None:
    remote = Remote(address)
    assert (remote.runs(), remote.steps(RUN)) == ([], [])
    folders = [save(root, step) for step in (40, 20)]
    for folder in folders:
        remote.upload(folder, RUN)
    assert (remote.runs(), remote.steps(RUN)) == ([RUN], [20, 40])
    assert remote.manifest(RUN, 20) == read_manifest(folders[1])
    for step, folder in zip((40, 20), folders, strict=True):
        pulled = remote.pull(RUN, step, back)
        assert pulled == back / folder.name
        assert content(pulled) == content(folder)
        assert set(content(pulled)) == {*FILES, MANIFEST_FILE}
    assert names(back) == {"00000020", "00000040"}


def test_removing_leaves_the_others(address: str, root: Path) -> None:
    remote = Remote(address)
    for step in (20, 40):
        remote.upload(save(root, step), RUN)
    remote.remove(RUN, 20)
    assert remote.found(RUN) == ([40], [])
    remote.remove(RUN, 20)


def test_a_step_saved_anew_replaces_what_is_there(address: str, root: Path, back: Path) -> None:
    remote = Remote(address)
    remote.upload(save(root, 40), RUN)
    again = save(root, 40)
    remote.upload(again, RUN)
    assert content(remote.pull(RUN, 40, back)) == content(again)


def test_an_upload_cut_short_is_no_checkpoint(address: str, root: Path, back: Path) -> None:
    remote, said = Remote(address), []
    remote.upload(save(root, 20), RUN)
    folder = save(root, 40)
    whole = content(folder)
    (folder / "two.bin").unlink()
    with pytest.raises(StorageError, match=r"two\.bin was removed while it went to"):
        remote.upload(folder, RUN)
    assert remote.found(RUN) == ([20], [40])
    assert pull_newest(f"{address}/{RUN}", back, said.append) == back / "00000020"
    assert len(said) == 1
    assert f"{RUN}/00000040/{MANIFEST_FILE} is missing" in said[0]

    (folder / "two.bin").write_bytes(whole["two.bin"])
    remote.upload(folder, RUN)
    assert content(remote.pull(RUN, 40, back)) == whole


def test_a_damaged_one_is_named_and_the_one_before_taken(address: str, root: Path, back: Path) -> None:
    remote, said = Remote(address), []
    older, newer = save(root, 20), save(root, 40)
    for folder in (older, newer):
        remote.upload(folder, RUN)
    spoil(remote, f"{RUN}/00000040/one.bin", root)
    pulled = pull_newest(f"{address}/{RUN}", back, said.append)
    assert pulled is not None
    assert content(pulled) == content(older)
    assert names(back) == {"00000020"}
    assert len(said) == 1
    assert f"{RUN}/00000040/one.bin is damaged" in said[0]


@pytest.mark.parametrize("file", [*FILES, MANIFEST_FILE])
def test_a_byte_flipped_in_any_file_is_found(far: Path, root: Path, back: Path, file: str) -> None:
    remote = Remote(str(far))
    remote.upload(save(root, 20), RUN)
    remote.upload(save(root, 40), RUN)
    spoil(remote, f"{RUN}/00000040/{file}", root)
    with pytest.raises(DamagedRemoteError, match=f"{RUN}/00000040/{file}"):
        remote.pull(RUN, 40, back)
    assert not back.exists() or not names(back)
    with pytest.raises(DamagedRemoteError, match=file):  # asked for by name, no other is taken
        pull_newest(f"{far}/{RUN}/00000040", back, print)


def test_a_file_that_is_missing_there_is_named(far: Path, root: Path, back: Path) -> None:
    remote = Remote(str(far))
    remote.upload(save(root, 40), RUN)
    remote._files.remove(f"{RUN}/00000040/one.bin")
    with pytest.raises(DamagedRemoteError, match=rf"{RUN}/00000040/one\.bin is missing"):
        remote.pull(RUN, 40, back)


def test_the_best_one_comes_along(address: str, root: Path, back: Path) -> None:
    remote, said = Remote(address), []
    for step in (20, 40, 60):
        remote.upload(save(root, step, best=20), RUN)
    assert pull_newest(f"{address}/{RUN}/", back, said.append) == back / "00000060"
    assert names(back) == {"00000020", "00000060"}
    assert said == []


@pytest.mark.parametrize("how", ["absent", "damaged"])
def test_a_best_one_that_cannot_come_is_said(far: Path, root: Path, back: Path, how: str) -> None:
    remote, said = Remote(str(far)), []
    for step in (20, 40):
        remote.upload(save(root, step, best=20), RUN)
    if how == "absent":
        remote.remove(RUN, 20)
    else:
        spoil(remote, f"{RUN}/00000020/one.bin", root)
    assert pull_newest(f"{far}/{RUN}", back, said.append) == back / "00000040"
    assert names(back) == {"00000040"}
    assert len(said) == 1
    assert "00000020" in said[0]
    assert "without the best" in said[0]


def test_a_run_without_checkpoints_gives_none(address: str, back: Path) -> None:
    assert pull_newest(f"{address}/{RUN}", back, print) is None
    with pytest.raises(DamagedRemoteError, match=r"00000040/manifest\.json is missing"):
        pull_newest(f"{address}/{RUN}/00000040", back, print)


# --- What is in the root already ---------------------------------------------------------------------------


def test_the_same_one_is_not_fetched_again(far: Path, root: Path) -> None:
    remote, folder = Remote(str(far)), save(root, 40)
    remote.upload(folder, RUN)
    (far / RUN / "00000040" / "one.bin").unlink()  # so fetching would fail
    assert remote.pull(RUN, 40, root) == folder


def test_a_damaged_one_is_replaced_and_leftovers_go(far: Path, root: Path, back: Path) -> None:
    remote, folder = Remote(str(far)), save(root, 40)
    remote.upload(folder, RUN)
    shutil.copytree(folder, back / "00000040")
    (back / "00000040" / "one.bin").write_bytes(b"short")
    (back / "00000040.incomplete").mkdir()
    (back / "00000040.incomplete" / "old.bin").write_bytes(b"of a pull that was killed")
    assert content(remote.pull(RUN, 40, back)) == content(folder)
    assert names(back) == {"00000040"}


def test_a_whole_one_that_is_another_is_never_overwritten(far: Path, root: Path) -> None:
    remote = Remote(str(far))
    remote.upload(save(root, 40), RUN)
    newer = save(root, 40)
    before = content(newer)
    with pytest.raises(StorageError, match=r"00000040 is whole, and another .*move it away"):
        pull_newest(f"{far}/{RUN}", root, print)
    assert content(newer) == before


def test_a_root_that_cannot_be_written_is_said(tmp_path: Path, far: Path, root: Path) -> None:
    remote = Remote(str(far))
    remote.upload(save(root, 40), RUN)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot be written"):
        remote.pull(RUN, 40, tmp_path / "file" / "checkpoints")


def test_a_full_disk_at_a_place_that_is_a_folder_is_said_at_once(
    far: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        Path(target).write_bytes(source.read_bytes()[:10])
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    waits: list[float] = []
    remote = Remote(str(far), Retry(sleep=waits.append))
    folder = save(root, 40)
    monkeypatch.setattr(shutil, "copyfile", refuse)
    with pytest.raises(StorageError, match=r"No space left on device.*Make room there"):
        remote.upload(folder, RUN)
    assert waits == []
    assert [path for path in far.rglob("*") if path.is_file()] == []


# --- What came from elsewhere ------------------------------------------------------------------------------


def test_a_manifest_that_leads_out_of_the_folder_is_refused(far: Path, root: Path, back: Path) -> None:
    remote, folder = Remote(str(far)), save(root, 40)
    remote.upload(folder, RUN)
    manifest = read_manifest(folder)
    files = {f"../../{name}": digest for name, digest in manifest.files.items()}
    (far / RUN / "00000040" / MANIFEST_FILE).write_bytes(sealed(manifest.model_copy(update={"files": files})))
    with pytest.raises(DamagedRemoteError, match="not a path below"):
        remote.pull(RUN, 40, back)


def test_a_manifest_of_another_step_or_of_none_is_refused(far: Path, root: Path, back: Path) -> None:
    remote, folder = Remote(str(far)), save(root, 40)
    remote.upload(folder, RUN)
    (far / RUN / "00000040").rename(far / RUN / "00000060")
    with pytest.raises(DamagedRemoteError, match="it is of step 40"):
        remote.pull(RUN, 60, back)
    (far / RUN / "00000060" / MANIFEST_FILE).write_text(json.dumps({"step": 60}))
    with pytest.raises(DamagedRemoteError, match="does not end in its digest"):
        remote.pull(RUN, 60, back)


# --- Addresses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("s3://bucket/some/prefix/RUN_ID", ("s3://bucket/some/prefix", "RUN_ID", None)),
        ("s3://bucket/RUN_ID/", ("s3://bucket", "RUN_ID", None)),
        ("s3://bucket/RUN_ID/00000040", ("s3://bucket", "RUN_ID", 40)),
        ("s3://bucket/RUN_ID/100000000/", ("s3://bucket", "RUN_ID", 100000000)),
        ("s3://bucket/p/000000040", ("s3://bucket/p", "000000040", None)),  # nine digits, and no step's name
        ("/data/saves/RUN_ID/00000040", ("/data/saves", "RUN_ID", 40)),
        ("/RUN_ID", ("/", "RUN_ID", None)),
        ("saves/RUN_ID", ("saves", "RUN_ID", None)),
        ("RUN_ID", (".", "RUN_ID", None)),
    ],
)
def test_an_address_says_place_run_and_step(address: str, expected: tuple[str, str, int | None]) -> None:
    assert parse(address) == expected


@pytest.mark.parametrize("address", ["", "/", "s3://", "s3://bucket", "s3://bucket/00000040", "saves/.."])
def test_an_address_without_a_run_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="names no run"):
        parse(address)


def test_addresses_are_told_from_paths() -> None:
    assert [is_remote(one) for one in ("s3://b/p", "gs://b", "file:///tmp", "simplecache::s3://b")] == [
        True
    ] * 4
    assert [is_remote(one) for one in ("/data/run", "saves", "./a:b", "C:\\runs", "~/runs", "")] == [
        False
    ] * 6


def test_an_extra_that_is_missing_is_named() -> None:
    program = (
        "import sys; sys.modules['s3fs'] = None\n"
        "from trueup.checkpoint.remote import Remote\n"
        "from trueup.schema import MissingExtraError\n"
        "try: Remote('s3://bucket/prefix')\n"
        "except MissingExtraError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'trueup[s3]'" in done.stdout


@pytest.mark.parametrize("address", ["nosuch://bucket/prefix", "s3://"])
def test_what_is_no_address_is_refused_at_once(address: str) -> None:
    with pytest.raises(InputError):
        Remote(address)


def test_a_password_in_an_address_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "memory://user:hidden@host/prefix"
    remote = Remote(address)

    def refuse(path: str) -> bytes:
        raise PermissionError(f"not allowed at {address}")

    monkeypatch.setattr(remote._files._fs, "cat_file", refuse)
    with pytest.raises(StorageError) as caught:
        remote.manifest(RUN, 40)
    assert "hidden" not in str(caught.value)
    assert str(caught.value).count("memory://***@host/prefix") == 2
