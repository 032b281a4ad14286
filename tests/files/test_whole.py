"""What is written appears whole or not at all, and leaves nothing beside it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from trueup.files.whole import (
    needs_another_place,
    new_beside,
    prove_writable,
    put_in_place,
    remove_leftovers,
    replace_text,
    replacing_file,
)


def refuse(handle: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def folder_with(place: Path, content: str) -> Path:
    place.mkdir()
    (place / "inner").mkdir()
    (place / "inner" / "file").write_text(content)
    return place


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError, OSError])
def test_a_file_is_the_old_one_until_it_is_the_new_one(tmp_path: Path, failure: type[BaseException]) -> None:
    target = tmp_path / "file"
    replace_text(target, "old")

    def fail_half_way() -> None:
        with replacing_file(target) as part:
            part.write_text("ne")
            raise failure

    with pytest.raises(failure):
        fail_half_way()
    assert target.read_text() == "old"
    replace_text(target, "new é")
    assert target.read_text(encoding="utf-8") == "new é"
    assert os.listdir(tmp_path) == ["file"]


def test_a_disk_that_refuses_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        replace_text(target, "new")
    assert (os.listdir(tmp_path), target.read_text()) == (["file"], "old")


def test_the_longest_name_has_room_beside_it(tmp_path: Path) -> None:
    target = tmp_path / ("é" * 127)  # 254 bytes; 255 is what file systems take
    replace_text(target, "whole")
    assert target.read_text() == "whole"


def test_a_folder_takes_the_place_of_another_only_where_that_is_meant(tmp_path: Path) -> None:
    target = folder_with(tmp_path / "target", "old")
    with pytest.raises(OSError, match="not empty"):
        put_in_place(folder_with(new_beside(target), "new"), target, replace=False)
    assert (target / "inner" / "file").read_text() == "old"
    remove_leftovers(target)
    put_in_place(folder_with(new_beside(target), "new"), target, replace=True)
    assert (target / "inner" / "file").read_text() == "new"
    assert os.listdir(tmp_path) == ["target"]


def test_leftovers_of_others_are_left_alone(tmp_path: Path) -> None:
    target, other = tmp_path / "target", tmp_path / "another"
    left, kept = new_beside(target), new_beside(other)
    left.mkdir()
    kept.mkdir()
    remove_leftovers(target)
    assert os.listdir(tmp_path) == [kept.name]


def test_a_place_is_proven_and_left_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "a" / "b"
    prove_writable(place, 100)
    prove_writable(place)
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left") as full:
        prove_writable(place, 100)
    assert os.listdir(place) == []
    assert not needs_another_place(full.value)


def test_a_file_in_the_way_needs_another_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "b"):
        with pytest.raises(OSError) as caught:  # noqa: PT011 (the number is what is looked at)
            prove_writable(place)
        assert needs_another_place(caught.value)
