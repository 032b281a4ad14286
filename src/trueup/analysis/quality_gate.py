"""Whether a quantised model is near enough to its original to be served, and why not.

Rows of held-out tokens are the unit: of one length, so a mean over rows is a mean over tokens. Intervals
of means are over rows, and stay where such a mean can be; that of a ratio of perplexities is of the rows'
paired differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trueup.schema import Measurement
from trueup.schema.quality import (
    ContextFacts,
    Observed,
    QualityCheck,
    QualityLimits,
    TaskFacts,
    Verdict,
)
from trueup.schema.quantization import LayerError

from .mean_interval import Average, exp_of, mean_above_zero, mean_between, ratio_of_logs
from .names_quality import PER_CONTEXT, quality_figure, quality_missing

WORST = 8  # layers that are named


@dataclass(frozen=True)
class Judged:
    """The gate's verdict and all it rests on."""

    checks: tuple[QualityCheck, ...]
    worst_layers: tuple[LayerError, ...]
    measurements: dict[str, Measurement]
    tasks: dict[str, dict[str, Measurement]]
    reasons: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        return "refused" if self.reasons else "accepted"


def judge(observed: Observed, limits: QualityLimits) -> Judged:
    """Every limit at every context length; one that is not kept refuses the model."""
    checks = _checks(observed, limits)
    worst = tuple(sorted(observed.layers, key=_badness, reverse=True)[:WORST])
    return Judged(
        checks=checks,
        worst_layers=worst,
        measurements=_measurements(observed),
        tasks={one.task: _task_figures([one]) for one in observed.tasks},
        reasons=tuple(_reasons(observed, checks, worst, limits)),
    )


def _badness(layer: LayerError) -> float:
    return layer.error if math.isfinite(layer.error) else math.inf


# --- limits -----------------------------------------------------------------------------------------------


def _checks(observed: Observed, limits: QualityLimits) -> tuple[QualityCheck, ...]:
    found = [check for facts in observed.contexts for check in _of_context(facts, limits)]
    worst = max(observed.layers, key=_badness)
    found.append(
        _check("layer error", None, worst.error, limits.layer_error, "at_most", f"worst {worst.name}")
    )
    found += [
        _check("task drop", None, _drop([task]), limits.task_drop, "at_most", f"on {task.task}")
        for task in observed.tasks
    ]
    return tuple(found)


def _of_context(facts: ContextFacts, limits: QualityLimits) -> list[QualityCheck]:
    where = f"at {facts.length} tokens"
    ratio = exp_of(_mean(_differences(facts)))
    match = _mean([matched / facts.greedy_tokens for matched in facts.greedy_match])
    rise = facts.same_token_share - facts.same_token_share_original
    finite = f"{where}, {facts.not_finite} of {facts.tokens} positions"
    same = f"{where}, token {facts.same_token} at {facts.same_token_share:.0%} of positions"
    context = facts.context
    return [
        _check("logits not finite", context, facts.not_finite, 0, "at_most", finite),
        _check("perplexity ratio", context, ratio, limits.perplexity_ratio, "at_most", where),
        _check("KL divergence", context, _mean(facts.kl), limits.kl_nats, "at_most", where),
        _check("top-k overlap", context, _mean(facts.top_k_overlap), limits.top_k_overlap, "at_least", where),
        _check("greedy match", context, match, limits.greedy_match, "at_least", where),
        _check("same token everywhere", context, rise, limits.same_token_rise, "at_most", same),
    ]


def _check(
    name: str,
    context: Literal["short", "long"] | None,
    value: float,
    limit: float,
    side: Literal["at_most", "at_least"],
    detail: str,
) -> QualityCheck:
    """A value that is not finite keeps no limit."""
    known = math.isfinite(value)
    passed = known and (value <= limit if side == "at_most" else value >= limit)
    word = "at most" if side == "at_most" else "at least"
    shown = f"{value:.4g}" if known else "not a number"
    return QualityCheck(
        name=name,
        context=context,
        value=value if known else None,
        limit=limit,
        at_least=side == "at_least",
        passed=passed,
        says=f"{name} {shown}, {word} {limit:g} is allowed ({detail})",
    )


def _reasons(
    observed: Observed,
    checks: Sequence[QualityCheck],
    worst: Sequence[LayerError],
    limits: QualityLimits,
) -> list[str]:
    """What to read first: what makes every other figure meaningless, then each limit that is not kept."""
    failed = [check for check in checks if not check.passed]
    if not failed:
        return []
    reasons = []
    if any(facts.not_finite for facts in observed.contexts):
        where = (
            f"; the first is the output of {observed.first_not_finite}" if observed.first_not_finite else ""
        )
        reasons.append(
            "logits are not numbers, so that argmax gives token 0 (an answer of nothing but '!' in many "
            f"vocabularies){where}"
        )
    reasons += [check.says for check in failed]
    over = [layer.name for layer in worst if not layer.error <= limits.layer_error]
    if over:
        reasons.append(f"layers beyond the limit: {', '.join(over)}")
    return reasons


# --- figures ----------------------------------------------------------------------------------------------


def _measurements(observed: Observed) -> dict[str, Measurement]:
    found: dict[str, Measurement] = {}
    for facts in observed.contexts:
        found.update(_figures(facts))
    not_finite = sum(facts.not_finite for facts in observed.contexts)
    positions = sum(facts.tokens for facts in observed.contexts)
    worst = max(observed.layers, key=_badness)
    overall = {
        "quality_not_finite_positions": (float(not_finite), "counted", positions),
        "quality_worst_layer_error_share": (
            *(worst.error, f"{worst.name}, on the original's inputs, of n layers"),
            len(observed.layers),
        ),
    }
    found |= {name: quality_figure(name, value, how, n=n) for name, (value, how, n) in overall.items()}
    for gone in observed.missing:
        names = [f"{name}_{gone.context}" for name in PER_CONTEXT]
        found |= {name: quality_missing(name, gone.reason) for name in names}
    return {**found, **_task_figures(observed.tasks)}


def _figures(facts: ContextFacts) -> dict[str, Measurement]:
    """Of one context length."""
    of_rows = f"rows of {facts.length} tokens"
    of_answers = f"greedy answers of {facts.greedy_tokens} tokens"
    matched = [float(one) for one in facts.greedy_match]
    shares = [one / facts.greedy_tokens for one in matched]
    made: dict[str, tuple[Average, str, int]] = {
        "quality_perplexity_original": (ratio_of_logs(facts.nll_original), of_rows, len(facts.kl)),
        "quality_perplexity": (ratio_of_logs(facts.nll_quantised), of_rows, len(facts.kl)),
        "quality_perplexity_ratio": (ratio_of_logs(_differences(facts)), f"paired {of_rows}", len(facts.kl)),
        "quality_kl_nats": (mean_above_zero(facts.kl), of_rows, len(facts.kl)),
        "quality_top_k_overlap_share": (
            *(mean_between(facts.top_k_overlap), f"the {facts.top_k} likeliest, {of_rows}"),
            len(facts.kl),
        ),
        "quality_same_choice_share": (mean_between(facts.same_choice), of_rows, len(facts.kl)),
        "quality_greedy_match_tokens": (
            *(mean_between(matched, high=facts.greedy_tokens), of_answers),
            len(matched),
        ),
        "quality_greedy_match_share": (mean_between(shares), of_answers, len(matched)),
    }
    tokens = f"quality_tokens_{facts.context}"
    found = {tokens: quality_figure(tokens, float(facts.tokens), "counted", n=len(facts.kl))}
    for name, ((value, ci, how), method, n) in made.items():
        over = "answers" if method is of_answers else "rows"
        full = f"{name}_{facts.context}"
        found[full] = quality_figure(full, value, method, n=n, ci=ci, ci_how=f"{how} over {over}")
    return found


def _task_figures(tasks: Sequence[TaskFacts]) -> dict[str, Measurement]:
    """Of all items together."""
    if not tasks:
        return {}
    before = [float(right) for task in tasks for right in task.original]
    after = [float(right) for task in tasks for right in task.quantised]
    lost = [was - now for was, now in zip(before, after, strict=True)]
    method = f"likeliest choice by length, items of {', '.join(task.task for task in tasks)}"
    figures = {
        "quality_task_accuracy_original_share": mean_between(before),
        "quality_task_accuracy_share": mean_between(after),
        "quality_task_drop_share": mean_between(lost, low=-1.0),
    }
    return {
        name: quality_figure(name, value, method, n=len(before), ci=ci, ci_how=f"{how} over items")
        for name, (value, ci, how) in figures.items()
    }


def _drop(tasks: Sequence[TaskFacts]) -> float:
    pairs = [pair for task in tasks for pair in zip(task.original, task.quantised, strict=True)]
    return _mean([float(was) - float(now) for was, now in pairs])


def _differences(facts: ContextFacts) -> list[float]:
    return [now - was for was, now in zip(facts.nll_original, facts.nll_quantised, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
