"""Compiling the decoder with torch.compile: each layer once for all layers, or the decoder as a whole.

Always `dynamic=False`: one graph for each shape, made when the shape is first seen. Mask and head stay
eager, in mode `layer` the embedding too.

With frozen embeddings the first layer's input needs no gradient and every other layer's does, so each shape
would take two graphs, and torch's limit of 8 graphs would be met after four shapes. The embeddings' output is
therefore made to need its gradient, which is then thrown away: the other gradients are the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from trueup.schema import InputError

from .load import LoadedModel

TORCHS_LIMIT = 8  # torch's own limit of graphs for one function; never lowered here


@dataclass
class Compiled:
    """A model that compiles as it goes. `undo` makes it eager again and puts torch's limits back."""

    graphs: int
    _undo: list[Callable[[], object]] = field(default_factory=list)

    def undo(self) -> None:
        """May be called twice."""
        while self._undo:
            self._undo.pop()()


def compile_model(
    loaded: LoadedModel, mode: Literal["layer", "model"], *, backend: str, graphs: int
) -> Compiled:
    """Compile the decoder in place, lazily: each graph is made when its shape is first run.

    `graphs` is how many are expected, one for each shape of training and one for each of evaluation, which
    runs without gradients. Where more are needed torch leaves the rest to the interpreter; the compile log
    tells. Raises InputError for a decoder without a list of layers in mode `layer`.
    """
    compiled = Compiled(max(graphs, TORCHS_LIMIT))
    decoder: nn.Module = getattr(loaded.base, str(loaded.base.base_model_prefix))
    modules = [decoder] if mode == "model" else _layers(loaded, decoder)
    _raise_limit(compiled)
    for module in modules:
        options: Any = {"dynamic": False, "backend": backend, "recompile_limit": compiled.graphs}
        module.compile(**options)
        compiled._undo.append(partial(setattr, module, "_compiled_call_impl", None))
    if mode == "layer":
        embedding: nn.Module = loaded.base.get_input_embeddings()
        compiled._undo.append(embedding.register_forward_hook(_need_gradient).remove)
    return compiled


def _layers(loaded: LoadedModel, decoder: nn.Module) -> list[nn.Module]:
    for module in decoder.children():
        if isinstance(module, nn.ModuleList) and len(module) == loaded.dims.layers:
            return list(module)
    raise InputError(
        f"{loaded.resolved.name}: compile.mode is layer, and no list of this model's {loaded.dims.layers} "
        "layers was found; set compile.mode to model or none"
    )


def _need_gradient(module: nn.Module, inputs: Any, hidden_BTH: torch.Tensor) -> torch.Tensor:
    if torch.is_grad_enabled() and not hidden_BTH.requires_grad:
        hidden_BTH.requires_grad_(True)
    return hidden_BTH


def _raise_limit(compiled: Compiled) -> None:
    """torch's limit of graphs for one function over all its uses, which `recompile_limit` does not cover."""
    from torch._dynamo import config

    before = config.accumulated_recompile_limit
    if compiled.graphs >= before:
        config.accumulated_recompile_limit = compiled.graphs + 1
        compiled._undo.append(partial(setattr, config, "accumulated_recompile_limit", before))
