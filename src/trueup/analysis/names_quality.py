"""Names of what the quality gate measures. Each comes with `_short` or `_long`, for the context's length."""

from __future__ import annotations

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


def quality_names() -> dict[str, tuple[str, str]]:
    """Every name with its unit and meaning."""
    split = {
        f"{name}_{context}": (unit, f"{meaning}; {words}")
        for name, (unit, meaning) in PER_CONTEXT.items()
        for context, words in CONTEXTS.items()
    }
    return {**split, **OVERALL}
