"""A model's dimensions from its config.json alone, before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trueup.recipe.models import TuneSection
from trueup.schema import InputError, ModelDims

# Keys of config.json that are numbers of something, from 1 on; those that may be missing or null last.
REQUIRED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
OPTIONAL = ("num_key_value_heads", "head_dim", "max_position_embeddings")
LARGEST = 2**40  # beyond it a slip


def require_possible(config: Mapping[str, Any], title: str) -> None:
    """Raises InputError, in one line, for dimensions that no model can have. That one is missing is for
    others to say."""
    for key in (*REQUIRED, *OPTIONAL):
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
            raise InputError(
                f"{title}: config.json has {key} {shown(value)}; a whole number from 1 on is expected"
            )
    heads, kv_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    hidden = config.get("hidden_size")
    if heads and kv_heads and heads % kv_heads:
        raise InputError(
            f"{title}: config.json has num_key_value_heads {kv_heads}; a divisor of num_attention_heads, "
            f"{heads}, is expected"
        )
    if heads and hidden and not config.get("head_dim") and hidden % heads:
        raise InputError(
            f"{title}: config.json has num_attention_heads {heads} without a head_dim; a divisor of "
            f"hidden_size, {hidden}, is expected"
        )
    for theta in _rope_thetas(config):
        if isinstance(theta, bool) or not isinstance(theta, int | float) or not 0 < theta < math.inf:
            raise InputError(
                f"{title}: config.json has rope_theta {shown(theta)}; a number above 0 is expected"
            )


def require_divides(name: str, inputs: int, group: int | None) -> None:
    """InputError for a group of inputs of a matrix that cannot share a scale."""
    if group is not None and (group < 8 or inputs % group):
        fit = [size for size in (8, 16, 32, 64, 96, 128, 192, 256) if inputs % size == 0]
        raise InputError(
            f"a group of {group} does not divide the {inputs} inputs of {name} into groups of 8 or more: "
            f"give {', '.join(map(str, fit)) or 'no group'}, or no --group for one scale an output"
        )


def shown(value: Any) -> str:
    """What a file holds, in a line of bounded length. An integer of thousands of digits has no other form."""
    whole = isinstance(value, int) and value.bit_length() > 128
    return "a number of many digits" if whole else repr(value)[:40]


def _rope_thetas(config: Mapping[str, Any]) -> list[Any]:
    places = [config, *(config.get(key) for key in ("rope_parameters", "rope_scaling"))]
    found = [place.get("rope_theta") for place in places if isinstance(place, Mapping)]
    return [theta for theta in found if theta is not None]


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
