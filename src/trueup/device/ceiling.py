"""This machine's own ceilings: the best matmul rate and memory bandwidth it reaches now, at this load.

A multiply of (m, k) by (k, n) is 2·m·k·n FLOPs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from trueup.schema import Frozen, InputError, Measurement

from .protocol import Device

SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384)
DTYPES = {
    "fp64": "float64",
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
}
MAX_REPEATS = 50
LARGEST_BUFFER_BYTES = 2 << 30


class MatmulCeiling(Frozen):
    """The best rate seen, the shape that gave it, and over how many timed multiplies of all shapes."""

    flops_per_s: float
    shape: tuple[int, int, int]  # m, k, n
    dtype: str
    n: int
    seconds: float  # what measuring took

    def measurement(self) -> Measurement:
        """The rate, with how it was obtained."""
        method = f"best {self.dtype} matmul over sizes, at {'×'.join(map(str, self.shape))}"
        return Measurement(
            value=self.flops_per_s, unit="FLOP/s", kind="measured", method=method, scope="device", n=self.n
        )


class MemoryBandwidth(Frozen):
    """The best read rate seen over `n` passes through a buffer that no cache holds."""

    bytes_per_s: float
    buffer_bytes: int
    n: int
    seconds: float

    def measurement(self) -> Measurement:
        """The rate, with how it was obtained."""
        method = f"best read of {self.buffer_bytes / 2**20:.0f} MiB"
        return Measurement(
            value=self.bytes_per_s, unit="bytes/s", kind="measured", method=method, scope="device", n=self.n
        )


def matmul_ceiling(device: Device, dtype_name: str, *, budget_s: float = 1.0) -> MatmulCeiling:
    """The best square matmul over several sizes, in `dtype_name` (fp32, bf16, fp16, fp64).

    Sizes grow while one more fits the remaining budget at the best rate so far; what is left of it goes to
    sizes that do fit, so that a disturbed first try does not end the search. Each is run once to warm up,
    then timed several times, synchronised, and the single best counts: a ceiling is what the machine can do,
    and every disturbance only lowers it. The smallest size is always timed, whatever the budget.
    """
    import torch

    if dtype_name not in DTYPES:
        raise InputError(f"no matmul ceiling for '{dtype_name}'; known are {', '.join(DTYPES)}")
    dtype: torch.dtype = getattr(torch, DTYPES[dtype_name])
    start = time.perf_counter()
    best_rate, best_size, timed, place, left_s = 0.0, SIZES[0], 0, 0, budget_s
    with torch.inference_mode():
        while True:
            size = SIZES[place]
            seconds = _repeat(device, _multiply(device, dtype, size), left_s / (3 if timed else 10))
            timed += len(seconds)
            if (rate := 2 * size**3 / min(seconds)) > best_rate:
                best_rate, best_size = rate, size
            left_s = budget_s - (time.perf_counter() - start)
            # a warm-up and two timed multiplies must fit
            fitting = [at for at, one in enumerate(SIZES) if 3 * 2 * one**3 / best_rate <= left_s]
            if not fitting or place == len(SIZES) - 1:
                break
            place = min(place + 1, fitting[-1])
    shape = (best_size, best_size, best_size)
    return MatmulCeiling(
        flops_per_s=best_rate, shape=shape, dtype=dtype_name, n=timed, seconds=time.perf_counter() - start
    )


def memory_bandwidth(device: Device, budget_s: float = 0.5) -> MemoryBandwidth:
    """The best rate at which a sum reads a large fp32 buffer."""
    import torch

    start = time.perf_counter()
    buffer_bytes = _buffer_bytes(device)
    with torch.inference_mode():
        # filled, not zeroed: untouched zero pages share one physical page and would be read from cache
        buffer = torch.full((buffer_bytes // 4,), 1.0, dtype=torch.float32, device=device.torch_device)
        seconds = _repeat(device, buffer.sum, budget_s - (time.perf_counter() - start))
    return MemoryBandwidth(
        bytes_per_s=buffer_bytes / min(seconds),
        buffer_bytes=buffer_bytes,
        n=len(seconds),
        seconds=time.perf_counter() - start,
    )


def _buffer_bytes(device: Device) -> int:
    """Far more than any cache, and no more than a tenth of what memory is there."""
    import psutil

    memory = device.memory()
    if memory is None:
        # larger than a desktop's or a small instance's last-level cache, yet filled in a fraction of a second
        wanted, available = 256 << 20, psutil.virtual_memory().available
    else:
        wanted, available = LARGEST_BUFFER_BYTES, memory.total_bytes or LARGEST_BUFFER_BYTES * 10
    return max(64 << 20, min(wanted, available // 10)) // 4096 * 4096


def _multiply(device: Device, dtype: object, size: int) -> Callable[[], object]:
    """A multiply into a buffer that is there already: allocation is not part of the rate."""
    import torch

    assert isinstance(dtype, torch.dtype)
    accelerators = [] if device.kind == "cpu" else [device.index]
    # How many sizes are tried depends on the clock: what is drawn here must not move a run's random state.
    with torch.random.fork_rng(accelerators, device_type=device.torch_device.type):
        left, right = (torch.randn(size, size, device=device.torch_device).to(dtype) for _ in range(2))
    out = torch.empty(size, size, dtype=dtype, device=device.torch_device)
    return lambda: torch.mm(left, right, out=out)


def _repeat(device: Device, run: Callable[[], object], share_s: float) -> list[float]:
    """Seconds of each repeat after one warm-up: at least two, then as many as fit, up to MAX_REPEATS."""
    run()
    device.synchronize()
    seconds: list[float] = []
    stop = time.perf_counter() + share_s
    while len(seconds) < 2 or (time.perf_counter() < stop and len(seconds) < MAX_REPEATS):
        start = time.perf_counter()
        run()
        device.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds
