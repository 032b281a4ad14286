"""Frozen records, units and errors: what every other room speaks. Standard library and pydantic only."""

from .errors import InputError, MissingExtraError, StorageError, TrueupError
from .measurement import Frozen, Kind, Measurement, Scope, unavailable
from .run import (
    DatasetFacts,
    Evaluation,
    Event,
    ModelDims,
    Price,
    RunHeader,
    RunRecord,
    RunState,
    Sample,
    Segment,
    SpanName,
    SpanTotal,
    Step,
)

__all__ = [
    "DatasetFacts",
    "Evaluation",
    "Event",
    "Frozen",
    "InputError",
    "Kind",
    "Measurement",
    "MissingExtraError",
    "ModelDims",
    "Price",
    "RunHeader",
    "RunRecord",
    "RunState",
    "Sample",
    "Scope",
    "Segment",
    "SpanName",
    "SpanTotal",
    "Step",
    "StorageError",
    "TrueupError",
    "unavailable",
]
