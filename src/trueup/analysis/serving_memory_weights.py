"""The weights of a model that is served, as they lie in memory: whole, or rounded with scales beside.

Letters as in flops.py. What is rounded and what is kept is as `trueup quantize` does it: every matrix of the
layers and the head, with the embedding where they are one; norms and an embedding of its own are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from trueup.schema import Measurement, ModelDims
from trueup.schema.quantization import BITS, DEFAULT_GROUP, DEFAULT_HEAD

from .memory_plan import predicted_bytes

WeightScheme = Literal["fp32", "bf16", "int8", "int4", "fp8"]
WholeType = Literal["fp32", "bf16"]
WEIGHT_SCHEMES: tuple[WeightScheme, ...] = get_args(WeightScheme)
NUMBER_BYTES: dict[WholeType, int] = {"fp32": 4, "bf16": 2}
PACKED_BLOCK = 64
SCALE_BYTES = NORM_BYTES = 4  # fp32, whatever the weights are in


@dataclass(frozen=True)
class SchemeFacts:
    """`bits` of one value; `head`: how the head is stored; `group`: inputs that share a scale where nothing
    else is asked, None for one scale an output."""

    bits: int
    head: WeightScheme
    scaled: bool = False
    group: int | None = None


SCHEMES: dict[WeightScheme, SchemeFacts] = {
    "fp32": SchemeFacts(32, "fp32"),
    "bf16": SchemeFacts(16, "bf16"),
    **{
        scheme: SchemeFacts(bits, DEFAULT_HEAD[scheme], scaled=True, group=DEFAULT_GROUP[scheme])
        for scheme, bits in BITS.items()
    },
}


@dataclass(frozen=True)
class Matrix:
    """`count` equal matrices of the model. `group`: inputs that share a scale."""

    owner: str
    outputs: int
    inputs: int
    scheme: WeightScheme
    group: int | None
    count: int = 1

    @property
    def value_bytes(self) -> int:
        """Of one of them, scales left out. Two int4 values are in a byte where an output has an even number
        of them, else one."""
        bits = 8 if self.scheme == "int4" and self.inputs % 2 else SCHEMES[self.scheme].bits
        return self.outputs * self.inputs * bits // 8

    @property
    def scale_bytes(self) -> int:
        """Of one of them."""
        if not SCHEMES[self.scheme].scaled:
            return 0
        return SCALE_BYTES * self.outputs * (1 if self.group is None else -(-self.inputs // self.group))


@dataclass(frozen=True)
class Stored:
    """How a model's weights lie in memory. `group`: inputs that share a scale; None: the scheme's own.
    `whole`: the type of what is not rounded, where `scheme` rounds; `head`: how the head is stored, None: as
    `trueup quantize` does where nothing is asked."""

    dims: ModelDims
    scheme: WeightScheme
    group: int | None = None
    whole: WholeType = "bf16"
    head: WeightScheme | None = None

    @property
    def kept(self) -> WholeType:
        """The type of the products, and of an embedding that is not the head."""
        return self.scheme if self.scheme in ("fp32", "bf16") else self.whole

    @property
    def rounded(self) -> bool:
        """Whether the layers' matrices have scales."""
        return SCHEMES[self.scheme].scaled

    @property
    def head_scheme(self) -> WeightScheme:
        head = self.head or SCHEMES[self.scheme].head
        return self.kept if head in NUMBER_BYTES else head

    @property
    def matrices(self) -> list[Matrix]:
        """Every matrix; a tied head is the embedding itself."""
        dims, facts = self.dims, SCHEMES[self.scheme]
        group = self.group or facts.group
        head = self.head_scheme
        head_group = group if head == self.scheme else SCHEMES[head].group
        found = [
            Matrix("layers", outputs, inputs, self.scheme, group, dims.layers)
            for inputs, outputs in dims.linear_layers.values()
        ]
        if dims.tied_head:
            return [*found, Matrix("embedding", dims.vocab, dims.hidden, head, head_group)]
        return [
            *found,
            Matrix("embedding", dims.vocab, dims.hidden, self.kept, None),
            Matrix("head", dims.vocab, dims.hidden, head, head_group),
        ]

    @property
    def groups(self) -> list[tuple[int, int]]:
        """(how many, bytes of each) of the tensors."""
        found = [(2 * self.dims.layers + 1, NORM_BYTES * self.dims.hidden)]
        for one in self.matrices:
            found.append((one.count, one.value_bytes))
            if one.scale_bytes:
                found.append((one.count, one.scale_bytes))
        return found

    def lines(self) -> dict[str, Measurement]:
        """`layers_bytes`, `embedding_bytes`, `head_bytes`, `norms_bytes`, each with its scales."""
        lines = {f"{owner}_bytes": self._owner(owner) for owner in ("layers", "embedding", "head")}
        how = f"(2 x {self.dims.layers} + 1) norms x {self.dims.hidden:,} x {NORM_BYTES} B"
        lines["norms_bytes"] = predicted_bytes(
            (2 * self.dims.layers + 1) * self.dims.hidden * NORM_BYTES, how
        )
        return lines

    def packing(self) -> Measurement:
        """What oneDNN's layout takes beyond the values of bf16 matrices at the most. The embedding is not in
        it, nor what is read row by row or widened call by call."""
        dims = self.dims
        queries, keys = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
        of_layer = [
            *((queries + 2 * keys, dims.hidden), (dims.hidden, queries), (dims.hidden, dims.intermediate)),
            *(2 * [(dims.intermediate, dims.hidden)]),
        ]
        more = 0
        if self.scheme == "bf16":
            more += dims.layers * sum(_packed(*one) for one in of_layer)
        if self.head_scheme == "bf16" and not dims.tied_head:
            more += _packed(dims.vocab, dims.hidden)
        return predicted_bytes(more, "bf16, in whole blocks of 64 outputs by 64 inputs")

    def _owner(self, owner: str) -> Measurement:
        mine = [one for one in self.matrices if one.owner == owner]
        if not mine:
            return predicted_bytes(0, "the head is the embedding itself")
        scheme, group = mine[0].scheme, mine[0].group
        scales = sum(one.count * one.scale_bytes for one in mine)
        numbers = sum(one.count * one.outputs * one.inputs for one in mine)
        how = f"{numbers:,} weights x {SCHEMES[scheme].bits} bits"
        if scales:
            each = "each output" if group is None else f"each {group} inputs of an output"
            how += f" + a scale for {each}, {scales // SCALE_BYTES:,} x {SCALE_BYTES} B"
        if owner == "embedding" and self.dims.tied_head:
            how += "; it is the head too"
        return predicted_bytes(sum(one.count * one.value_bytes for one in mine) + scales, how)


def _packed(outputs: int, inputs: int) -> int:
    """Bytes of a bf16 matrix in oneDNN's layout beyond those of its values, on processors with AVX-512."""
    wide, deep = (-(-size // PACKED_BLOCK) * PACKED_BLOCK for size in (outputs, inputs))
    return (wide * deep - outputs * inputs) * NUMBER_BYTES["bf16"]
