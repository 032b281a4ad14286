"""Which models a CPU's own program takes: those whose every matrix lies as it reads them, and has the
sizes that the program's memory is laid out for."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .cpu_program import MULTIPLE, cpu_program
from .decode import Decoder, LayerMatrices, RowMatrix
from .inference_bytes import ByteLinear
from .inference_layer import Gate, InferenceLayer, JoinedGate, SplitGate
from .inference_linear import Linear, OneDnnLinear, PlainLinear
from .inference_weights import Frame


def decoder_of(
    frame: Frame, layers: Sequence[InferenceLayer], norm_H: torch.Tensor, head: Linear
) -> Decoder | str:
    """The program for this model, or why torch's operators take all its steps."""
    if norm_H.device.type != "cpu":
        return f"the model is on {norm_H.device.type}"
    own_head, made = _matrix(head), [_layer(layer) for layer in layers]
    whole = [layer for layer in made if layer is not None]
    if own_head is None or len(whole) != len(made):
        return "its matrices are not all fp32 or int8 with a scale for each output, or their sizes are odd"
    if not _as_told(frame, whole, norm_H, own_head):
        return "its weights have other sizes than its config.json"
    library = cpu_program()
    return library if isinstance(library, str) else Decoder(library, frame, whole, norm_H, own_head)


def _as_told(frame: Frame, layers: Sequence[LayerMatrices], norm_H: torch.Tensor, head: RowMatrix) -> bool:
    """Whether all sizes are those of the dims: the program writes into memory of those sizes."""
    dims = frame.dims
    hidden, feed, queries = dims.hidden, dims.intermediate, dims.heads * dims.head_dim
    qkv = queries + 2 * dims.kv_heads * dims.head_dim
    wanted = ((qkv, hidden), (hidden, queries), (feed, hidden), (feed, hidden), (hidden, feed))
    norms = [norm_H, *(norm for layer in layers for norm in (layer.input_norm_H, layer.feed_norm_H))]
    return (
        dims.head_dim % MULTIPLE == 0
        and dims.layers == len(layers)
        and frame.turn_2PD.shape[-1] == dims.head_dim
        and all(tensor.dtype == torch.float32 for tensor in (frame.turn_2PD, *norms))
        and all(tensor.is_contiguous() for tensor in (frame.turn_2PD, *norms))
        and all(norm.shape == (hidden,) for norm in norms)
        and head.shape == (dims.vocab, hidden)
        and all(tuple(matrix.shape for matrix in layer.matrices) == wanted for layer in layers)
    )


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
