"""Names of what the quality gate measures. Each comes with `_short` or `_long`, for the context's length."""

from __future__ import annotations

import math

from trueup.schema import Measurement, unavailable

from .names import NameFacts

PER_CONTEXT: dict[str, tuple[str, str]] = {
    "quality_tokens": ("tokens", "held-out tokens that were predicted"),
    "quality_perplexity_original": ("1", "held-out perplexity of the original"),
    "quality_perplexity": ("1", "held-out perplexity of the quantised model"),
    "quality_perplexity_ratio": ("1", "quantised over original perplexity, rows paired"),
    "quality_kl_nats": ("nats", "mean KL divergence of next-token distributions from the original's"),
    "quality_top_k_overlap_share": ("1", "part of the likeliest tokens that are the original's too"),
    "quality_same_choice_share": ("1", "part of positions whose likeliest token is the original's"),
    "quality_greedy_match_tokens": ("tokens", "greedy tokens before the first that is not the original's"),
    "quality_greedy_match_share": ("1", "part of a greedy answer before the first token that differs"),
}
OVERALL: dict[str, tuple[str, str]] = {
    "quality_not_finite_positions": ("count", "positions with a logit that is no number or infinite"),
    "quality_worst_layer_error_share": ("1", "largest change of a layer's outputs over their norm"),
    "quality_task_accuracy_original_share": ("1", "part of the tasks' items the original answers rightly"),
    "quality_task_accuracy_share": ("1", "part of the tasks' items the quantised model answers rightly"),
    "quality_task_drop_share": ("1", "part of the tasks' items lost by quantising, gains taken off"),
}
CONTEXTS = {"short": "short contexts", "long": "long contexts"}


QUALITY_NAMES: dict[str, NameFacts] = {
    f"{name}_{context}": NameFacts(unit, "process", f"{meaning}; {words}")
    for name, (unit, meaning) in PER_CONTEXT.items()
    for context, words in CONTEXTS.items()
} | {name: NameFacts(unit, "process", meaning) for name, (unit, meaning) in OVERALL.items()}


def quality_figure(
    name: str, value: float, method: str, *, n: int, ci: tuple[float, float] | None = None, ci_how: str = ""
) -> Measurement:
    """The named measurement with its unit; `ci`, by `ci_how`, is over what `n` counts. A value that is not
    finite becomes unavailable, and says so."""
    unit = QUALITY_NAMES[name].unit
    if not math.isfinite(value):
        return unavailable(unit, f"the value is {value}, not a finite number", method=method, n=n)
    how = None if ci is None else f"within_run: {ci_how}"
    return Measurement(value=value, unit=unit, kind="measured", method=method, n=n, ci=ci, ci_method=how)


def quality_missing(name: str, reason: str) -> Measurement:
    """The named measurement that could not be made, and why."""
    return unavailable(QUALITY_NAMES[name].unit, reason)
