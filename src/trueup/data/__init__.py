"""Data: read records, render and tokenise them, keep them as Arrow, plan batches. Never imports torch."""

from .batches import MicroBatch, TokenCounts, assemble, count_tokens
from .plan import Plan, PlannedBatch, Strategy, choose_strategy, epoch_plan, evaluation_plan, steps
from .prepare import Prepared, prepare
from .table import TokenTable
from .vocabulary import Pad, check_vocabulary, choose_pad

__all__ = [
    "MicroBatch",
    "Pad",
    "Plan",
    "PlannedBatch",
    "Prepared",
    "Strategy",
    "TokenCounts",
    "TokenTable",
    "assemble",
    "check_vocabulary",
    "choose_pad",
    "choose_strategy",
    "count_tokens",
    "epoch_plan",
    "evaluation_plan",
    "prepare",
    "steps",
]
