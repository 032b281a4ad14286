"""A model of serving (inference.py) that tells where it is, and its weights by the modules they are of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from .inference import InferenceModel
from .inference_layer import InferenceLayer
from .memory_profile_where import Whereabouts

LAYER = "model.layers.{}"
PARTS = {  # of a layer: its name, and where the forward pass is after it
    "qkv": ("self_attn.q_proj+k_proj+v_proj", "self_attn"),
    "out": ("self_attn.o_proj", "post_attention_layernorm"),
    "gate": ("mlp.gate_proj+up_proj", "mlp"),
    "down": ("mlp.down_proj", None),
}
NORMS = {"input_norm_H": "input_layernorm", "feed_norm_H": "post_attention_layernorm"}
EMBEDDING, NORM, HEAD = "model.embed_tokens", "model.norm", "lm_head"


@dataclass(frozen=True)
class _Shown:
    """A part of the model that says when it begins and when it is done."""

    part: Any
    where: Whereabouts
    name: str
    after: str

    def __call__(self, *given: torch.Tensor) -> torch.Tensor:
        self.where.between = self.name
        made: torch.Tensor = self.part(*given)
        self.where.between = self.after
        return made

    def added(self, x_NI: torch.Tensor, stream_NO: torch.Tensor) -> torch.Tensor:
        self.where.between = self.name
        made: torch.Tensor = self.part.added(x_NI, stream_NO)
        self.where.between = self.after
        return made

    @property
    def bytes(self) -> int:
        size: int = self.part.bytes
        return size


def shown(model: InferenceModel, where: Whereabouts) -> InferenceModel:
    """The same model and pool, by torch's operators alone: inside compiled code nothing can be seen."""
    layers = tuple(_shown_layer(layer, where, n, len(model.layers)) for n, layer in enumerate(model.layers))
    embedding: Any = _Shown(model.embedding, where, EMBEDDING, f"{LAYER.format(0)}.input_layernorm")
    head: Any = _Shown(model.head, where, HEAD, HEAD)
    return replace(model, embedding=embedding, layers=layers, head=head, decoder=None, _run_layer=None)


def weights_of_served(model: InferenceModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor that stays, each with its module's name."""
    yield from ((EMBEDDING, tensor) for tensor in _tensors(model.embedding))
    for number, layer in enumerate(model.layers):
        name = LAYER.format(number)
        for field, (part, _) in PARTS.items():
            yield from ((f"{name}.{part}", tensor) for tensor in _tensors(getattr(layer, field)))
        yield from ((f"{name}.{part}", getattr(layer, field)) for field, part in NORMS.items())
    yield NORM, model.norm_H
    own = HEAD if not model.dims.tied_head else EMBEDDING
    yield from ((own, tensor) for tensor in _tensors(model.head))
    yield "model.rotary_emb", model.frame.turn_2PD


def _shown_layer(layer: InferenceLayer, where: Whereabouts, number: int, count: int) -> InferenceLayer:
    name = LAYER.format(number)
    following = f"{LAYER.format(number + 1)}.input_layernorm" if number + 1 < count else NORM
    told: Any = {
        field: _Shown(
            getattr(layer, field), where, f"{name}.{part}", following if after is None else f"{name}.{after}"
        )
        for field, (part, after) in PARTS.items()
    }
    return replace(layer, **told)


def _tensors(part: Any) -> Iterator[torch.Tensor]:
    """All tensors of a part, whatever it is built of."""
    if isinstance(part, torch.Tensor):
        yield part
    elif isinstance(part, tuple):
        for one in part:
            yield from _tensors(one)
    elif is_dataclass(part):
        for field in fields(part):
            yield from _tensors(getattr(part, field.name))
