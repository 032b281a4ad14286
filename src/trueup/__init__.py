"""trueup: fine-tune a model as a measured run, and say what every token really cost.

    import trueup

    trueup.runs()  # every recorded run
    trueup.run("last")  # one, whole
    trueup.bill("last")  # what its money bought
    trueup.compare("a-*", "b-*")  # which of two groups of runs is cheaper, and how sure that is

Importing the package loads none of this; the first use does (docs/python.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import (
        Bill,
        Comparison,
        ModelBill,
        PricedBill,
        Records,
        RunRecord,
        RunSummary,
        bill,
        compare,
        run,
        runs,
    )

__version__ = "0.1.0"
__all__ = [
    "Bill",
    "Comparison",
    "ModelBill",
    "PricedBill",
    "Records",
    "RunRecord",
    "RunSummary",
    "__version__",
    "bill",
    "compare",
    "run",
    "runs",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        from . import api

        return getattr(api, name)
    raise AttributeError(f"module 'trueup' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
