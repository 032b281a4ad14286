"""`trueup memory plan` and `trueup memory profile`: answers, refusals, and what they print."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from in_process import Done, Main, refused
from trueup.model.tiny import SIZES, write_tiny
from trueup.schema.quantization import FACTS_FILE, QuantizationFacts

LLAMA = ("memory", "plan", "llama-3.1-8b")


def document(done: Done, code: int = 0) -> Any:
    assert done.code == code, done.err
    return json.loads(done.out)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with a config.json and nothing else."""
    made = tmp_path / "bare"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(SIZES))
    return made


@pytest.fixture
def quantised(folder: Path) -> Path:
    """As `trueup quantize --scheme int4 --head keep` stores it, without its weights."""
    facts = QuantizationFacts(
        format=1,
        trueup_version="0",
        original="bare",
        original_digest="",
        scheme="int4",
        method="rtn",
        group=32,
        tied_head=False,
        weights={},
        kept=(),
        owners=(),
    )
    (folder / FACTS_FILE).write_text(facts.model_dump_json())
    return folder


def test_a_model_that_fits_says_so_with_every_line(main: Main) -> None:
    found = document(main(*LLAMA, "--platform", "h100", "--context", "8192", "--concurrency", "16", "--json"))
    assert found["fits"] is True
    assert found["lines"]["kv_pool_bytes"]["value"] == (16 * 512 + 1) * 16 * 131_072
    assert "2 x 32 layers x 8 heads x 128 x 2 B" in found["lines"]["kv_pool_bytes"]["method"]
    assert found["fit"]["longest_context"] > 8192
    assert found["fit"]["most_concurrency"] > 16
    assert found["memory"]["kind"] == "quoted"


def test_a_model_that_does_not_fit_is_refused_with_what_would(main: Main) -> None:
    done = main(*LLAMA, "--platform", "trn1.2xlarge", "--context", "32768", "--concurrency", "8")
    text = " ".join(done.out.split())
    assert done.code == 1
    assert "does not fit: needs" in text
    assert "has 32.00 GiB" in text
    assert "longest context of 8 at once:" in text
    assert "most at once of 32,768 tokens:" in text
    assert "int8 weights: needs" in text


def test_what_is_said_to_fit_is_accepted(main: Main) -> None:
    asked = (*LLAMA, "--platform", "trn1.2xlarge", "--json")
    refusal = document(main(*asked, "--context", "32768", "--concurrency", "8"), code=1)
    longest, most = refusal["fit"]["longest_context"], refusal["fit"]["most_concurrency"]
    assert document(main(*asked, "--context", longest, "--concurrency", "8"))["fits"]
    assert document(main(*asked, "--context", longest + 1, "--concurrency", "8"), code=1)["fits"] is False
    assert document(main(*asked, "--context", "32768", "--concurrency", most))["fits"]
    assert document(main(*asked, "--context", "32768", "--concurrency", most + 1), code=1)["fits"] is False


def test_neuron_shows_what_it_cannot_know(main: Main) -> None:
    done = main(*LLAMA, "--platform", "trn2.48xlarge", "--concurrency", "2")
    text = " ".join(done.out.split())
    assert done.code == 0
    assert "8 physical cores x 96 MiB" in text
    for line in ("scratchpad", "DMA rings", "collectives"):
        assert f"{line}: known only once the model is compiled" in text
    assert "of one of its 16 chips" in text


def test_a_chip_whose_memory_nobody_publishes_is_not_guessed(main: Main) -> None:
    done = main(*LLAMA, "--platform", "g5.48xlarge", "--json")
    found = document(done, code=2)
    assert found["fits"] is None
    assert found["memory"]["kind"] == "unavailable"
    assert "a10g" in found["memory"]["reason"]
    assert "--memory" in done.err
    assert document(main(*LLAMA, "--platform", "g5.48xlarge", "--memory", "40", "--json"))["fits"]


def test_this_machine_has_what_the_system_tells(main: Main) -> None:
    found = document(main("memory", "plan", "tiny", "--platform", "cpu", "--json"))
    assert found["memory"]["kind"] == "measured"
    assert found["ask"]["quant"] == found["ask"]["kv_dtype"] == "fp32"
    assert "trueup calibrate" in found["lines"]["process_bytes"]["reason"]


def test_a_processor_instance_has_its_published_memory(main: Main) -> None:
    found = document(main("memory", "plan", "smollm2-135m", "--platform", "m7g.large", "--json"))
    assert found["memory"]["value"] == 8 * 2**30


def test_a_folder_needs_its_config_alone(main: Main, folder: Path) -> None:
    found = document(main("memory", "plan", folder, "--platform", "cpu", "--json"))
    assert found["dims"]["hidden"] == SIZES["hidden_size"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("llama-3.1-8c", "--platform", "h100"), "did you mean llama-3.1-8b"),
        (("no-such-model-at-all", "--platform", "h100"), "known are"),
        (("llama-3.1-8b", "--platform", "trn1.2xlarg"), "did you mean trn1.2xlarge"),
        (("llama-3.1-8b", "--platform", "quantum"), "neither an instance nor a chip"),
        (("llama-3.1-8b", "--platform", "l4", "--memory", "24"), "--platform h100 --memory 24"),
        (("smollm2-135m", "--platform", "h100", "--context", "8193"), "8,192 positions"),
        (("llama-3.1-8b", "--platform", "h100", "--concurrency", "0"), "--concurrency 0: at least 1"),
        (("llama-3.1-8b", "--platform", "h100", "--context", "0"), "--context 0: at least 1"),
        (("llama-3.1-8b", "--platform", "h100", "--block-size", "0"), "--block-size 0"),
        (("llama-3.1-8b", "--platform", "h100", "--quant", "int9"), "did you mean int8"),
        (("llama-3.1-8b", "--platform", "h100", "--kv-dtype", "fp64"), "one of fp32, bf16"),
        (("llama-3.1-8b", "--platform", "h100", "--memory", "-1"), "above 0"),
        (("llama-3.1-8b", "--platform", "h100", "--memory", "nan"), "above 0"),
    ],
)
def test_what_nothing_is_known_of_or_makes_no_sense_is_refused(
    main: Main, arguments: tuple[str, ...], why: str
) -> None:
    refused(main("memory", "plan", *arguments), 2, why)


def test_a_config_without_dimensions_is_refused(main: Main, folder: Path) -> None:
    (folder / "config.json").write_text('{"hidden_size": 64}')
    refused(main("memory", "plan", folder, "--platform", "h100"), 2, "num_attention_heads")


def test_other_weights_than_a_folders_own_have_no_group_of_it(main: Main, quantised: Path) -> None:
    own = document(main("memory", "plan", quantised, "--platform", "cpu", "--json"))
    assert (own["ask"]["quant"], own["ask"]["group"]) == ("int4", 32)
    other = document(main("memory", "plan", quantised, "--platform", "cpu", "--quant", "int8", "--json"))
    assert other["ask"]["group"] is None


def test_a_head_that_is_kept_is_planned_in_the_type_that_computes(main: Main, quantised: Path) -> None:
    host, chip = (
        document(main("memory", "plan", quantised, "--platform", place, "--json"))["lines"]
        for place in ("cpu", "h100")
    )
    assert host["head_bytes"]["value"] == 2 * chip["head_bytes"]["value"]


def test_a_damaged_quantisation_record_is_refused(main: Main, folder: Path) -> None:
    (folder / "trueup_quantization.json").write_text("{}")
    refused(main("memory", "plan", folder, "--platform", "h100"), 2, "damaged")


def test_a_plan_needs_no_torch(environment: dict[str, str]) -> None:
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "from trueup.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *LLAMA, "--platform", "p4d.24xlarge"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "fits, if what is not known (compiled code, driver) takes no more than 20.7 GiB: needs" in said


# --- profile ------------------------------------------------------------------------------------------------


def test_a_forward_pass_is_profiled_and_told_what_would_lower_its_peak(main: Main, tmp_path: Path) -> None:
    page, wordy = tmp_path / "memory.html", tmp_path / "wordy"
    write_tiny(wordy, vocab_size=8192)
    shape = ("--transformers", "--rows", "2", "--length", "64", "--json")
    found = document(main("memory", "profile", wordy, *shape, "-o", page))
    assert found["peak"]["bytes"] == sum(one["at_peak_bytes"] for one in found["modules"])
    assert found["peak"]["bytes"] == sum(one["at_peak_bytes"] for one in found["operators"])
    whats = [one["what"] for one in found["suggestions"]]
    assert "logits of the last rows alone" in whats
    for one in found["suggestions"]:
        assert one["peak_bytes"] + one["saves_bytes"] == found["peak"]["bytes"]
        assert one["saves_bytes"] > 0
    assert found["allocator"]["reserved_bytes"]["kind"] == "estimated"
    assert found["measurements"]["peak_rss_bytes"]["kind"] == "measured"
    html = page.read_text()
    assert "<svg" in html
    assert "<script" not in html
    assert "memory-peak" in html


def test_what_would_not_lower_the_peak_is_not_suggested(main: Main) -> None:
    """With 260 words the logits are small, and others hold the peak."""
    found = document(main("memory", "profile", "tiny", "--transformers", "--length", "64", "--json"))
    assert "logits of the last rows alone" not in [one["what"] for one in found["suggestions"]]


def test_serving_is_profiled_with_its_pool(main: Main) -> None:
    found = document(main("memory", "profile", "tiny", "--rows", "2", "--length", "31", "--json"))
    kinds = {one["name"]: one["at_peak_bytes"] for one in found["kinds"]}
    of_token = 2 * 2 * 2 * 16 * 4  # keys and values of 2 layers with 2 heads of 16 numbers in fp32
    assert kinds["kv_pool"] == (2 * 2 + 1) * 16 * of_token
    by_what = {one["what"]: one["saves_bytes"] for one in found["suggestions"]}
    assert by_what["bf16 keys and values"] == kinds["kv_pool"] / 2
    assert by_what["blocks of 4 tokens"] == 2 * (15 - 3) / 2 * of_token
    whole = kinds["weights"]
    assert whole / 5 < by_what["weights in int8 (trueup quantize)"] < whole * 3 / 4


def test_weights_that_are_int8_already_are_not_suggested(main: Main) -> None:
    asked = ("memory", "profile", "tiny", "--length", "31", "--quant", "int8", "--json")
    assert not [one for one in document(main(*asked))["suggestions"] if "int8" in one["what"]]


def test_training_holds_weights_gradients_and_two_moments(main: Main) -> None:
    found = document(
        main("memory", "profile", "tiny", "--training", "--rows", "4", "--length", "256", "--json")
    )
    kinds = {one["name"]: one for one in found["kinds"]}
    weights = kinds["weights"]["at_peak_bytes"]
    assert kinds["gradients"]["own_peak_bytes"] <= weights
    assert kinds["optimizer"]["own_peak_bytes"] >= 2 * kinds["gradients"]["own_peak_bytes"]
    assert "step 2" in found["peak"]["part"]
    assert "micro-batches of 2 rows" in [one["what"] for one in found["suggestions"]]


def test_adapters_alone_have_gradients_and_moments(main: Main) -> None:
    shape = ("--rows", "1", "--length", "32", "--no-alternatives", "--json")
    found = document(main("memory", "profile", "tiny", "--training", "--lora", *shape))
    kinds = {one["name"]: one["own_peak_bytes"] for one in found["kinds"]}
    assert 0 < kinds["gradients"] < kinds["weights"] / 4
    assert 2 * kinds["gradients"] <= kinds["optimizer"] < kinds["weights"]
    assert found["suggestions"] == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--rows", "0"), "--rows 0"),
        (("--length", "0"), "--length 0"),
        (("--length", "4096"), "4,096 positions"),
        (("--training", "--serving"), "one of them at a time"),
        (("--lora",), "--lora is of --training"),
        (("--kv-dtype", "int3"), "one of fp32, bf16"),
        (("--quant", "int3"), "one of fp32, bf16, int8"),
        (("--device", "abacus"), "one of"),
    ],
)
def test_a_profile_of_nothing_is_refused(main: Main, arguments: tuple[str, ...], why: str) -> None:
    refused(main("memory", "profile", "tiny", *arguments), 2, why)


@pytest.mark.parametrize(
    ("place", "code", "why"),
    [
        ("no-such-folder/page.html", 2, "the folder no-such-folder does not exist"),
        (".", 2, ". is a folder"),
        ("/proc/page.html", 1, "could not write /proc/page.html"),
    ],
)
def test_a_page_that_cannot_be_written_is_said_before_anything_is_run(
    main: Main, place: str, code: int, why: str
) -> None:
    """Even before the model is looked for, of which there is none."""
    if place.startswith("/proc") and not sys.platform.startswith("linux"):
        pytest.skip("no /proc here")
    refused(main("memory", "profile", "tinny", "-o", place), code, why)


def test_a_profile_of_an_unknown_model_names_the_nearest(main: Main) -> None:
    refused(main("memory", "profile", "tinny", "--transformers"), 2, "did you mean the built-in 'tiny'")
