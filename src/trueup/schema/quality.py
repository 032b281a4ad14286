"""What the quality gate is given, its limits, and what it says of a quantised model.

K tokens that are looked at at a position: the likeliest ones.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .measurement import Frozen, Measurement
from .quantization import LayerError, Scheme

Context = Literal["short", "long"]
Verdict = Literal["accepted", "refused"]
QUALITY_FORMAT = 2
QUALITY_FILE = "quality.json"


class QualityLimits(Frozen):
    """How far a quantised model may be from its original; each context length is held to them alone."""

    perplexity_ratio: float = Field(
        1.05, gt=1, description="perplexity over the original's; a smaller model of the family costs more"
    )
    kl_nats: float = Field(
        0.1, gt=0, description="mean KL divergence of next-token distributions from the original's"
    )
    top_k_overlap: float = Field(
        0.8, ge=0, le=1, description="share of the likeliest tokens that are the original's too"
    )
    greedy_match: float = Field(
        0.3, ge=0, le=1, description="share of a greedy answer before the first token that differs"
    )
    task_drop: float = Field(
        0.03, ge=0, le=1, description="share of a task's items lost, right answers gained taken off"
    )
    layer_error: float = Field(
        0.35, gt=0, description="norm of the change of one layer's outputs over their norm, same inputs"
    )
    same_token_rise: float = Field(
        0.3,
        gt=0,
        le=1,
        description="rise of the share of positions whose likeliest token is one and the same",
    )


class ContextFacts(Frozen):
    """What was seen at one context length: a value for each row of held-out tokens (means over its positions;
    nats where they are logarithms), and for each greedy answer the tokens before it first differs.

    `not_finite` counts positions at which a logit of the quantised model is no number or infinite; argmax
    there gives token 0, which many vocabularies print as "!". `same_token` is the likeliest token that the
    quantised model gives most often, and its share of positions in both models.
    """

    context: Context
    length: int
    tokens: int
    nll_original: tuple[float, ...]
    nll_quantised: tuple[float, ...]
    kl: tuple[float, ...]
    top_k: int
    top_k_overlap: tuple[float, ...]
    same_choice: tuple[float, ...]
    greedy_match: tuple[int, ...]
    greedy_tokens: int
    not_finite: int
    same_token: int
    same_token_share: float
    same_token_share_original: float


class MissingContext(Frozen):
    context: Context
    reason: str


class TaskFacts(Frozen):
    """Which of a task's items each model answered rightly, in the order of the file."""

    task: str
    original: tuple[bool, ...]
    quantised: tuple[bool, ...]


class Observed(Frozen):
    """All that the gate judges by. `first_not_finite`: the first part of the model whose output was no number
    although its inputs were."""

    held_out: str
    contexts: tuple[ContextFacts, ...]
    missing: tuple[MissingContext, ...] = ()
    tasks: tuple[TaskFacts, ...] = ()
    layers: tuple[LayerError, ...]
    first_not_finite: str | None = None


class QualityCheck(Frozen):
    """One limit applied. `value` None: it could not be computed, which is a failure."""

    name: str
    context: Context | None
    value: float | None
    limit: float
    at_least: bool
    passed: bool
    says: str


class QualityRecord(Frozen):
    """The content of quality.json. `weights_digest` is that of the folder that was judged: of another one it
    says nothing."""

    format: int
    trueup_version: str
    original: str
    scheme: Scheme
    method: str
    weights_digest: str
    verdict: Verdict
    reasons: tuple[str, ...]
    held_out: str
    limits: QualityLimits
    checks: tuple[QualityCheck, ...]
    worst_layers: tuple[LayerError, ...]
    measurements: dict[str, Measurement]
    missing: tuple[MissingContext, ...] = ()
    tasks: dict[str, dict[str, Measurement]] = Field(default_factory=dict)
