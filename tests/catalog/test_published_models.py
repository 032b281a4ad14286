"""Dimensions of published models give the parameter counts that their makers publish."""

from __future__ import annotations

import pytest

from trueup.catalog.models import published_model, published_models
from trueup.model.dims import expected_dims
from trueup.recipe.models import TuneSection

# From the safetensors indices of the models' own repositories.
PUBLISHED = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-2-7b": 6_738_415_616,
    "mistral-7b": 7_241_732_096,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_dimensions_give_the_published_parameter_count(name: str) -> None:
    dims = expected_dims(dict(published_models()[name].config), TuneSection(method="full"))
    assert dims.parameters == PUBLISHED[name]


def test_every_model_of_the_catalog_is_checked() -> None:
    assert set(published_models()) == set(PUBLISHED)


def test_a_model_is_found_by_its_hub_name_whatever_the_case() -> None:
    found = published_model("meta-llama/llama-3.1-8b-instruct")
    assert found is not None
    assert found.name == "llama-3.1-8b"


def test_no_other_model_is_taken_for_one_of_a_like_name() -> None:
    assert published_model("llama-3.1-8") is None
