"""A Llama-class decoder's forward pass with our own attention and layers, on the parameters transformers
loaded.

Eager mode only: attention goes by groups of examples, whose lengths differ from batch to batch; compiled
programs take the model's own forward with a mask. B rows, T positions, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from . import attention, loss
from .attention import ExampleGroup, attend, groups_of, spans_of
from .layers import Adapter, add_and_norm, gated, project
from .storage import widened


@dataclass(frozen=True)
class Projection:
    """Linear layers of one input, their outputs side by side. Frozen ones share one weight, of which theirs
    are views; trained ones keep their own and are cast for every micro-batch."""

    linears: tuple[nn.Linear, ...]
    weight_OI: torch.Tensor | None
    bias_O: torch.Tensor | None
    adapters: tuple[Adapter, ...]

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        if self.weight_OI is not None:
            return project(x_NI, self.weight_OI, self.bias_O, self.adapters)
        outs = [_cast_linear(linear, x_NI) for linear in self.linears]
        return outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1)


@dataclass(frozen=True)
class Layer:
    """One decoder layer: norms and projections in the order in which they are used."""

    input_norm: Any
    qkv: Projection
    out: Projection
    feed_norm: Any
    gate_up: Projection
    down: Projection


@dataclass(frozen=True)
class Decoder:
    """`dtype` is that of the matrix products, whatever torch.autocast says; the residual stream has the
    embedding's. `heads`: of queries, of keys and values; `scaling`: of attention's scores."""

    embedding: Any
    rotary: nn.Module
    layers: Iterable[Layer]
    norm: Any
    heads: tuple[int, int]
    scaling: float
    dtype: torch.dtype
    checkpointing: bool  # a layer keeps only its input, and is computed again in the backward pass
    head_weight_VH: torch.Tensor  # in `dtype` where it is frozen

    def __call__(
        self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, segments_BT: torch.Tensor
    ) -> torch.Tensor:
        """Hidden states (B, T, H) after the final norm, in `dtype`."""
        with torch.autocast(tokens_BT.device.type, enabled=False):
            embedded_BTH = self.embedding(tokens_BT)
            cos_ND, sin_ND = (part.flatten(0, 1) for part in self.rotary(embedded_BTH, positions_BT))
            groups = groups_of(spans_of(segments_BT), cos_ND, sin_ND, scaling=self.scaling)
            normed_NH = self._run(embedded_BTH.flatten(0, 1), groups)
        return normed_NH.view(*tokens_BT.shape, -1)

    def get_ready(self, tokens: int) -> None:
        """Before the first micro-batch of at most so many tokens: have oneDNN compile for every shape that
        varies with the data."""
        keys = next(iter(self.layers)).qkv.linears[1]
        head_dim = keys.out_features // self.heads[1]
        loss.get_ready(tokens, self.head_weight_VH.to(self.dtype))
        attention.get_ready(tokens, heads=self.heads, head_dim=head_dim, dtype=self.dtype)

    def _run(self, stream_NH: torch.Tensor, groups: tuple[ExampleGroup, ...]) -> torch.Tensor:
        change_NH = None
        for layer in self.layers:
            run = partial(self._layer, layer, groups)
            if self.checkpointing and torch.is_grad_enabled():
                stream_NH, change_NH = checkpoint(run, stream_NH, change_NH, use_reentrant=False)
            else:
                stream_NH, change_NH = run(stream_NH, change_NH)
        return self._normed(self.norm, stream_NH, change_NH)[1]

    def _layer(
        self,
        layer: Layer,
        groups: tuple[ExampleGroup, ...],
        stream_NH: torch.Tensor,
        change_NH: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(the stream after attention, what the feed-forward part adds to it)."""
        bf16 = self.dtype == torch.bfloat16
        stream_NH, normed_NH = self._normed(layer.input_norm, stream_NH, change_NH)
        qkv_NO = layer.qkv(normed_NH)
        seen_NP = attend(qkv_NO, groups, heads=self.heads, bf16=bf16)
        stream_NH, normed_NH = self._normed(layer.feed_norm, stream_NH, layer.out(seen_NP))
        return stream_NH, layer.down(gated(layer.gate_up(normed_NH)))

    def _normed(
        self, norm: Any, stream_NH: torch.Tensor, change_NH: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return add_and_norm(stream_NH, change_NH, norm.weight, norm.variance_epsilon, self.dtype)


class UnsupportedError(Exception):
    """The model is not built as this module expects: it trains through its own forward pass."""


TOLERANCE = 1e-3  # of the largest hidden state; fp32 rounding stays orders of magnitude below


def check_structure(base: Any) -> None:
    """Raises UnsupportedError where the causal LM is built otherwise than Llama is. Its weights may be on the
    device `meta`."""
    _only_scaling(_checked_layers(base))


def check_decoder(base: Any) -> None:
    """Raises UnsupportedError where a loaded causal LM is built otherwise or computes something else: a few
    tokens are sent through both forward passes, in fp32 (or wider) whatever the weights are kept in. The
    weights stay as they are."""
    weight = base.get_output_embeddings().weight
    exact = torch.promote_types(weight.dtype, torch.float32)
    tokens_BT = (torch.arange(8, device=weight.device) * 7 + 3)[None] % len(weight)
    positions_BT = torch.arange(8, device=weight.device)[None]
    with torch.no_grad():
        decoder = getattr(base, str(base.base_model_prefix))
        layers = _checked_layers(base)
        with widened([decoder.embed_tokens, *layers], exact):
            output = decoder(input_ids=tokens_BT, position_ids=positions_BT, use_cache=False)
        expected = output.last_hidden_state
        # A layer's copy of its weights is gone when the next is made: there is no second model in memory.
        copied = (_layer(layer, exact, share=False) for layer in layers)
        found = _assembled(base, exact, copied)(tokens_BT, positions_BT, torch.ones_like(tokens_BT))
    if not bool((found - expected).abs().max() <= TOLERANCE * expected.abs().max()):
        raise UnsupportedError("its layers do not compute what Llama's do")


def build_decoder(base: Any, dtype: torch.dtype) -> Decoder:
    """From a causal LM that `check_decoder` accepts. Frozen linear weights of its layers become `dtype`, in
    place."""
    layers = tuple(_layer(layer, dtype, share=True) for layer in _checked_layers(base))
    _let_go_of_the_file(base, layers, dtype)
    return _assembled(base, dtype, layers)


def _let_go_of_the_file(base: Any, layers: Iterable[Layer], dtype: torch.dtype) -> None:
    """The loaded parameters are parts of one mapping of the weight file, which stays in memory as long as any
    of them does. So the few that the layers' own copies do not replace become copies too."""
    decoder = getattr(base, str(base.base_model_prefix))
    head, embedding = base.get_output_embeddings().weight, decoder.embed_tokens.weight
    norms = [decoder.norm, *(norm for layer in layers for norm in (layer.input_norm, layer.feed_norm))]
    for parameter in [embedding, *(norm.weight for norm in norms)]:
        if not parameter.requires_grad:
            parameter.data = parameter.data.clone()
    if head is not embedding and not head.requires_grad:
        head.data = head.data.to(dtype, copy=True)


def _checked_layers(base: Any) -> list[Any]:
    """The decoder's layers, after a look at how it is built."""
    decoder = getattr(base, str(base.base_model_prefix))
    _require(decoder, {"embed_tokens", "layers", "norm", "rotary_emb"})
    _require_config(base.config)
    for layer in decoder.layers:
        _require_layer(layer)
    _require_norm(decoder.norm)
    return list(decoder.layers)


def _assembled(base: Any, dtype: torch.dtype, layers: Iterable[Layer]) -> Decoder:
    decoder = getattr(base, str(base.base_model_prefix))
    config = base.config
    return Decoder(
        embedding=decoder.embed_tokens,
        rotary=decoder.rotary_emb,
        layers=layers,
        norm=decoder.norm,
        heads=(config.num_attention_heads, config.num_key_value_heads),
        scaling=_only_scaling(decoder.layers),
        dtype=dtype,
        checkpointing=bool(base.is_gradient_checkpointing),
        head_weight_VH=_frozen_as(base.get_output_embeddings().weight, dtype),
    )


def _require(module: nn.Module, children: set[str]) -> None:
    found = {name for name, _ in module.named_children()} - {"act_fn"}
    if found != children:
        odd = ", ".join(sorted(found ^ children))
        raise UnsupportedError(f"{type(module).__name__} is not built as Llama's is: {odd}")


def _require_config(config: Any) -> None:
    activation = getattr(config, "hidden_act", None)
    if activation != "silu":
        raise UnsupportedError(f"its activation is {activation}")
    if getattr(config, "attention_dropout", 0.0):
        raise UnsupportedError("it drops out attention weights")


def _require_layer(layer: Any) -> None:
    _require(layer, {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"})
    _require(layer.self_attn, {"q_proj", "k_proj", "v_proj", "o_proj"})
    _require(layer.mlp, {"gate_proj", "up_proj", "down_proj"})
    _require_norm(layer.input_layernorm)
    _require_norm(layer.post_attention_layernorm)
    for linear in [*layer.self_attn.children(), *layer.mlp.children()]:
        dropout = getattr(linear, "lora_dropout", {})
        if any(not isinstance(part, nn.Identity) for part in dict(dropout).values()):
            raise UnsupportedError("its adapters drop out inputs")


def _only_scaling(layers: Any) -> float:
    found = {float(layer.self_attn.scaling) for layer in layers}
    if len(found) != 1:
        raise UnsupportedError("its layers scale attention differently")
    return found.pop()


def _require_norm(norm: Any) -> None:
    if not hasattr(norm, "variance_epsilon"):
        raise UnsupportedError(f"{type(norm).__name__} is not an RMSNorm")


def _layer(layer: Any, dtype: torch.dtype, *, share: bool) -> Layer:
    attention, feed = layer.self_attn, layer.mlp
    return Layer(
        input_norm=layer.input_layernorm,
        qkv=_group((attention.q_proj, attention.k_proj, attention.v_proj), dtype, share),
        out=_group((attention.o_proj,), dtype, share),
        feed_norm=layer.post_attention_layernorm,
        gate_up=_group((feed.gate_proj, feed.up_proj), dtype, share),
        down=_group((feed.down_proj,), dtype, share),
    )


def _group(modules: tuple[Any, ...], dtype: torch.dtype, share: bool) -> Projection:
    """`share`: let the modules' frozen weights be views of the group's from now on."""
    linears = tuple(getattr(module, "base_layer", module) for module in modules)
    if any(linear.weight.requires_grad for linear in linears):
        return Projection(linears, None, None, ())
    weight_OI = torch.cat([linear.weight.detach().to(dtype) for linear in linears])
    biases = [linear.bias for linear in linears]
    bias_O = None
    if any(bias is not None for bias in biases):
        bias_O = torch.cat([_bias(linear).to(dtype) for linear in linears])
    adapters: list[Adapter] = []
    first = 0
    for module, linear in zip(modules, linears, strict=True):
        last = first + linear.out_features
        if share:
            linear.weight.data = weight_OI[first:last]
        if hasattr(module, "lora_A"):
            down, up = module.lora_A["default"].weight, module.lora_B["default"].weight
            adapters.append(Adapter(down, up, module.scaling["default"], first, last))
        first = last
    return Projection(linears, weight_OI, bias_O, tuple(adapters))


def _frozen_as(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return weight if weight.requires_grad else weight.detach().to(dtype)


def _bias(linear: nn.Linear) -> torch.Tensor:
    return linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()


def _cast_linear(linear: nn.Linear, x_NI: torch.Tensor) -> torch.Tensor:
    bias = None if linear.bias is None else linear.bias.to(x_NI.dtype)
    return nn.functional.linear(x_NI, linear.weight.to(x_NI.dtype), bias)
