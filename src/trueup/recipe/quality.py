"""What a quantised model is judged on, and how far from its original it may be."""

from __future__ import annotations

from pydantic import Field

from trueup.schema import Frozen
from trueup.schema.quality import QualityLimits


class QualitySection(Frozen):
    """The gate that `trueup quantize` puts a model through before it may be served."""

    short: int = Field(128, ge=16, description="tokens of a short context")
    long: int = Field(1024, ge=32, description="tokens of a long one; as many as the model takes, at most")
    tokens: int = Field(8192, ge=64, description="held-out tokens at each length")
    top_k: int = Field(10, ge=1, description="how many of the likeliest tokens are compared")
    answers: int = Field(8, ge=1, description="greedy answers at each length")
    answer_tokens: int = Field(32, ge=1, description="tokens of a greedy answer")
    tasks: tuple[str, ...] = Field(
        (), description="files of questions with choices, JSON lines (quantize.md)"
    )
    task_items: int = Field(100, ge=1, description="items of each task, from its beginning")
    limits: QualityLimits = QualityLimits()
