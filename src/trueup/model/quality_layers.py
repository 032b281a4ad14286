"""How far each layer's outputs moved by quantising, and which part first gave no numbers.

O outputs, I inputs of a linear layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from trueup.schema.quantization import LayerError

TOKENS = 2048  # of the held-out rows, at most
TOKENS_AT_ONCE = 512


@torch.no_grad()
def layer_errors(original: Any, quantised: Any, rows_RT: torch.Tensor) -> tuple[LayerError, ...]:
    """Of every linear layer, in the order of the model: the norm of the change of its outputs over their
    norm, both on what the original gives it. So an error is of the layer it is named after, and of no
    other."""
    theirs = dict(quantised.named_modules())
    sums: dict[str, list[float]] = {}

    def look(name: str, module: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> None:
        change_OI = theirs[name].weight - module.weight
        squared = (args[0] @ change_OI.T).square().sum()
        found = sums.setdefault(name, [0.0, 0.0])
        found[0] += float(squared)
        found[1] += float(output.square().sum())

    rows_RT = rows_RT[: max(1, TOKENS // rows_RT.shape[1]), :TOKENS]
    with _hooks(original, nn.Linear, look):
        for part_BT in torch.split(rows_RT, max(1, TOKENS_AT_ONCE // rows_RT.shape[1])):
            original(input_ids=part_BT, use_cache=False)
    return tuple(
        LayerError(name=name, error=(changed / whole) ** 0.5 if whole else 0.0)
        for name, (changed, whole) in sums.items()
    )


@torch.no_grad()
def first_not_finite(base: Any, tokens_BT: torch.Tensor) -> str | None:
    """The first part whose output is no number although its inputs are; None where there is none."""
    found: list[str] = []

    def look(name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        if not found and _finite(args) and not _finite(outputs) and not list(module.children()):
            found.append(name)

    with _hooks(base, nn.Module, look):
        base(input_ids=tokens_BT, use_cache=False)
    return found[0] if found else None


def _finite(values: tuple[Any, ...]) -> bool:
    return all(
        bool(torch.isfinite(value).all())
        for value in values
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    )


@contextmanager
def _hooks(base: nn.Module, kind: type[nn.Module], look: Callable[..., None]) -> Iterator[None]:
    handles = [
        module.register_forward_hook(partial(look, name))
        for name, module in base.named_modules()
        if isinstance(module, kind)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
