"""What `trueup train --resume` takes, refuses and says."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from survivors import Done, Runs, assert_whole, server, undisturbed

from trueup.checkpoint.folder import steps

SHORT = "train.max_steps=6"
PATIENCE_S = 120


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended in its sixth step, saved at the third and fourth."""
    folder = tmp_path_factory.mktemp("ended")
    runs = Runs(folder, SHORT)
    assert runs.train(trouble={"raise_in": 6}).code == 1
    assert steps(runs.checkpoints()) == [3, 4]
    return folder


@pytest.fixture
def ended(once: Path, tmp_path: Path) -> Runs:
    """That run, in a home of this test's own."""
    shutil.copytree(once, tmp_path, dirs_exist_ok=True)
    return Runs(tmp_path, SHORT, home=tmp_path / "home")


def refused(done: Done, *parts: str, code: int = 2) -> None:
    assert (done.code, done.out) == (code, "")
    for part in parts:
        assert part in done.err, done.err


def goes_on(done: Done, runs: Runs, after: int) -> None:
    assert done.code == 0, done.err
    assert f"run {runs.only.name} (tiny) goes on after step {after}" in done.err


# --- auto ---------------------------------------------------------------------------------------------------


def test_auto_where_there_is_none(tmp_path: Path) -> None:
    """It starts anew; also where the only run of the recipe was killed before its first save."""
    runs = Runs(tmp_path, SHORT)
    for _ in range(2):
        done = runs.train("--resume", "auto", trouble={"raise_in": 2})
        assert done.code == 1
        assert "there is no run of this recipe to go on with: a new one is started" in done.err
    assert len(runs.folders) == 2


def test_auto_finds_a_run_from_before_the_recipe_had_all_of_its_keys(ended: Runs) -> None:
    file = ended.only / "run.json"
    header = json.loads(file.read_text())
    del header["recipe"]["budget"]
    header["recipe_digest"] = "that of the recipe without it"
    file.write_text(json.dumps(header))
    goes_on(ended.train("--resume", "auto"), ended, 4)


@pytest.mark.parametrize("header", [None, "", "[1, 2]", '{"id": '])
def test_a_run_without_a_readable_header_is_known_by_its_checkpoint(ended: Runs, header: str | None) -> None:
    """The record that was saved takes its place, and the damaged file stays beside."""
    file = ended.only / "run.json"
    file.unlink()
    if header is not None:
        file.write_text(header)
    done = ended.train("--resume", "auto")
    goes_on(done, ended, 4)
    assert ended.record().header.state == "finished"
    assert (ended.only / "run.json.damaged").exists() == (header is not None)
    assert [one.step for one in ended.record().steps][:4] == [1, 2, 3, 4]


def test_a_header_of_a_newer_trueup_is_not_damage(ended: Runs) -> None:
    file = ended.only / "run.json"
    newer = json.dumps({**json.loads(file.read_text()), "format": 99})
    file.write_text(newer)
    refused(ended.train("--resume", "auto"), "update trueup")
    assert file.read_text() == newer


def test_auto_where_it_has_finished(tmp_path: Path) -> None:
    runs = Runs(tmp_path, SHORT)
    assert runs.train().code == 0
    before = sorted((path, path.stat().st_mtime_ns) for path in runs.only.rglob("*"))
    done = runs.train("--resume", "auto")
    assert (done.code, done.out) == (0, "")
    assert f"run {runs.only.name} of this recipe has finished; to train anew leave out --resume" in done.err
    told = runs.train("--resume", "auto", "--json").document
    assert (told["id"], told["state"]) == (runs.only.name, "finished")
    assert sorted((path, path.stat().st_mtime_ns) for path in runs.only.rglob("*")) == before


def test_auto_takes_runs_of_this_recipe_alone(ended: Runs) -> None:
    done = ended.train("--resume", "auto", "--set", "optimizer.lr=0.5", trouble={"raise_in": 1})
    assert "there is no run of this recipe to go on with" in done.err
    assert len(ended.folders) == 2


def test_a_run_that_still_runs(tmp_path: Path) -> None:
    runs = Runs(tmp_path, "train.max_steps=100000", "train.epochs=100000", "evaluate.every=null")
    with server().running("train", server().recipe, *runs.overrides, home=runs.home):
        deadline = time.monotonic() + PATIENCE_S
        while not list(runs.home.glob("runs/*/checkpoints/*/manifest.json")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        name = runs.only.name
        refused(runs.train("--resume", "auto"), f"run {name} of this recipe is still running", "trueup ctl")
        refused(runs.train("--resume", name), f"run {name} is still running", f"trueup ctl {name} stop")
    assert [run["state"] for run in runs.document("runs", "list")] == ["interrupted"]
    done = runs.train("--resume", name, "--set", "train.max_steps=1", "--allow-change", "train.max_steps")
    assert done.code == 0, done.err


# --- a run --------------------------------------------------------------------------------------------------


def test_a_run_by_name_prefix_last_and_folder(ended: Runs) -> None:
    """Which is meant is told by the refusal of another recipe, which comes before anything is done."""
    run, changed = ended.only, ["--set", "optimizer.lr=0.5"]
    for way in ("tiny", run.name[:5], "last", run.name, run, ended.checkpoints() / "00000003"):
        refused(ended.train("--resume", way, *changed), f"run {run.name} was trained by another recipe")
    goes_on(ended.train("--resume", "tiny"), ended, 4)
    assert ended.told() == undisturbed(SHORT)


def test_a_run_that_is_not_there(ended: Runs) -> None:
    refused(ended.train("--resume", "nobody"), "there is no run 'nobody'")
    refused(ended.train("--resume", ended.home / "nowhere"), "nowhere")
    refused(ended.train("--resume", ended.home / "models"), "models")
    refused(ended.train("--resume", ended.checkpoints() / "00000002"), "00000002")
    empty = ended.home / "runs" / "00000000"
    (empty / "checkpoints").mkdir(parents=True)
    refused(ended.train("--resume", empty), "run 00000000 has no whole checkpoint; start it anew")
    assert ended.train("--resume", "").code == 2


@pytest.mark.parametrize("asked", ["", ".", "/", "x" * 5000, "one\ntwo", "a\0b", "~nobody-here/run"])
def test_what_names_no_run_is_refused(ended: Runs, asked: str) -> None:
    done = ended.command("train", ended.server.recipe, "--resume", asked)
    assert (done.code, done.out) == (2, "")


def test_a_run_that_the_database_does_not_know_is_found_by_its_id(ended: Runs) -> None:
    for file in ended.home.glob("trueup.sqlite*"):
        file.unlink()
    goes_on(ended.train("--resume", ended.only.name), ended, 4)


def test_a_run_without_a_save(tmp_path: Path) -> None:
    runs = Runs(tmp_path, SHORT)
    assert runs.train(trouble={"raise_in": 2}).code == 1
    refused(runs.train("--resume", "last"), f"run {runs.only.name} has no whole checkpoint; start it anew")


def test_a_finished_run_that_went_back_and_failed_is_finished_no_more(tmp_path: Path) -> None:
    """Its last weights are left aside by then: `--resume auto` must find it."""
    runs = Runs(tmp_path, "checkpoint.keep=9")
    assert runs.train().code == 0
    done = runs.train("--resume", runs.checkpoints() / "00000006", trouble={"raise_in": 7})
    header = runs.record().header
    assert (done.code, header.state) == (1, "failed")
    assert "finished" not in (header.reason or "")


def test_a_finished_run_goes_on_when_more_steps_are_asked_for(tmp_path: Path) -> None:
    runs = Runs(tmp_path, SHORT)
    assert runs.train().code == 0
    done = runs.train("--resume", "last")
    assert done.code == 0, done.err
    assert runs.told() == undisturbed(SHORT)
    more = ["--set", "train.max_steps=8", "--allow-change", "train.max_steps"]
    done = runs.train("--resume", "last", *more)
    goes_on(done, runs, 6)
    assert sorted(runs.told().steps) == list(range(1, 9))
    assert_whole(runs)


# --- a checkpoint -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", ["this", "another"])
def test_a_checkpoint_from_another_home(ended: Runs, tmp_path: Path, machine: str) -> None:
    """The run keeps its id and its record, wherever its process was."""
    copy = tmp_path / "carried" / "00000004"
    shutil.copytree(ended.checkpoints() / "00000004", copy)
    there = Runs(tmp_path / "there", SHORT)
    trouble = {"hostname": "another-machine"} if machine == "another" else {}
    done = there.train("--resume", copy, trouble=trouble)
    assert there.only.name == ended.only.name
    goes_on(done, there, 4)
    told, expected = there.told(), undisturbed(SHORT)
    assert (told.steps, told.evaluations, told.last, told.best) == (
        expected.steps,
        expected.evaluations,
        expected.last,
        expected.best,
    )
    assert_whole(there)
    assert there.record().header.started_at == ended.record().header.started_at
    (resumed,) = [event for event in there.record().events if event.kind == "resume"]
    assert "it was interrupted before" in resumed.message


def test_a_run_that_alternates_between_two_homes(tmp_path: Path) -> None:
    """The first finds the steps of the second in its record when the run comes back."""
    first, second = Runs(tmp_path / "first"), Runs(tmp_path / "second")
    assert first.train(trouble={"raise_in": 6}).code == 1
    done = second.train("--resume", first.checkpoints() / "00000004", trouble={"interrupt_after": 8})
    assert done.code == 1
    goes_on(first.train("--resume", second.checkpoints() / "00000008"), first, 8)
    told, expected = first.told(), undisturbed()
    assert (told.steps, told.evaluations, told.last) == (
        expected.steps,
        expected.evaluations,
        expected.last,
    )
    assert [step.step for step in first.record().steps] == list(range(1, 13))
    assert_whole(first)


def test_an_older_checkpoint_leaves_the_newer_aside(ended: Runs) -> None:
    root = ended.checkpoints()
    done = ended.train("--resume", root / "00000003", trouble={"raise_in": 4})
    assert "note: the checkpoint of step 4 is left aside" in done.err
    assert sorted(path.name for path in root.iterdir()) == ["00000003", "00000004.left"]
    goes_on(ended.train("--resume", "auto"), ended, 3)
    assert ended.told() == undisturbed(SHORT)
    assert_whole(ended)


def test_a_damaged_newest_checkpoint(ended: Runs) -> None:
    """Said with the file's name, and passed over, whichever file it is."""
    root = ended.checkpoints()
    for file in ("manifest.json", "random.safetensors", "record/steps.jsonl.gz", "weights.safetensors"):
        damaged = root / "00000004" / file
        raw = damaged.read_bytes()
        damaged.write_bytes(raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 1]) + raw[len(raw) // 2 + 1 :])
        refused(ended.train("--resume", root / "00000004"), f"{damaged} is damaged", code=1)
        done = ended.train("--resume", "last", "--set", "optimizer.lr=0.5")
        assert f"checkpoint 00000004: its file {file} is damaged" in done.err
        assert "going back to the one before it, of step 3" in done.err
        if file != "weights.safetensors":
            damaged.write_bytes(raw)
    done = ended.train("--resume", "auto")
    assert "note: the checkpoint of step 4 is left aside" in done.err
    goes_on(done, ended, 3)
    assert ended.told() == undisturbed(SHORT)
    assert_whole(ended)


# --- what has changed ---------------------------------------------------------------------------------------


def test_a_changed_recipe_is_refused_and_permitted(ended: Runs) -> None:
    changed = ["--set", "optimizer.lr=0.01", "--set", "schedule.warmup_steps=2", "--set", "tune.dropout=0"]
    allowed = ["--allow-change", "optimizer", "--allow-change", "schedule.warmup_steps"]
    before = sorted(path for path in ended.home.rglob("*"))
    refused(
        ended.train("--resume", "last", *changed),
        f"run {ended.only.name} was trained by another recipe",
        "optimizer.lr: 0.0005 then, 0.01 now",
        "schedule.warmup_steps: ",
        "tune.dropout: 0.2 then, 0.0 now",
        "--allow-change optimizer.lr --allow-change schedule.warmup_steps --allow-change tune.dropout",
    )
    refused(
        ended.train("--resume", "last", *changed, *allowed), "tune.dropout", "--allow-change tune.dropout"
    )
    assert sorted(path for path in ended.home.rglob("*") if "sqlite" not in path.name) == [
        path for path in before if "sqlite" not in path.name
    ]
    done = ended.train("--resume", "last", *changed, *allowed, "--allow-change", "tune.dropout")
    goes_on(done, ended, 4)
    assert "note: optimizer.lr is now 0.01; it was 0.0005, as allowed" in done.err
    assert ended.record().header.recipe["optimizer"]["lr"] == 0.01
    assert ended.record().steps[-2].lr > 0.0005


def test_a_run_may_evaluate_on_more_than_before(ended: Runs) -> None:
    """Its shape plan was made for what was evaluated on then; what is trained stays as planned."""
    before = ended.record().header.shape_plan
    more = ("--set", "evaluate.max_tokens=100000", "--allow-change", "evaluate.max_tokens")
    goes_on(ended.train("--resume", "last", *more), ended, 4)
    record = ended.record()
    assert record.evaluations[-1].tokens > record.evaluations[0].tokens
    after = record.header.shape_plan
    assert before is not None
    assert after is not None
    assert after.data != before.data
    assert (after.full, after.training) == (before.full, before.training)


def test_auto_after_a_change_that_was_allowed(ended: Runs) -> None:
    """It ended again before its next save: the checkpoint is of the old recipe, the run of the new one."""
    changed = ("--set", "optimizer.lr=0.01")
    allowed = ("--resume", "last", "--allow-change", "optimizer.lr")
    assert ended.train(*changed, *allowed, trouble={"raise_in": 5}).code == 1
    goes_on(ended.train("--resume", "auto", *changed), ended, 4)
    assert len(ended.folders) == 1


def test_what_does_not_change_the_result_may_change(ended: Runs) -> None:
    changed = [
        "name=other",
        "price.usd_per_hour=7.2",
        "telemetry.hz=2",
        "checkpoint.every=1",
        "guard.presets=[leak]",
    ]
    done = ended.train("--resume", "last", *(part for one in changed for part in ("--set", one)))
    goes_on(done, ended, 4)
    assert ended.told() == undisturbed(SHORT)
    header = ended.record().header
    assert header.price is not None
    assert (header.name, header.price.usd_per_hour) == ("tiny", 7.2)


def test_other_data_is_refused(ended: Runs, tmp_path: Path) -> None:
    data = server().folder / "records.jsonl"
    text = data.read_text()
    try:
        data.write_text(text.replace("What is 7?", "Who is 7?"))
        done = ended.train("--resume", "last")
    finally:
        data.write_text(text)
    assert done.code == 2
    assert "the run was trained on other data" in done.err
    goes_on(ended.train("--resume", "last"), ended, 4)
    assert ended.told() == undisturbed(SHORT)


def test_another_number_of_processes_is_refused(ended: Runs) -> None:
    manifest = ended.checkpoints() / "00000004"
    done = ended.train("--resume", manifest, trouble={"ranks_saved": 2})
    assert done.code == 2
    assert "the checkpoint is of 2 processes, this run has 1; resume with as many" in done.err


def test_options_that_do_not_go_together(ended: Runs) -> None:
    refused(ended.train("--resume", "last", "--name", "new"), "a run that is resumed keeps its name")
    refused(ended.train("--allow-change", "optimizer.lr"), "--allow-change is for --resume")


def test_a_mistyped_key_is_refused(ended: Runs) -> None:
    """It would permit nothing, and go unnoticed."""
    refused(ended.train("--resume", "last", "--allow-change", "optimiser.lr"), "optimiser.lr")


def test_interrupted_while_it_takes_up_the_run(ended: Runs) -> None:
    """A resumed run that ends before it trains leaves the run as it was: to be resumed."""
    done = ended.train("--resume", "last", trouble={"interrupt_in_load": True})
    assert done.code == 1
    record = ended.record()
    assert (record.header.state, len(record.steps)) == ("interrupted", 5)
    goes_on(ended.train("--resume", "auto"), ended, 4)
    assert ended.told() == undisturbed(SHORT)
    assert_whole(ended)
