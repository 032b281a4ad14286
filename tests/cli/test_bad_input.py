"""Bad input gets a sentence that says what happened, where, and what to do; and nothing is half-written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from in_process import Main, files_of, refused

ROOMY = ("data.max_length=200", "shapes.tokens_per_microbatch=200", "train.tokens_per_step=200")


def overrides(*values: str) -> list[str]:
    return [part for value in values for part in ("--set", value)]


# --- data -------------------------------------------------------------------------------------------------


def write_binary(path: Path) -> None:
    path.write_bytes(b"\x93\xff\x00\n" * 50)


@pytest.mark.parametrize(
    ("name", "make", "why"),
    [
        ("absent.jsonl", lambda path: None, "no such file"),
        ("dangling.jsonl", lambda path: path.symlink_to("nowhere"), "no such file"),
        ("folder.jsonl", lambda path: path.mkdir(), "holds no data files"),
        ("pipe.jsonl", lambda path: os.mkfifo(path), "is a pipe"),
        ("binary.jsonl", write_binary, "not UTF-8"),
        ("empty.jsonl", lambda path: path.touch(), "is empty; expected one JSON record per line"),
        ("blank.jsonl", lambda path: path.write_text("\n \n"), "holds no records"),
        ("table.csv", lambda path: path.write_text("a,b\n"), "holds no records"),
        ("n" * 300 + ".jsonl", lambda path: None, "cannot be read: File name too long"),
        (
            "unknown.jsonl",
            lambda path: path.write_text('{"q": "?", "a": "!"}\n'),
            "Map other names with data.columns",
        ),
    ],
)
def test_data_that_cannot_be_read(
    main: Main,
    built: Path,
    recipe_file: Path,
    tmp_path: Path,
    name: str,
    make: Callable[[Path], Any],
    why: str,
) -> None:
    make(tmp_path / name)
    before = files_of(built)
    done = main("prepare", recipe_file, "--set", f"data.source={tmp_path / name}")
    refused(done, 2, str(tmp_path / name), why)
    assert files_of(built) == before


def test_a_line_cut_in_half_is_counted_and_shown_and_the_rest_is_used(
    main: Main, built: Path, recipe_file: Path, data_file: Path
) -> None:
    with data_file.open("a") as file:
        file.write('{"prompt": "What is 99?", "comple')
    done = main("prepare", recipe_file, "--json")
    report = json.loads(done.out)
    assert (done.code, report["records"], report["dropped"]) == (0, 60, {"unreadable_line": 1})
    (shown,) = report["first"]["unreadable_line"]
    assert shown["where"] == "records.jsonl:61"
    assert '"comple' in shown["what"]
    assert "unreadable line 1" in main("prepare", recipe_file).out


def test_strict_refuses_a_line_cut_in_half(
    main: Main, built: Path, recipe_file: Path, data_file: Path
) -> None:
    data_file.write_text(data_file.read_text()[:-12])
    before = files_of(built)
    refused(main("prepare", recipe_file, "--strict"), 2, f"{data_file}:60:", "Mend the line")
    assert files_of(built) == before
    assert main("prepare", recipe_file).code == 0


def test_records_that_are_all_over_long(main: Main, built: Path, recipe_file: Path, data_file: Path) -> None:
    done = main("prepare", recipe_file, "--set", "data.max_length=8")
    refused(done, 2, str(data_file), "60 too_long", "data.max_length is 8: raise it", "data.overlong")
    assert not list((built / "data").iterdir())


def test_empty_answers_are_dropped_and_counted(
    main: Main, built: Path, recipe_file: Path, data_file: Path
) -> None:
    rows = [json.loads(line) for line in data_file.read_text().splitlines()]
    for row, nothing in zip(rows, ("", " ", "\n\t"), strict=False):
        row["completion"] = nothing
    data_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = json.loads(main("prepare", recipe_file, "--json").out)
    assert (report["records"], report["dropped"]) == (57, {"empty_answer": 3})
    assert [row["where"] for row in report["first"]["empty_answer"]] == [
        f"records.jsonl:{line}" for line in (1, 2, 3)
    ]
    data_file.write_text("".join(json.dumps(row) + "\n" for row in rows[:3]))
    refused(main("prepare", recipe_file), 2, "3 empty_answer", "records.jsonl:1", "Give the records answers")


def test_data_that_changed_since_it_was_prepared_is_prepared_again(
    main: Main, built: Path, recipe_file: Path, data_file: Path
) -> None:
    before = json.loads(main("prepare", recipe_file, "--json").out)
    assert json.loads(main("prepare", recipe_file, "--json").out)["cache_hit"]
    with data_file.open("a") as file:
        file.write('{"prompt": "What is 99?", "completion": "99"}\n')
    trained = json.loads(main("train", recipe_file, "--set", "train.max_steps=1", "--json").out)
    assert trained["dataset"]["records"] == 61
    assert trained["dataset"]["digest"] != before["dataset"]
    assert {path.name for path in (built / "data").iterdir()} == {
        before["dataset"],
        trained["dataset"]["digest"],
    }


# --- recipes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "no such recipe file"),
        (lambda path: path.mkdir(), "is a folder"),
        (write_binary, "not UTF-8"),
        (lambda path: path.touch(), "is empty"),
        (lambda path: path.symlink_to("/dev/zero"), "this is no recipe file"),
    ],
)
def test_a_recipe_that_cannot_be_read(
    main: Main, home: Path, tmp_path: Path, make: Callable[[Path], Any], why: str
) -> None:
    path = tmp_path / "odd.yaml"
    make(path)
    refused(main("train", path), 2, str(path), why)
    assert not files_of(home)


@pytest.mark.parametrize("price", ["0", "-1", ".nan", ".inf"])
def test_a_price_that_is_none(
    main: Main, finished: Path, recipe_file: Path, tmp_path: Path, price: str
) -> None:
    runs = files_of(finished / "runs")
    refused(
        main("train", recipe_file, "--set", f"price.usd_per_hour={price}"), 2, "--set", "price.usd_per_hour"
    )
    recipe_file.write_text(recipe_file.read_text().replace("usd_per_hour: 3.6", f"usd_per_hour: {price}"))
    for verb in (["train"], ["prepare"], ["recipe", "check"]):
        refused(main(*verb, recipe_file), 2, f"{recipe_file}:8", "price.usd_per_hour", "(got ")
    given = f"--usd-per-hour={price.lstrip('.') if 'n' in price else price}"
    refused(main("bill", "last", given), 2, "--usd-per-hour", "expected a price in dollars")
    refused(main("report", "last", "-o", tmp_path / "r.html", given), 2, "expected a price in dollars")
    assert not (tmp_path / "r.html").exists()
    assert files_of(finished / "runs") == runs


@pytest.mark.parametrize("device", ["cuda", "neuron"])
def test_a_device_that_is_not_there(main: Main, home: Path, recipe_file: Path, device: str) -> None:
    import torch

    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    done = main("train", recipe_file, "--set", f"platform.device={device}")
    refused(done, 2, f"'{device}' was asked for", "This machine has: cpu", "platform.device")
    assert not files_of(home)


@pytest.mark.parametrize(
    ("instance", "parts"),
    [
        ("p5.48xlrge", ["no instance named 'p5.48xlrge'", "did you mean p5.48xlarge"]),
        ("trn2.48xlarge", ["no on-demand price for trn2.48xlarge", "capacity blocks", "price.usd_per_hour"]),
    ],
)
def test_an_instance_without_a_price(
    main: Main, home: Path, recipe_file: Path, instance: str, parts: list[str]
) -> None:
    done = main("train", recipe_file, *overrides(f"platform.instance={instance}", "price=null"))
    refused(done, 2, *parts)
    assert not files_of(home)


def test_the_catalog_price_of_an_instance_is_the_bills(main: Main, built: Path, recipe_file: Path) -> None:
    settings = overrides("platform.instance=p5.48xlarge", "price=null", "train.max_steps=1")
    assert main("train", recipe_file, *settings).code == 0
    price = json.loads(main("bill", "last", "--json").out)["price"]
    assert (price["usd_per_hour"], price["kind"]) == (55.04, "quoted")
    assert price["source"].startswith("p5.48xlarge on-demand")


# --- models -----------------------------------------------------------------------------------------------


@pytest.fixture
def model_folder(built: Path, tmp_path: Path) -> Path:
    """The tiny model as anyone's local folder."""
    folder = tmp_path / "mine"
    shutil.copytree(built / "models" / "tiny", folder)
    (folder / "trueup-model.json").unlink()
    return folder


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_tokenizer_without_pad_and_chat_template_is_used_and_said(
    main: Main, recipe_file: Path, model_folder: Path, tmp_path: Path
) -> None:
    edit(model_folder / "tokenizer_config.json", lambda config: config.pop("pad_token"))
    (model_folder / "chat_template.jinja").unlink()
    settings = overrides(f"model.path={model_folder}", "train.max_steps=1", *ROOMY)
    report = json.loads(main("prepare", recipe_file, *settings, "--json").out)
    assert report["template"]["kind"] == "default"
    assert report["pad"]["reason"].startswith("the tokenizer has no pad token")
    assert report["pad"]["id"] not in report["end_ids"]
    done = main("train", recipe_file, *settings)
    assert done.code == 0
    assert "no chat template; trueup's default is used" in done.err
    assert main("export", "last", "--merged", tmp_path / "merged").code == 0


def test_a_tokenizer_that_cannot_end_an_answer(main: Main, recipe_file: Path, model_folder: Path) -> None:
    edit(model_folder / "tokenizer_config.json", lambda config: config.pop("eos_token"))
    (model_folder / "chat_template.jinja").unlink()
    done = main("prepare", recipe_file, "--set", f"model.path={model_folder}")
    refused(done, 2, str(model_folder), "neither a chat template nor an EOS token", "set its eos_token")


def test_a_vocabulary_larger_than_the_models(
    main: Main, built: Path, recipe_file: Path, model_folder: Path
) -> None:
    def add(content: dict[str, Any]) -> None:
        content["added_tokens"].append({**content["added_tokens"][-1], "id": 260, "content": "<|extra|>"})

    edit(model_folder / "tokenizer.json", add)
    setting = ["--set", f"model.path={model_folder}"]
    parts = [str(model_folder), "'<|extra|>' has id 260", "260 rows", "tokenizer it came with"]
    refused(main("prepare", recipe_file, *setting), 2, *parts)
    done = main("train", recipe_file, *setting, "--json")
    assert done.code == 2
    trained = json.loads(done.out)
    assert trained["state"] == "failed"
    assert all(part in trained["reason"] for part in parts)
    assert main("runs", "list", "--json").out.count('"failed"') == 1


def test_weights_cut_short(main: Main, recipe_file: Path, model_folder: Path) -> None:
    weights = model_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    done = main("prepare", recipe_file, "--set", f"model.path={model_folder}")
    refused(done, 2, str(weights), "cut off or damaged", "again")
