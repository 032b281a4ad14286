"""Whether a folder's weight files hold what its config.json describes: every tensor of it, in its shape, and
no other. Names and shapes come from the files' headers; no weight is read but those of a head stored twice.

O outputs, I inputs, of a matrix.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trueup.schema import InputError, ModelDims
from trueup.schema.counting import counted
from trueup.schema.quantization import BITS, StoredWeight

from .compressed_tensors import PACKED, SCALE, SHAPE, VALUES
from .folder import tensor_shapes, weight_files
from .quantized import facts_of, is_quantised

Shapes = Mapping[str, tuple[int, ...]]

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
# What older libraries stored beside the weights: it follows from config.json.
FOLLOWS = re.compile(r"(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$")
LAYER = re.compile(r"^model\.layers\.(\d+)\.")
FIRST = "model.layers.0."
COMPARED_ROWS = 4096  # of two matrices at once: a head alone can take a gigabyte


def require_weights(folder: Path, config: Mapping[str, Any], dims: ModelDims) -> None:
    """Raises InputError where the files and config.json are not of one model. Whatever else a file holds is
    refused too: a layer or a head left out of the computation gives wrong answers without an error."""
    found = {name: shape for name, shape in _stored(folder).items() if not FOLLOWS.search(name)}
    _require_layers(folder, found, dims.layers)
    wanted = _expected(folder, config, dims)
    if dims.tied_head and HEAD in found and not is_quantised(folder):
        _require_one_head(folder, found)
        del found[HEAD]
    missing, more = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing:
        raise InputError(
            f"{folder}: the weight files have no {missing[0]}, one of {counted(len(missing), 'tensor')} that "
            "its config.json describes and they lack; copy the model again"
        )
    if more:
        raise InputError(
            f"{folder}: its config.json has no use for {counted(len(more), 'tensor')} of the weight files, "
            f"first {more[0]}, so it is not of these weights; copy the model again"
        )
    for name, shape in wanted.items():
        if found[name] != shape:
            raise InputError(
                f"{folder}: {name} has the shape {list(found[name])} in the weight files, and by config.json "
                f"{list(shape)}; copy the model again"
            )


def _stored(folder: Path) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for path in weight_files(folder):
        try:
            shapes |= tensor_shapes(path)
        except ValueError as error:
            raise InputError(f"{path}: {error}. Download or copy this file again.") from None
    return shapes


def _require_layers(folder: Path, found: Shapes, layers: int) -> None:
    numbers = {int(match[1]) for match in map(LAYER.match, found) if match is not None}
    there = max(numbers, default=-1) + 1
    if there != layers:
        raise InputError(
            f"{folder}: config.json says {counted(layers, 'layer')} (num_hidden_layers), and the weight "
            f"files have {there}; copy the model again"
        )


def _expected(folder: Path, config: Mapping[str, Any], dims: ModelDims) -> dict[str, tuple[int, ...]]:
    """What the files of such a model hold."""
    stored = dict(facts_of(folder).weights) if is_quantised(folder) else {}
    wanted: dict[str, tuple[int, ...]] = {}
    for name, shape in _of_one_layer(config).items():
        if name == HEAD and dims.tied_head:
            continue
        own = name.removeprefix(FIRST)
        names = [name] if own == name else [f"model.layers.{number}.{own}" for number in range(dims.layers)]
        for one in names:
            weight = stored.get(one.removesuffix(".weight"))
            wanted |= {one: shape} if weight is None else _quantised(one, shape, weight)
    return wanted


def _of_one_layer(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Parameters of this model with one layer, which takes no memory."""
    from transformers import AutoConfig, AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        bare = auto.from_config(AutoConfig.for_model(**with_one_layer(config)))
    return {name: tuple(tensor.shape) for name, tensor in bare.state_dict().items()}


def with_one_layer(config: Mapping[str, Any]) -> dict[str, Any]:
    own = copy.deepcopy(dict(config))
    own.pop("quantization_config", None)
    own["num_hidden_layers"] = 1
    if own.get("layer_types"):
        own["layer_types"] = own["layer_types"][:1]
    return own


def _quantised(name: str, shape: tuple[int, ...], stored: StoredWeight) -> dict[str, tuple[int, ...]]:
    outputs, inputs = shape
    matrix = name.removesuffix(".weight")
    scales = {f"{matrix}.{SCALE}": (outputs, 1 if stored.group is None else inputs // stored.group)}
    if stored.scheme == "fp8":
        return {f"{matrix}.{VALUES}": shape, **scales}
    words = -(-inputs * BITS[stored.scheme] // 32)
    return {f"{matrix}.{PACKED}": (outputs, words), f"{matrix}.{SHAPE}": (2,), **scales}


def _require_one_head(folder: Path, found: Shapes) -> None:
    """The head of a model that ties it may be stored too, if it is the embedding."""
    if found.get(EMBEDDING) == found[HEAD] and _equal(folder, found[HEAD][0]):
        return
    raise InputError(
        f"{folder}: config.json ties the head to the embedding (tie_word_embeddings), and the weight files "
        f"have a {HEAD} of their own that differs from it; correct config.json, or copy the model again"
    )


def _equal(folder: Path, rows: int) -> bool:
    from contextlib import ExitStack

    from safetensors import safe_open

    with ExitStack() as stack:
        files: list[Any] = [
            stack.enter_context(safe_open(path, framework="pt")) for path in weight_files(folder)
        ]
        head, embedding = (
            next(file.get_slice(name) for file in files if name in file.keys())  # noqa: SIM118
            for name in (HEAD, EMBEDDING)
        )
        return all(
            bool((head[at : at + COMPARED_ROWS] == embedding[at : at + COMPARED_ROWS]).all())
            for at in range(0, rows, COMPARED_ROWS)
        )
