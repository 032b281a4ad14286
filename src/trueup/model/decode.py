"""Decode steps on a CPU, all layers in one call of a program of their own: `decode_step.cpp`.

It does for any number of rows and any context. Weights are read as they lie: fp32, or int8 with a scale for
each output. Activations and KV pool are fp32.

B rows of a token each, W blocks of context in each, H hidden size, V vocabulary, O outputs, I inputs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trueup.schema import TrueupError

from .cpu_program import ADDRESS, COUNT, FLOAT, MOST_ROWS, MULTIPLE, address_of, fields_of
from .inference_weights import Frame
from .paged_attention import KvPool
from .step_batch import PackedStep


class _Matrix(ctypes.Structure):
    _fields_ = fields_of(ADDRESS, "weight scales bias") + fields_of(COUNT, "outputs inputs")


class _Layer(ctypes.Structure):
    _fields_ = fields_of(ADDRESS, "input_norm feed_norm") + fields_of(_Matrix, "qkv out gate up down")


class _Model(ctypes.Structure):
    _fields_ = [
        *fields_of(COUNT, "layers hidden feed heads keys head_dim positions"),
        *fields_of(FLOAT, "eps scaling"),
        *fields_of(ctypes.POINTER(_Layer), "layer"),
        *fields_of(ADDRESS, "final_norm turn"),
        *fields_of(_Matrix, "head"),
    ]


class _Step(ctypes.Structure):
    _fields_ = [
        *fields_of(COUNT, "rows width block_size threads"),
        *fields_of(ADDRESS, "positions slots tables pools stream qkv seen gated normed scores logits"),
    ]


@dataclass(frozen=True)
class RowMatrix:
    """A matrix as the program reads it: fp32 or, with scales, int8; output by output."""

    weight_OI: torch.Tensor
    scales_O: torch.Tensor | None
    bias_O: torch.Tensor | None

    def part(self, start: int, end: int) -> RowMatrix:
        """These outputs alone; nothing is copied."""
        scales_O, bias_O = (None if one is None else one[start:end] for one in (self.scales_O, self.bias_O))
        return RowMatrix(self.weight_OI[start:end], scales_O, bias_O)

    @property
    def shape(self) -> tuple[int, int]:
        outputs, inputs = self.weight_OI.shape
        return outputs, inputs

    @property
    def fits(self) -> bool:
        exact = torch.float32 if self.scales_O is None else torch.int8
        others = [one for one in (self.scales_O, self.bias_O) if one is not None]
        return (
            self.weight_OI.dtype == exact
            and self.weight_OI.shape[1] % MULTIPLE == 0
            and all(one.is_contiguous() for one in (self.weight_OI, *others))
            and all(one.dtype == torch.float32 for one in others)
        )

    def struct(self) -> _Matrix:
        return _Matrix(
            address_of(self.weight_OI),
            address_of(self.scales_O),
            address_of(self.bias_O),
            *self.weight_OI.shape,
        )


@dataclass(frozen=True)
class LayerMatrices:
    input_norm_H: torch.Tensor
    feed_norm_H: torch.Tensor
    matrices: tuple[RowMatrix, RowMatrix, RowMatrix, RowMatrix, RowMatrix]  # qkv, out, gate, up, down

    def struct(self) -> _Layer:
        norms = (address_of(self.input_norm_H), address_of(self.feed_norm_H))
        return _Layer(*norms, *(matrix.struct() for matrix in self.matrices))


class Decoder:
    """Of one model, whose weights it names and does not copy."""

    def __init__(
        self,
        library: ctypes.CDLL,
        frame: Frame,
        layers: Sequence[LayerMatrices],
        norm_H: torch.Tensor,
        head: RowMatrix,
    ) -> None:
        dims = frame.dims
        self.library, self._frame = library, frame
        self._named = (tuple(layers), norm_H, head)  # what the addresses are of
        self._model = _Model(
            *(dims.layers, dims.hidden, dims.intermediate, dims.heads, dims.kv_heads, dims.head_dim),
            *(frame.turn_2PD.shape[1], frame.eps, frame.scaling),
            (_Layer * len(layers))(*(layer.struct() for layer in layers)),
            *(address_of(norm_H), address_of(frame.turn_2PD), head.struct()),
        )

    def takes(self, rows: int, tokens: int) -> bool:
        """Whether steps of so many rows with so many new tokens in all are its."""
        return tokens == rows <= MOST_ROWS

    def __call__(self, step: PackedStep, stream_BH: torch.Tensor, pool: KvPool) -> torch.Tensor:
        """(B, V). `stream_BH`: embeddings of the tokens, changed. Keys and values are in the pool afterwards.
        Raises TrueupError for places that are not in the pool: the program would write beyond it."""
        dims, (rows, width) = self._frame.dims, step.tables_CW.shape
        step.check_places(
            positions=self._frame.turn_2PD.shape[1], slots=len(pool.layers[0]), block_size=pool.block_size
        )
        if not self.takes(rows, len(step.tokens_N)) or pool.dtype != torch.float32:
            raise TrueupError(
                f"a decode step has one token in each of at most {MOST_ROWS} rows, and an fp32 pool"
            )
        threads, queries = torch.get_num_threads(), dims.heads * dims.head_dim
        context = -(-width * pool.block_size // MULTIPLE) * MULTIPLE
        sizes = (
            *(rows * (queries + 2 * dims.kv_heads * dims.head_dim), rows * queries),
            *(rows * dims.intermediate, threads * rows * dims.hidden),
            threads * (dims.heads // dims.kv_heads) * context,
        )
        given = (step.positions_N, step.slots_N, step.tables_CW)
        scratch = [torch.empty(size, dtype=torch.float32) for size in sizes]
        logits_BV = torch.empty(rows, dims.vocab, dtype=torch.float32)
        pools = (ADDRESS * len(pool.layers))(*map(address_of, pool.layers))
        own = _Step(
            *(rows, width, pool.block_size, threads, *map(address_of, given), ctypes.addressof(pools)),
            *map(address_of, (stream_BH, *scratch, logits_BV)),
        )
        self.library.decode(ctypes.byref(self._model), ctypes.byref(own))
        return logits_BV
