"""Shapes and folders at the edge of what memory can be planned or profiled for: an answer, or a refusal in
words before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from in_process import Done, Main, refused
from trueup.cli.asked_values import one_of, positive
from trueup.model.builtin import resolve_model
from trueup.model.quantize import Wanted
from trueup.model.quantize_folder import quantise_to
from trueup.model.tiny import write_tiny
from trueup.schema import InputError

ONCE = ("--no-alternatives", "--json")


def document(done: Done, code: int = 0) -> Any:
    assert done.code == code, done.err
    return json.loads(done.out)


def by_kind(found: Any) -> dict[str, int]:
    return {one["name"]: one["at_peak_bytes"] for one in found["kinds"]}


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as `trueup quantize` stores it in int8."""
    home = tmp_path_factory.mktemp("int8")
    out = home / "tiny-int8"
    quantise_to(out, resolve_model("tiny", home), Wanted("int8", head="int8"), None, lambda text: None)
    return out


# --- plan ---------------------------------------------------------------------------------------------------


def test_one_sequence_of_one_token_is_planned(main: Main) -> None:
    found = document(
        main("memory", "plan", "tiny", "--platform", "cpu", "--context", "1", "--concurrency", "1", "--json")
    )
    assert found["fits"] is True
    assert found["ask"]["blocks"] == 2  # its own, and the null block


def test_more_sequences_than_there_are_bytes_are_refused_with_how_many_do_fit(main: Main) -> None:
    many = ("--concurrency", "9" * 25, "--memory", "1", "--json")
    found = document(main("memory", "plan", "tiny", "--platform", "cpu", *many), code=1)
    assert found["fits"] is False
    assert 0 < found["fit"]["most_concurrency"] < 10**6


def test_a_folder_without_a_config_has_no_plan(main: Main, tmp_path: Path) -> None:
    refused(main("memory", "plan", tmp_path, "--platform", "cpu"), 2, "no config.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("num_hidden_layers", 0), ("hidden_size", 0), ("hidden_size", "x"), ("hidden_size", 1e30)),
        *(("num_key_value_heads", 0), ("num_key_value_heads", 3), ("vocab_size", -5), ("vocab_size", True)),
        *(("num_attention_heads", 10**400), ("rope_theta", 0), ("rope_theta", float("nan"))),
    ],
)
def test_a_model_that_cannot_be_is_not_planned(main: Main, tmp_path: Path, key: str, value: Any) -> None:
    write_tiny(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    done = main("memory", "plan", tmp_path, "--platform", "cpu")
    refused(done, 2, key)
    assert len(done.err.strip().splitlines()) == 1


@pytest.mark.parametrize("group", ["7", "64"])
def test_a_group_that_does_not_divide_is_not_planned(main: Main, group: str) -> None:
    """The feed-forward part of `tiny` has 176 inputs."""
    asked = ("memory", "plan", "tiny", "--platform", "cpu", "--quant", "int4", "--group")
    refused(main(*asked, group), 2, f"a group of {group} does not divide")
    assert main(*asked, "16", "--json").code == 0


def test_a_file_is_no_model_to_plan(main: Main, tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny")
    refused(
        main("memory", "plan", tmp_path / "tiny" / "config.json", "--platform", "cpu"), 2, "no such folder"
    )


def test_a_quantised_folder_is_planned_as_it_is_stored(main: Main, int8: Path) -> None:
    place = ("--platform", "cpu", "--json")
    own = document(main("memory", "plan", int8, *place))
    whole = document(main("memory", "plan", "tiny", *place))
    assert own["ask"]["quant"] == "int8"
    assert own["lines"]["layers_bytes"]["value"] < whole["lines"]["layers_bytes"]["value"] / 3


# --- profile ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["--serving", "--transformers", "--training"])
def test_one_token_is_profiled(main: Main, mode: str) -> None:
    found = document(main("memory", "profile", "tiny", mode, "--length", "1", "--json"))
    assert found["peak"]["bytes"] == sum(by_kind(found).values())
    assert all(one["saves_bytes"] > 0 for one in found["suggestions"])


def test_a_folder_without_weights_is_refused_before_anything_is_run(main: Main, tmp_path: Path) -> None:
    write_tiny(tmp_path / "bare")
    (tmp_path / "bare" / "model.safetensors").unlink()
    refused(main("memory", "profile", tmp_path / "bare"), 2, "no weights; expected model.safetensors")


def test_a_folder_without_a_tokenizer_or_a_config_is_refused(main: Main, tmp_path: Path) -> None:
    refused(main("memory", "profile", tmp_path), 2, "no config.json")


def test_a_quantised_folder_holds_its_stored_weights_when_it_serves(main: Main, int8: Path) -> None:
    shape = ("--length", "8", *ONCE)
    own = document(main("memory", "profile", int8, *shape))
    whole = document(main("memory", "profile", "tiny", *shape))
    assert by_kind(own)["weights"] < by_kind(whole)["weights"]


@pytest.mark.parametrize("mode", [("--transformers",), ("--training", "--lora")])
def test_elsewhere_a_quantised_folder_is_the_numbers_it_stands_for(
    main: Main, int8: Path, mode: tuple[str, ...]
) -> None:
    own, whole = (
        document(main("memory", "profile", model, *mode, "--length", "8", *ONCE)) for model in (int8, "tiny")
    )
    assert by_kind(own)["weights"] == by_kind(whole)["weights"]


@pytest.mark.parametrize("mode", ["--serving", "--transformers", "--training"])
def test_more_tokens_than_memory_can_hold_are_not_begun(main: Main, mode: str) -> None:
    huge = ("--rows", "1000000000", "--length", "256")
    refused(main("memory", "profile", "tiny", mode, *huge), 2, "GiB at the least, and there are")


@pytest.mark.parametrize("mode", ["--transformers", "--training"])
@pytest.mark.parametrize("option", [("--quant", "int8"), ("--kv-dtype", "bf16"), ("--block-size", "4")])
def test_options_of_serving_are_refused_where_nothing_heeds_them(
    main: Main, mode: str, option: tuple[str, str]
) -> None:
    refused(main("memory", "profile", "tiny", mode, *option), 2, "are of --serving")


# --- values of options --------------------------------------------------------------------------------------


def test_names_are_taken_in_any_case_and_others_name_the_nearest() -> None:
    assert one_of("--quant", " INT8 ", ("fp32", "int8")) == "int8"
    with pytest.raises(InputError, match=r"--quant int9: one of fp32, int8 is expected; did you mean int8\?"):
        one_of("--quant", "int9", ("fp32", "int8"))


@pytest.mark.parametrize("value", [0, -1])
def test_numbers_begin_at_1(value: int) -> None:
    assert positive("--rows", 1) == 1
    with pytest.raises(InputError, match=f"--rows {value}: at least 1"):
        positive("--rows", value)
