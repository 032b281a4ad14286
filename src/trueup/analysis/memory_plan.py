"""Memory of training, line by line, from a model's dimensions alone: what fits where, and why.

Weights, gradients and AdamW state: DESIGN's bytes for each parameter, 16 in mixed precision (fp32 weight 4,
gradient 4, two moments 8), 8 all in bf16, and a frozen weight alone. Activations: what the backward pass of a
Llama layer needs, tensor by tensor, as the layers of model/layers.py and model/attention.py keep it
(`example`), or as transformers' own forward pass with a kernel that keeps no scores does (`row`).

Letters as in flops.py; N tokens of a micro-batch, padding included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import fsum
from typing import Literal

from trueup.schema import AttentionMode, Measurement, ModelDims

from .predict_terms import HEAD_ROWS_AT_ONCE, HEAD_WORDS, Tuning

Policy = Literal["fp32", "bf16", "bf16-master", "autocast"]

_FP32, _BF16 = 4, 2
KEPT_WEIGHTS_PLACES = 128  # attention keeps its softmax for examples up to this long (model/attention.py)
# Not known before a run and not borrowed from another: a share to leave free, which anyone may change.
ALLOWANCE = 0.05
PARTS = ("weights", "gradients", "optimizer", "activations", "working_copies", "logits", "fragmentation")


@dataclass(frozen=True)
class MemoryAsk:
    """Training of a model with micro-batches of `rows` rows of `width` tokens, of which at most `head_rows`
    go through the head; `longest` is the longest example in them."""

    dims: ModelDims
    tuning: Tuning
    policy: Policy
    rows: int
    width: int
    head_rows: int
    attention: AttentionMode
    longest: int | None = None  # None: as long as a row
    checkpointing: bool = False
    allowance: float = ALLOWANCE

    @property
    def tokens(self) -> int:
        return self.rows * self.width

    @property
    def compute_bytes(self) -> int:
        """Of one number in the matrix products."""
        return _FP32 if self.policy == "fp32" else _BF16

    @property
    def trained_bytes(self) -> int:
        """Of one number of a trained weight, its gradient and each of its moments."""
        return _BF16 if self.policy == "bf16" else _FP32

    @property
    def frozen_bytes(self) -> int:
        return _BF16 if self.policy in ("bf16", "bf16-master") else _FP32


def state_bytes(ask: MemoryAsk) -> float:
    """Weights, gradients and optimizer: what no smaller micro-batch makes smaller."""
    lines = memory_lines(ask)
    return fsum(_value(lines, f"{part}_bytes") for part in ("weights", "gradients", "optimizer"))


def memory_lines(ask: MemoryAsk) -> dict[str, Measurement]:
    """Each part with its arithmetic, and their sum as `training_bytes`."""
    dims = ask.dims
    trained, frozen = dims.trainable_parameters, max(0, dims.parameters - dims.trainable_parameters)
    wide, narrow = ask.trained_bytes, ask.frozen_bytes
    lines = {
        "weights": predicted_bytes(
            wide * trained + narrow * frozen,
            f"{_count(trained)} trained x {wide} B + {_count(frozen)} frozen x {narrow} B",
        ),
        "gradients": predicted_bytes(wide * trained, f"{_count(trained)} trained x {wide} B"),
        "optimizer": predicted_bytes(
            2 * wide * trained, f"two moments: {_count(trained)} trained x {2 * wide} B"
        ),
        "activations": _activations(ask),
        "working_copies": _working_copies(ask),
        "logits": _logits(ask),
    }
    moving = fsum(_value(lines, part) for part in ("activations", "working_copies", "logits"))
    lines["fragmentation"] = predicted_bytes(
        ask.allowance * moving,
        f"an allowance, not a measurement: {ask.allowance:.0%} of what comes and goes in a step",
    )
    found = {f"{part}_bytes": line for part, line in lines.items()}
    total = fsum(line.value or 0.0 for line in lines.values())
    found["training_bytes"] = predicted_bytes(total, "the sum of the lines above")
    return found


@dataclass(frozen=True)
class Fit:
    """The largest that fits: tokens of a micro-batch in rows of `width`, and the longest single row. None:
    not even one token, with `why`."""

    micro_batch_rows: int | None
    width: int
    longest_row: int | None
    as_asked: bool  # the recipe's own micro-batch fits
    asked_bytes: float
    state_bytes: float
    limit_bytes: float
    why: str


def largest_fit(ask: MemoryAsk, limit_bytes: float, *, positions: int | None = None) -> Fit:
    """What fits into `limit_bytes` of one device that holds the whole model. Rows are full; all but the first
    token of each are supervised. `positions`: the longest row that the model can take."""
    state = state_bytes(ask)
    asked = _training(ask)
    rows = _largest(lambda count: _of_shape(ask, count, ask.width), limit_bytes)
    longest = _largest(lambda width: _of_shape(ask, 1, width), limit_bytes)
    if longest is not None and positions is not None:
        longest = min(longest, positions)
    return Fit(
        micro_batch_rows=rows,
        width=ask.width,
        longest_row=longest,
        as_asked=asked <= limit_bytes,
        asked_bytes=asked,
        state_bytes=state,
        limit_bytes=limit_bytes,
        why=_why(ask, state, asked, rows, limit_bytes),
    )


def _why(ask: MemoryAsk, state: float, asked: float, rows: int | None, limit: float) -> str:
    each = state / max(1, ask.dims.parameters)
    held = f"weights, gradients and optimizer take {_gb(state)} ({each:.3g} B for each parameter)"
    if state > limit:
        there = f"more than the {_capacity(limit)} there are"
        return f"{held}, {there}: no micro-batch fits without sharding or offload"
    if rows is None:
        return f"{held}; with one row of {ask.width} tokens more than the {_capacity(limit)} there are"
    fits = "fits" if asked <= limit else "does not fit"
    return f"{held}; with the micro-batch asked for {_gb(asked)}, which {fits} into {_capacity(limit)}"


def _of_shape(ask: MemoryAsk, rows: int, width: int) -> float:
    head = rows * max(1, width - 1)
    return _training(replace(ask, rows=rows, width=width, head_rows=head, longest=width))


def _training(ask: MemoryAsk) -> float:
    return _value(memory_lines(ask), "training_bytes")


def _largest(bytes_of: Callable[[int], float], limit: float) -> int | None:
    """The largest count whose bytes are within the limit; they grow with it."""
    if bytes_of(1) > limit:
        return None
    below, above = 1, 2
    while bytes_of(above) <= limit and above < 1 << 40:
        below, above = above, 2 * above
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if bytes_of(middle) <= limit else (below, middle)
    return below


# --- what comes and goes in a step --------------------------------------------------------------------------


def _activations(ask: MemoryAsk) -> Measurement:
    dims, tokens = ask.dims, ask.tokens
    each, words = _layer_bytes_per_token(ask)
    scores = _kept_scores(ask)
    layers = dims.layers
    if ask.checkpointing:
        value = layers * _FP32 * 2 * dims.hidden * tokens + each * tokens + scores
        how = (
            f"{tokens:,} tokens x {layers} layers x {2 * _FP32 * dims.hidden:,} B of their inputs, and one "
            f"layer computed again: {words}"
        )
        return predicted_bytes(value, how)
    value = layers * (each * tokens + scores)
    kept = f" + {scores / 1e6:.3g} MB of attention weights" if scores else ""
    return predicted_bytes(value, f"{layers} layers x ({tokens:,} tokens x {each:,.0f} B{kept}): {words}")


def _layer_bytes_per_token(ask: MemoryAsk) -> tuple[float, str]:
    """Bytes that one layer keeps of one token for the backward pass, and of what."""
    dims, c = ask.dims, ask.compute_bytes
    h, f = dims.hidden, dims.intermediate
    queries, heads = dims.heads * dims.head_dim, (dims.heads + 2 * dims.kv_heads) * dims.head_dim
    inputs = _kept_inputs(ask)
    if ask.attention == "row":
        parts = {
            "the stream and its norms in fp32": _FP32 * 4 * h,
            "inputs of the products": c
            * (inputs["qkv"] + inputs["out"] + inputs["gate_up"] + inputs["down"]),
            "queries, keys and values, turned": c * heads,
            "attention's output": c * queries,
            "gate, its activation and up": c * 3 * f,
        }
    else:
        parts = {
            "the stream at both norms in fp32": _FP32 * 2 * (h + 1),
            "inputs of the products": c * sum(inputs.values()),
            "queries, keys and values": c * heads,
            "gate and up": c * 2 * f,
        }
    return float(sum(parts.values())), ", ".join(f"{name} {size:,} B" for name, size in parts.items() if size)


def _kept_inputs(ask: MemoryAsk) -> dict[str, int]:
    """Numbers a token of the inputs that are kept for a gradient of a weight or an adapter."""
    dims, tuning = ask.dims, ask.tuning
    sides = {"qkv": dims.hidden, "out": dims.heads * dims.head_dim, "gate_up": dims.hidden}
    sides["down"] = dims.intermediate
    groups = {"qkv": ("q_proj", "k_proj", "v_proj"), "out": ("o_proj",), "gate_up": ("gate_proj", "up_proj")}
    groups["down"] = ("down_proj",)
    found = {}
    for name, side in sides.items():
        adapters = sum(one in tuning.targets for one in groups[name])
        kept = tuning.method == "full" or adapters
        found[name] = side + adapters * tuning.rank if kept else 0
    return found


def _kept_scores(ask: MemoryAsk) -> float:
    """Bytes of softmax that one layer keeps: of short examples alone."""
    longest = ask.longest or ask.width
    if ask.attention == "row" or longest > KEPT_WEIGHTS_PLACES:
        return 0.0
    return float(_FP32 * ask.dims.heads * ask.tokens * longest)


def _working_copies(ask: MemoryAsk) -> Measurement:
    """Rounded copies of trained weights, which the backward pass needs again."""
    trained = ask.dims.trainable_parameters
    if ask.compute_bytes == ask.trained_bytes or ask.tuning.method == "lora":
        return predicted_bytes(
            0.0, "trained weights enter the products as they are kept, or are too few to count"
        )
    embedding = ask.dims.vocab * ask.dims.hidden * (0 if ask.dims.tied_head else 1)
    value = ask.compute_bytes * (trained - embedding)
    return predicted_bytes(
        value, f"{_count(trained - embedding)} trained weights of products, rounded: x {ask.compute_bytes} B"
    )


def _logits(ask: MemoryAsk) -> Measurement:
    """The head goes through the rows in pieces (model/loss.py): logits of one piece in the precision of the
    products, one stretch of the vocabulary in fp32 twice, and the hidden states' gradient in fp32; the
    weight's own gradient beside it where the head is trained."""
    dims = ask.dims
    rows = min(ask.head_rows, HEAD_ROWS_AT_ONCE)
    words = min(dims.vocab, HEAD_WORDS)
    value = float(rows * (ask.compute_bytes * dims.vocab + 2 * _FP32 * words))
    value += _FP32 * ask.head_rows * dims.hidden
    how = (
        f"{rows:,} rows at a time x ({dims.vocab:,} logits x {ask.compute_bytes} B + a stretch of {words:,} "
        f"twice in fp32) + {ask.head_rows:,} rows x {dims.hidden:,} x {_FP32} B of gradient"
    )
    if head := head_gradient_bytes(ask):
        value += head
        how += f" + the head's own gradient {head / 1e6:.3g} MB"
    return predicted_bytes(value, how)


def head_gradient_bytes(ask: MemoryAsk) -> float:
    """Where the head is trained."""
    return float(_FP32 * ask.dims.vocab * ask.dims.hidden) if ask.tuning.method == "full" else 0.0


def predicted_bytes(value: float, arithmetic: str) -> Measurement:
    """Of one device, with how they were worked out."""
    return Measurement(value=float(value), unit="bytes", kind="predicted", method=arithmetic, scope="device")


def _value(lines: Mapping[str, Measurement], name: str) -> float:
    return lines[name].value or 0.0


def _count(parameters: float) -> str:
    return f"{parameters / 1e6:,.4g} M" if parameters < 1e9 else f"{parameters / 1e9:,.4g} G"


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"


def _capacity(size: float) -> str:
    """40 GiB (42.9 GB): as a device's memory is made, which its vendor calls 40 GB, and as sizes are told."""
    return f"{size / 2**30:,.1f}".removesuffix(".0") + f" GiB ({_gb(size)})"
