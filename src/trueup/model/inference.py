"""A model for serving: the forward pass over a paged KV pool, on any device of torch; under static shapes,
or without padding where a CPU's own program takes part.

B rows, Q new tokens in each, W blocks of context, N = B * Q or, without padding, fewer, H hidden size, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from trueup.schema import InputError, ModelDims, TrueupError

from .compile import TORCHS_LIMIT
from .decode import Decoder
from .decode_matrices import decoder_of
from .inference_layer import (
    EMBEDDING,
    FINAL_NORM,
    Embedding,
    InferenceLayer,
    Places,
    build_embedding,
    build_layer,
    normed,
)
from .inference_linear import Linear, Matrix
from .inference_stored import bytes_of
from .inference_weights import (
    FolderWeights,
    Frame,
    LoadedWeights,
    Weights,
    frame_of_folder,
    frame_of_loaded,
)
from .load import LoadedModel
from .paged_attention import KvPool, StepPlaces
from .prefill import PackedPlaces
from .quantize_round import round_to_nearest
from .quantized import is_quantised
from .step_batch import PackedStep, StepBatch, padding_batch

# "int8" of a plain model rounds its matrices on the way; a quantised folder is served as it is stored.
ServedAs = Literal["fp32", "bf16", "int8"]
CompileMode = Literal["none", "layer"]

# Of packed tokens, whose number follows the data: oneDNN keeps a program for each that it multiplies.
TOKENS_MULTIPLE = 16


@dataclass
class InferenceModel:
    """Runs steps once it has a pool. `dtype` is that of the products; the stream between layers, norms and
    logits are fp32. `decoder` takes decode steps, and its program the attention of the others, where
    the model and the pool are such as it takes; `decoded_by` says why there is none. For one thread."""

    frame: Frame
    dtype: torch.dtype
    device: torch.device
    embedding: Embedding
    layers: tuple[InferenceLayer, ...]
    norm_H: torch.Tensor
    head: Linear
    compile_mode: CompileMode = "none"
    pool: KvPool | None = None
    decoder: Decoder | None = None
    decoded_by: str = "torch's operators"
    _run_layer: Callable[..., torch.Tensor] | None = None

    @classmethod
    def load(
        cls,
        source: Path | LoadedModel,
        served_as: ServedAs = "fp32",
        *,
        device: str | torch.device = "cpu",
        max_positions: int | None = None,
        compile_mode: CompileMode = "none",
        backend: str | Callable[..., Any] = "inductor",
    ) -> InferenceModel:
        """From a model folder, plain or quantised, or from a model in memory with its adapters.

        `max_positions`: the longest context, where it is less than the model's. Raises InputError for a model
        that is not Llama-class or whose files do not hold what it needs.
        """
        weights: Weights
        if isinstance(source, Path):
            frame, weights = frame_of_folder(source, max_positions), FolderWeights(source)
            quantised = is_quantised(source)
        else:
            frame = frame_of_loaded(source.base, source.dims, max_positions)
            weights, quantised = LoadedWeights(source.base), False
        if served_as == "int8" and not quantised:
            weights = _RoundedWeights(weights, frame)
        dtype = torch.bfloat16 if served_as == "bf16" else torch.float32
        model = _build(frame, weights, dtype, torch.device(device), fused=compile_mode == "none")
        if compile_mode == "layer":
            model._compile(backend)
        else:
            model._choose_decoder()
        return model

    def _choose_decoder(self) -> None:
        found = decoder_of(self.frame, self.layers, self.norm_H, self.head)
        if isinstance(found, str):
            self.decoded_by = f"torch's operators: {found}"
        else:
            self.decoder, self.decoded_by = found, "a program compiled for this processor"

    @property
    def dims(self) -> ModelDims:
        return self.frame.dims

    def new_pool(self, blocks: int, block_size: int, dtype: torch.dtype | None = None) -> KvPool:
        """Takes the memory for keys and values, in `dtype` or in the products', and forgets the pool there
        was. Block 0 is the null block. Raises InputError for sizes that make no pool."""
        if blocks < 2 or block_size < 1:
            raise InputError(
                f"KV pool: {blocks} blocks of {block_size} tokens; expected at least 2 blocks (the first is "
                "the null block) of at least 1"
            )
        self.pool = None
        self.pool = KvPool.new(
            layers=self.dims.layers,
            blocks=blocks,
            block_size=block_size,
            heads=self.dims.kv_heads,
            head_dim=self.dims.head_dim,
            dtype=dtype or self.dtype,
            device=self.device,
        )
        return self.pool

    def run(self, batch: StepBatch) -> torch.Tensor:
        """(B, V) fp32 logits of each row's last new token, on the model's device."""
        return self.forward(batch)

    def forward(self, step: StepBatch) -> torch.Tensor:
        """(B, V) fp32. Keys and values of the new tokens are in the pool afterwards."""
        if self.pool is None:
            raise TrueupError("the model has no KV pool yet; call new_pool before the first step")
        with self._without_gradients():
            if self.drops_padding:
                return self._without_padding(step)
            rows, new = step.tokens_BQ.shape
            groups = self.dims.heads // self.dims.kv_heads
            places = StepPlaces.of(step, self.pool, self.frame.turn_2PD, groups)
            last_B = torch.arange(0, rows * new, new) + step.last_B
            return self._through_layers(step.tokens_BQ.flatten(), places, last_B)

    @property
    def drops_padding(self) -> bool:
        """Whether steps are computed without their padding: nothing here is compiled for their shapes."""
        return self.decoder is not None and self.pool is not None and self.pool.dtype == torch.float32

    def processed_tokens(self, step: StepBatch) -> int:
        """How many tokens a run of this step computes, padding included."""
        if not self.drops_padding:
            return step.tokens_BQ.numel()
        assert self.decoder is not None
        new_B = step.new_of_rows
        rows, tokens = int((new_B > 0).sum()), int(new_B.sum())
        return tokens if self.decoder.takes(rows, tokens) else tokens + _missing(tokens)

    def _without_padding(self, step: StepBatch) -> torch.Tensor:
        assert self.decoder is not None
        assert self.pool is not None
        packed = PackedStep.of(step)
        if self.decoder.takes(len(packed.rows_C), len(packed.tokens_N)):
            logits_CV = self.decoder(packed, self.embedding(packed.tokens_N), self.pool)
        else:
            places = PackedPlaces.of(packed, self.pool, self.frame, self.decoder.library)
            tokens_M = torch.nn.functional.pad(packed.tokens_N, (0, _missing(len(packed.tokens_N))))
            logits_CV = self._through_layers(tokens_M, places, packed.last_C)
        return packed.of_all_rows(logits_CV, len(step.last_B))

    def _through_layers(self, tokens_N: torch.Tensor, places: Places, last_B: torch.Tensor) -> torch.Tensor:
        """(B, V): logits of the tokens that `last_B` points to among the N."""
        assert self.pool is not None
        stream_NH = self.embedding(tokens_N.to(self.device))
        run = self._run_layer or InferenceLayer.__call__
        for layer, pool_S2KD in zip(self.layers, self.pool.layers, strict=True):
            stream_NH = run(layer, stream_NH, pool_S2KD, places)
        last_BH = stream_NH.index_select(0, last_B.to(self.device))
        return self.head(normed(last_BH, self.norm_H, self.frame.eps, self.dtype)).float()

    def clear(self, slots_N: torch.Tensor) -> None:
        """Zeroes these slots' keys and values in every layer: who holds their blocks next may read beyond
        what is written, with a weight of 0, and 0 times what is no number is none."""
        if self.pool is not None:
            with self._without_gradients():
                for layer_S2KD in self.pool.layers:
                    layer_S2KD.index_fill_(0, slots_N.to(self.device), 0)

    def warm_up(
        self,
        shapes: Iterable[tuple[int, int, int]],
        after: Callable[[tuple[int, int, int]], None] | None = None,
    ) -> None:
        """Runs every (B, Q, W) once, on padding alone, so that whatever compiles for a shape has done so."""
        for shape in shapes:
            self.forward(padding_batch(shape))
            if after is not None:
                after(shape)

    def weight_bytes(self) -> dict[str, int]:
        """By owner, as the weights lie in memory: what the allocator gave for them, packing included."""
        found = {"attention": 0, "mlp": 0, "norms": bytes_of(self.norm_H)}
        for layer in self.layers:
            for owner, size in layer.bytes().items():
                found[owner] += size
        shared = self.dims.tied_head
        outer = {"embedding and head": self.embedding.bytes}
        if not shared:
            outer = {"embedding": self.embedding.bytes, "head": self.head.bytes}
        return {**outer, **found, "rotary": bytes_of(self.frame.turn_2PD)}

    def _compile(self, backend: str | Callable[..., Any]) -> None:
        """One graph for each shape, shared by the layers, made when a shape is first run."""
        options: Any = {"dynamic": False, "backend": backend, "recompile_limit": 64 * TORCHS_LIMIT}
        self._run_layer = torch.compile(InferenceLayer.__call__, **options)
        self.compile_mode = "layer"

    def _without_gradients(self) -> AbstractContextManager[Any]:
        return torch.inference_mode() if self.compile_mode == "none" else torch.no_grad()


def _missing(tokens: int) -> int:
    """Of packed tokens, to a number that is multiplied."""
    return -tokens % TOKENS_MULTIPLE


@dataclass(frozen=True)
class _RoundedWeights:
    """Each matrix as int8, rounded to the nearest with a scale for each output. An embedding that is not the
    head too stays as it is."""

    plain: Weights
    frame: Frame

    def matrix(self, name: str) -> Matrix:
        found = self.plain.matrix(name)
        if not isinstance(found, torch.Tensor):
            return found
        if name.endswith(EMBEDDING) and not self.frame.dims.tied_head:
            return found
        return round_to_nearest(found.float(), "int8", None)

    def vector(self, name: str) -> torch.Tensor | None:
        return self.plain.vector(name)


@torch.no_grad()
def _build(
    frame: Frame, weights: Weights, dtype: torch.dtype, device: torch.device, *, fused: bool
) -> InferenceModel:
    prefix = "model"
    embedding, head = build_embedding(weights, prefix, frame, dtype, device, fused=fused)
    layers = tuple(
        build_layer(weights, f"{prefix}.layers.{number}", frame, dtype, device, fused=fused)
        for number in range(frame.dims.layers)
    )
    norm = weights.vector(f"{prefix}.{FINAL_NORM}.weight")
    if norm is None:
        raise InputError(f"the weight files have no {prefix}.{FINAL_NORM}.weight; copy the model again")
    return InferenceModel(
        frame=Frame(**{**frame.__dict__, "turn_2PD": frame.turn_2PD.to(device)}),
        dtype=dtype,
        device=device,
        embedding=embedding,
        layers=layers,
        norm_H=norm.to(device, torch.float32, copy=True),
        head=head,
    )
