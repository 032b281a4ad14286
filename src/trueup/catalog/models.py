"""Dimensions of well-known models, for predictions without their weights: `models.json` beside this file."""

from __future__ import annotations

from functools import cache

from trueup.schema import Frozen

from .lookup import read_data


class PublishedModel(Frozen):
    """A dense Llama-class model. `config` has the fields of its config.json that dimensions follow from."""

    name: str
    hub_names: tuple[str, ...]
    title: str
    config: dict[str, int | bool]
    source: str
    as_of: str


@cache
def published_models() -> dict[str, PublishedModel]:
    """Every model of the catalog by name."""
    return {row["name"]: PublishedModel.model_validate(row) for row in read_data("models.json")["models"]}


def published_model(name: str) -> PublishedModel | None:
    """The model of this catalog or hub name, whatever the case; None for any other, however alike."""
    asked = name.strip().lower()
    for model in published_models().values():
        if asked == model.name or asked in {hub.lower() for hub in model.hub_names}:
            return model
    return None
