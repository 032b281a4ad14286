"""What a resume must not do: write elsewhere, run twice, change the model unseen, spoil what had finished."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from in_process import Main
from trueup.checkpoint.folder import checkpoints_of, newest_whole, read_manifest
from trueup.checkpoint.manifest import MANIFEST_FILE, sealed
from trueup.cli.resume import held
from trueup.schema import InputError

EVERY = ("--set", "checkpoint.every=2")


@pytest.fixture
def ended(main: Main, built: Path, recipe_file: Path) -> Path:
    """The folder of a run that ended after step 4 of 6: its last checkpoint is gone."""
    assert main("train", recipe_file, *EVERY).code == 0
    (run,) = (built / "runs").iterdir()
    shutil.rmtree(checkpoints_of(run) / "00000006")
    header = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**header, "state": "interrupted", "reason": "a test"}))
    return run


def newest(run: Path) -> Path:
    found = newest_whole(checkpoints_of(run), print)
    assert found is not None
    return found[0]


def resealed(folder: Path, **origin: Any) -> None:
    manifest = read_manifest(folder)
    changed = manifest.model_copy(update={"origin": manifest.origin.model_copy(update=origin)})
    (folder / MANIFEST_FILE).write_bytes(sealed(changed))


def test_a_run_is_named_by_a_plain_word(main: Main, ended: Path, recipe_file: Path, tmp_path: Path) -> None:
    resealed(newest(ended), run=str(tmp_path / "elsewhere"))
    done = main("train", recipe_file, *EVERY, "--resume", ended)
    assert not (tmp_path / "elsewhere").exists()
    assert "manifest.json" in done.err


def test_a_folder_of_any_name_is_a_checkpoint(
    main: Main, ended: Path, recipe_file: Path, tmp_path: Path
) -> None:
    shutil.copytree(newest(ended), tmp_path / "mine")
    done = main("train", recipe_file, *EVERY, "--resume", tmp_path / "mine")
    assert done.code == 0, done.err
    assert "goes on after step 4" in done.err


def test_one_process_at_a_time(main: Main, ended: Path, recipe_file: Path) -> None:
    with held(ended):
        done = main("train", recipe_file, *EVERY, "--resume", ended.name)
        assert done.code == 2
        assert "still running" in done.err
        with pytest.raises(InputError, match="still running"), held(ended):
            pass
    assert main("train", recipe_file, *EVERY, "--resume", ended.name).code == 0


@pytest.mark.parametrize(
    ("origin", "word"),
    [
        ({"model_digest": "0" * 64}, "another base model"),
        ({"data_digest": "0" * 64}, "other data"),
        ({"choices": "cuda"}, "trained on cuda"),
    ],
)
def test_what_decides_the_result_must_be_the_same(
    main: Main, ended: Path, recipe_file: Path, origin: dict[str, Any], word: str
) -> None:
    folder = newest(ended)
    if "choices" in origin:
        choices = read_manifest(folder).origin.choices
        origin = {"choices": {**choices, "device": {"value": "cuda", "reason": "a test"}}}
    resealed(folder, **origin)
    done = main("train", recipe_file, *EVERY, "--resume", ended.name)
    assert done.code == 2
    assert word in done.err


def test_a_precision_that_is_allowed_to_change_does(main: Main, ended: Path, recipe_file: Path) -> None:
    asked = ("--set", "precision.policy=bf16", "--allow-change", "precision.policy")
    done = main("train", recipe_file, *EVERY, *asked, "--resume", ended.name, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["choices"]["precision"]["value"] == "bf16"


def test_a_finished_run_stays_finished(main: Main, built: Path, recipe_file: Path, data_file: Path) -> None:
    assert main("train", recipe_file).code == 0
    before = json.loads(main("runs", "show", "last", "--json").out)
    data_file.write_text(data_file.read_text() * 2 + '{"prompt": "new", "completion": "record"}\n')
    more = ("--set", "train.max_steps=9", "--allow-change", "train.max_steps")
    done = main("train", recipe_file, *more, "--resume", "last")
    assert done.code == 2
    after = json.loads(main("runs", "show", "last", "--json").out)
    assert after["state"] == before["state"] == "finished"
    assert after["measurements"]["useful_tokens"] == before["measurements"]["useful_tokens"]
