"""A slow runner over transformers' own forward pass: it keeps tokens in the slots, and computes each row's
whole context anew. What it says is right by construction; what it is shown is the engine's doing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from engine_fakes import ContextRunner

from trueup.serve.plan import ServingPlan

NEAR = 1e-4  # two best logits closer than this may change places with the order of summation


class Reference:
    """The model, and what it said so far: many engines ask the same."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        load: Any = AutoModelForCausalLM.from_pretrained
        self.model: Any = load(folder, dtype=torch.float32).eval()
        self._known: dict[tuple[int, ...], torch.Tensor] = {}
        self._answers: dict[tuple[tuple[int, ...], int], list[int]] = {}

    @torch.no_grad()
    def logits(self, context: list[int]) -> torch.Tensor:
        """(V,) after the context."""
        key = tuple(context)
        if key not in self._known:
            self._known[key] = self.model(torch.tensor([context]), use_cache=False).logits[0, -1].float()
        return self._known[key]

    def generate(self, prompt: tuple[int, ...], max_tokens: int) -> list[int]:
        """transformers' own greedy answer."""
        asked = (prompt, max_tokens)
        if asked not in self._answers:
            tokens = torch.tensor([prompt])
            whole = self.model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=256,
            )
            self._answers[asked] = [int(token) for token in whole[0, len(prompt) :]]
        return self._answers[asked]

    def near(self, context: list[int]) -> bool:
        """Whether the two likeliest tokens after this context are as good as equal."""
        best, second = self.logits(context).topk(2).values.tolist()
        return best - second < NEAR


class ReferenceRunner(ContextRunner):
    def __init__(self, plan: ServingPlan, reference: Reference) -> None:
        super().__init__(plan)
        self._reference = reference
        self._vocabulary = int(reference.model.config.vocab_size)

    def logits(self, context: list[int]) -> torch.Tensor:
        return self._reference.logits(context) if context else torch.zeros(self._vocabulary)
