"""The home's price file is only ever added to, whole lines at a time."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from trueup.schema import PriceRow, StorageError
from trueup.schema.price_row import PriceEntry
from trueup.store.price_file import PriceFile, standing


def entry(amount: float, *, replaces: bool = False, as_of: str = "2026-03-01") -> PriceEntry:
    row = PriceRow(
        instance="p5.48xlarge", region="us-east-1", model="on_demand", amount_per_hour=amount, currency="USD",
        as_of=as_of, source="a list", kind="quoted",
    )  # fmt: skip
    return PriceEntry(row=row, origin="own", recorded="2026-03-02T00:00:00Z", replaces=replaces)


def amounts(file: PriceFile) -> list[float | None]:
    return [one.row.amount_per_hour for one in file.entries()]


def test_what_is_added_is_read_back(tmp_path: Path) -> None:
    file = PriceFile(tmp_path)
    assert file.entries() == []
    assert file.add(lambda there: [entry(0.1 + 0.2)]) == [entry(0.1 + 0.2)]
    before = file.path.read_bytes()
    assert file.add(lambda there: [entry(len(there) + 1.0)]) == [entry(2.0)]
    assert file.entries() == [entry(0.1 + 0.2), entry(2.0)]
    assert file.path.read_bytes().startswith(before)


def test_nothing_to_add_changes_nothing(tmp_path: Path) -> None:
    file = PriceFile(tmp_path)
    file.add(lambda there: [entry(1.0)])
    before = file.path.read_bytes()
    file.add(lambda there: [])
    assert file.path.read_bytes() == before


def test_what_refuses_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = PriceFile(tmp_path)
    file.add(lambda there: [entry(1.0)])
    before = file.path.read_bytes()

    def refuse(there: list[PriceEntry]) -> list[PriceEntry]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        file.add(refuse)
    assert file.path.read_bytes() == before


def test_a_line_cut_off_by_a_kill_is_not_there_and_makes_way(tmp_path: Path) -> None:
    file = PriceFile(tmp_path)
    file.add(lambda there: [entry(1.0), entry(2.0)])
    whole = file.path.read_bytes()
    for length in range(len(whole) // 2 + 2, len(whole)):
        file.path.write_bytes(whole[:length])
        assert amounts(file) == [1.0]
    file.add(lambda there: [entry(3.0)])
    assert amounts(file) == [1.0, 3.0]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    file = PriceFile(tmp_path)
    file.add(lambda there: [entry(1.0), entry(2.0), entry(3.0)])
    lines = file.path.read_bytes().splitlines(keepends=True)
    for damaged in (b"{}\n", b"not JSON\n", lines[1].replace(b"2.0", b"-2.0"), b"\xff\xfe\n"):
        file.path.write_bytes(lines[0] + damaged + lines[2])
        with pytest.raises(StorageError, match=r"prices\.jsonl:2: no price entry: .*mend or remove"):
            file.entries()


def test_a_replacing_line_takes_the_place_of_the_row_that_begins_when_it_does() -> None:
    first, other, second = entry(1.0), entry(5.0, as_of="2026-04-01"), entry(2.0, replaces=True)
    assert list(standing([first, other, second], "own")) == [other.row, second.row]
    assert list(standing([first, other, second], "collected")) == []


def _add(home: str, amount: float) -> None:
    PriceFile(Path(home)).add(lambda there: [entry(amount + 1000 * len(there))])


def test_two_that_add_at_once_both_do(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        pool.starmap(_add, [(str(tmp_path), float(n)) for n in range(1, 21)])
    found = amounts(PriceFile(tmp_path))
    assert sorted((one or 0) // 1000 for one in found) == list(range(20))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_file_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    file = PriceFile(tmp_path)
    file.add(lambda there: [entry(1.0)])
    file.path.chmod(0)
    with pytest.raises(StorageError, match="cannot be read"):
        file.entries()


def test_a_folder_in_its_place_is_said(tmp_path: Path) -> None:
    file = PriceFile(tmp_path)
    file.path.mkdir()
    with pytest.raises(StorageError, match="cannot be read"):
        file.entries()
    with pytest.raises(StorageError, match="could not be written"):
        file.add(lambda there: [entry(1.0)])


def test_a_full_disk_leaves_what_was_there(disk: object, tmp_path: Path) -> None:
    folder = disk("size=64k")  # type: ignore[operator]
    file = PriceFile(folder)
    file.add(lambda there: [entry(1.0)])
    many = [entry(float(n + 1)) for n in range(1000)]
    with pytest.raises(StorageError, match="No space left"):
        file.add(lambda there: many)
    assert amounts(file) == [1.0]
