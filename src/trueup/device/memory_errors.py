"""Whether an exception says that a device or the host has no memory left."""

from __future__ import annotations

# How torch's allocators say it; the CPU's raises a plain RuntimeError.
WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")


def is_out_of_memory(error: BaseException) -> bool:
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in WORDS)
