"""Data: read records, render and tokenise them, keep them as Arrow, plan batches. Never imports torch."""

from .arrangement import Arrangement, arrange
from .batches import IGNORED, MicroBatch, TokenCounts, assemble, count_tokens
from .epoch import Epoch, PlannedBatch
from .job import JobData, evaluated, job_tokens
from .planner import Planner
from .prepare import Prepared, digest_now, find_prepared, prepare
from .table import TokenTable
from .vocabulary import Pad, check_vocabulary, choose_pad

__all__ = [
    "IGNORED",
    "Arrangement",
    "Epoch",
    "JobData",
    "MicroBatch",
    "Pad",
    "PlannedBatch",
    "Planner",
    "Prepared",
    "TokenCounts",
    "TokenTable",
    "arrange",
    "assemble",
    "check_vocabulary",
    "choose_pad",
    "count_tokens",
    "digest_now",
    "evaluated",
    "find_prepared",
    "job_tokens",
    "prepare",
]
