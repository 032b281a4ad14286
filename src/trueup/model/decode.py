"""Decode steps on a CPU, all layers in one call of a program of their own: `decode_step.cpp`.

It is compiled for the processor at hand when the first model is loaded, within seconds, and does for any
number of rows and any context; where no C++ compiler is found, torch's operators take these steps too.
Weights are read as they lie: fp32, or int8 with a scale for each output. Activations and KV pool are fp32.

B rows, W blocks of context in each, H hidden size, V vocabulary, O outputs, I inputs.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from trueup.schema import TrueupError

from .inference_weights import Frame
from .paged_attention import KvPool
from .step_batch import StepBatch

SOURCE = Path(__file__).with_name("decode_step.cpp")
COMPILE_S = 300.0
WIDE = 16  # inputs of every matrix, and numbers of a head, are multiples of this
MOST_ROWS = 32  # up to which a step waits for the weights; above, torch's products are faster
OPTIONS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-shared", f"-DMOST_ROWS={MOST_ROWS}")

ADDRESS, COUNT, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class _Matrix(ctypes.Structure):
    _fields_ = _fields(ADDRESS, "weight scales bias") + _fields(COUNT, "outputs inputs")


class _Layer(ctypes.Structure):
    _fields_ = _fields(ADDRESS, "input_norm feed_norm") + _fields(_Matrix, "qkv out gate up down")


class _Model(ctypes.Structure):
    _fields_ = [
        *_fields(COUNT, "layers hidden feed heads keys head_dim positions"),
        *_fields(FLOAT, "eps scaling"),
        *_fields(ctypes.POINTER(_Layer), "layer"),
        *_fields(ADDRESS, "final_norm turn"),
        *_fields(_Matrix, "head"),
    ]


class _Step(ctypes.Structure):
    _fields_ = [
        *_fields(COUNT, "rows width block_size threads"),
        *_fields(ADDRESS, "positions slots tables pools stream qkv seen gated normed scores logits"),
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
            and self.weight_OI.shape[1] % WIDE == 0
            and all(one.is_contiguous() for one in (self.weight_OI, *others))
            and all(one.dtype == torch.float32 for one in others)
        )

    def struct(self) -> _Matrix:
        return _Matrix(_at(self.weight_OI), _at(self.scales_O), _at(self.bias_O), *self.weight_OI.shape)


@dataclass(frozen=True)
class LayerMatrices:
    input_norm_H: torch.Tensor
    feed_norm_H: torch.Tensor
    matrices: tuple[RowMatrix, RowMatrix, RowMatrix, RowMatrix, RowMatrix]  # qkv, out, gate, up, down

    def struct(self) -> _Layer:
        norms = (_at(self.input_norm_H), _at(self.feed_norm_H))
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
        self._library, self._frame = library, frame
        self._named = (tuple(layers), norm_H, head)  # what the addresses are of
        self._model = _Model(
            *(dims.layers, dims.hidden, dims.intermediate, dims.heads, dims.kv_heads, dims.head_dim),
            *(frame.turn_2PD.shape[1], frame.eps, frame.scaling),
            (_Layer * len(layers))(*(layer.struct() for layer in layers)),
            *(_at(norm_H), _at(frame.turn_2PD), head.struct()),
        )

    def takes(self, step: StepBatch, pool: KvPool) -> bool:
        rows, new, _ = step.shape
        return new == 1 and rows <= MOST_ROWS and pool.dtype == torch.float32

    def __call__(self, step: StepBatch, stream_BH: torch.Tensor, pool: KvPool) -> torch.Tensor:
        """(B, V). `stream_BH`: embeddings of the tokens, changed. Keys and values are in the pool afterwards.
        Raises TrueupError for places that are not in the pool: the program would write beyond it."""
        dims, (rows, _, width) = self._frame.dims, step.shape
        given = [one.contiguous() for one in (step.positions_BQ, step.slots_BQ, step.tables_BW)]
        positions = min(self._frame.turn_2PD.shape[1], width * pool.block_size)
        ends = (positions, len(pool.layers[0]), pool.blocks)
        if any(int(one.amax()) >= end or int(one.amin()) < 0 for one, end in zip(given, ends, strict=True)):
            raise TrueupError("a decode step names positions, slots or blocks that are not there")
        if not self.takes(step, pool):
            raise TrueupError(
                f"a decode step has one token in each of at most {MOST_ROWS} rows, and an fp32 pool"
            )
        threads, queries = torch.get_num_threads(), dims.heads * dims.head_dim
        context = -(-width * pool.block_size // WIDE) * WIDE
        sizes = (
            *(rows * (queries + 2 * dims.kv_heads * dims.head_dim), rows * queries),
            *(rows * dims.intermediate, threads * rows * dims.hidden),
            threads * (dims.heads // dims.kv_heads) * context,
        )
        scratch = [torch.empty(size, dtype=torch.float32) for size in sizes]
        logits_BV = torch.empty(rows, dims.vocab, dtype=torch.float32)
        pools = (ADDRESS * len(pool.layers))(*map(_at, pool.layers))
        own = _Step(
            *(rows, width, pool.block_size, threads, *map(_at, given), ctypes.addressof(pools)),
            *map(_at, (stream_BH, *scratch, logits_BV)),
        )
        self._library.decode(ctypes.byref(self._model), ctypes.byref(own))
        return logits_BV


@lru_cache(maxsize=1)
def decode_library() -> ctypes.CDLL | str:
    """The program, compiled for this processor, once in a process; or why it cannot be."""
    wanted = os.environ.get("CXX") or "g++"
    compiler = shutil.which(wanted)
    if compiler is None:
        return f"there is no C++ compiler {wanted}"
    with tempfile.TemporaryDirectory(prefix="trueup-decode-") as folder:
        made = Path(folder) / "decode_step.so"
        command = [compiler, *OPTIONS, str(SOURCE), "-o", str(made)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_S)
            return ctypes.CDLL(str(made))
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip().splitlines()
            return f"{wanted} failed: {said[0] if said else f'exit code {error.returncode}'}"
        except (OSError, subprocess.SubprocessError) as error:
            return f"{wanted} failed: {error}"


def _at(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
