"""Frozen records, units and errors: what every other room speaks. Standard library and pydantic only.

A name is looked up at its first use, so that a command loads the records it works with and no other:
pydantic alone takes a tenth of a second, and an error needs none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .calibration import AttentionMode, Calibration, Layout, ProductTime, StepRates
    from .choices import CompileMode
    from .errors import InputError, MissingExtraError, StorageError, TrueupError
    from .load import RequestError, RequestResult, RunKind
    from .measurement import Frozen, Kind, Measurement, Scope, unavailable
    from .prediction import Basis, Prediction
    from .price_row import HourlyPrice, PriceRow
    from .price_terms import (
        CapacityBlockTerms,
        ModelName,
        OnDemandTerms,
        OwnedTerms,
        PriceModel,
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
    from .shape_plan import STRATEGIES, Alternative, Shape, ShapePlan, Strategy

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
    "Layout",
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
    "RequestError",
    "RequestResult",
    "ReservedTerms",
    "RunHeader",
    "RunKind",
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

# Where a name is looked for, in this order: no module loads one that comes after it.
_MODULES = (
    "errors",
    "choices",
    "measurement",
    "load",
    "shape_plan",
    "run",
    "prediction",
    "profile",
    "price_row",
    "price_terms",
    "calibration",
)

if not TYPE_CHECKING:  # a type checker knows the names from above, and which there are not

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        for module in _MODULES:
            found = import_module(f"{__name__}.{module}")
            if hasattr(found, name):
                globals()[name] = getattr(found, name)
                return globals()[name]
        raise AttributeError(f"'{name}' is in none of the modules of '{__name__}'")
