"""A published claim: figures as they were printed, and what is said to follow from them; and what an audit
finds.

Figures and formulas are kept as text, since the decimals that were printed say how far a figure was rounded.
`trueup.analysis.audit_quantity` reads figures, `audit_formula` reads formulas.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from .measurement import Frozen, Measurement

Verdict = Literal[
    "follows",
    "does not follow",
    "holds",
    "does not hold",
    "possible",
    "implausible",
    "impossible",
    "cannot be decided",
]
CONFIRMED: frozenset[Verdict] = frozenset({"follows", "holds", "possible"})
Tuning = Literal["full", "lora"]
State = Literal["mixed", "fp32", "bf16"]
ClaimKind = Literal["from", "check", "training", "decoding", "memory", "hardware", "model", "exists"]
SUBJECTS: tuple[ClaimKind, ...] = ("from", "check", "training", "decoding", "memory")
FACTS: tuple[ClaimKind, ...] = ("hardware", "model", "exists")


class Figure(Frozen):
    """A figure of the claim's inputs: `value` as published, or a `formula` over other figures."""

    value: str | None = None
    formula: str | None = None
    source: str | None = None
    note: str | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.value is None) == (self.formula is None):
            raise ValueError("a figure has either a `value` or a `formula`")
        return self


class TrainingClaim(Frozen):
    """What the claimed rate is held against: FLOPs per token and the chips' dense peak."""

    model: str
    tune: Tuning | None = None  # None: LoRA, which needs less
    on: str  # a chip or an instance of the catalog
    count: str = "1"  # how many of them, a formula
    tokens: str | None = None  # with it the claim is a time for so many tokens, not a rate
    sequence: str | None = None  # tokens of an example; None: attention costs nothing
    precision: Literal["bf16", "fp8"] = "bf16"


class DecodingClaim(Frozen):
    """One sequence's rate is held against reading the weights once a token at the chips' bandwidth."""

    model: str
    on: str
    count: str = "1"
    bytes_per_parameter: str = "2"


class MemoryClaim(Frozen):
    """Bytes that must be held at once, against what is said to be needed and against what the chips have."""

    model: str
    tune: Literal["full", "lora", "inference"]
    state: State | None = None  # None: the smallest
    on: str | None = None
    count: str = "1"  # chips or instances over which everything is sharded
    bytes_per_parameter: str = "2"  # of inference


class HardwareClaim(Frozen):
    """What is said of an instance or a chip; every key but these two and the date is compared."""

    instance: str | None = None
    on_date: str | None = None  # ISO date of the price
    chip: str | None = None
    chips: str | None = None
    chip_memory: str | None = None
    memory: str | None = None
    cores: str | None = None
    bandwidth: str | None = None
    bf16: str | None = None
    fp8: str | None = None
    price: str | None = None

    @model_validator(mode="after")
    def _of_something(self) -> Self:
        if self.instance is None and self.chip is None:
            raise ValueError("name an `instance` or a `chip`")
        if (
            not self.model_fields_set
            - {"instance", "on_date"}
            - ({"chip"} if self.instance is None else set())
        ):
            raise ValueError("say something of it, such as `chips: 16`")
        if self.instance is None and {"chips", "memory", "price"} & self.model_fields_set:
            raise ValueError("`chips`, `memory` and `price` are those of an `instance`: name it")
        return self


class ModelClaim(Frozen):
    """What is said of a model."""

    name: str
    parameters: str


class Claim(Frozen):
    """One claim: what it says, and exactly one thing that this is held against; `from` may go with one of the
    physical limits, which then has the last word."""

    quote: str | None = None  # as published
    note: str | None = None
    says: str | None = None
    formula: str | None = Field(None, alias="from")
    check: str | None = None
    training: TrainingClaim | None = None
    decoding: DecodingClaim | None = None
    memory: MemoryClaim | None = None
    hardware: HardwareClaim | None = None
    model: ModelClaim | None = None
    exists: str | None = None

    @model_validator(mode="after")
    def _held_against_one_thing(self) -> Self:
        kinds = self.kinds
        one_limit = len(kinds) == 2 and kinds[0] == "from" and kinds[1] in ("training", "decoding", "memory")
        if len(kinds) != 1 and not one_limit:
            found = ", ".join(f"`{kind}`" for kind in kinds) or "none"
            raise ValueError(
                f"a claim has one of {', '.join(f'`{kind}`' for kind in (*SUBJECTS, *FACTS))}, or `from` "
                f"with `training`, `decoding` or `memory`; found {found}"
            )
        if self.says is None and kinds[0] in ("from", "training", "decoding"):
            raise ValueError(f"a claim with `{kinds[0]}` needs `says`, the figure as published")
        if self.says is not None and kinds[0] in ("check", *FACTS):
            raise ValueError(f"a claim with `{kinds[0]}` has no `says`: what it says is in there")
        if self.memory is not None and self.says is None and self.memory.on is None:
            raise ValueError("a claim of memory needs `says`, or `on`: the chip it is said to fit")
        return self

    @property
    def kinds(self) -> tuple[ClaimKind, ...]:
        """What it is held against."""
        given: dict[ClaimKind, object] = {
            "from": self.formula,
            "check": self.check,
            "training": self.training,
            "decoding": self.decoding,
            "memory": self.memory,
            "hardware": self.hardware,
            "model": self.model,
            "exists": self.exists,
        }
        return tuple(kind for kind, value in given.items() if value is not None)


class ClaimFile(Frozen):
    """A file of claims. Figures and claims share one set of names; a claim's name stands for what it says."""

    title: str
    source: str | None = None
    figures: dict[str, str | Figure] = Field(default_factory=dict)
    claims: dict[str, Claim] = Field(min_length=1)


class Finding(Frozen):
    """One fact of a claim beside what is published of it. `agrees` is None where nothing is."""

    what: str
    said: str
    found: str
    agrees: bool | None
    source: str = ""


class AuditedClaim(Frozen):
    """A verdict and what it rests on.

    `recomputed` is in the unit of what was said; its `ci` is the range that the rounding of the published
    figures leaves, no confidence interval. `gap` is how far what was said lies from it, as a share of it.
    `needed`, `limit` and `used_share` are of a physical limit.
    """

    name: str
    kinds: tuple[ClaimKind, ...]
    quote: str | None
    said: str
    verdict: Verdict
    reason: str
    recomputed: Measurement | None = None
    gap: Measurement | None = None
    needed: Measurement | None = None
    limit: Measurement | None = None
    used_share: Measurement | None = None
    missing: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    sources: tuple[str, ...] = ()
    note: str | None = None


class Audit(Frozen):
    """Every claim of a file with its verdict, in the file's order."""

    title: str
    source: str | None
    claims: tuple[AuditedClaim, ...]

    @property
    def confirmed(self) -> bool:
        """Whether every claim follows, holds or is possible."""
        return all(one.verdict in CONFIRMED for one in self.claims)

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many claims have each verdict that any has."""
        found: dict[Verdict, int] = {}
        for one in self.claims:
            found[one.verdict] = found.get(one.verdict, 0) + 1
        return found
