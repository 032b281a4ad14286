"""What the quality gate judges by: a quantised folder, read back from its files, beside the original. The
verdict is `analysis/quality_gate.py`'s; `quality_file.py` keeps it with the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trueup.recipe.quality import QualitySection
from trueup.schema import InputError
from trueup.schema.quality import MissingContext, Observed, TaskFacts

from .builtin import ResolvedModel
from .load import load_base, load_tokenizer
from .quality_layers import first_not_finite, layer_errors
from .quality_measure import compare_at
from .quality_tasks import Task, right_answers
from .quantized_load import load_dequantised

Say = Callable[[str], None]


@dataclass(frozen=True)
class HeldOut:
    """Rows of tokens (R, T) that neither model was made with. `long_RT` None: `why_no_long` says why."""

    short_RT: torch.Tensor
    long_RT: torch.Tensor | None
    source: str
    why_no_long: str = ""


def observe(
    resolved: ResolvedModel,
    folder: Path,
    held: HeldOut,
    section: QualitySection,
    tasks: Sequence[Task] = (),
    say: Say = lambda text: None,
) -> Observed:
    """Both models in fp32. Raises InputError where there is nothing to judge on."""
    if not held.short_RT.numel():
        raise InputError("no held-out tokens to judge the quantised model on; give more --held-out data")
    say("quality: reading both models")
    original = load_base(resolved)
    quantised, _ = load_dequantised(folder)
    original.eval()
    quantised.eval()
    return compare(
        original, quantised, held, section, tasks, load_tokenizer(resolved) if tasks else None, say
    )


def compare(
    original: Any,
    quantised: Any,
    held: HeldOut,
    section: QualitySection,
    tasks: Sequence[Task] = (),
    tokenizer: Any = None,
    say: Say = lambda text: None,
) -> Observed:
    """Two causal LMs of one architecture."""
    answers = {"top_k": section.top_k, "answers": section.answers, "answer_tokens": section.answer_tokens}
    say(f"quality: {held.short_RT.numel():,} tokens in short contexts")
    contexts = [compare_at("short", original, quantised, held.short_RT, **answers)]
    missing = []
    if held.long_RT is None:
        missing.append(MissingContext(context="long", reason=held.why_no_long))
    else:
        say(f"quality: {held.long_RT.numel():,} tokens in long contexts")
        contexts.append(compare_at("long", original, quantised, held.long_RT, **answers))
    scored = []
    for task in tasks:
        say(f"quality: {len(task.items)} items of {task.name}")
        before, after = (right_answers(model, tokenizer, task) for model in (original, quantised))
        scored.append(TaskFacts(task=task.name, original=before, quantised=after))
    say("quality: layer by layer, which differ most")
    broken = any(facts.not_finite for facts in contexts)
    return Observed(
        held_out=held.source,
        contexts=tuple(contexts),
        missing=tuple(missing),
        tasks=tuple(scored),
        layers=layer_errors(original, quantised, held.short_RT),
        first_not_finite=first_not_finite(quantised, held.short_RT[:1]) if broken else None,
    )
