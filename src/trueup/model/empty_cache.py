"""The cache that a transformers model's own forward pass fills."""

from __future__ import annotations

import inspect
from typing import Any


def empty_cache(base: Any) -> tuple[Any, dict[str, Any]]:
    """(an empty cache, the options that have the model's forward use it)."""
    from transformers import DynamicCache

    cache: Any = DynamicCache(config=base.config)
    # transformers 5.24 renamed the argument
    name = "cache" if "cache" in inspect.signature(base.forward).parameters else "past_key_values"
    return cache, {name: cache, "use_cache": True}
