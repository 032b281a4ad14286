"""Which models the program of decode steps takes: those whose every matrix lies as it reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .decode import WIDE, Decoder, LayerMatrices, RowMatrix, decode_library
from .inference_bytes import ByteLinear
from .inference_layer import Gate, InferenceLayer, JoinedGate, SplitGate
from .inference_linear import Linear, OneDnnLinear, PlainLinear
from .inference_weights import Frame


def decoder_of(
    frame: Frame, layers: Sequence[InferenceLayer], norm_H: torch.Tensor, head: Linear
) -> Decoder | None:
    """None where a matrix or a size is another, the model is on another device, or nothing compiles."""
    if norm_H.device.type != "cpu" or frame.dims.head_dim % WIDE:
        return None
    own_head, made = _matrix(head), [_layer(layer) for layer in layers]
    whole = [layer for layer in made if layer is not None]
    if own_head is None or len(whole) != len(made):
        return None
    library = decode_library()
    return None if library is None else Decoder(library, frame, whole, norm_H, own_head)


def _layer(layer: InferenceLayer) -> LayerMatrices | None:
    qkv, out, down = (_matrix(linear) for linear in (layer.qkv, layer.out, layer.down))
    gate, up = _gate(layer.gate)
    if qkv is None or out is None or gate is None or up is None or down is None:
        return None
    return LayerMatrices(layer.input_norm_H, layer.feed_norm_H, (qkv, out, gate, up, down))


def _gate(gate: Gate) -> tuple[RowMatrix | None, RowMatrix | None]:
    if isinstance(gate, SplitGate):
        return _matrix(gate.gate), _matrix(gate.up)
    joined = _matrix(gate.gate_up) if isinstance(gate, JoinedGate) else None
    if joined is None:
        return None, None
    outputs = len(joined.weight_OI)
    return joined.part(0, outputs // 2), joined.part(outputs // 2, outputs)


def _matrix(linear: Linear) -> RowMatrix | None:
    if isinstance(linear, ByteLinear):
        found = RowMatrix(linear.values_OI, linear.scales_O, linear.bias_O)
    elif isinstance(linear, PlainLinear) or (isinstance(linear, OneDnnLinear) and not linear.blocked):
        found = RowMatrix(linear.weight_OI, None, linear.bias_O)
    else:
        return None
    return found if found.fits else None
