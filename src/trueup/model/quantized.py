"""A quantised model folder, and reading it back.

Beside config.json and the tokenizer's files there are model.safetensors, in the layout that
compressed-tensors names (`compressed_tensors.py`), and trueup_quantization.json, which says how each matrix
is stored. What is kept is stored as it was: norms, and a head or embedding that was not to be quantised.

O outputs, I inputs, G scales of an output: 1, or I / group.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trueup.files.whole import read_json_object
from trueup.schema import InputError, StorageError
from trueup.schema.quantization import BITS, FACTS_FILE, QuantizationFacts, Scheme, StoredWeight

from .compressed_tensors import PACKED, SCALE, SHAPE, VALUES, unpack
from .folder import SINGLE_FILE

FORMAT = 1
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class QuantizedWeight:
    """A matrix as integers or fp8 and scales, symmetric: a weight is its value times its group's scale.

    `values_OI` is int8 for both integer schemes (int4: -8 to 7, two of them to the byte on disk only) and
    float8_e4m3fn for fp8. `group` is the number of inputs that share a scale; None: all of an output's.
    """

    scheme: Scheme
    values_OI: torch.Tensor
    scales_OG: torch.Tensor
    group: int | None


def dequantise(weight: QuantizedWeight, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """(O, I): each value times its scale, multiplied in fp32."""
    outputs, inputs = weight.values_OI.shape
    grouped = weight.values_OI.float().view(outputs, weight.scales_OG.shape[1], -1)
    product: torch.Tensor = grouped * weight.scales_OG.float().unsqueeze(-1)
    return product.view(outputs, inputs).to(dtype)


def is_quantised(folder: Path) -> bool:
    return (folder / FACTS_FILE).is_file()


def facts_of(folder: Path) -> QuantizationFacts:
    """Raises InputError for a folder that is not one of ours, StorageError for one that is damaged."""
    path = folder / FACTS_FILE
    if not path.is_file():
        raise InputError(f"{folder}: no {FACTS_FILE}; a folder that `trueup quantize` wrote was expected")
    try:
        content = read_json_object(path)
        if content.get("format") != FORMAT:
            raise InputError(
                f"{path}: written in format {content.get('format')}, and this version reads {FORMAT}; "
                "quantise the original again"
            )
        return QuantizationFacts.model_validate(content)
    except (ValueError, OSError) as error:
        raise StorageError(f"{path}: damaged ({error}); quantise the original again") from None


def read_quantized(folder: Path) -> dict[str, QuantizedWeight]:
    """By transformers' parameter name without ".weight". A tied head is under the embedding's name, once.

    Raises InputError for another kind of folder, StorageError where a tensor is missing, has another shape or
    type than expected, or a scale is not finite.
    """
    facts = facts_of(folder)
    with _tensors(folder) as tensors:
        return {name: _read(folder, tensors, name, stored) for name, stored in facts.weights.items()}


def read_kept(folder: Path) -> dict[str, torch.Tensor]:
    """What is stored as it was, by its full parameter name, in its own type."""
    facts = facts_of(folder)
    with _tensors(folder) as tensors:
        return {name: _tensor(folder, tensors, name).clone() for name in facts.kept}


def _tensors(folder: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    path = folder / SINGLE_FILE
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise StorageError(f"{path}: cannot be read ({error}); quantise the original again") from None


def _tensor(folder: Path, tensors: Any, name: str) -> torch.Tensor:
    """A part of the mapped file, all of which stays in memory for as long as it does: to be copied."""
    from safetensors import SafetensorError

    try:
        found: torch.Tensor = tensors.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"{folder}: {name} cannot be read ({error}); quantise the original again"
        ) from None
    return found


def _read(folder: Path, tensors: Any, name: str, stored: StoredWeight) -> QuantizedWeight:
    scales_OG = _tensor(folder, tensors, f"{name}.{SCALE}").to(torch.float32, copy=True)
    if stored.scheme == "fp8":
        values_OI = _tensor(folder, tensors, f"{name}.{VALUES}").clone()
    else:
        outputs, inputs = (int(size) for size in _tensor(folder, tensors, f"{name}.{SHAPE}"))
        packed = _tensor(folder, tensors, f"{name}.{PACKED}")
        words = -(-inputs * BITS[stored.scheme] // 32)
        if packed.dtype != torch.int32 or tuple(packed.shape) != (outputs, words):
            raise StorageError(f"{folder}: {name} is not packed as it says; quantise the original again")
        values_OI = unpack(packed, BITS[stored.scheme], inputs)
    weight = QuantizedWeight(stored.scheme, values_OI, scales_OG, stored.group)
    _check(folder, name, weight)
    return weight


def _check(folder: Path, name: str, weight: QuantizedWeight) -> None:
    outputs, inputs = weight.values_OI.shape
    expected = (outputs, 1 if weight.group is None else inputs // weight.group)
    if tuple(weight.scales_OG.shape) != expected:
        raise StorageError(
            f"{folder}: {name} has scales of shape {tuple(weight.scales_OG.shape)}, {expected} was expected; "
            "quantise the original again"
        )
    if not bool(torch.isfinite(weight.scales_OG).all()):
        raise StorageError(f"{folder}: {name} has scales that are not finite; quantise the original again")
