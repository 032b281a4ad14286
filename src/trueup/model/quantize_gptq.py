"""GPTQ over a whole model: layer after layer, and in a layer matrix after matrix, each on the inputs that the
matrices before it give once they are quantised.

R rows of T calibration tokens, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from trueup.schema import InputError
from trueup.schema.quantization import LayerError, StoredWeight

from .gptq import Hessian, gptq
from .quantize import LAYER_PARTS, Quantised, Say, Wanted, look_at_range, round_one
from .quantize_round import round_to_nearest

TOKENS_AT_ONCE = 2048


class _SeenEnoughError(Exception):
    """Raised by a hook: what runs after it is not needed."""


@dataclass(frozen=True)
class _Chunk:
    """Some rows on their way through the layers, and what a layer takes beside them."""

    hidden_BTH: torch.Tensor
    beside: dict[str, Any]


def require_calibration(rows_RT: torch.Tensor | None, base: Any, plan: dict[str, StoredWeight]) -> None:
    """Raises InputError where there are fewer tokens than the widest matrix has inputs: its Hessian would
    have no inverse but the damping's."""
    tokens = 0 if rows_RT is None else rows_RT.numel()
    if tokens == 0:
        raise InputError("GPTQ looks at calibration rows, and there are none; give --calibration DATA")
    name, inputs = max(
        ((name, base.get_submodule(name).weight.shape[1]) for name in plan), key=lambda one: one[1]
    )
    if tokens < inputs:
        raise InputError(
            f"the calibration data has {tokens:,} tokens, and GPTQ needs as many as {name} has inputs, "
            f"{inputs:,}, at least; give more --calibration data, or --method rtn"
        )


@torch.no_grad()
def by_gptq(
    base: Any, plan: dict[str, StoredWeight], wanted: Wanted, rows_RT: torch.Tensor, say: Say
) -> Quantised:
    """Every matrix of the plan, in place of the model's own; a tied head is rounded to the nearest, first,
    since it is looked up as well."""
    made = Quantised()
    for name, stored in plan.items():
        if stored.method == "rtn":
            round_one(made, base, name, stored, wanted)
    prefix = str(base.base_model_prefix)
    layers = getattr(base, prefix).layers
    chunks = _first_inputs(base, layers[0], rows_RT)
    for number, layer in enumerate(layers):
        say(f"GPTQ: layer {number + 1} of {len(layers)}")
        for parts in LAYER_PARTS:
            hessian = _hessian(layer, parts[0], chunks)
            for part in parts:
                _quantise(made, f"{prefix}.layers.{number}.{part}", base, plan, wanted, hessian)
        chunks = [_Chunk(_hidden(layer(one.hidden_BTH, **one.beside)), one.beside) for one in chunks]
    head = next((name for name, stored in plan.items() if name not in made.weights), None)
    if head is not None:
        norm = getattr(base, prefix).norm
        hessian = Hessian(base.get_submodule(head).weight.shape[1])
        for chunk in chunks:
            hessian.add(norm(chunk.hidden_BTH))
        _quantise(made, head, base, plan, wanted, hessian)
    return made


def _first_inputs(base: Any, layer: Any, rows_RT: torch.Tensor) -> list[_Chunk]:
    """What the first layer is given, by running the model up to it."""
    chunks: list[_Chunk] = []

    def look(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        beside = dict(kwargs)
        hidden_BTH = args[0] if args else beside.pop("hidden_states")
        chunks.append(_Chunk(hidden_BTH, beside))
        raise _SeenEnoughError

    with _removed(layer.register_forward_pre_hook(look, with_kwargs=True)):
        for part_BT in torch.split(rows_RT, max(1, TOKENS_AT_ONCE // rows_RT.shape[1])):
            with suppress(_SeenEnoughError):
                base(input_ids=part_BT, use_cache=False)
    return chunks


def _hessian(layer: Any, part: str, chunks: list[_Chunk]) -> Hessian:
    """Of the inputs of one matrix of the layer."""
    module = layer.get_submodule(part)
    hessian = Hessian(module.weight.shape[1])

    def look(module: Any, args: tuple[Any, ...]) -> None:
        hessian.add(args[0])
        raise _SeenEnoughError

    with _removed(module.register_forward_pre_hook(look)):
        for chunk in chunks:
            with suppress(_SeenEnoughError):
                layer(chunk.hidden_BTH, **chunk.beside)
    return hessian


@contextmanager
def _removed(handle: Any) -> Iterator[None]:
    """The hook is there within, and only there."""
    try:
        yield
    finally:
        handle.remove()


def _hidden(out: Any) -> torch.Tensor:
    hidden_BTH: torch.Tensor = out[0] if isinstance(out, tuple) else out
    return hidden_BTH


def _quantise(
    made: Quantised,
    name: str,
    base: Any,
    plan: dict[str, StoredWeight],
    wanted: Wanted,
    hessian: Hessian,
) -> None:
    stored, module = plan[name], base.get_submodule(name)
    weight_OI = module.weight.detach().float()
    per_tensor = wanted.per_tensor and stored.scheme == "fp8"
    look_at_range(made, name, weight_OI, stored, per_tensor=per_tensor)
    nearest = round_to_nearest(weight_OI, stored.scheme, stored.group, per_tensor=per_tensor)
    found = gptq(weight_OI, hessian, stored.scheme, stored.group, per_tensor=per_tensor)
    before, after = hessian.output_error(weight_OI, nearest), hessian.output_error(weight_OI, found)
    made.errors.append(LayerError(name=name, error=after, rtn=before))
    made.take(name, module, found)
