"""Which module is running, for who records what it holds. Modules tell by hooks; our own forward pass
(decoder.py), which calls none for its projections, by what passes between its parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from .decoder_parts import Part, shown_layers
from .load import LoadedModel


class Whereabouts:
    """Called, it gives the name of the innermost module that is running."""

    def __init__(self, root: nn.Module | None = None) -> None:
        named = root.named_modules() if root is not None else ()
        self._names = {id(module): name for name, module in named}
        self._stack: list[str] = []
        self.between = ""  # where a forward pass of our own is, outside any module

    def __call__(self) -> str:
        return self._stack[-1] if self._stack else self.between

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While the root is run."""
        with ExitStack() as hooks:
            hooks.callback(register_module_forward_pre_hook(self._enter).remove)
            hooks.callback(register_module_forward_hook(self._leave, always_call=True).remove)
            yield
        self._stack.clear()

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """For what is done outside any module."""
        self._stack.append(name)
        try:
            yield
        finally:
            self._stack.pop()

    def shown(self, loaded: LoadedModel) -> LoadedModel:
        """The same model, whose own forward pass, where it has one, tells where it is."""
        if loaded.decoder is None:
            return loaded
        self.between = f"{loaded.base.base_model_prefix}.layers.0.input_layernorm"
        return replace(
            loaded, decoder=replace(loaded.decoder, layers=shown_layers(loaded, loaded.decoder, self))
        )

    def taken(self, part: Part, x_NI: torch.Tensor) -> None:
        names = [name.rpartition(".")[2] for name in part.names]
        self.between = f"{part.parent}.{'+'.join(names)}"

    def made(self, part: Part, out_NO: torch.Tensor, outs: tuple[torch.Tensor, ...]) -> None:
        self.between = part.after

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if id(module) in self._names:
            self._stack.append(self._names[id(module)])

    def _leave(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if id(module) in self._names and self._stack:
            self._stack.pop()
