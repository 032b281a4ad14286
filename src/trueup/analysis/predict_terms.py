"""What one training step asks of a device, in terms that each take their own seconds.

A step's time is the sum over its terms of their amount and the seconds for a unit of each. Matrix products
come by their size, because their rate depends on it more than on anything else; the rest is counted in
numbers moved, scores computed, calls made. `trueup calibrate` measures the products one by one and fits the
rest to whole steps (predict_fit.py).

Letters as in flops.py; N tokens of a micro-batch, padding included, R rank of an adapter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Literal

from trueup.schema import ModelDims, ProductTime

Size = tuple[int, int, int]  # (m, k) by (k, n)

# Every term, and its unit. The first three are seconds already: a fitted factor near 1 says so.
TERMS = {
    "products": "s of linear layers' products, measured one by one",
    "adapters": "s of LoRA's thin products, measured one by one",
    "head": "s of the head's products, measured one by one",
    "head_words": "logit",
    "scores": "score of a query with a key, one head",
    "scores_again": "score computed again in the backward pass",
    "score_numbers": "score times head size",
    "groups": "group of examples in one layer",
    "layers_lora": "layer run forward and backward, beside adapters",
    "layers_full": "layer run forward and backward, its weights trained",
    "hidden": "number of a hidden state, one layer",
    "heads": "number of a query, key or value",
    "feed": "number of a feed-forward activation",
    "trained": "trained parameter, once a step",
    "trained_again": "trained parameter, once a micro-batch",
    "tensors": "trained tensor, once a step",
    "micro_batches": "micro-batch",
    "steps": "step",
}
MEASURED_ALONE = ("products", "adapters", "head")
HEAD_ROWS_AT_ONCE, HEAD_WORDS = 512, 4096  # model/loss.py goes through the head in pieces of this size
_LEAST_S = 1e-7  # of compiling: below it nothing was
FORWARD_AGAIN = 1 / 3  # activation checkpointing runs a layer forward once more: of forward and backward


@dataclass(frozen=True)
class Tuning:
    """What is trained: all weights, or adapters of one rank beside some linear layers."""

    method: Literal["lora", "full"]
    rank: int = 0
    targets: tuple[str, ...] = ()

    @classmethod
    def of(cls, section: Any) -> Tuning:
        """From a recipe's section `tune`, or anything with its fields."""
        if section.method == "full":
            return cls("full")
        return cls("lora", section.rank, tuple(section.targets))


@dataclass(frozen=True)
class MicroBatchWork:
    """Counts of one micro-batch. `scores`: of queries with keys, one head of one layer, as the attention in
    use computes them, `scores_again` those of them that the backward pass needs and that were not kept;
    `groups`: of examples that it takes together."""

    rows: int
    width: int
    useful: int
    supervised: int
    head_rows: int
    attention_sum_sq: int
    scores: int
    scores_again: int
    groups: int
    examples: int

    @property
    def tokens(self) -> int:
        """Padding included."""
        return self.rows * self.width


@dataclass(frozen=True)
class ProductTable:
    """Seconds of a product of any size, from those of some: straight lines between their logarithms, and by
    FLOPs beyond the largest."""

    times: tuple[ProductTime, ...]

    def seconds(self, size: Size) -> float:
        found = self._cache.get(size)
        if found is None:
            found = self._cache[size] = self._interpolated(size)
        return found

    def first_seconds(self, size: Size) -> float:
        """What the first product of this size takes beyond every later one: on a CPU its program is compiled.
        0 where it was not measured."""
        if not self._firsts:
            return 0.0
        places = [self._place(side) for side in size]
        return math.exp(_mean_of_corners(places, lambda node: math.log(self._first_at(node))))

    @cached_property
    def _firsts(self) -> dict[Size, float]:
        return {
            (one.m, one.k, one.n): max(one.first_s - one.seconds, _LEAST_S)
            for one in self.times
            if one.first_s is not None
        }

    def _first_at(self, node: Sequence[int]) -> float:
        """Measured, or that of the next smaller one where it was too large to be."""
        found = self._firsts.get((node[0], node[1], node[2]))
        if found is not None:
            return found
        largest = max(range(3), key=lambda at: node[at])
        smaller = self._axis[self._axis.index(node[largest]) - 1]
        return self._first_at([*node[:largest], smaller, *node[largest + 1 :]])

    @cached_property
    def _cache(self) -> dict[Size, float]:
        return {}

    @cached_property
    def _nodes(self) -> dict[Size, float]:
        return {(one.m, one.k, one.n): one.seconds for one in self.times}

    @cached_property
    def _axis(self) -> list[int]:
        return sorted({side for size in self._nodes for side in size})

    def _interpolated(self, size: Size) -> float:
        places = [self._place(side) for side in size]
        total = _mean_of_corners(places, lambda node: math.log(self._at(node)))
        beyond = math.prod(max(1.0, side / self._axis[-1]) for side in size)
        return math.exp(total) * beyond

    def _place(self, side: int) -> tuple[int, int, float]:
        """(the side below, the side above, how far between them)."""
        axis = self._axis
        inside = min(max(side, axis[0]), axis[-1])
        above = next(at for at, one in enumerate(axis) if one >= inside)
        below = max(0, above - 1)
        if below == above or inside == axis[above]:
            return axis[above], axis[above], 0.0
        part = math.log(inside / axis[below]) / math.log(axis[above] / axis[below])
        return axis[below], axis[above], part

    def _at(self, node: Sequence[int]) -> float:
        """Measured, or by FLOPs from the next smaller one where it was too large to be."""
        found = self._nodes.get((node[0], node[1], node[2]))
        if found is not None:
            return found
        largest = max(range(3), key=lambda at: node[at])
        smaller = self._axis[self._axis.index(node[largest]) - 1]
        return self._at([*node[:largest], smaller, *node[largest + 1 :]]) * node[largest] / smaller


def _mean_of_corners(
    places: Sequence[tuple[int, int, float]], of_node: Callable[[Sequence[int]], float]
) -> float:
    """Between the corners of a cell, each weighted by how near it is."""
    total = 0.0
    for corner in product((0, 1), repeat=3):
        weight, node = 1.0, list[int]()
        for upper, (below, above, part) in zip(corner, places, strict=True):
            weight *= part if upper else 1 - part
            node.append(above if upper else below)
        if weight:
            total += weight * of_node(node)
    return total


def sizes_of(dims: ModelDims, tuning: Tuning, tokens: int) -> set[Size]:
    """The products of the layers that have a size of their own with each number of tokens. Those of attention
    and head are made ready for all data before the first step."""
    forward, backward = _linear_products(dims, tuning, tokens)
    return {*forward, *backward, *_adapter_products(dims, tuning, tokens)}


def step_terms(
    dims: ModelDims,
    tuning: Tuning,
    micro_batches: Iterable[MicroBatchWork],
    table: ProductTable,
    *,
    checkpointing: bool = False,
) -> dict[str, float]:
    """How much of each term one optimizer step has, on the rank that does these micro-batches."""
    found = {
        "trained": float(dims.trainable_parameters),
        "tensors": float(trained_tensors(dims, tuning)),
        "steps": 1.0,
    }
    for one in micro_batches:
        for name, amount in _micro_batch_terms(dims, tuning, one, table, checkpointing).items():
            found[name] = found.get(name, 0.0) + amount
    return found


def trained_tensors(dims: ModelDims, tuning: Tuning) -> int:
    """Adapters are two matrices each; a layer has seven matrices and two norms, beside them are embedding,
    head and the last norm."""
    if tuning.method == "lora":
        return 2 * dims.layers * sum(name in dims.linear_layers for name in tuning.targets)
    return 9 * dims.layers + (2 if dims.tied_head else 3)


def _micro_batch_terms(
    dims: ModelDims, tuning: Tuning, one: MicroBatchWork, table: ProductTable, checkpointing: bool
) -> dict[str, float]:
    tokens, layers = one.tokens, dims.layers
    passes = 1 + (FORWARD_AGAIN if checkpointing else 0)
    heads = (dims.heads + 2 * dims.kv_heads) * dims.head_dim
    forward, backward = _linear_products(dims, tuning, tokens)
    products = sum(map(table.seconds, forward)) * (layers * (2 if checkpointing else 1))
    products += sum(map(table.seconds, backward)) * layers
    if tuning.method == "lora" and layers:  # nothing below the first layer is trained
        products -= table.seconds((tokens, heads, dims.hidden))
    adapters = sum(map(table.seconds, _adapter_products(dims, tuning, tokens)))
    scores = passes * layers * dims.heads * one.scores
    return {
        "products": products,
        "adapters": adapters * layers * passes,
        "head": sum(count * table.seconds(size) for size, count in _head_products(dims, tuning, one)),
        "head_words": float(one.head_rows * dims.vocab),
        "scores": scores,
        "scores_again": passes * layers * dims.heads * one.scores_again,
        "score_numbers": scores * dims.head_dim,
        "groups": passes * layers * one.groups,
        f"layers_{tuning.method}": passes * layers,
        "hidden": passes * layers * tokens * dims.hidden,
        "heads": passes * layers * tokens * heads,
        "feed": passes * layers * tokens * dims.intermediate,
        "trained_again": float(dims.trainable_parameters),
        "micro_batches": 1.0,
    }


# Frozen layers of one input are one product (model/decoder.py).
_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))


def _linear_products(dims: ModelDims, tuning: Tuning, tokens: int) -> tuple[list[Size], list[Size]]:
    """A layer's products, forward and backward. A frozen weight has no gradient of its own."""
    linears = dims.linear_layers
    if tuning.method == "full":
        sides = list(linears.values())
    else:
        sides = [(linears[group[0]][0], sum(linears[name][1] for name in group)) for group in _TOGETHER]
    forward = [(tokens, inputs, outputs) for inputs, outputs in sides]
    backward = [(tokens, outputs, inputs) for inputs, outputs in sides]
    if tuning.method == "full":
        backward += [(outputs, tokens, inputs) for inputs, outputs in sides]
    return forward, backward


def _adapter_products(dims: ModelDims, tuning: Tuning, tokens: int) -> list[Size]:
    linears, found = dims.linear_layers, list[Size]()
    for group in _TOGETHER:
        names = [name for name in group if name in tuning.targets]
        if tuning.method != "lora" or not names:
            continue
        inputs, outputs = linears[group[0]][0], sum(linears[name][1] for name in group)
        ranks = tuning.rank * len(names)
        found += [(tokens, inputs, ranks), (tokens, ranks, outputs)]  # forward
        found += [(tokens, outputs, ranks), (tokens, ranks, inputs), (ranks, tokens, inputs)]
        found += [(linears[name][1], tokens, tuning.rank) for name in names]
    return found


def _head_products(dims: ModelDims, tuning: Tuning, one: MicroBatchWork) -> list[tuple[Size, float]]:
    """Logits, their gradient into the hidden states, and into the weight where it is trained."""
    words = min(HEAD_WORDS, dims.vocab)
    pieces = dims.vocab / words
    whole, rest = divmod(one.head_rows, HEAD_ROWS_AT_ONCE)
    found = list[tuple[Size, float]]()
    for rows, times in ((HEAD_ROWS_AT_ONCE, whole), (rest, 1)):
        if not rows or not times:
            continue
        sizes = [(rows, dims.hidden, words), (rows, words, dims.hidden)]
        if tuning.method == "full":
            sizes.append((words, rows, dims.hidden))
        found += [(size, times * pieces) for size in sizes]
    return found
