"""The layout of quantised tensors that the package compressed-tensors names and transformers and vLLM read:
names of tensors, integers packed in int32, and `quantization_config` of config.json.

Integers are stored as `pack-quantized`: a value v of b bits as v + 2^(b-1), the first value in the lowest
bits of an int32. fp8 is stored as `float-quantized`. Only weights are quantised: activations stay as they
are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from trueup.schema.quantization import BITS, StoredWeight

PACKED, VALUES, SCALE, SHAPE = "weight_packed", "weight", "weight_scale", "weight_shape"
UNPACKED_ROWS = 2048


def pack(values_OI: torch.Tensor, bits: int) -> torch.Tensor:
    """(O, I) int8 to (O, ceil(I * bits / 32)) int32; the rest of the last int32 is zero."""
    per_word = 32 // bits
    outputs, inputs = values_OI.shape
    shifted = values_OI.to(torch.int64) + (1 << (bits - 1))
    padded = torch.nn.functional.pad(shifted, (0, -inputs % per_word))
    words = padded.view(outputs, -1, per_word) << (bits * torch.arange(per_word))
    return _signed(words.sum(-1))


def _signed(words: torch.Tensor) -> torch.Tensor:
    """The same 32 bits as int32."""
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def unpack(packed: torch.Tensor, bits: int, inputs: int) -> torch.Tensor:
    """The (O, I) int8 that `pack` was given. Some rows at a time: on the way they take several times their
    room."""
    per_word = 32 // bits
    shifts = bits * torch.arange(per_word, dtype=torch.int32)
    values_OI = torch.empty((len(packed), inputs), dtype=torch.int8)
    for words, into in zip(
        torch.split(packed, UNPACKED_ROWS), torch.split(values_OI, UNPACKED_ROWS), strict=True
    ):
        values = (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
        into.copy_(values.flatten(1)[:, :inputs].sub_(1 << (bits - 1)))
    return values_OI


def quantization_config(
    weights: Mapping[str, StoredWeight], kept_linear: list[str], *, embedding: bool
) -> dict[str, Any]:
    """`quantization_config` of config.json. `kept_linear`: linear layers that are stored as they were;
    `embedding`: whether it is among the weights.

    Matrices stored alike are a group of their own, named exactly, so that a head of more bits than the layers
    is read as what it is. An embedding is named too: a reader that takes only linear layers ends with an
    error then, where it would fill the embedding with random numbers.
    """
    alike: dict[StoredWeight, list[str]] = {}
    for name, stored in weights.items():
        key = stored.model_copy(update={"method": "rtn"})  # how the values were found is nothing to a reader
        alike.setdefault(key, []).append(name)
    plain = len(alike) == 1 and not embedding
    groups = {
        f"group_{number}": {
            "targets": ["Linear"] if plain else [f"re:^{re.escape(name)}$" for name in names],
            "weights": _weights(stored),
            "input_activations": None,
            "output_activations": None,
            "format": _format(stored),
        }
        for number, (stored, names) in enumerate(sorted(alike.items(), key=lambda item: -len(item[1])))
    }
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": next(iter(groups.values()))["format"] if len(groups) == 1 else "mixed-precision",
        "config_groups": groups,
        "ignore": kept_linear,
        "kv_cache_scheme": None,
    }


def _format(stored: StoredWeight) -> str:
    return "float-quantized" if stored.scheme == "fp8" else "pack-quantized"


def _weights(stored: StoredWeight) -> dict[str, Any]:
    return {
        "num_bits": BITS[stored.scheme],
        "type": "float" if stored.scheme == "fp8" else "int",
        "symmetric": True,
        "strategy": "channel" if stored.group is None else "group",
        "group_size": stored.group,
        "dynamic": False,
    }
