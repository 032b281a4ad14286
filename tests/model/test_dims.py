"""Dimensions from the config alone are those of the loaded model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trueup.model.builtin import resolve_model
from trueup.model.dims import expected_dims, most_positions
from trueup.model.load import load_model, read_config
from trueup.recipe.models import TuneSection


@pytest.mark.parametrize(
    "tune",
    [
        TuneSection(),
        TuneSection(rank=4, targets=("q_proj", "gate_proj", "up_proj", "down_proj")),
        TuneSection(method="full"),
    ],
)
def test_the_config_tells_what_loading_counts(home: Path, tune: TuneSection) -> None:
    resolved = resolve_model("tiny", home)
    loaded = load_model(resolved, tune, torch_device=torch.device("cpu"), seed=0)
    config = read_config(resolved)
    assert expected_dims(config, tune) == loaded.dims
    assert most_positions(config) == loaded.max_positions


def test_a_sliding_window_limits_the_positions() -> None:
    assert most_positions({"max_position_embeddings": 4096, "sliding_window": 1024}) == 1024
    assert most_positions({}) is None
    unused = {"max_position_embeddings": 4096, "sliding_window": 1024, "use_sliding_window": False}
    assert most_positions(unused) == 4096
