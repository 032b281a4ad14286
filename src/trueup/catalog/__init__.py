"""Published facts of accelerators, instances and prices: data files with source and date, plus lookup."""

from .lookup import (
    Accelerator,
    Figure,
    Instance,
    InstancePrice,
    accelerator,
    accelerator_for_device_name,
    accelerators,
    instance,
    instance_price,
    instances,
)
from .staleness import STALE_AFTER_DAYS, staleness

__all__ = [
    "STALE_AFTER_DAYS",
    "Accelerator",
    "Figure",
    "Instance",
    "InstancePrice",
    "accelerator",
    "accelerator_for_device_name",
    "accelerators",
    "instance",
    "instance_price",
    "instances",
    "staleness",
]
