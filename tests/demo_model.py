"""The demo's model for slow tests: from a home that has it, else written; skipped where nothing brings its
weights."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trueup.model.builtin import ResolvedModel, damage_of, resolve_model
from trueup.schema import InputError

NAME = "smollm2-135m"


def demo_model(new_home: Path) -> ResolvedModel:
    home = Path(os.environ.get("TRUEUP_HOME", new_home))
    if damage_of(home / "models" / NAME) is not None:
        home = new_home
    try:
        return resolve_model(NAME, home)
    except InputError as error:
        pytest.skip(f"{NAME} is not there: {error}")
