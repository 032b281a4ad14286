"""Tables of runs for other programs: every figure with its unit and kind, whole or not at all."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from store_records import make_record, make_step, write_folder

from trueup.schema import Frozen, InputError, StorageError, unavailable
from trueup.store import Store, table_export
from trueup.store.table_export import ROWS, TableFormat, What, measurement_rows, step_rows

A, B = "aaaa1111", "bbbb2222"


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """Two runs: the second's steps hold a NaN, its reason a path, and no figure has an interval."""
    first, segments = make_record(A, "first")
    second, _ = make_record(B, "second, with a comma", started_at="2026-11-29T11:00:00+00:00")
    changes = {
        "steps": (make_step(1, loss=math.nan, labels=("compile", "first_shape"), shape=(3, 170)),),
        "measurements": {"energy_j": unavailable("J", f"cannot read {Path('/proc/self/power')}")},
    }
    home = tmp_path / "home"
    write_folder(home, first, segments)
    write_folder(home, second.model_copy(update=changes), segments)
    with Store.open(home) as opened:
        assert opened.sync() == []
        yield opened


def export_table(store: Store, ids: list[str], what: What, form: TableFormat, out: Path) -> int:
    rows: list[Frozen] = [one for run_id in ids for one in store.runs() if one.id == run_id]
    if what != "runs":
        of_record = measurement_rows if what == "measurements" else step_rows
        rows = [row for run_id in ids for row in of_record(store.record(run_id))]
    return table_export.export_table(rows, what, form, out, home=store.home)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def test_measurements_are_in_long_form(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "m.csv"
    assert export_table(store, [A, B], "measurements", "csv", out) == 4
    rows = read_csv(out)
    assert [(row["run"], row["measurement"]) for row in rows] == [
        (A, "useful_tokens"),
        (A, "usd_per_million_useful_tokens_steady"),
        (A, "energy_j"),
        (B, "energy_j"),
    ]
    assert rows[1] == {
        "run": A, "name": "first", "measurement": "usd_per_million_useful_tokens_steady", "value": "0.1",
        "unit": "USD/1e6 tokens", "kind": "derived", "method": "", "scope": "process", "n": "36",
        "ci_low": "0.09", "ci_high": "0.11", "ci_method": "within_run", "reason": "",
    }  # fmt: skip
    assert (rows[2]["value"], rows[2]["kind"], rows[2]["reason"]) == ("", "unavailable", "no power sensor")
    assert rows[3]["name"] == "second, with a comma"


def test_the_three_formats_hold_the_same(store: Store, tmp_path: Path) -> None:
    for what in ROWS:
        for form in ("csv", "json", "parquet"):
            export_table(store, [B, A], what, form, tmp_path / form)
        as_json = json.loads((tmp_path / "json").read_text())
        as_parquet = read_parquet(tmp_path / "parquet")
        as_csv = read_csv(tmp_path / "csv")
        assert len(as_json) == len(as_parquet) == len(as_csv) > 0
        for one, two, three in zip(as_json, as_parquet, as_csv, strict=True):
            assert list(one) == list(two) == list(three) == list(ROWS[what].model_fields)
            for key, value in two.items():
                if isinstance(value, float) and not math.isfinite(value):
                    assert float(one[key]) == value or math.isnan(float(one[key]))
                else:
                    assert one[key] == value
                assert three[key] == ("" if value is None else str(value))


def test_steps_keep_every_digit_and_what_is_not_a_number(store: Store, tmp_path: Path) -> None:
    export_table(store, [B, A], "steps", "json", tmp_path / "s.json")
    first, second, third = json.loads((tmp_path / "s.json").read_text())
    assert (first["loss"], first["labels"]) == ("NaN", "compile first_shape")
    assert (first["shape_rows"], first["shape_length"]) == (3, 170)
    assert second["step_s"] == 0.1 / 3
    assert third["loss"] == "Infinity"
    export_table(store, [B], "steps", "csv", tmp_path / "s.csv")
    assert math.isnan(float(read_csv(tmp_path / "s.csv")[0]["loss"]))


@pytest.mark.parametrize("what", ROWS)
def test_columns_keep_their_types_without_rows(store: Store, tmp_path: Path, what: What) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    assert export_table(store, [], what, "parquet", tmp_path / "none") == 0
    export_table(store, [A, B], what, "parquet", tmp_path / "some")
    schema = pq.read_schema(tmp_path / "none")
    assert schema == pq.read_schema(tmp_path / "some")
    assert pa.null() not in schema.types
    assert export_table(store, [], what, "csv", tmp_path / "none.csv") == 0
    assert (tmp_path / "none.csv").read_text().strip().split(",") == schema.names


def test_no_path_of_this_machine_leaves_in_a_table(store: Store, tmp_path: Path) -> None:
    export_table(store, [A, B], "measurements", "json", tmp_path / "m.json")
    text = (tmp_path / "m.json").read_text()
    assert "cannot read .../power" in text
    assert "/proc" not in text


def test_a_full_disk_leaves_the_old_file(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out" / "m.csv"
    out.parent.mkdir()
    out.write_text("old")

    def full(path: Path, *_: Any) -> None:
        path.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(table_export, "_write_csv", full)
    with pytest.raises(StorageError, match="No space left"):
        export_table(store, [A], "runs", "csv", out)
    assert [path.name for path in out.parent.iterdir()] == ["m.csv"]
    assert out.read_text() == "old"


def test_a_folder_or_a_place_that_is_not_there_is_refused(store: Store, tmp_path: Path) -> None:
    for out in (tmp_path, tmp_path / "nowhere" / "m.csv"):
        with pytest.raises(InputError, match="cannot be written"):
            export_table(store, [A], "runs", "csv", out)
