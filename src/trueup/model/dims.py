"""A model's dimensions from its config.json alone, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueup.recipe.models import TuneSection
from trueup.schema import ModelDims


def expected_dims(config: dict[str, Any], tune: TuneSection) -> ModelDims:
    """What `load_model` would count: a Llama-class decoder without biases. Adapters of layers that such a
    decoder does not have count nothing. Raises KeyError where the config lacks a dimension."""
    bare = ModelDims.from_config(config, parameters=0, trainable=0)
    linear = bare.linear_layers
    layer = sum(inputs * outputs for inputs, outputs in linear.values()) + 2 * bare.hidden  # two norms
    embeddings = bare.vocab * bare.hidden * (1 if bare.tied_head else 2)
    parameters = bare.layers * layer + embeddings + bare.hidden
    if tune.method == "full":
        return bare.model_copy(update={"parameters": parameters, "trainable_parameters": parameters})
    adapters = bare.layers * sum(tune.rank * sum(linear[name]) for name in tune.targets if name in linear)
    counts = {
        "parameters": parameters + adapters,
        "trainable_parameters": adapters,
        "lora_parameters": adapters,
    }
    return bare.model_copy(update=counts)


def most_positions(config: Mapping[str, Any]) -> int | None:
    """The longest example in tokens: the positions that the model has, or a sliding window where one is used
    and smaller, which the block mask does not draw."""
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    limits = (config.get("max_position_embeddings"), window)
    return min((int(limit) for limit in limits if limit), default=None)
