"""A name that several runs have, a file that is there already, a model that does not exist."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from in_process import Main, refused


def add_failed(home: Path, run_id: str) -> None:
    """A run of the name that the finished one has, which failed before its first step."""
    (finished,) = (path for path in (home / "runs").iterdir() if (path / "steps.jsonl").exists())
    folder = home / "runs" / run_id
    folder.mkdir()
    header = json.loads((finished / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**header, "id": run_id, "state": "failed"}))


def test_a_name_means_the_run_that_trained_and_that_is_said(main: Main, finished: Path) -> None:
    (trained,) = (path.name for path in (finished / "runs").iterdir())
    assert "note:" not in main("runs", "show", "tiny").err
    add_failed(finished, "00000001")
    shown = main("runs", "show", "tiny", "--json")
    assert json.loads(shown.out)["id"] == trained
    assert f"note: tiny is run {trained}, the only one so named that trained; not 00000001" in shown.err
    assert "note:" not in main("runs", "show", trained).err


def test_a_name_of_which_none_trained_is_refused_with_the_ids(main: Main, finished: Path) -> None:
    (trained,) = (path for path in (finished / "runs").iterdir())
    for run_id in ("00000001", "00000002"):
        add_failed(finished, run_id)
    shutil.rmtree(trained)
    (finished / "trueup.sqlite").unlink()
    refused(main("runs", "show", "tiny"), 2, "2 runs are named 'tiny'", "00000001", "00000002")


@pytest.mark.parametrize("options", [[], ["--format", "csv"]], ids=["zip", "table"])
def test_a_file_that_is_there_is_replaced_only_by_force(
    main: Main, finished: Path, tmp_path: Path, options: list[str]
) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    refused(main("runs", "export", "last", "-o", out, *options), 2, f"{out}: exists", "--force")
    assert out.read_text() == "mine"
    for force in ("--force", "-f"):
        assert main("runs", "export", "last", "-o", out, force, *options).code == 0
        assert out.read_bytes() != b"mine"


MEASURED = Path(__file__).parents[2] / "docs" / "measured" / "demo-cpu-2-cores"


def test_a_folder_that_compare_takes_can_be_imported(main: Main) -> None:
    documents = json.loads(main("runs", "import", MEASURED, "--json").out)
    assert len(documents) == len([*MEASURED.glob("*.zip")]) > 1
    assert not any(one["already_here"] for one in documents)
    assert main("runs", "import", MEASURED).err.count("is already here, identical") == len(documents)


def test_a_folder_is_imported_but_for_what_is_no_bundle(main: Main, tmp_path: Path) -> None:
    shutil.copy(MEASURED / "0.zip", tmp_path)
    (tmp_path / "other.zip").write_bytes(b"no zip")
    done = main("runs", "import", tmp_path)
    assert done.code == 2
    assert "imported" in done.err
    assert "other.zip" in done.err
    assert len(json.loads(main("runs", "list", "--json").out)) == 1


def test_a_folder_without_a_bundle_is_refused_with_the_way(
    main: Main, finished: Path, tmp_path: Path
) -> None:
    (folder,) = (finished / "runs").iterdir()
    refused(main("runs", "import", folder), 2, "is a run folder, not a bundle", "trueup runs export")
    (tmp_path / "empty").mkdir()
    refused(main("runs", "import", tmp_path / "empty"), 2, "holds no bundle (*.zip)")


def test_a_model_that_does_not_exist_leaves_no_run(
    main: Main, built: Path, recipe_file: Path, tmp_path: Path
) -> None:
    done = main("train", recipe_file, "--set", f"model.path={tmp_path}/nowhere")
    refused(done, 2, "nowhere: no such folder")
    assert not list((built / "runs").glob("*"))
