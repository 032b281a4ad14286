"""Published facts of accelerators, instances and prices: data files with source and date, plus lookup."""

from .lookup import (
    Accelerator,
    Figure,
    Instance,
    accelerator,
    accelerator_for_device_name,
    accelerators,
    instance,
    instances,
)
from .price_book import PriceBook, check_new
from .prices import instance_price, published_prices
from .staleness import STALE_AFTER_DAYS, staleness

__all__ = [
    "STALE_AFTER_DAYS",
    "Accelerator",
    "Figure",
    "Instance",
    "PriceBook",
    "accelerator",
    "accelerator_for_device_name",
    "accelerators",
    "check_new",
    "instance",
    "instance_price",
    "instances",
    "published_prices",
    "staleness",
]
