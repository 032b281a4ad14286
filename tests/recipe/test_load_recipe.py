"""Recipes: what is accepted, and how each mistake is named."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from trueup.recipe import load_recipe, recipe_schema
from trueup.schema import InputError

GOOD = """\
name: small
model: {path: tiny}
data:
  source: stdlib-docs
  max_length: 128
tune:
  rank: 4
optimizer: {lr: 5e-4}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    return path


def refusal(tmp_path: Path, text: str, *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        load_recipe(write(tmp_path, text), overrides)
    return str(caught.value)


def test_values_come_with_their_source(tmp_path: Path) -> None:
    loaded = load_recipe(write(tmp_path, GOOD), ["train.max_steps=50", "tune.rank=8"])
    assert loaded.recipe.tune.rank == 8
    assert loaded.recipe.train.max_steps == 50
    assert loaded.recipe.optimizer.lr == 5e-4
    assert loaded.sources["tune.rank"] == "command line"
    assert loaded.sources["train.max_steps"] == "command line"
    assert loaded.sources["data.max_length"] == "file"
    assert loaded.sources["tune.alpha"] == "default"


def test_a_recipe_knows_what_a_command_was_given_for_it(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    loaded = load_recipe(path, ["train.max_steps=50", "name=a run"])
    assert loaded.arguments == [str(path), "--set", "train.max_steps=50", "--set", "name=a run"]


def test_off_is_a_word_and_true_is_not(tmp_path: Path) -> None:
    """YAML 1.1 takes off, on, yes and no for booleans."""
    text = GOOD + "precision: {loss_scale: off}\ncheckpoint: {best: no}\n"
    recipe = load_recipe(write(tmp_path, text), ["platform.metadata=true", "data.strict=yes"]).recipe
    assert recipe.precision.loss_scale == "off"
    assert recipe.checkpoint.best is False
    assert recipe.platform.metadata is True
    assert recipe.data.strict is True


def test_unknown_key_names_the_nearest_and_its_line(tmp_path: Path) -> None:
    message = refusal(tmp_path, GOOD.replace("  rank: 4", "  ranks: 4"))
    assert message.endswith("r.yaml:7: unknown key 'tune.ranks'; did you mean 'tune.rank'?")


def test_key_in_the_wrong_section_is_found(tmp_path: Path) -> None:
    assert "did you mean 'optimizer.lr'?" in refusal(tmp_path, GOOD + "lr: 1e-3\n")


def test_unknown_key_on_the_command_line(tmp_path: Path) -> None:
    message = refusal(tmp_path, GOOD, "train.max_step=3")
    assert message == "--set: unknown key 'train.max_step'; did you mean 'train.max_steps'?"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("tune.rank=0", "--set: tune.rank: "),
        ("optimizer.betas=[0.9]", "--set: optimizer.betas: "),
        ("price.usd_per_hour=1", "--set: 'price.source' is required and missing"),
        ("price={usd: 1}", "--set: unknown key 'price.usd'"),
        ("guard.rules=[{watch: loss}]", "--set: guard.rules: give one level"),
        ("precision.stochastic_rounding=true", "r.yaml:9 with --set precision.stochastic_rounding: "),
        ("shapes.tokens_per_microbatch=64", "r.yaml:5 with --set shapes.tokens_per_microbatch: data"),
        ("schedule.floor=1", "r.yaml:8 with --set schedule.floor: schedule.floor is above optimizer.lr"),
    ],
)
def test_what_an_override_made_wrong_is_put_down_to_it(tmp_path: Path, override: str, expected: str) -> None:
    message = refusal(tmp_path, GOOD + "precision: {policy: fp32}\n", override, "train.max_steps=3")
    assert expected in message
    assert "train.max_steps" not in message


def test_keys_that_do_not_agree_are_found_in_the_file(tmp_path: Path) -> None:
    message = refusal(tmp_path, GOOD + "shapes: {tokens_per_microbatch: 64}\n")
    assert message.startswith(f"{tmp_path}/r.yaml:5: data.max_length (128) does not fit")


def test_a_pause_on_what_a_paused_run_does_not_say_is_refused(tmp_path: Path) -> None:
    for watch in ("loss", "clock_share"):
        rule = f"guard: {{rules: [{{watch: {watch}, below: 0.8, action: pause}}]}}\n"
        assert f"{watch} would never say when to go on" in refusal(tmp_path, GOOD + rule)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("- a\n", "mapping of sections"),
        ("model: {path: tiny\n", "not valid YAML"),
        ("model: {path: tiny}\n", "'data' is required and missing"),
        (GOOD + "name: again\n", "'name' is given twice; first on line 1"),
        ("a: &x [1]\nb: *x\n", "no YAML aliases"),
        (GOOD + "price: {usd_per_hour: 0, source: me}\n", "r.yaml:9: price.usd_per_hour"),
        (GOOD + "price: {usd_per_hour: -2, source: me}\n", "greater than or equal to 0.000000001"),
        (GOOD + "price: {usd_per_hour: 1e300, source: me}\n", "less than or equal to 1000000000"),
        (GOOD + "price: {usd_per_hour: .nan, source: me}\n", "price.usd_per_hour"),
        (GOOD + "train: {stop: {usd: 1}}\n", "train.stop.usd needs a price"),
        (GOOD + "shapes: {tokens_per_microbatch: 64}\n", "does not fit"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal(tmp_path, text)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such recipe"):
        load_recipe(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="is a folder"):
        load_recipe(tmp_path)
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(InputError, match="not UTF-8"):
        load_recipe(binary)


@pytest.mark.parametrize("override", ["train.max_steps", "=3", "name.x=1"])
def test_malformed_override(tmp_path: Path, override: str) -> None:
    assert override in refusal(tmp_path, GOOD, override)


def test_digest_ignores_the_name_only(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    assert load_recipe(path).digest == load_recipe(path, ["name=other"]).digest
    assert load_recipe(path).digest != load_recipe(path, ["train.seed=1"]).digest


@pytest.mark.parametrize("key", ["usd", "minutes"])
def test_a_stop_condition_that_is_never_met_is_refused(tmp_path: Path, key: str) -> None:
    """The guard's rules are made from it once the run has begun, and none has a level without end."""
    with pytest.raises(InputError, match=key):
        load_recipe(write(tmp_path, GOOD), [f"train.stop.{key}=.inf"])


@pytest.mark.parametrize(
    "path", sorted([*Path("recipes").glob("*.yaml"), *Path("bench").glob("*.yaml")]), ids=lambda p: p.stem
)
def test_shipped_recipes_are_valid_and_match_the_schema(path: Path) -> None:
    loaded = load_recipe(path)
    assert loaded.recipe.name == path.stem
    jsonschema.validate(loaded.recipe.model_dump(mode="json"), recipe_schema())
    assert set(yaml.safe_load(path.read_text())) <= set(recipe_schema()["properties"])
