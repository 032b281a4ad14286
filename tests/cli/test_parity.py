"""`trueup parity`: a run, a checkpoint or a model on either side, a file between two machines, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from in_process import Done, Main, refused
from trueup.cli.sides import parse_side
from trueup.schema import InputError

FAST = ("--seed", "1", "--tokens", "40", "--no-gradient")


def document(done: Done, code: int = 0) -> Any:
    assert done.code == code, done
    return json.loads(done.out)


def test_a_model_twice_is_identical(main: Main, built: Path) -> None:
    found = document(main("parity", "tiny", "tiny", "--seed", "1", "--tokens", "40", "--json"))
    assert found["identical"] is True
    assert (found["verdict"], found["over"], found["first_over"]) == ("within", 0, None)
    assert found["same_weights"] is True
    assert found["not_compared"] == []
    assert all(one["max_abs"] == one["relative"] == 0 for one in found["compared"])
    assert {one["kind"] for one in found["compared"]} >= {"module", "softmax", "logits", "loss", "gradient"}
    assert (found["batch"]["rows"], found["batch"]["tokens"]) == (2, 39)
    assert found["batch"]["segments"] >= 6
    shown = main("parity", "tiny", "tiny", *FAST)
    assert shown.code == 0
    assert "identical: all" in shown.out


def test_two_precisions_are_within_the_default_and_over_a_millionth(main: Main, built: Path) -> None:
    sides = ("tiny:precision=fp32,threads=1", "tiny:precision=autocast,attention=sdpa,threads=1")
    found = document(main("parity", *sides, "--seed", "1", "--json"))
    assert (found["verdict"], found["tolerance"]) == ("within", 0.02)
    assert [found[side]["precision"] for side in "ab"] == ["fp32", "autocast"]
    assert [found[side]["attention"] for side in "ab"] == ["own", "sdpa"]
    assert {one["reason"] for one in found["not_compared"]} == {"only B has it"}
    errors = [one["relative"] for one in found["compared"]]
    assert errors == sorted(errors, reverse=True)
    worst = next(one for one in found["compared"] if one["kind"] == "module")["worst"]
    assert isinstance(worst["text"], str)
    over = main("parity", *sides, *FAST, "--tolerance", "1e-6", "--rows", "3")
    assert over.code == 1
    assert "first over it in the order of execution, so look there: model.layers.0." in over.out
    assert "softmax of B: derived in fp32" in over.out


def test_a_file_carries_one_side_to_another_machine(main: Main, built: Path, tmp_path: Path) -> None:
    file = tmp_path / "here.safetensors"
    saved = document(main("parity", "tiny:attention=sdpa", "--save", file, *FAST, "--json"))
    assert saved["saved"] == str(file)
    assert saved["bytes"] == file.stat().st_size
    same = document(main("parity", file, "tiny:attention=sdpa", "--no-gradient", "--json"))
    assert same["identical"] is True
    assert same["batch"] == saved["batch"]
    other = tmp_path / "there.safetensors"
    main("parity", "tiny:attention=eager", "--save", other, *FAST)
    both = document(main("parity", file, other, "--json"))
    assert both["verdict"] == "within"
    assert both["b"]["attention"] == "eager"
    refused(main("parity", file, "tiny", "--seed", "2", "--tokens", "40"), 2, "different batches: tokens")
    refused(
        main("parity", file, "tiny:attention=sdpa", "--tokens", "30"), 2, "different batches: tokens, pos"
    )
    refused(main("parity", "tiny", "--save", file), 2, "exists")
    refused(main("parity", file, "tiny", "--save", tmp_path / "c"), 2, "saved side already")
    refused(main("parity", f"{file}:precision=fp32", "tiny"), 2, "leave out the keys")
    refused(main("parity", file, other, "--seed", "1"), 2, "both sides are files")
    content = file.read_bytes()
    file.write_bytes(content[:-5] + bytes([content[-5] ^ 4]) + content[-4:])
    refused(main("parity", file, "tiny"), 1, "damaged")


def test_a_run_beside_its_own_checkpoint_and_its_base(main: Main, finished: Path) -> None:
    (run,) = (finished / "runs").iterdir()
    checkpoints = sorted((run / "checkpoints").iterdir())
    last = checkpoints[-1]
    found = document(main("parity", f"{run.name}@last", last, "--json"))
    assert found["identical"] is True
    assert found["a"]["weights"] == f"last of run {run.name}, step {int(last.name)}"
    assert found["b"]["weights"] == f"checkpoint of run {run.name}, step {int(last.name)}"
    assert found["batch"]["source"].startswith("validation split of data ")
    gradients = [one["name"] for one in found["compared"] if one["kind"] == "gradient"]
    assert gradients
    assert all(".lora_" in name for name in gradients)
    sides = (f"last@{last.name}:precision=fp32", "tiny:precision=fp32")
    base = main("parity", *sides, "--no-gradient", "--tolerance", "0", "--json")
    trained = document(base, 1)
    assert trained["same_weights"] is False
    assert trained["first_over"] == "model.layers.0.self_attn.q_proj"
    assert "the run of that name is" in base.err  # this run is called tiny too
    refused(main("parity", f"{run.name}@999", "tiny"), 2, "no checkpoint of step 999")
    refused(main("parity", f"{run.name}@newest", "tiny"), 2, "best, last or the step")
    (finished / "elsewhere").mkdir()
    shutil.move(run / "checkpoints", finished / "elsewhere")
    refused(main("parity", run.name, "tiny"), 2, "keeps no weights here")


def test_the_batch_of_another_recipe(main: Main, built: Path, recipe_file: Path) -> None:
    options = ("--data", recipe_file, "--tokens", "300", "--no-gradient", "--json")
    found = document(main("parity", "tiny", "tiny", *options))
    assert found["batch"]["source"].startswith("validation split of data ")
    assert 0 < found["batch"]["tokens"] <= 300
    assert found["batch"]["segments"] > 2
    refused(main("parity", "tiny", "tiny", "--data", recipe_file, "--seed", "1"), 2, "give one of them")


def test_what_is_no_side_is_refused(main: Main, built: Path, tmp_path: Path) -> None:
    refused(main("parity", "tiny"), 2, "--save FILE")
    refused(main("parity", "tiny", "tinny"), 2, "tinny: ", "no built-in model either")
    refused(main("parity", "tiny", "tiny:device=neuron"), 2, "neuron")
    refused(main("parity", "tiny", "tiny", "--tokens", "5"), 2, "at least 14")
    refused(main("parity", "tiny", "tiny", "--tolerance", "nan"), 2, "--tolerance")
    (tmp_path / "notes.txt").write_text("no tensors")
    refused(main("parity", tmp_path / "notes.txt", "tiny"), 1, "cannot be read")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tiny:precison=fp32", "did you mean precision"),
        ("tiny:precision=fp3", r"did you mean fp32"),
        ("tiny:device=tpu", "give auto, cpu, cuda, neuron"),
        ("tiny:threads=0", "1 or more"),
        ("tiny:threads=many", "1 or more"),
        ("tiny:device=cpu,device=cpu", "given twice"),
        ("", "is empty"),
    ],
)
def test_keys_that_do_not_exist_are_refused(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        parse_side(text)


def test_keys_come_after_the_last_colon_that_has_any() -> None:
    assert parse_side("C:/models/tiny").subject == "C:/models/tiny"
    side = parse_side("C:/models/tiny:device=cpu,threads=2")
    assert (side.subject, side.options, side.threads) == ("C:/models/tiny", {"device": "cpu"}, 2)
    assert parse_side("last@best:attention=own").subject == "last@best"
