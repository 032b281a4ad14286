"""Frozen records, units and errors: what every other room speaks. Standard library and pydantic only."""

from .errors import InputError, MissingExtraError, StorageError, TrueupError
from .measurement import Frozen, Kind, Measurement, Scope, unavailable
from .profile import CompileFigures, DeviceRules, PlatformProfile
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
from .shape_plan import STRATEGIES, Alternative, CompileMode, Shape, ShapePlan, Strategy

__all__ = [
    "STRATEGIES",
    "Alternative",
    "CompileFigures",
    "CompileMode",
    "DatasetFacts",
    "DeviceRules",
    "Evaluation",
    "Event",
    "Frozen",
    "InputError",
    "Kind",
    "Measurement",
    "MissingExtraError",
    "ModelDims",
    "PlatformProfile",
    "Price",
    "RunHeader",
    "RunRecord",
    "RunState",
    "Sample",
    "Scope",
    "Segment",
    "Shape",
    "ShapePlan",
    "SpanName",
    "SpanTotal",
    "Step",
    "StorageError",
    "Strategy",
    "TrueupError",
    "unavailable",
]
