"""The parts of our own forward pass, under the names of the modules that transformers would have run, for who
looks at what passes between them. Looking computes the same bits.

N tokens of a micro-batch, I inputs and O outputs of a projection.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import nn

from .decoder import Decoder, Layer, Projection
from .load import LoadedModel


@dataclass(frozen=True)
class Part:
    """A projection of a layer. `names` are of its linear layers, whose `parent` is attention or the
    feed-forward part; `before` makes its input, `after` takes its output in; where it is the `last` of its
    parent, its output is the parent's."""

    layer: str
    parent: str
    names: tuple[str, ...]
    before: str
    after: str
    last: bool


class Onlooker(Protocol):
    """Is shown every projection's input and output. `outs`: the output cut up by linear layer, without
    gradients."""

    def taken(self, part: Part, x_NI: torch.Tensor) -> None: ...
    def made(self, part: Part, out_NO: torch.Tensor, outs: tuple[torch.Tensor, ...]) -> None: ...


@dataclass(frozen=True)
class ShownProjection:
    """Called as the projection is."""

    projection: Projection
    part: Part
    onlooker: Onlooker

    @property
    def linears(self) -> tuple[nn.Linear, ...]:
        return self.projection.linears

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        self.onlooker.taken(self.part, x_NI)
        out_NO = self.projection(x_NI)
        sizes = [linear.out_features for linear in self.linears]
        self.onlooker.made(self.part, out_NO, torch.split(out_NO.detach(), sizes, dim=-1))
        return out_NO


def shown_layers(loaded: LoadedModel, decoder: Decoder, onlooker: Onlooker) -> tuple[Layer, ...]:
    """The decoder's layers with every projection shown."""
    prefix, layers = str(loaded.base.base_model_prefix), tuple(decoder.layers)
    after = [*(f"{prefix}.layers.{n}.input_layernorm" for n in range(1, len(layers))), f"{prefix}.norm"]
    return tuple(
        _shown(layer, _parts(f"{prefix}.layers.{n}", after[n]), onlooker) for n, layer in enumerate(layers)
    )


def _shown(layer: Layer, parts: dict[str, Part], onlooker: Onlooker) -> Layer:
    shown: Any = {
        field: ShownProjection(getattr(layer, field), part, onlooker) for field, part in parts.items()
    }
    return replace(layer, **shown)  # called as the projections are


def _parts(layer: str, after: str) -> dict[str, Part]:
    """By their fields in `Layer`."""
    attention, feed = f"{layer}.self_attn", f"{layer}.mlp"
    before, middle = f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"

    def part(parent: str, names: str, before: str, after: str, *, last: bool) -> Part:
        linears = tuple(f"{parent}.{name}_proj" for name in names.split())
        return Part(layer, parent, linears, before, after, last)

    return {
        "qkv": part(attention, "q k v", before, attention, last=False),
        "out": part(attention, "o", attention, middle, last=True),
        "gate_up": part(feed, "gate up", middle, feed, last=False),
        "down": part(feed, "down", feed, after, last=True),
    }
