"""`trueup predict` and what `trueup calibrate` keeps for it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from in_process import Done, Main, refused
from trueup.cli.calibrate import _in_rounds

EIGHT_B = """\
model: {path: llama-3.1-8b}
data: {source: none-here.jsonl, max_length: 2048}
tune: {method: METHOD}
shapes: {tokens_per_microbatch: 2048}
train: {tokens_per_step: 32768}
"""


@pytest.fixture
def eight_b(tmp_path: Path) -> Path:
    path = tmp_path / "eight.yaml"
    path.write_text(EIGHT_B.replace("METHOD", "full"))
    return path


def document(done: Done) -> Any:
    assert done.code == 0, done.err
    return json.loads(done.out)


def lines(found: Any, basis: str) -> Any:
    return next(one["lines"] for one in found["predictions"] if one["basis"] == basis)


def test_an_instance_is_foretold_by_its_datasheet(main: Main, eight_b: Path) -> None:
    found = document(main("predict", eight_b, "--platform", "trn1.32xlarge", "--full-rows", "--json"))
    of_sheet = lines(found, "datasheet")
    assert found["job"]["ranks"] == 16
    assert of_sheet["step_s"]["value"] > 0
    assert of_sheet["usd_per_million_useful_tokens_steady"]["value"] > 0
    assert "21.5 an hour" in of_sheet["usd_per_million_useful_tokens_steady"]["method"]
    assert "has not been calibrated" in lines(found, "calibrated")["step_s"]["reason"]


def test_an_instance_costs_what_the_homes_own_price_says(main: Main, eight_b: Path) -> None:
    where = ("--currency", "USD", "--region", "us-east-1", "--source", "our contract")
    assert main("prices", "set", "trn1.32xlarge", "--per-hour", "12.25", *where).code == 0
    found = document(main("predict", eight_b, "--platform", "trn1.32xlarge", "--full-rows", "--json"))
    assert "12.25 an hour" in lines(found, "datasheet")["usd_per_million_useful_tokens_steady"]["method"]


def test_a_price_too_old_for_a_prediction_says_so(main: Main, eight_b: Path) -> None:
    where = (
        "--currency",
        "USD",
        "--region",
        "us-east-1",
        "--source",
        "our contract",
        "--as-of",
        "2026-01-05",
    )
    assert main("prices", "set", "trn1.32xlarge", "--per-hour", "12.25", *where).code == 0
    done = main("predict", eight_b, "--platform", "trn1.32xlarge", "--full-rows")
    assert "as of 2026-01-05" in done.err
    assert "may hold no more" in done.err


@pytest.mark.parametrize("platform", ["p4d.24xlarge", "p5.48xlarge", "trn2.48xlarge", "h100"])
def test_the_price_of_a_recipe_is_not_put_on_another_platform(
    main: Main, eight_b: Path, platform: str
) -> None:
    own = ("--set", "price.usd_per_hour=0.0816", "--set", "price.source=our VM")
    done = main("predict", eight_b, *own, "--platform", platform, "--full-rows", "--json")
    cost = lines(document(done), "datasheet")["usd_per_million_useful_tokens_steady"]
    assert "our VM" not in json.dumps(cost)
    if platform.startswith("p"):
        assert re.search(r"an hour \(quoted: .+, as of 20\d\d-\d\d-\d\d\)", cost["method"])
    else:
        assert cost["value"] is None
        assert "no on-demand price" in cost["reason"] or "--usd-per-hour" in cost["reason"]


def test_the_price_of_a_recipe_holds_on_the_instance_it_was_stated_for(main: Main, eight_b: Path) -> None:
    own = ("--set", "price.usd_per_hour=9.75", "--set", "price.source=our contract")
    there = ("--set", "platform.instance=p4d.24xlarge", "--platform", "p4d.24xlarge")
    found = document(main("predict", eight_b, *own, *there, "--full-rows", "--json"))
    cost = lines(found, "datasheet")["usd_per_million_useful_tokens_steady"]
    assert "$9.75 an hour (quoted: our contract)" in cost["method"]


def test_a_price_given_with_the_call_is_that_of_the_platform(main: Main, eight_b: Path) -> None:
    asked = ("--platform", "h100", "--usd-per-hour", "3.5", "--price-source", "an offer")
    found = document(main("predict", eight_b, *asked, "--full-rows", "--json"))
    assert "$3.5 an hour" in lines(found, "datasheet")["usd_per_million_useful_tokens_steady"]["method"]


@pytest.mark.parametrize(
    ("method", "platform", "fits"),
    [
        ("full", "trn1.32xlarge", False),
        ("full", "p4d.24xlarge", False),
        ("full", "p4de.24xlarge", False),
        ("full", "p6-b200.48xlarge", True),
        ("lora", "p4d.24xlarge", True),
        ("lora", "trn2.48xlarge", True),
    ],
)
def test_whether_llama_8b_fits_agrees_with_the_formulas(
    main: Main, eight_b: Path, method: str, platform: str, fits: bool
) -> None:
    settings = ("--set", f"tune.method={method}", "--platform", platform, "--full-rows", "--fit", "--json")
    fit = document(main("predict", eight_b, *settings))["fit"]
    assert fit["as_asked"] is fits
    assert (fit["micro_batch_rows"] is not None) is fits
    if method == "full":
        assert fit["state_bytes"] == 16 * 8_030_261_248


def test_what_fits_is_shown_with_its_arithmetic(main: Main, eight_b: Path) -> None:
    done = main("predict", eight_b, "--platform", "p4d.24xlarge", "--full-rows", "--fit")
    assert done.code == 0
    assert "128.5 GB (16 B for each parameter)" in " ".join(done.out.split())
    assert "no micro-batch fits without sharding" in " ".join(done.out.split())


def test_one_micro_batch_is_not_several(main: Main, eight_b: Path) -> None:
    one = ("--set", "train.tokens_per_step=2048", "--platform", "h100", "--full-rows")
    assert "1 micro-batch of 1 x 2048 a step" in " ".join(main("predict", eight_b, *one).out.split())


def test_a_price_that_nobody_lists_is_said_and_not_guessed(main: Main, eight_b: Path) -> None:
    done = main("predict", eight_b, "--platform", "trn2.48xlarge", "--full-rows", "--json")
    assert "no on-demand price" in done.err
    assert lines(document(done), "datasheet")["usd_per_million_useful_tokens_steady"]["value"] is None


def test_data_that_were_not_prepared_are_asked_for(main: Main, built: Path, recipe_file: Path) -> None:
    refused(main("predict", recipe_file), 2, "have not been prepared")


def test_a_planned_recipe_is_foretold_from_its_lengths(main: Main, built: Path, recipe_file: Path) -> None:
    assert main("prepare", recipe_file).code == 0
    found = document(main("predict", recipe_file, "--set", "compile.mode=none", "--json"))
    assert found["job"]["steps"] == 6  # as train.max_steps says
    reason = lines(found, "calibrated")["step_s"]["reason"]
    assert "run `trueup calibrate`" in reason
    assert lines(found, "calibrated")["weights_bytes"]["value"] > 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--platform", "trn1.32xlage"), "did you mean trn1"),
        (("--platform", "../../etc/passwd"), "neither calibrated in this home"),
        (("--platform", "m7g.large"), "trueup calibrate"),
        (
            ("--set", "model.path=no-such-model", "--platform", "h100"),
            "does not hold this model's dimensions",
        ),
    ],
)
def test_what_nothing_is_known_of_is_refused(
    main: Main, eight_b: Path, arguments: tuple[str, ...], why: str
) -> None:
    refused(main("predict", eight_b, "--full-rows", *arguments), 2, why)


def test_a_short_calibration_is_kept_and_foretells_steps(
    main: Main, built: Path, recipe_file: Path, home: Path
) -> None:
    done = main("calibrate", "--device", "cpu", "--seconds", "0.1", "--json")
    assert "timing" not in done.err
    assert "round 1" not in done.err
    kept = document(done)
    assert Path(kept["path"]).parent == home / "platforms"
    (rates,) = kept["rates"].values()
    assert rates["probes"] >= 8
    assert main("prepare", recipe_file).code == 0
    found = document(main("predict", recipe_file, "--set", "compile.mode=none", "--json"))
    assert lines(found, "calibrated")["step_s"]["value"] > 0
    named = document(
        main("predict", recipe_file, "--platform", Path(kept["path"]).stem, "--full-rows", "--json")
    )
    assert lines(named, "calibrated")["step_s"]["value"] > 0


def test_each_phase_of_calibrating_is_said_as_it_begins(main: Main) -> None:
    done = main("calibrate", "--device", "cpu", "--seconds", "0.1", "--no-steps")
    phases = ("loading PyTorch", "fp32 products", "bf16 products", "reads of memory")
    places = [done.err.find(words) for words in phases]
    assert -1 not in places, done.err
    assert places == sorted(places)


def test_each_round_of_timing_is_said_with_what_is_left() -> None:
    told: list[str] = []
    rounds: Any = Mock()  # products, models and meter in one
    _in_rounds(rounds, rounds, rounds, 0.0, told.append)
    assert told == ["round 1: 0 s to go", "round 2: 0 s to go"]
    assert rounds.round.call_count == 2 * len(told)
    told.clear()
    rounds.round.side_effect = [None] * 7 + [KeyboardInterrupt]
    with pytest.raises(KeyboardInterrupt):  # in the fourth round
        _in_rounds(rounds, rounds, rounds, 5000.0, told.append)
    assert [re.sub(r" [45]\d{3} s", "", line) for line in told] == [f"round {n}: to go" for n in range(1, 5)]


def test_ceilings_alone_keep_nothing(main: Main, home: Path) -> None:
    found = document(main("calibrate", "--device", "cpu", "--seconds", "0.1", "--no-steps", "--json"))
    assert found["path"] is None
    assert found["rates"] == {}
    assert not (home / "platforms").exists()


def test_a_calibration_that_cannot_be_read_is_said(
    main: Main, built: Path, recipe_file: Path, home: Path
) -> None:
    (home / "platforms").mkdir()
    (home / "platforms" / "old.json").write_text('{"format": 99}')
    done = main("predict", recipe_file, "--full-rows", "--json")
    assert "run `trueup calibrate`" in done.err
    document(done)


def test_a_name_that_is_a_path_is_refused(main: Main) -> None:
    refused(main("calibrate", "--name", "../x", "--no-steps"), 2, "--name")


def test_a_published_model_on_an_instance_needs_no_torch(eight_b: Path, environment: dict[str, str]) -> None:
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "from trueup.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "predict", str(eight_b), "--platform", "p4d.24xlarge", "--full-rows"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "datasheet" in done.stdout
