"""Where the time of a training step goes: model FLOPs by part, and operators as torch's profiler names
them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trueup.data import TokenCounts
    from trueup.schema import ModelDims
    from trueup.train.session import Session

PARTS = (
    "linear layers",
    "LoRA's small products",
    "attention",
    "head and loss",
    "norms, rotary, elementwise",
    "casts and copies",
    "optimizer and clipping",
    "calls, Python and gaps",
)
LINEAR, LORA, ATTENTION, HEAD, ELEMENTWISE, COPY, OPTIMIZER, GAPS = PARTS

# Operators by name, as torch's profiler gives them.
MATMULS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mkldnn_linear", "mkldnn::")
ATTENTIONS = ("scaled_dot_product", "flash_attention", "softmax")
CLIPPING = ("aten::_foreach_norm", "aten::_foreach_mul_", "aten::linalg_vector_norm", "aten::clamp")
COPIES = ("aten::copy_", "aten::_to_copy", "aten::clone", "aten::cat")
# These describe memory or call others: their own time is the price of a call.
CALLS = {
    f"aten::{name}"
    for name in (
        *("alias", "as_strided", "chunk", "contiguous", "detach", "detach_", "empty", "empty_like"),
        *("empty_strided", "expand", "flatten", "linear", "lift_fresh", "matmul", "narrow", "permute"),
        *("reshape", "resize_", "result_type", "select", "slice", "split", "squeeze", "t", "to"),
        *("transpose", "unbind", "unsafe_view", "_unsafe_view", "unsqueeze", "view", "view_as"),
    )
}


def flop(dims: ModelDims, counts: Iterable[TokenCounts]) -> float:
    """Model FLOPs of the useful tokens of these steps."""
    return sum(sum(_flop_by_part(dims, one, useful=True).values()) for one in counts)


def _flop_by_part(dims: ModelDims, counts: TokenCounts, *, useful: bool) -> Counter[str]:
    """Model FLOPs of one step, of its useful tokens or of all that were processed. Attention is always that
    of the examples alone: what is computed of masked pairs is time without use."""
    from trueup.analysis.flops import head_row_flops, training_flops

    tokens = counts.useful if useful else counts.processed
    rows = counts.supervised if useful else counts.head_rows
    lora = 6.0 * dims.lora_parameters * tokens
    linear = training_flops(dims, tokens=tokens, head_rows=0, attention_sum_sq=0) - lora
    attention = training_flops(dims, tokens=0, head_rows=0, attention_sum_sq=counts.attention_sum_sq)
    parts = {LINEAR: linear, LORA: lora, HEAD: rows * head_row_flops(dims), ATTENTION: attention}
    return Counter(parts)


def waterfall(
    session: Session, own: Iterator[TokenCounts], steps: int, ceiling: float, mfu: float
) -> dict[str, float]:
    """Shares of a step's time, which add up to 1: useful work at the ceiling, padding at the ceiling, and for
    each part what it takes beyond its own FLOPs at the ceiling.

    The parts are shares of profiled time. Profiling makes calls dearer and kernels not, so the last part is
    overstated and the others are understated."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        start = time.perf_counter()
        counts, seconds = list(islice(own, steps)), time.perf_counter() - start
    dims = session.model.dims
    self_s = _self_seconds(profiled.events(), dims, session.recipe.tune.rank)
    self_s[GAPS] = seconds - sum(s for part, s in self_s.items() if part != GAPS)
    useful, processed = (
        sum((_flop_by_part(dims, one, useful=kind) for one in counts), Counter()) for kind in (True, False)
    )
    capacity = sum(useful.values()) / mfu  # FLOPs at the ceiling in the time these steps take unprofiled
    shares = {
        "useful work, at the ceiling": mfu,
        "padding, at the ceiling": (sum(processed.values()) - sum(useful.values())) / capacity,
    }
    return shares | {part: self_s[part] / seconds - processed[part] / capacity for part in PARTS}


def _self_seconds(events: Iterable[Any], dims: ModelDims, rank: int) -> Counter[str]:
    """Self CPU time by part: an operator's own time without that of the operators it calls."""
    found: Counter[str] = Counter()
    for event in events:
        found[_part(event, dims.vocab, rank)] += event.self_cpu_time_total / 1e6
    return found


def _part(event: Any, vocab: int, rank: int) -> str:
    above = []
    parent = event.cpu_parent
    while parent is not None:
        above.append(parent.name)
        parent = parent.cpu_parent
    line = (event.name, *above)
    if any("Optimizer." in name or name in CLIPPING for name in line):
        return OPTIMIZER
    if any("CrossEntropy" in name for name in line):
        return HEAD
    name, sizes = event.name, {size for shape in event.input_shapes for size in _flat(shape)}
    if any(word in name for word in ATTENTIONS):
        return ATTENTION
    if name.startswith(MATMULS):
        return LORA if rank in sizes else HEAD if vocab in sizes else LINEAR
    if name in COPIES:
        return COPY
    kernel = name.startswith("aten::") and name not in CALLS
    return ELEMENTWISE if kernel or "cpp_fused" in name else GAPS


def _flat(shape: Any) -> Iterator[int]:
    """Sizes in a shape; a list of tensors has a list of shapes."""
    if isinstance(shape, list | tuple):
        for one in shape:
            yield from _flat(one)
    elif isinstance(shape, int):
        yield shape
