"""Which part of a model first made something that is no number (NaN, infinite), forward or backward.

Every tensor that passes between parts is looked at, and so is its gradient. A part is to blame for an output
when its inputs were numbers; for a gradient, the part that took the tensor in, since its backward pass made
it. Names are those of the modules that transformers loaded, also where our own forward pass stands in for
them.

N tokens of a micro-batch, I inputs and O outputs of a projection.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import takewhile
from typing import Any, Literal

import torch
from torch import nn

from .decoder import Decoder
from .decoder_parts import Part, shown_layers
from .load import LoadedModel


@dataclass(frozen=True)
class Fault:
    """`places`: those of the micro-batch's flattened tokens that are no numbers there; None where the tensor
    is not by token."""

    module: str
    direction: Literal["forward", "backward"]
    places: tuple[int, ...] | None


@dataclass
class _Seen:
    """A tensor on its way: the parts that take it in, outer ones first, or else the part around it."""

    tensor: weakref.ref[torch.Tensor]
    taken_by: list[str] = field(default_factory=list)
    around: str = ""


class Watch:
    """Keeps the first fault of a micro-batch of `tokens` tokens."""

    def __init__(self, tokens: int) -> None:
        self.fault: Fault | None = None
        self._tokens = tokens
        self._seen: dict[int, _Seen] = {}
        self._handles: list[Any] = []
        self._forward = True  # layers that are computed again in the backward pass are not looked at twice

    def made(self, by: str, tensor: torch.Tensor, *, around: str, blame: bool = True) -> None:
        """`by` has put out this tensor, for something in `around`. `blame`: its inputs were numbers."""
        if not self._forward:
            return
        if blame and self.fault is None and not is_finite(tensor):
            self.fault = Fault(by, "forward", self._places(tensor))
        self._follow(tensor).around = around

    def taken(self, by: str, tensor: torch.Tensor) -> None:
        """`by` takes this tensor in."""
        if self._forward:
            self._follow(tensor).taken_by.append(by)

    def parameter(self, owner: str, parameter: nn.Parameter) -> None:
        self._listen(parameter, lambda: owner)

    def backward(self, loss: torch.Tensor) -> None:
        """The backward pass, watched."""
        self._forward = False
        loss.backward()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _follow(self, tensor: torch.Tensor) -> _Seen:
        seen = self._seen.get(id(tensor))
        if seen is None or seen.tensor() is not tensor:
            seen = self._seen[id(tensor)] = _Seen(weakref.ref(tensor))
            if tensor.requires_grad:
                self._listen(tensor, partial(_maker, seen))
        return seen

    def _listen(self, tensor: torch.Tensor, name: Callable[[], str]) -> None:
        hook = partial(self._gradient, name)
        self._handles.append(tensor.register_hook(hook))  # type: ignore[no-untyped-call]

    def _gradient(self, name: Callable[[], str], gradient: torch.Tensor) -> None:
        if self.fault is None and not is_finite(gradient):
            self.fault = Fault(name(), "backward", self._places(gradient))

    def _places(self, tensor: torch.Tensor) -> tuple[int, ...] | None:
        if tensor.dim() < 2 or tensor.shape[:-1].numel() != self._tokens:
            return None
        wrong_N = ~torch.isfinite(tensor.detach()).all(-1).flatten()
        return tuple(wrong_N.nonzero().flatten().tolist())


def _maker(seen: _Seen) -> str:
    """Of the tensor's gradient: the innermost part that took it in. Of several, each of which made a share of
    it, the part around them all."""
    names = [one.split(".") for one in seen.taken_by]
    innermost = [one for one in names if not any(other != one and _is_inside(other, one) for other in names)]
    if not innermost:
        return seen.around
    shared = takewhile(lambda words: len(set(words)) == 1, zip(*innermost, strict=False))
    return ".".join(words[0] for words in shared) or seen.around


def _is_inside(inner: list[str], outer: list[str]) -> bool:
    return inner[: len(outer)] == outer


def is_finite(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor.detach()).all())


def head_name(loaded: LoadedModel) -> str:
    head = loaded.base.get_output_embeddings()
    return next((name for name, module in loaded.base.named_modules() if module is head), "lm_head")


@contextmanager
def watched(loaded: LoadedModel, watch: Watch) -> Iterator[LoadedModel]:
    """The model with every part watched, not compiled; as it was afterwards."""
    with _eager(loaded.base):
        for name, parameter in loaded.base.named_parameters():
            if parameter.requires_grad:
                watch.parameter(name.rpartition(".")[0], parameter)
        try:
            if loaded.decoder is not None:
                yield replace(loaded, decoder=watched_decoder(loaded, loaded.decoder, watch))
            else:
                with _hooks(loaded, watch):
                    yield loaded
        finally:
            watch.close()


@contextmanager
def _eager(base: nn.Module) -> Iterator[None]:
    """Hooks are no part of a compiled graph: within, modules are called as they are written."""
    compiled: dict[nn.Module, Any] = {
        module: module._compiled_call_impl
        for module in base.modules()
        if module._compiled_call_impl is not None
    }
    try:
        for module in compiled:
            module._compiled_call_impl = None
        yield
    finally:
        for module, call in compiled.items():
            module._compiled_call_impl = call


# The modules that transformers loaded.


@contextmanager
def _hooks(loaded: LoadedModel, watch: Watch) -> Iterator[None]:
    hooks = _ModuleHooks(watch, head_name(loaded))
    handles: list[Any] = []
    try:
        for name, module in loaded.base.named_modules():
            handles += [
                module.register_forward_pre_hook(partial(hooks.before, name), with_kwargs=True),
                module.register_forward_hook(partial(hooks.after, name), with_kwargs=True),
            ]
        yield
    finally:
        for handle in handles:
            handle.remove()


class _ModuleHooks:
    """`after` is called of inner modules before outer ones: the first to be blamed is the innermost."""

    def __init__(self, watch: Watch, head: str) -> None:
        self._watch = watch
        self._head = head
        self._inside: list[str] = []

    def before(self, name: str, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        self._inside.append(name)
        for tensor in _inputs(args, kwargs):
            self._watch.taken(name, tensor)

    def after(self, name: str, module: nn.Module, args: Any, kwargs: Mapping[str, Any], out: Any) -> None:
        self._inside.pop()
        around = self._inside[-1] if self._inside else self._head
        good = all(is_finite(tensor) for tensor in _inputs(args, kwargs))
        for tensor in _tensors(out):
            self._watch.made(name, tensor, around=around, blame=good)


def _inputs(args: Any, kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """All but masks, which are infinite by nature."""
    named = {key: value for key, value in kwargs.items() if "mask" not in key}
    return [*_tensors(args), *_tensors(named)]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        if values.is_floating_point():
            yield values
    elif isinstance(values, Mapping):
        yield from _tensors(list(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)


# Our own forward pass, which calls none of them.


@dataclass(frozen=True)
class _WatchedDecoder(Decoder):
    seen: Callable[[torch.Tensor], None] = field(kw_only=True)

    def __call__(
        self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, segments_BT: torch.Tensor
    ) -> torch.Tensor:
        hidden_BTH = super().__call__(tokens_BT, positions_BT, segments_BT)
        self.seen(hidden_BTH)
        return hidden_BTH


@dataclass(frozen=True)
class _Projections:
    """Looks at what goes into projections and comes out of them."""

    watch: Watch

    def taken(self, part: Part, x_NI: torch.Tensor) -> None:
        self.watch.made(part.before, x_NI, around=_whole(part))

    def made(self, part: Part, out_NO: torch.Tensor, outs: tuple[torch.Tensor, ...]) -> None:
        faulty = (name for name, out in zip(part.names, outs, strict=True) if not is_finite(out))
        self.watch.made(next(faulty, _whole(part)), out_NO, around=part.after)


def _whole(part: Part) -> str:
    """The linear layer, or the parent of several."""
    return part.names[0] if len(part.names) == 1 else part.parent


def watched_decoder(loaded: LoadedModel, decoder: Decoder, watch: Watch) -> Decoder:
    """`decoder` with something between its parts that looks at what passes; it computes the same bits."""
    prefix = str(loaded.base.base_model_prefix)

    def embedding(tokens_BT: torch.Tensor) -> torch.Tensor:
        embedded_BTH: torch.Tensor = decoder.embedding(tokens_BT)
        watch.made(f"{prefix}.embed_tokens", embedded_BTH, around=f"{prefix}.layers.0.input_layernorm")
        return embedded_BTH

    def seen(hidden_BTH: torch.Tensor) -> None:
        watch.made(f"{prefix}.norm", hidden_BTH, around=head_name(loaded))

    own = {one.name: getattr(decoder, one.name) for one in fields(decoder)}
    own |= {"embedding": embedding, "layers": shown_layers(loaded, decoder, _Projections(watch))}
    return _WatchedDecoder(**own, seen=seen)
