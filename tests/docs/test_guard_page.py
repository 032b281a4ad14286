"""docs/guard.md says what the guard's code says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from trueup.analysis.guard_presets import PRESETS, expanded
from trueup.analysis.guard_values import Facts
from trueup.recipe.survival import GuardSection
from trueup.schema.watched import DERIVED_VALUES

PAGE = (Path(__file__).parents[2] / "docs" / "guard.md").read_text(encoding="utf-8")


def test_the_presets_are_in_the_table_with_their_levels() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\w+) (\S+).*? \| (\S+) .*?\| (\w+) \|", PAGE, re.MULTILINE)
    levels = {"`train.stop.usd`": 1.0, "it": 1.0}
    written = [
        (preset, watch, side, levels.get(level) or float(level), action)
        for preset, watch, side, level, _, action in rows
    ]
    in_code = [
        (preset, rule.watch, "below" if rule.above is None else "above", rule.level, rule.action)
        for preset in PRESETS
        for rule in expanded([preset], Facts(usd_per_hour=1), 1.0)[0]
    ]
    assert written == in_code
    windows = [float(row[4]) for row in rows if row[4] != "one"]
    rules = expanded(PRESETS, Facts(usd_per_hour=1), 1.0)[0]
    assert windows == [rule.window_s for rule in rules if rule.watch != "usd_after_next_step"]


def test_what_all_adds_is_named() -> None:
    every = expanded(["all"], Facts(usd_per_hour=1), 1.0)[0]
    added = set(every) - set(expanded(PRESETS, Facts(usd_per_hour=1), 1.0)[0])
    (line,) = re.findall(r"^`all` is .*?(?=\n\n)", PAGE, re.MULTILINE | re.DOTALL)
    for rule in added:
        assert f"`{rule.watch}`" in line
        assert f"{rule.level:g}".replace("+0", "") in line


def test_every_derived_value_is_in_the_table() -> None:
    table = PAGE.partition("| value |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(DERIVED_VALUES)


def test_the_examples_are_what_they_say() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    section = GuardSection.model_validate(yaml.safe_load(example)["guard"])
    assert section.presets == ("thermal", "budget")
    assert section.rules[1].below == 2e9
    (document,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert set(json.loads(document)) >= {"run", "action", "rule", "value", "level", "window_s", "message"}
