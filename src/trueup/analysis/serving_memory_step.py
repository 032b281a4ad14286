"""What comes and goes in one step of serving, from its shape: the tensors that are there together at each
moment of model/inference_layer.py and paged_attention.py, of which the largest moment counts, in the largest
step of all. Never the step that was last run: a warm-up that goes well says nothing of a larger one.

B rows, Q new tokens in each, W blocks of context in each, N = B·Q tokens, T places of context in a row; G
query heads of one key head; other letters as in flops.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trueup.schema import Measurement, ModelDims

from .memory_plan import predicted_bytes
from .serving_memory_weights import NUMBER_BYTES, SCHEMES, Stored, WeightScheme

StepShape = tuple[int, int, int]  # (B, Q, W)
Parts = dict[str, int]  # bytes by tensor
_FP32, _INT64, _INT8 = 4, 8, 1
# Drawing with a cut that needs all of the vocabulary (serve/sampling.py): the logits copied twice, sorted
# with their ids, two running sums in double precision, a comparison; and the first look at the likeliest.
SAMPLER_BYTES_PER_LOGIT = 2 * _FP32 + (_FP32 + _INT64) + 2 * 8 + 1
SAMPLER_BYTES_PER_CANDIDATE = _FP32 + _INT64 + 2 * 8
SAMPLER_CANDIDATES = 1024


@dataclass(frozen=True)
class StepSizes:
    """What the tensors of a step are made of. `kv_bytes`: of one number of the pool; `host`: weights are in
    oneDNN's layout, whose products write what follows them too, and int8 weights are multiplied as bytes."""

    stored: Stored
    kv_bytes: int
    block_size: int
    host: bool

    @property
    def dims(self) -> ModelDims:
        return self.stored.dims

    @property
    def number_bytes(self) -> int:
        """Of one number of the products."""
        return NUMBER_BYTES[self.stored.kept]

    def moments(self, shape: StepShape) -> dict[str, Parts]:
        """By moment, what is there together."""
        B, Q, W = shape
        N, T, dims, c, p = B * Q, W * self.block_size, self.dims, self.number_bytes, self.kv_bytes
        h, f, queries, keys = (
            *(dims.hidden, dims.intermediate),
            *(dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim),
        )
        grouped = dims.heads // dims.kv_heads
        first = {
            "the step itself": (4 * N + 2 * B * W + 4 * B) * _INT64,
            "stream": N * h * _FP32,
            "mask": N * T * p * grouped,
            "turns": 2 * N * dims.head_dim * _FP32,
        }
        always = {**first, "keys and values of the context": 2 * B * T * keys * p}  # of each layer in turn
        layer = {**always, "queries, keys and values": N * (queries + 2 * keys) * _wider(c)}
        joined = not self.host or self.stored.rounded
        anew = 0 if joined or c != _FP32 else N * h * _FP32  # such products add to the stream in a new tensor
        after = {**layer, "what was seen": N * queries * _FP32, "stream, added to": anew}
        return {
            "mask": {**first, "what may be seen": N * T * (2 + p) + T * _INT64},
            "queries, keys and values": {
                **always,
                "normed": N * h * c,
                **self._made(N, h, queries + 2 * keys),
            },
            "turning": {**layer, "turned": N * (queries + keys) * _FP32},
            "attention": {
                **layer,
                "queries in order": N * queries * p,
                "what was seen": N * queries * (2 * p if p == _FP32 else 2 * p + _FP32),
                "sums of weights": N * dims.heads * _FP32,
            },
            "gate and up": {**after, "normed": N * h * c, **self._made(N, h, 2 * f)},
            "gated": {**after, "normed": N * h * c, "gate, up and both": N * f * c * (3 if joined else 2)},
            "down": {**after, "gated": N * f * c, **self._made(N, f, h)},  # the product is the stream then
            "head": {**always, "last rows": B * h * (2 * _FP32 + c), **self._head(B)},
        }

    def largest(self, shapes: Iterable[StepShape]) -> tuple[StepShape, str, Parts]:
        """The shape, the moment and its tensors, of which no other has more bytes in all."""
        found = ((shape, name, parts) for shape in shapes for name, parts in self.moments(shape).items())
        return max(found, key=lambda one: sum(one[2].values()))

    def lines(self, shapes: tuple[StepShape, ...]) -> dict[str, Measurement]:
        """`activations_bytes`, `logits_bytes`, `sampler_bytes`."""
        (B, Q, W), moment, parts = self.largest(shapes)
        step, rows, V = sum(parts.values()), _rows(shapes), self.dims.vocab
        words = ", ".join(f"{name} {size:,} B" for name, size in parts.items() if size)
        drawing = (
            f"{rows:,} rows x ({V:,} x {SAMPLER_BYTES_PER_LOGIT} B + {self._candidates:,} B), less the "
            "activations, which are gone"
        )
        return {
            "activations_bytes": predicted_bytes(
                step, f"{B} x {Q} new tokens over {W} blocks, {moment}: {words}"
            ),
            "logits_bytes": predicted_bytes(
                _FP32 * rows * V, f"{rows:,} rows x {V:,} x {_FP32} B: of last tokens alone"
            ),
            "sampler_bytes": predicted_bytes(max(0, self._sampler(rows) - step), drawing),
        }

    def groups(self, shapes: tuple[StepShape, ...]) -> list[tuple[int, int]]:
        """(how many, bytes of each) in the largest step: what comes and goes as one, so that a larger step
        with fewer tensors is never rounded to less."""
        rows = _rows(shapes)
        most = max(sum(self.largest(shapes)[2].values()), self._sampler(rows))
        return [(1, most), (1, _FP32 * rows * self.dims.vocab)]

    @property
    def _candidates(self) -> int:
        """Bytes of a row's likeliest tokens."""
        return SAMPLER_BYTES_PER_CANDIDATE * min(self.dims.vocab, SAMPLER_CANDIDATES)

    def _sampler(self, rows: int) -> int:
        return rows * (SAMPLER_BYTES_PER_LOGIT * self.dims.vocab + self._candidates)

    def _made(self, rows: int, inputs: int, outputs: int) -> Parts:
        """The output of a layer's product and what it takes to make it, at the most."""
        return self._by(self.stored.scheme, self.stored.group, rows, inputs, outputs)

    def _head(self, rows: int) -> Parts:
        """Beside the logits, which are a line of their own."""
        head = self.stored.head_scheme
        made = self._by(head, self.stored.group, rows, self.dims.hidden, self.dims.vocab)
        if self.number_bytes == _FP32:  # then these are the logits
            made["product"] = 0
        return made

    def _by(self, scheme: WeightScheme, group: int | None, rows: int, inputs: int, outputs: int) -> Parts:
        product = {"product": rows * outputs * self.number_bytes}
        if not SCHEMES[scheme].scaled:
            return product
        if self.host and scheme == "int8" and group is None:
            # an activation is two bytes, by way of fp32; each byte has a product, and these are added
            split, summed = 2 * rows * inputs * (_FP32 + _INT8), 2 * rows * (inputs + outputs * _FP32)
            units, zeros = 2 * rows * _FP32, outputs * _FP32
            return {**product, "bytes and their products": max(split, summed) + units + zeros}
        # halves of int4 apart and in order, values in fp32, times scales, and these in the products' type
        each = 2 * _INT8 * (scheme == "int4") + _FP32 + _wider(self.number_bytes)
        return {**product, "weights, widened": inputs * outputs * each}


def _rows(shapes: tuple[StepShape, ...]) -> int:
    """The most that one step has."""
    return max(rows for rows, _, _ in shapes)


def _wider(number_bytes: int) -> int:
    """Of a number in the products' type and, where that is another, in fp32 too."""
    return number_bytes if number_bytes == _FP32 else number_bytes + _FP32
