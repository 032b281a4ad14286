"""`trueup shapes plan`: what training would take, and what earlier runs taught."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from in_process import Main, refused

EAGER = ("--set", "compile.mode=none")


def test_training_takes_the_plan_that_is_shown_and_the_next_plan_knows_the_run(
    main: Main, built: Path, recipe_file: Path
) -> None:
    before = json.loads(main("shapes", "plan", recipe_file, *EAGER, "--json").out)
    assert before["profile"]["token_s"]["kind"] == "estimated"
    settings = (*EAGER, "--set", "train.max_steps=8", "--set", "evaluate.every=null")
    trained = json.loads(main("train", recipe_file, *settings, "--json").out)
    for key in ("strategy", "training", "evaluation", "padding_share", "steps_per_epoch", "data"):
        assert trained["shape_plan"][key] == before["plan"][key], key
    after = json.loads(main("shapes", "plan", recipe_file, *EAGER, "--json").out)
    assert after["profile"]["token_s"]["kind"] == "measured"
    assert after["profile"]["token_s"]["n"] == 1


def test_attention_is_priced_as_the_models_layers_will_compute_it(
    main: Main, built: Path, recipe_file: Path
) -> None:
    """Adapters that drop out inputs keep transformers' layers, which take a mask over whole rows."""
    for dropout, attention in ((0.0, "example"), (0.1, "row")):
        shown = main("shapes", "plan", recipe_file, *EAGER, "--set", f"tune.dropout={dropout}", "--json")
        assert json.loads(shown.out)["profile"]["attention"] == attention


def test_people_see_every_strategy(main: Main, built: Path, recipe_file: Path) -> None:
    shown = main("shapes", "plan", recipe_file, *EAGER)
    assert shown.code == 0
    for word in ("pack", "bucket", "max", "longest", "chosen", "padding", "estimated"):
        assert word in shown.out


@pytest.mark.parametrize("command", [("shapes", "plan"), ("train",)])
def test_an_example_longer_than_the_models_positions_is_refused(
    main: Main, built: Path, tmp_path: Path, recipe_file: Path, command: tuple[str, ...]
) -> None:
    """And only an example: a limit that none of them comes near is no reason."""
    data = tmp_path / "long.jsonl"
    counts = [900 if n % 4 == 0 else 5 for n in range(40)]
    rows = [
        {"prompt": f"What is {n}?", "completion": " ".join(str(1000 * n + k) for k in range(count))}
        for n, count in enumerate(counts)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    limits = ("data.max_length", "shapes.tokens_per_microbatch", "train.tokens_per_step")
    given = [part for key in limits for part in ("--set", f"{key}=6000")]
    done = main(*command, recipe_file, *EAGER, *given, "--set", f"data.source={data}")
    assert "tokens, and the model positions for 4096; lower data.max_length" in done.err
    assert done.code == 2
    assert main("shapes", "plan", recipe_file, *EAGER, *given).code == 0


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (["shapes.buckets=[16]", "shapes.strategy=bucket"], "add a bucket for it"),
        (["shapes.buckets=[16, 96]"], "set strategy: bucket"),
        (["shapes.buckets=[96, 16]", "shapes.strategy=bucket"], "ascending"),
        (["shapes.buckets=[16, 97]", "shapes.strategy=bucket"], "does not fit in tokens_per_microbatch"),
        (["shapes.buckets=[]", "shapes.strategy=bucket"], "shapes.buckets"),
        (["shapes.buckets=[0, 96]", "shapes.strategy=bucket"], "shapes.buckets"),
        (["shapes.tokens_per_microbatch=50"], "does not fit in shapes.tokens_per_microbatch"),
    ],
)
def test_shapes_that_cannot_be_are_refused(
    main: Main, built: Path, recipe_file: Path, settings: list[str], why: str
) -> None:
    given = [part for one in settings for part in ("--set", one)]
    refused(main("shapes", "plan", recipe_file, *EAGER, *given), 2, why)
