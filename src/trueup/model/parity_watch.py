"""Takes every output of a forward pass where it is made, of transformers' layers and of our own.

B rows, T positions, U tokens that are not padding, J query heads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from .attention import ExampleGroup, weights_of
from .decoder import Decoder, Layer
from .decoder_parts import Part, shown_layers
from .flex import block_mask_as_tensor
from .load import LoadedModel
from .parity_file import Point

Take = Callable[[Point, torch.Tensor], None]
OBSERVED = "observed"
DERIVED_SDPA = "derived in fp32 from the queries and keys that the fused kernel was given"
DERIVED_OWN = "derived by the layers' own code from their queries and keys"
HIDDEN_BY_COMPILING = "unavailable: it is inside compiled code"
HIDDEN_BY_MODEL = "unavailable: this architecture does not ask for its attention by name"
ATTENTION_NAME = "trueup_parity"


class Watch:
    """Brings outputs into one form, (U, ...) in fp32 in host memory, and hands them on. Padding is left out:
    what stands there is nobody's business, and differs from path to path."""

    def __init__(self, segments_BT: torch.Tensor, take: Take) -> None:
        self._shape = segments_BT.shape
        self._useful_U = segments_BT.cpu().flatten().nonzero().flatten()
        self._take = take
        self._seen: dict[str, int] = {}

    @torch.no_grad()
    def tokens(self, point: Point, value: torch.Tensor) -> None:
        """`value`: (B, T, ...) or (B*T, ...); anything else is taken as it is."""
        rows, width = self._shape
        value = value.detach().float().cpu()
        if value.shape[:2] == self._shape:
            value = value.flatten(0, 1)[self._useful_U]
        elif len(value) == rows * width:
            value = value[self._useful_U]
        self.as_is(point, value)

    @torch.no_grad()
    def as_is(self, point: Point, value: torch.Tensor) -> None:
        again = self._seen[point.key] = self._seen.get(point.key, 0) + 1
        if again > 1:
            point = replace(point, name=f"{point.name} #{again}")
        self._take(point, value.detach().float().cpu())

    def softmax(self, name: str, weights_BJTT: torch.Tensor, how: str) -> None:
        self.tokens(Point(name, "softmax", how), weights_BJTT.transpose(1, 2))

    @torch.no_grad()
    def softmax_of_examples(
        self, name: str, heads: int, examples: Iterable[tuple[int, torch.Tensor]], how: str
    ) -> None:
        """`examples`: first token, and (J, L, L)."""
        rows, width = self._shape
        all_NJT = torch.zeros(rows * width, heads, width)
        for first, weights_JLL in examples:
            length, column = weights_JLL.shape[1], first % width
            all_NJT[first : first + length, :, column : column + length] = weights_JLL.transpose(0, 1)
        self.tokens(Point(name, "softmax", how), all_NJT)


@dataclass(frozen=True)
class Watched:
    """The model as it is to be run, what will be known of its softmax, and how to take the hooks off."""

    loaded: LoadedModel
    softmax: str
    undo: Callable[[], None]


def watched(loaded: LoadedModel, watch: Watch, *, compiled: str) -> Watched:
    """`compiled`: the mode it was compiled in, or none. What is inside compiled code is not seen: a hook
    there would be compiled with it and change it."""
    undo: list[Callable[[], None]] = []
    names = {id(module): name for name, module in loaded.base.named_modules()}
    decoder: nn.Module = getattr(loaded.base, str(loaded.base.base_model_prefix))
    if compiled == "model":
        return Watched(loaded, HIDDEN_BY_COMPILING, lambda: None)
    if loaded.decoder is not None:
        own = loaded.decoder
        undo += [_hook(module, names[id(module)], watch) for module in (own.embedding, own.rotary)]
        seen = _watched_decoder(loaded, own, names, watch)
        return Watched(replace(loaded, decoder=seen), DERIVED_OWN, partial(_undo, undo))
    hidden: set[int] = set()
    if compiled == "layer":
        for name, layer in _layers(decoder, names):
            hidden.update(id(inner) for inner in layer.modules())
            undo.append(_around_compiled(layer, name, watch))
    for name, module in loaded.base.named_modules():
        if id(module) not in hidden and _is_watched(loaded.base, decoder, module, name):
            undo.append(_hook(module, name, watch))
            if name.endswith((".o_proj", ".down_proj")):
                undo.append(_hook_input(module, name, watch))
    softmax = HIDDEN_BY_COMPILING
    if compiled == "none":
        softmax = _watch_attention(loaded, names, watch, undo)
    return Watched(loaded, softmax, partial(_undo, undo))


def _undo(undo: list[Callable[[], None]]) -> None:
    while undo:
        undo.pop()()


def _layers(decoder: nn.Module, names: dict[int, str]) -> list[tuple[str, nn.Module]]:
    lists = [child for child in decoder.children() if isinstance(child, nn.ModuleList)]
    return [(names[id(layer)], layer) for layer in (lists[0] if lists else [])]


def _is_watched(base: Any, decoder: nn.Module, module: nn.Module, name: str) -> bool:
    """Not what only holds others, and not the inside of a LoRA layer: its output holds the adapter's part."""
    inside = any(part in name for part in (".base_layer", ".lora_"))
    whole = module in (base, decoder, base.get_output_embeddings())
    return not inside and not whole and not isinstance(module, (nn.ModuleList, nn.ModuleDict))


def _hook(module: nn.Module, name: str, watch: Watch) -> Callable[[], None]:
    def hook(_: nn.Module, __: Any, output: Any) -> None:
        if (value := _tensor_of(output)) is not None:
            watch.tokens(Point(name, "module"), value)

    return module.register_forward_hook(hook).remove


def _hook_input(module: nn.Module, name: str, watch: Watch) -> Callable[[], None]:
    def hook(_: nn.Module, inputs: Any) -> None:
        watch.tokens(Point(name, "input"), inputs[0])

    return module.register_forward_pre_hook(hook).remove


def _around_compiled(layer: Any, name: str, watch: Watch) -> Callable[[], None]:
    """Takes a compiled layer's output outside of what is compiled."""
    inner = layer._compiled_call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        output = inner(*args, **kwargs)
        if (value := _tensor_of(output)) is not None:
            watch.tokens(Point(name, "module"), value)
        return output

    layer._compiled_call_impl = call
    return lambda: setattr(layer, "_compiled_call_impl", inner)


def _tensor_of(output: Any) -> torch.Tensor | None:
    """The first tensor; of a rotary embedding both, its cosines and sines side by side."""
    if isinstance(output, torch.Tensor):
        return output
    if not isinstance(output, (tuple, list)) or not output or not isinstance(output[0], torch.Tensor):
        return None
    first: torch.Tensor = output[0]
    rest = output[1:]
    if len(rest) == 1 and isinstance(rest[0], torch.Tensor) and rest[0].shape == first.shape:
        return torch.cat([first, rest[0]], dim=-1)
    return first


# --- attention of transformers' layers --------------------------------------------------------------------


def _watch_attention(
    loaded: LoadedModel, names: dict[int, str], watch: Watch, undo: list[Callable[[], None]]
) -> str:
    """Puts a function between the layers and their attention that passes everything on unchanged."""
    from transformers import AttentionInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    eager, inside = loaded.attention == "eager", loaded.base.config._attn_implementation
    modules = [
        m for m in loaded.base.modules() if hasattr(m, "num_key_value_groups") and hasattr(m, "q_proj")
    ]
    if not modules:
        return HIDDEN_BY_MODEL

    def attend(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
    ) -> Any:
        name = names[id(module)]
        if eager:
            inner: Any = sys.modules[type(module).__module__].eager_attention_forward
            output, weights = inner(module, query, key, value, mask, **options)
            watch.softmax(name, weights, OBSERVED)
            return output, weights
        shown = mask if isinstance(mask, torch.Tensor) else block_mask_as_tensor(mask)
        weights = _derived(module, query, key, shown, options.get("scaling"))
        watch.softmax(name, weights, DERIVED_SDPA)
        return ALL_ATTENTION_FUNCTIONS[inside](module, query, key, value, mask, **options)

    if eager and any(
        not hasattr(sys.modules[type(module).__module__], "eager_attention_forward") for module in modules
    ):
        return HIDDEN_BY_MODEL
    config = loaded.base.config
    undo.append(partial(setattr, config, "_attn_implementation", config._attn_implementation))
    AttentionInterface.register(ATTENTION_NAME, attend)
    # nothing can be unregistered, and `attend` would keep side A's model in memory while B's is loaded
    undo.append(partial(AttentionInterface.register, ATTENTION_NAME, ALL_ATTENTION_FUNCTIONS["sdpa"]))
    config._attn_implementation = ATTENTION_NAME
    return OBSERVED if eager else DERIVED_SDPA


@torch.no_grad()
def _derived(
    module: Any, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """(B, J, T, T). `mask`: boolean, or numbers to add."""
    with torch.autocast(query.device.type, enabled=False):
        keys = key.float().repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scores = query.float() @ keys.transpose(2, 3) * (scaling or query.shape[-1] ** -0.5)
        if mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        else:
            scores = scores + mask.float()
        return torch.softmax(scores, dim=-1)


# --- our own layers ---------------------------------------------------------------------------------------


@dataclass
class _Projections:
    """Takes what goes into projections and comes out of them, and the softmax of the queries and keys among
    it. `groups` are those of the layer that is running."""

    watch: Watch
    heads: tuple[int, int]
    bf16: bool
    groups: tuple[ExampleGroup, ...] = ()

    def taken(self, part: Part, x_NI: torch.Tensor) -> None:
        if part.last:
            self.watch.tokens(Point(part.names[0], "input"), x_NI)

    def made(self, part: Part, out_NO: torch.Tensor, outs: tuple[torch.Tensor, ...]) -> None:
        for name, out in zip(part.names, outs, strict=True):
            self.watch.tokens(Point(name, "module"), out)
        if part.last:
            self.watch.tokens(Point(part.parent, "module"), out_NO)
        if len(part.names) == 3:
            weights = weights_of(out_NO.detach(), self.groups, heads=self.heads, bf16=self.bf16)
            self.watch.softmax_of_examples(part.parent, self.heads[0], weights, DERIVED_OWN)


@dataclass(frozen=True)
class _WatchedDecoder(Decoder):
    """`names` of modules by their id."""

    projections: _Projections
    names: dict[int, str]

    def _layer(self, layer: Layer, groups: tuple[ExampleGroup, ...], *rest: Any) -> Any:
        self.projections.groups = groups
        stream_NH, change_NH = super()._layer(layer, groups, *rest)
        shown: Any = layer.down
        self.projections.watch.tokens(Point(shown.part.layer, "module"), stream_NH + change_NH)
        return stream_NH, change_NH

    def _normed(self, norm: Any, *rest: Any) -> Any:
        stream_NH, normed_NH = super()._normed(norm, *rest)
        self.projections.watch.tokens(Point(self.names[id(norm)], "module"), normed_NH)
        return stream_NH, normed_NH


def _watched_decoder(loaded: LoadedModel, own: Decoder, names: dict[int, str], watch: Watch) -> Decoder:
    projections = _Projections(watch, own.heads, bf16=own.dtype == torch.bfloat16)
    ours = {field.name: getattr(own, field.name) for field in fields(own)}
    ours["layers"] = shown_layers(loaded, own, projections)
    return _WatchedDecoder(**ours, projections=projections, names=names)
