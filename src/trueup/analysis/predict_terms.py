"""What one training step asks of a device, in terms that each take their own seconds.

A step's time is the sum over its terms of their amount and the seconds for a unit of each. Matrix products
come by their size, because their rate depends on it more than on anything else; the rest is counted in
numbers moved, scores computed, calls made. `trueup calibrate` measures the products one by one and fits the
rest to whole steps (predict_fit.py).

Letters as in flops.py; N tokens of a micro-batch, padding included, R rank of an adapter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from trueup.schema import ModelDims

from .predict_products import Product, ProductTable


@dataclass(frozen=True)
class Term:
    """`like`: the kind of work it is, `weight`: how much of that a unit has. Terms of one kind take the same
    for as much work, as far as the timed steps do not speak against it."""

    unit: str
    like: str
    weight: float = 1.0


# Weights are counted in the code that runs (model/layers.py, attention.py, loss.py, train/optimizer.py) in
# bf16 products on fp32 weights: kernels started beside products, bytes that these read and write.
TERMS = {
    "products": Term("s of linear layers' products, measured one by one", "products"),
    "adapters": Term("s of LoRA's thin products, measured one by one", "adapters"),
    "head": Term("s of the head's products, measured one by one", "head"),
    "head_words": Term("logit", "logits"),
    "scores": Term("score of a query with a key, one head", "scores", 66),
    "scores_again": Term("score computed again in the backward pass", "scores", 42),
    "score_numbers": Term("score times head size", "score products"),
    "groups": Term("group of examples in one layer", "calls", 50),
    "layers_lora": Term("layer run forward and backward, beside adapters", "calls", 75),
    "layers_full": Term("layer run forward and backward, its weights trained", "calls", 72),
    "hidden": Term("number of a hidden state, one layer", "sweeps", 220),
    "queries": Term("number of a query", "sweeps", 150),
    "keys": Term("number of a key or value", "sweeps", 72),
    "feed": Term("number of a feed-forward activation", "sweeps", 44),
    "trained": Term("trained parameter, once a step", "weights", 40),
    "trained_again": Term("trained parameter, once a micro-batch", "weights", 20),
    "head_trained": Term("trained weight of the head, once a micro-batch", "weights", 40),
    "tensors": Term("trained tensor, once a step", "calls", 1),
    "micro_batches": Term("micro-batch", "calls", 105),
    "steps": Term("step", "calls", 20),
}
MEASURED_ALONE = ("products", "adapters", "head")
HEAD_ROWS_AT_ONCE, HEAD_WORDS, HEAD_ROW_STEP = 512, 4096, 32  # pieces in which model/loss.py does the head
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


def sizes_of(dims: ModelDims, tuning: Tuning, tokens: int) -> set[Product]:
    """The products of the layers that have a size of their own with each number of tokens. Those of attention
    and head are made ready for all data before the first step."""
    forward, backward = _linear_products(dims, tuning, tokens)
    return {*forward, *backward, *_adapter_products(dims, tuning, tokens)}


def head_sizes(dims: ModelDims, tokens: int) -> set[Product]:
    """The products of the head that are made ready for micro-batches of at most so many tokens."""
    words = min(HEAD_WORDS, dims.vocab)
    most = min(tokens, HEAD_ROWS_AT_ONCE)
    rows = range(HEAD_ROW_STEP, most + HEAD_ROW_STEP, HEAD_ROW_STEP)
    return {
        *(Product(count, dims.hidden, words) for count in rows),
        *(Product(count, words, dims.hidden, "inputs") for count in rows),
    }


def head_weight_sizes(dims: ModelDims, tuning: Tuning, one: MicroBatchWork) -> set[Product]:
    """Those of its weight's gradient, which are not."""
    return {size for size, _ in _head_products(dims, tuning, one) if size.layout == "weight"}


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
    queries, keys = dims.heads * dims.head_dim, 2 * dims.kv_heads * dims.head_dim
    forward, backward = _linear_products(dims, tuning, tokens)
    products = sum(map(table.seconds, forward)) * (layers * (2 if checkpointing else 1))
    products += sum(map(table.seconds, backward)) * layers
    if tuning.method == "lora" and layers:  # nothing below the first layer is trained
        products -= table.seconds(Product(tokens, queries + keys, dims.hidden, "inputs"))
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
        "queries": passes * layers * tokens * queries,
        "keys": passes * layers * tokens * keys,
        "feed": passes * layers * tokens * dims.intermediate,
        "trained_again": float(dims.trainable_parameters),
        "head_trained": float(dims.vocab * dims.hidden) if tuning.method == "full" else 0.0,
        "micro_batches": 1.0,
    }


# Frozen layers of one input are one product (model/decoder.py).
_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))


def _linear_products(dims: ModelDims, tuning: Tuning, tokens: int) -> tuple[list[Product], list[Product]]:
    """A layer's products, forward and backward. A frozen weight has no gradient of its own."""
    linears = dims.linear_layers
    if tuning.method == "full":
        sides = list(linears.values())
    else:
        sides = [(linears[group[0]][0], sum(linears[name][1] for name in group)) for group in _TOGETHER]
    forward = [Product(tokens, inputs, outputs) for inputs, outputs in sides]
    backward = [Product(tokens, outputs, inputs, "inputs") for inputs, outputs in sides]
    if tuning.method == "full":
        backward += [Product(outputs, tokens, inputs, "weight") for inputs, outputs in sides]
    return forward, backward


def _adapter_products(dims: ModelDims, tuning: Tuning, tokens: int) -> list[Product]:
    linears, found = dims.linear_layers, list[Product]()
    for group in _TOGETHER:
        names = [name for name in group if name in tuning.targets]
        if tuning.method != "lora" or not names:
            continue
        inputs, outputs = linears[group[0]][0], sum(linears[name][1] for name in group)
        ranks = tuning.rank * len(names)
        found += [Product(tokens, inputs, ranks), Product(tokens, ranks, outputs, "inputs")]  # forward
        found += [Product(tokens, outputs, ranks), Product(tokens, ranks, inputs, "inputs")]
        found.append(Product(ranks, tokens, inputs, "weight"))
        found += [Product(linears[name][1], tokens, tuning.rank, "weight") for name in names]
    return found


def _head_products(dims: ModelDims, tuning: Tuning, one: MicroBatchWork) -> list[tuple[Product, float]]:
    """Logits, their gradient into the hidden states, and into the weight where it is trained. A last piece
    of more than a few rows is filled up."""
    words = min(HEAD_WORDS, dims.vocab)
    pieces = dims.vocab / words
    whole, rest = divmod(one.head_rows, HEAD_ROWS_AT_ONCE)
    if rest > HEAD_ROW_STEP:
        rest = -(-rest // HEAD_ROW_STEP) * HEAD_ROW_STEP
    found = list[tuple[Product, float]]()
    for rows, times in ((HEAD_ROWS_AT_ONCE, whole), (rest, 1)):
        if not rows or not times:
            continue
        sizes = [Product(rows, dims.hidden, words), Product(rows, words, dims.hidden, "inputs")]
        if tuning.method == "full":
            sizes.append(Product(words, rows, dims.hidden, "weight"))
        found += [(size, times * pieces) for size in sizes]
    return found
