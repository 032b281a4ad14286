"""Whether serving fits into a device's memory, what does, and what to change."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from trueup.schema import Measurement

from .flops import kv_bytes_per_token
from .serving_memory import (
    ServingAsk,
    all_blocks,
    needs_bytes,
    serving_lines,
    value_of,
)
from .serving_memory_weights import NUMBER_BYTES, WEIGHT_SCHEMES

MOST = 1 << 40  # no context and no number of sequences is larger
WEIGHTS = ("layers_bytes", "embedding_bytes", "head_bytes", "norms_bytes")


@dataclass(frozen=True)
class Change:
    """Something else to ask for, and what that needs."""

    what: str
    needs_bytes: float
    fits: bool


@dataclass(frozen=True)
class ServingFit:
    """`fits` None: how much memory there is is not known. `longest_context`: tokens that fit at the
    concurrency asked for, at most the model's positions; `most_concurrency`: sequences that fit at the
    context asked for; 0 where not even one does. `changes` need less, each alone, those that fit first."""

    fits: bool | None
    needs_bytes: float
    has_bytes: float | None
    longest_context: int | None
    most_concurrency: int | None
    why: str
    changes: tuple[Change, ...] = ()


def fit(ask: ServingAsk, has_bytes: float | None, *, positions: int | None = None) -> ServingFit:
    """Holds the need against `has_bytes` of one device. The steps follow the context and the concurrency, so
    an ask with steps of its own is judged without them."""
    ask = replace(ask, steps=None, blocks=None)
    needs = needs_bytes(ask)
    if has_bytes is None:
        return ServingFit(
            None, needs, None, None, None, f"needs {binary(needs)}; how much there is is not known"
        )
    context = _most(lambda tokens: replace(ask, context=tokens), has_bytes, positions or MOST)
    rows = _most(lambda rows: replace(ask, concurrency=rows), has_bytes, MOST)
    fits = needs <= has_bytes
    return ServingFit(
        fits=fits,
        needs_bytes=needs,
        has_bytes=has_bytes,
        longest_context=context,
        most_concurrency=rows,
        why=f"needs {binary(needs)}, has {binary(has_bytes)}: {_largest_parts(ask)}",
        changes=() if fits else tuple(_changes(ask, needs, has_bytes, context, rows)),
    )


@dataclass(frozen=True)
class KvBlocks:
    """A pool for what memory is left. `blocks` counts the null block; `wanted`: with which every sequence can
    be at its longest at once; `longest_request`: tokens of the longest request that can ever be served, 0
    where the pool has no block to give."""

    blocks: int
    wanted: int
    longest_request: int
    why: str


def kv_blocks(ask: ServingAsk, has_bytes: float) -> KvBlocks:
    """As many blocks as fit into `has_bytes` beside everything else, at most as many as can be of use."""
    wanted = all_blocks(ask)
    blocks = _most(lambda count: replace(ask, blocks=count), has_bytes, wanted)
    usable = max(0, blocks - 1)
    rest = needs_bytes(replace(ask, blocks=0))
    how = (
        f"{binary(has_bytes)} less {binary(rest)} for everything else, at {ask.block_bytes:,} B a block of "
        f"{ask.block_size} tokens: {blocks:,} of {wanted:,} blocks"
    )
    return KvBlocks(blocks, wanted, min(ask.context, usable * ask.block_size), how)


def binary(size: float) -> str:
    """As the table beside has it: in units of 1024."""
    for unit, name in ((30, "GiB"), (20, "MiB")):
        if size >= 2**unit:
            return f"{size / 2**unit:,.2f} {name}"
    return f"{size / 1024:,.1f} KiB"


def _most(asked: Callable[[int], ServingAsk], has_bytes: float, most: int) -> int:
    """The largest count from 1 to `most` with which it fits; 0: none. The need grows with the count."""
    counts = range(1, most + 1)
    return bisect_right(counts, has_bytes, key=lambda count: needs_bytes(asked(count)))


def _largest_parts(ask: ServingAsk) -> str:
    lines = serving_lines(ask)
    weights = sum(value_of(lines, name) for name in WEIGHTS)
    step = sum(value_of(lines, name) for name in ("activations_bytes", "logits_bytes", "sampler_bytes"))
    pool, room = (binary(value_of(lines, name)) for name in ("kv_pool_bytes", "headroom_bytes"))
    per_token = kv_bytes_per_token(ask.dims, bytes_per_value=NUMBER_BYTES[ask.kv])
    return (
        f"weights {binary(weights)} ({ask.quant}), KV pool {pool} ({ask.kv}, {per_token:,.0f} B a token), "
        f"the largest step {binary(step)}, headroom {room}{_process(lines)}"
    )


def _process(lines: Mapping[str, Measurement]) -> str:
    """Of the process itself, which beside a small model is most of what is resident; nothing where it does
    not lie in the device's memory."""
    line = lines.get("process_bytes")
    if line is None:
        return ""
    if line.value is None:
        return f"; not counted: the process itself, Python and PyTorch ({line.reason})"
    return f", the process itself {binary(line.value)}"


def _changes(ask: ServingAsk, needs: float, has: float, context: int, rows: int) -> list[Change]:
    found = [Change(what, needs_bytes(other), needs_bytes(other) <= has) for what, other in _others(ask)]
    smaller = [one for one in found if one.needs_bytes < needs]
    if 0 < context < ask.context:
        smaller.append(_change(f"a context of {context:,} tokens", replace(ask, context=context), has))
    if 0 < rows < ask.concurrency:
        smaller.append(_change(f"{rows:,} sequences at once", replace(ask, concurrency=rows), has))
    return sorted(smaller, key=lambda one: (not one.fits, -one.needs_bytes if one.fits else one.needs_bytes))


def _change(what: str, ask: ServingAsk, has: float) -> Change:
    return Change(what, needs_bytes(ask), needs_bytes(ask) <= has)


def _others(ask: ServingAsk) -> Iterator[tuple[str, ServingAsk]]:
    """Narrower weights and keys and values, alone and together, and a shorter prefill chunk."""
    narrower = ask if ask.kv == "bf16" else replace(ask, kv="bf16")
    if narrower is not ask:
        yield "bf16 keys and values", narrower
    for scheme in WEIGHT_SCHEMES:
        if scheme != ask.quant:
            yield f"{scheme} weights", replace(ask, quant=scheme, group=None, head=None)
            if narrower is not ask:
                words = f"{scheme} weights and bf16 keys and values"
                yield words, replace(narrower, quant=scheme, group=None, head=None)
    if ask.prefill_chunk > 1:
        chunk = max(1, min(ask.prefill_chunk, ask.context) // 2)
        yield f"prefill chunks of {chunk:,} tokens", replace(ask, prefill_chunk=chunk)
