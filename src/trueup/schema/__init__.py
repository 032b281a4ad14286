"""Frozen records, units and errors: what every other room speaks. Standard library and pydantic only."""

from .calibration import AttentionMode, Calibration, ProductTime, StepRates
from .errors import InputError, MissingExtraError, StorageError, TrueupError
from .measurement import Frozen, Kind, Measurement, Scope, unavailable
from .prediction import Basis, Prediction
from .price_row import HourlyPrice, ModelName, PriceModel, PriceRow
from .price_terms import (
    CapacityBlockTerms,
    OnDemandTerms,
    OwnedTerms,
    PricingTerms,
    ReservedTerms,
    SpotPoint,
    SpotTerms,
)
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
    "AttentionMode",
    "Basis",
    "Calibration",
    "CapacityBlockTerms",
    "CompileFigures",
    "CompileMode",
    "DatasetFacts",
    "DeviceRules",
    "Evaluation",
    "Event",
    "Frozen",
    "HourlyPrice",
    "InputError",
    "Kind",
    "Measurement",
    "MissingExtraError",
    "ModelDims",
    "ModelName",
    "OnDemandTerms",
    "OwnedTerms",
    "PlatformProfile",
    "Prediction",
    "Price",
    "PriceModel",
    "PriceRow",
    "PricingTerms",
    "ProductTime",
    "ReservedTerms",
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
    "SpotPoint",
    "SpotTerms",
    "Step",
    "StepRates",
    "StorageError",
    "Strategy",
    "TrueupError",
    "unavailable",
]
