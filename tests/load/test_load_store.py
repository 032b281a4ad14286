"""Loads in the database and in bundles, beside runs recorded before there were any."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_loads import RUN_ID, loaded, settings
from scripted_server import ScriptedServer, quick

from trueup.schema import InputError, RunHeader
from trueup.store import Store, migrate
from trueup.store.bundle import export_run, import_run
from trueup.store.bundle_format import REQUESTS, pack, read_entries, unpack
from trueup.store.database import open_for_writing, writing
from trueup.store.run_folder import RunParts, read_run_parts


@pytest.fixture
def loaded_home(home: Path) -> Path:
    loaded(ScriptedServer(quick), settings(), folder=home / "runs" / RUN_ID)
    return home


def test_a_load_comes_back_from_the_database_with_its_kind_and_its_requests(loaded_home: Path) -> None:
    with Store.open(loaded_home) as store:
        store.sync()
        (summary,) = store.runs()
        record = store.record(RUN_ID)
    assert (summary.kind, summary.output_tokens) == ("load", 50)
    assert record.kind == "load"
    assert len(record.requests) == 10


def test_a_load_whose_folder_is_gone_keeps_its_figures(loaded_home: Path) -> None:
    with Store.open(loaded_home) as store:
        store.sync()
        (loaded_home / "runs" / RUN_ID).rename(loaded_home / "elsewhere")
        record = store.record(RUN_ID)
    assert record.requests == ()
    assert record.measurements["ttft_p50_s"].value == pytest.approx(1.0)


def test_runs_recorded_before_there_were_loads_are_trainings(tmp_path: Path) -> None:
    database = open_for_writing(tmp_path / "trueup.sqlite", 1.0)
    migrate.migrate(database, "0003")
    with writing(database):
        database.execute(
            "INSERT INTO runs (id, name, state, started_at, recipe_digest, signature) "
            "VALUES ('a', 'a', 'finished', '2026-01-01', 'd', 's')"
        )
    migrate.migrate(database)
    assert [kind for (kind,) in database.execute("SELECT kind FROM runs")] == ["train"]


def test_a_header_written_before_there_were_loads_is_a_trainings() -> None:
    fields = {
        "id": "a", "name": "a", "state": "finished", "trueup_version": "0", "recipe": {},
        "recipe_digest": "d", "started_at": "2026-01-01",
    }  # fmt: skip
    assert RunHeader.model_validate(fields).kind == "train"


def test_a_bundle_of_a_load_holds_its_requests_and_comes_back_whole(
    loaded_home: Path, tmp_path: Path
) -> None:
    zipped = export_run(loaded_home, RUN_ID, tmp_path / "load.zip")
    assert REQUESTS in read_entries(zipped)
    other = tmp_path / "other"
    other.mkdir()
    import_run(other, zipped)
    here, there = (read_run_parts(home / "runs" / RUN_ID).record for home in (loaded_home, other))
    assert there.requests == here.requests
    assert there.measurements == here.measurements


def test_a_bundle_whose_requests_hold_no_times_is_refused(loaded_home: Path) -> None:
    parts = read_run_parts(loaded_home / "runs" / RUN_ID)
    broken = parts.record.requests[0].model_copy(update={"gaps_s": (float("inf"),)})
    record = parts.record.model_copy(update={"requests": (broken,)})
    with pytest.raises(InputError, match="not finite"):
        unpack(pack(RunParts(record, parts.segments)))


def test_a_training_has_no_requests_in_its_bundle(loaded_home: Path) -> None:
    parts = read_run_parts(loaded_home / "runs" / RUN_ID)
    header = parts.record.header.model_copy(update={"kind": "train"})
    trained = parts.record.model_copy(update={"header": header, "requests": ()})
    assert REQUESTS not in pack(RunParts(trained, parts.segments))
