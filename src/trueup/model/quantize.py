"""From a Llama-class model in fp32 to its matrices in few bits: what is quantised and how, the checks before,
and rounding to the nearest. `quantize_gptq` does the other method, `quantize_folder` writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trueup.schema import InputError
from trueup.schema.quantization import DEFAULT_GROUP, LayerError, Method, RangeCheck, Scheme, StoredWeight

from .builtin import ResolvedModel
from .decoder import UnsupportedError, check_structure
from .dims import require_divides
from .folder import config_of
from .fp8 import check_range
from .quantize_round import round_to_nearest, scales_of
from .quantized import QuantizedWeight, dequantise, is_quantised

Say = Callable[[str], None]
LAYER_PARTS = (  # of a decoder layer, those of one input together, in the order in which they run
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)


@dataclass(frozen=True)
class Wanted:
    """`group`: inputs that share a scale, None for one scale an output. `head`: how the head is stored, the
    embedding with it where they are one; None keeps it. `per_tensor`: one scale for a whole fp8 matrix."""

    scheme: Scheme
    method: Method = "rtn"
    group: int | None = None
    head: Scheme | None = None
    per_tensor: bool = False


@dataclass
class Quantised:
    """What was made so far, by parameter name without ".weight"."""

    weights: dict[str, QuantizedWeight] = field(default_factory=dict)
    ranges: list[RangeCheck] = field(default_factory=list)
    errors: list[LayerError] = field(default_factory=list)

    def take(self, name: str, module: Any, weight: QuantizedWeight) -> None:
        """Keep it, and let the model compute with it from now on."""
        self.weights[name] = weight
        module.weight.data = dequantise(weight, module.weight.dtype)


def require_quantisable(resolved: ResolvedModel) -> None:
    """Before anything is loaded. Raises InputError for a model that is quantised already."""
    config = config_of(resolved.folder)
    if is_quantised(resolved.folder) or config.get("quantization_config"):
        how = dict(config.get("quantization_config") or {}).get("quant_method", "trueup quantize")
        raise InputError(
            f"{resolved.name}: its weights are quantised already ({how}); a second rounding would add to the "
            "first. Give the original model"
        )


def require_numbers(base: nn.Module, name: str) -> None:
    """Raises InputError where a weight is no number: a scale made of it would spoil a whole row."""
    odd = {
        parameter_name: int((~torch.isfinite(parameter)).sum())
        for parameter_name, parameter in base.named_parameters()
        if not bool(torch.isfinite(parameter).all())
    }
    if odd:
        first = ", ".join(f"{one} ({count})" for one, count in list(odd.items())[:3])
        raise InputError(
            f"{name}: {len(odd)} of its tensors hold weights that are NaN or infinite: {first}. Quantise a "
            "checkpoint from before they came in"
        )


def planned(base: Any, wanted: Wanted, name: str) -> dict[str, StoredWeight]:
    """What will be stored and how, in the order of execution. Raises InputError for a model that is not built
    as Llama is, or a group that does not divide a matrix's inputs."""
    try:
        check_structure(base)
    except UnsupportedError as error:
        raise InputError(
            f"{name} is a {type(base).__name__}, and a model built as Llama is was expected: {error}"
        ) from None
    if wanted.scheme == "fp8" and wanted.group is not None:
        raise InputError("fp8 has a scale for each output or tensor; leave out --group")
    if wanted.per_tensor and wanted.scheme != "fp8":
        raise InputError("--per-tensor is of fp8; give int8 and int4 --group N, or a scale for each output")
    layer = StoredWeight(scheme=wanted.scheme, group=wanted.group, method=wanted.method)
    plan = dict.fromkeys(layer_matrices(base), layer)
    if wanted.head is not None:
        group = wanted.group if wanted.head == wanted.scheme else DEFAULT_GROUP[wanted.head]
        method: Method = "rtn" if is_tied(base) else wanted.method
        plan[head_name(base)] = StoredWeight(scheme=wanted.head, group=group, method=method)
    for full, stored in plan.items():
        require_divides(full, base.get_submodule(full).weight.shape[1], stored.group)
    return plan


def layer_matrices(base: Any) -> list[str]:
    """Names of the decoder layers' matrices, in the order of execution."""
    prefix = str(base.base_model_prefix)
    layers = range(len(getattr(base, prefix).layers))
    return [f"{prefix}.layers.{layer}.{part}" for layer in layers for parts in LAYER_PARTS for part in parts]


def is_tied(base: Any) -> bool:
    return base.get_output_embeddings().weight is base.get_input_embeddings().weight


def head_name(base: Any) -> str:
    """The embedding's, where it is the head as well."""
    module = base.get_input_embeddings() if is_tied(base) else base.get_output_embeddings()
    return next(str(name) for name, one in base.named_modules() if one is module)


@torch.no_grad()
def rounded(base: Any, plan: dict[str, StoredWeight], wanted: Wanted) -> Quantised:
    """Every matrix rounded to the nearest, in place of the model's own."""
    made = Quantised()
    for name, stored in plan.items():
        round_one(made, base, name, stored, wanted)
    return made


@torch.no_grad()
def round_one(made: Quantised, base: Any, name: str, stored: StoredWeight, wanted: Wanted) -> None:
    module = base.get_submodule(name)
    weight_OI = module.weight.detach().float()
    per_tensor = wanted.per_tensor and stored.scheme == "fp8"
    look_at_range(made, name, weight_OI, stored, per_tensor=per_tensor)
    made.take(name, module, round_to_nearest(weight_OI, stored.scheme, stored.group, per_tensor=per_tensor))


def look_at_range(
    made: Quantised, name: str, weight_OI: torch.Tensor, stored: StoredWeight, *, per_tensor: bool
) -> None:
    """Of what will be fp8, before it is."""
    if stored.scheme == "fp8":
        scales_OG = scales_of(weight_OI, "fp8", None, per_tensor=per_tensor)
        made.ranges.append(check_range(name, weight_OI, scales_OG))
