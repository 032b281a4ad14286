"""`trueup quantize`: from a model to a folder that was judged, what is printed, where a refused one goes, and
what parity says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from in_process import Done, Main, refused

RECIPE = """\
model: {path: tiny}
data: {source: DATA, max_length: 96, split: {validation: 0.2, test: 0.2}}
shapes: {tokens_per_microbatch: 96}
train: {tokens_per_step: 96}
quality: {short: 32, long: 128, tokens: 512, answers: 2, answer_tokens: 4, limits: {greedy_match: 0}}
"""


@pytest.fixture
def recipe(tmp_path: Path, data_file: Path) -> Path:
    path = tmp_path / "judge.yaml"
    path.write_text(RECIPE.replace("DATA", str(data_file)))
    return path


def document(done: Done, code: int = 0) -> Any:
    assert done.code == code, done
    return json.loads(done.out)


@pytest.fixture
def int8(main: Main, built: Path, recipe: Path, tmp_path: Path) -> Path:
    out = tmp_path / "int8"
    done = main("quantize", "tiny", "-o", out, "--scheme", "int8", "--recipe", recipe)
    assert done.code == 0, done
    return out


def test_it_says_what_is_stored_and_how_large_it_became(
    main: Main, built: Path, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "q"
    found = document(main("quantize", "tiny", "-o", out, "--scheme", "int8", "--recipe", recipe, "--json"))
    assert (found["folder"], found["verdict"], found["reasons"]) == (str(out), "accepted", [])
    assert (found["scheme"], found["method"], found["group"]) == ("int8", "rtn", None)
    assert found["bytes_after"] < found["bytes_before"]
    owners = {one["owner"] for one in found["owners"]}
    assert owners == {"embedding", "head", "attention", "mlp", "norms"}
    assert found["measurements"]["quality_perplexity_ratio_short"]["n"] == 16
    assert {"config.json", "model.safetensors", "quality.json"} <= {path.name for path in out.iterdir()}


def test_what_a_person_reads_has_sizes_gate_and_worst_layers(
    main: Main, built: Path, recipe: Path, tmp_path: Path
) -> None:
    arguments = ("quantize", "tiny", "-o", tmp_path / "q", "--scheme", "fp8", "--recipe", recipe)
    done = main(*arguments)
    assert done.code == 0, done
    for words in (
        "tiny as fp8, rounded to the nearest: accepted",
        "floats of 8 bits (e4m3), an fp32 scale for each output",
        "fp8 range: of",
        "perplexity ratio",
        "worst layers",
    ):
        assert words in done.out, words


def test_each_phase_is_said_as_it_begins(main: Main, built: Path, recipe: Path, tmp_path: Path) -> None:
    done = main("quantize", "tiny", "-o", tmp_path / "q", "--scheme", "int8", "--recipe", recipe)
    phases = (
        "loading PyTorch",
        "data to calibrate and to judge on: ",
        "loading tiny",
        "rtn: ",
        "writing ",
        "quality: reading both models",
        "quality: layer by layer",
    )
    places = [done.err.find(words) for words in phases]
    assert -1 not in places, done.err
    assert places == sorted(places)


def test_gptq_says_on_how_many_matrices_it_was_better(
    main: Main, built: Path, recipe: Path, tmp_path: Path
) -> None:
    method = ("--scheme", "int4", "--group", "16", "--method", "gptq")
    done = main("quantize", "tiny", "-o", tmp_path / "q", *method, "--recipe", recipe)
    assert done.code == 0, done
    assert "of 15 matrices" in done.out


def test_a_refused_model_is_kept_aside_and_says_why(
    main: Main, built: Path, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "q"
    strict = ("--set", "quality.limits.kl_nats=1e-12")
    done = main("quantize", "tiny", "-o", out, "--scheme", "int8", "--recipe", recipe, *strict, "--json")
    found = document(done, code=1)
    assert found["verdict"] == "refused"
    assert found["reasons"][0].startswith("KL divergence")
    assert not out.exists()
    aside = out.with_name("q.refused")
    assert found["folder"] == str(aside)
    assert json.loads((aside / "quality.json").read_text())["verdict"] == "refused"


def test_a_second_refusal_takes_the_place_of_the_first(
    main: Main, built: Path, recipe: Path, tmp_path: Path
) -> None:
    arguments = ("quantize", "tiny", "-o", tmp_path / "q", "--scheme", "int8", "--recipe", recipe)
    for _ in range(2):
        assert main(*arguments, "--set", "quality.limits.kl_nats=1e-12").code == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("q")) == ["q.refused"]


def test_a_task_file_of_the_recipe_is_scored(main: Main, built: Path, recipe: Path, tmp_path: Path) -> None:
    task = tmp_path / "sums.jsonl"
    task.write_text('{"question": "1 and 1 is", "choices": ["2", "11"], "answer": 0}\n' * 3)
    found = document(
        main(
            *("quantize", "tiny", "-o", tmp_path / "q", "--scheme", "int8", "--recipe", recipe, "--json"),
            *("--set", f"quality.tasks=[{task}]", "--set", "quality.limits.task_drop=1"),
        )
    )
    assert found["tasks"]["sums"]["quality_task_accuracy_share"]["n"] == 3
    assert found["measurements"]["quality_task_drop_share"]["n"] == 3


def test_parity_takes_a_quantised_folder_as_a_side(main: Main, int8: Path) -> None:
    sides = (f"{int8}:attention=own", f"{int8}:attention=sdpa")
    found = document(main("parity", *sides, "--seed", "1", "--tokens", "40", "--json"))
    assert (found["verdict"], found["same_weights"]) == ("within", True)


def test_parity_says_that_a_quantised_model_is_another_than_its_original(main: Main, int8: Path) -> None:
    sides = ("tiny:precision=fp32", f"{int8}:precision=fp32")
    over = main("parity", *sides, "--seed", "1", "--tokens", "40", "--no-gradient", "--json")
    found = document(over, code=1)
    assert found["same_weights"] is False
    loose = main("parity", *sides, "--seed", "1", "--tokens", "40", "--no-gradient", "--tolerance", "0.1")
    assert loose.code == 0, loose


def test_parity_proves_that_another_layout_is_the_same_model(main: Main, int8: Path, tmp_path: Path) -> None:
    """The folder's numbers written out as plain fp32, which transformers reads by itself."""
    from trueup.model.builtin import ResolvedModel
    from trueup.model.load import load_base, load_tokenizer

    resolved, plain = ResolvedModel(int8, "int8", ""), tmp_path / "plain"
    load_base(resolved).save_pretrained(plain)
    load_tokenizer(resolved).save_pretrained(plain)
    assert "quantization_config" not in json.loads((plain / "config.json").read_text())
    found = document(main("parity", int8, plain, "--seed", "1", "--tokens", "40", "--json"))
    assert (found["identical"], found["same_weights"]) == (True, True)


def test_a_gguf_file_holds_the_same_numbers(main: Main, recipe: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="the extra gguf is not installed")
    from trueup.model.tiny import write_tiny

    write_tiny(tmp_path / "model", tied_head=True, intermediate_size=192)
    groups = ("--scheme", "int8", "--group", "32", "--gguf", tmp_path / "q.gguf", "--json")
    found = document(main("quantize", tmp_path / "model", "-o", tmp_path / "q", *groups, "--recipe", recipe))
    assert found["gguf"]["bytes"] == (tmp_path / "q.gguf").stat().st_size
    assert found["gguf"]["tensors_equal"] == 2 * 9 + 2  # a tied head is the embedding


def test_gguf_would_round_other_schemes_again_so_it_is_refused(
    main: Main, built: Path, recipe: Path, tmp_path: Path
) -> None:
    done = main("quantize", "tiny", "-o", tmp_path / "q", "--scheme", "int8", "--gguf", tmp_path / "q.gguf")
    refused(done, 2, "--group 32")


def test_a_quantised_folder_is_not_quantised_again(main: Main, int8: Path, tmp_path: Path) -> None:
    done = main("quantize", int8, "-o", tmp_path / "again", "--scheme", "int4")
    refused(done, 2, "quantised already")


def test_int4s_default_group_is_refused_where_it_does_not_divide(
    main: Main, built: Path, recipe: Path, tmp_path: Path
) -> None:
    done = main("quantize", "tiny", "-o", tmp_path / "q", "--scheme", "int4", "--recipe", recipe)
    refused(done, 2, "a group of 32 does not divide the 176 inputs of model.layers.0.mlp.down_proj")


def test_calibration_data_without_a_record_are_refused(main: Main, built: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    done = main("quantize", "tiny", "-o", tmp_path / "q", "--scheme", "int8", "--calibration", empty)
    refused(done, 2, "empty.jsonl")


def test_too_few_held_out_tokens_are_refused_before_anything_is_made(
    main: Main, built: Path, recipe: Path, tmp_path: Path
) -> None:
    long = ("--set", "quality.short=4000", "--set", "quality.answer_tokens=1")
    done = main("quantize", "tiny", "-o", tmp_path / "q", "--scheme", "int8", "--recipe", recipe, *long)
    refused(done, 2, "a short context 4,000")
    assert not (tmp_path / "q").exists()


def test_settings_without_a_recipe_are_refused(main: Main, built: Path, tmp_path: Path) -> None:
    done = main("quantize", "tiny", "-o", tmp_path / "q", "--scheme", "int8", "--set", "quality.short=32")
    refused(done, 2, "--recipe")


def test_an_output_that_is_taken_is_refused(main: Main, built: Path, tmp_path: Path) -> None:
    (tmp_path / "q").write_text("mine")
    refused(main("quantize", "tiny", "-o", tmp_path / "q", "--scheme", "int8"), 2, "not an empty folder")


def test_an_output_in_no_folder_is_refused(main: Main, built: Path, tmp_path: Path) -> None:
    done = main("quantize", "tiny", "-o", tmp_path / "none" / "q", "--scheme", "int8")
    refused(done, 2, "no such folder")


def test_an_unknown_limit_is_refused_with_the_nearest(
    main: Main, built: Path, recipe: Path, tmp_path: Path
) -> None:
    wrong = ("--set", "quality.limits.kl_nat=1")
    done = main("quantize", "tiny", "-o", tmp_path / "q", "--scheme", "int8", "--recipe", recipe, *wrong)
    refused(done, 2, "quality.limits.kl_nats")
