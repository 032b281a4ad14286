"""Memory of serving, line by line, from a model's dimensions alone: weights, KV pool, the largest step, what
the device's runtime takes beside them, and headroom.

Letters as in flops.py; B rows, Q new tokens in each and W blocks of context in each are a step's shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

from trueup.schema import Measurement, ModelDims
from trueup.schema.choices import DeviceKind

from .flops import kv_bytes_per_token
from .memory_plan import predicted_bytes
from .serving_memory_device import code_lines, process_line, rounding_line
from .serving_memory_step import StepShape, StepSizes
from .serving_memory_weights import NUMBER_BYTES, Stored, WeightScheme, WholeType

KvType = WholeType

HEADROOM = 0.10  # of everything that is counted: a share to leave free, which anyone may change
BLOCK_SIZE = 16  # tokens
PREFILL_CHUNK = 256  # tokens
LEAST_CHUNK = 16  # tokens of the shortest prefill row, of which several go into one step


@dataclass(frozen=True)
class ServingAsk:
    """Serving of a model on one device that holds it whole: at most `concurrency` sequences at once, each of
    at most `context` tokens, prompt and answer together.

    `blocks` of the pool, the null block among them; None: as many as all sequences at full length need.
    `steps`: every shape that will be run; None: decode of all sequences, and a prefill chunk of one and of
    as many rows as share one (the next power of two, so that more never takes less), all over the whole
    context. `process`: what the process takes by itself in host memory, where it was measured.
    """

    dims: ModelDims
    context: int
    concurrency: int
    quant: WeightScheme = "bf16"
    kv: KvType = "bf16"
    device: DeviceKind = "cuda"
    chip: str | None = None  # its name in the catalog
    group: int | None = None  # inputs that share a scale; None: the scheme's own choice
    head: WeightScheme | None = None  # None: as `trueup quantize` stores it
    whole: WholeType | None = None  # what is not rounded, and what computes; None: fp32 on a CPU, else bf16
    block_size: int = BLOCK_SIZE
    prefill_chunk: int = PREFILL_CHUNK
    blocks: int | None = None
    steps: tuple[StepShape, ...] | None = None
    process: Measurement | None = None
    headroom: float = HEADROOM

    @property
    def block_bytes(self) -> int:
        """Of one KV block over all layers: 2·L·K·d numbers a token."""
        return int(self.block_size * kv_bytes_per_token(self.dims, bytes_per_value=NUMBER_BYTES[self.kv]))

    @property
    def stored(self) -> Stored:
        whole = self.whole or ("fp32" if self.device == "cpu" else "bf16")
        return Stored(self.dims, self.quant, self.group, whole, self.head)

    @property
    def sizes(self) -> StepSizes:
        return StepSizes(self.stored, NUMBER_BYTES[self.kv], self.block_size, self.device == "cpu")

    @property
    def pool_blocks(self) -> int:
        return all_blocks(self) if self.blocks is None else self.blocks

    @property
    def shapes(self) -> tuple[StepShape, ...]:
        if self.steps is not None:
            return self.steps
        context = blocks_for(self.context, self.block_size)
        chunk = min(self.prefill_chunk, self.context)
        rows = 1 << (max(1, min(self.concurrency, chunk // LEAST_CHUNK)) - 1).bit_length()
        return (self.concurrency, 1, context), (1, chunk, context), (rows, -(-chunk // rows), context)


def blocks_for(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def all_blocks(ask: ServingAsk) -> int:
    """Blocks with which every sequence can be at its longest at once; the null block is one of them."""
    return ask.concurrency * blocks_for(ask.context, ask.block_size) + 1


def serving_lines(ask: ServingAsk) -> dict[str, Measurement]:
    """Each part with its arithmetic, and `needs_bytes`: the sum of all parts that are known, headroom too.
    A part that nobody can know before the model is compiled or loaded is unavailable, with the reason."""
    lines = ask.stored.lines()
    if ask.device == "cpu":
        lines["packing_bytes"] = ask.stored.packing()
    turns = 2 * ask.context * ask.dims.head_dim * 4
    lines["rotary_bytes"] = predicted_bytes(turns, f"2 x {ask.context:,} places x {ask.dims.head_dim} x 4 B")
    lines["kv_pool_bytes"] = _pool_line(ask)
    lines |= ask.sizes.lines(ask.shapes)
    lines["rounding_bytes"] = rounding_line(ask.device, _groups(ask))
    lines |= code_lines(ask.device, ask.chip)
    lines |= process_line(ask.device, ask.process)
    known = fsum(line.value or 0.0 for line in lines.values())
    lines["headroom_bytes"] = predicted_bytes(
        ask.headroom * known, f"{ask.headroom:.0%} of the lines above, left free"
    )
    missing = [name.removesuffix("_bytes") for name, line in lines.items() if line.value is None]
    how = "the sum of the lines above" + (f"; not in it: {', '.join(missing)}" if missing else "")
    lines["needs_bytes"] = predicted_bytes((1 + ask.headroom) * known, how)
    return lines


def needs_bytes(ask: ServingAsk) -> float:
    return value_of(serving_lines(ask), "needs_bytes")


def value_of(lines: Mapping[str, Measurement], name: str) -> float:
    return lines[name].value or 0.0


def _pool_line(ask: ServingAsk) -> Measurement:
    dims, each = ask.dims, NUMBER_BYTES[ask.kv]
    per_token = kv_bytes_per_token(dims, bytes_per_value=each)
    if ask.blocks is None:
        count = (
            f"{ask.concurrency:,} sequences x {blocks_for(ask.context, ask.block_size):,} blocks for "
            f"{ask.context:,} tokens + the null block = {ask.pool_blocks:,} blocks"
        )
    else:
        count = f"{ask.blocks:,} blocks, the null block among them"
    how = (
        f"{count} x {ask.block_size} tokens x {per_token:,.0f} B (2 x {dims.layers} layers x {dims.kv_heads} "
        f"heads x {dims.head_dim} x {each} B)"
    )
    return predicted_bytes(ask.pool_blocks * ask.block_bytes, how)


def _groups(ask: ServingAsk) -> list[tuple[int, int]]:
    """(how many, bytes of each) of all tensors that are there in the largest step."""
    dims = ask.dims
    of_layer = ask.pool_blocks * ask.block_bytes // dims.layers  # keys and values in one tensor
    return [
        *ask.stored.groups,
        (dims.layers, of_layer),
        *ask.sizes.groups(ask.shapes),
    ]
