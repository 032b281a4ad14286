"""NVIDIA GPUs: torch.cuda for memory, NVML for sensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from trueup.schema.choices import DeviceKind

from . import host
from .compiler import INDUCTOR_CACHES, inductor_for_cuda
from .nvml import Nvml
from .protocol import CompileRecord, DeviceMemory, Sensor

if TYPE_CHECKING:
    import torch


def why_absent() -> str | None:
    """Why torch cannot use an NVIDIA GPU here; None if it can."""
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "torch finds no NVIDIA GPU (is the driver loaded? is CUDA_VISIBLE_DEVICES empty?)"
    return None


class CudaDevice:
    """One GPU, by its index among those this process can see."""

    kind: ClassVar[DeviceKind] = "cuda"
    collective_backend: ClassVar[str] = "cpu:gloo,cuda:nccl"
    static_shapes_only: ClassVar[bool] = False
    compile_caches: ClassVar[tuple[str, ...]] = INDUCTOR_CACHES

    def __init__(self, *, index: int = 0, threads: int | None = None, nvml: Any | None = None) -> None:
        import torch

        self._torch = torch
        self._threads = threads
        self.index = index
        self._properties: Any = torch.cuda.get_device_properties(index)
        self._nvml = Nvml(str(getattr(self._properties, "uuid", "")), module=nvml)
        self._sensors = [*self._nvml.sensors, *self._memory_sensors()]

    @property
    def name(self) -> str:
        return str(self._properties.name)

    @property
    def count(self) -> int:
        return self._torch.cuda.device_count()

    @property
    def torch_device(self) -> torch.device:
        return self._torch.device("cuda", self.index)

    def synchronize(self) -> None:
        self._torch.cuda.synchronize(self.index)

    def describe(self) -> dict[str, Any]:
        threads, reason = self.choose_threads()
        cudnn: Any = self._torch.backends.cudnn
        return {
            "kind": self.kind,
            "name": self.name,
            "index": self.index,
            "count": self.count,
            "capability": f"{self._properties.major}.{self._properties.minor}",
            "multiprocessors": self._properties.multi_processor_count,
            "memory_bytes": self._properties.total_memory,
            "cuda": self._torch.version.cuda,
            "cudnn": cudnn.version(),
            "fp32_matmul_precision": self._torch.get_float32_matmul_precision(),
            "host_cpu": host.cpu_info().model,
            "threads": threads,
            "threads_reason": reason,
            **self._nvml.facts,
        }

    def fast_bf16(self) -> tuple[bool, str]:
        major, minor = self._properties.major, self._properties.minor
        verdict = "has" if major >= 8 else "is below 8.0, which has"
        return major >= 8, f"compute capability {major}.{minor} {verdict} bf16 tensor cores"

    def compile_backend(self) -> tuple[str | None, str]:
        return inductor_for_cuda((self._properties.major, self._properties.minor))

    def compiled_for(self) -> dict[str, Any]:
        described = self.describe()
        facts = ("kind", "name", "capability", "cuda", "driver", "host_cpu")
        return {fact: described.get(fact) for fact in facts}

    def compile_records(self) -> list[CompileRecord]:
        return []

    def memory(self) -> DeviceMemory | None:
        stats: dict[str, int] = self._torch.cuda.memory_stats(self.index)

        def bytes_of(what: str, when: str) -> int:
            return int(stats.get(f"{what}_bytes.all.{when}", 0))  # the keys are absent until the first tensor

        return DeviceMemory(
            allocated_bytes=bytes_of("allocated", "current"),
            peak_allocated_bytes=bytes_of("allocated", "peak"),
            requested_bytes=bytes_of("requested", "current"),
            peak_requested_bytes=bytes_of("requested", "peak"),
            reserved_bytes=bytes_of("reserved", "current"),
            peak_reserved_bytes=bytes_of("reserved", "peak"),
            total_bytes=int(self._properties.total_memory),
        )

    @property
    def memory_reason(self) -> str | None:
        return None

    def reset_peak(self) -> None:
        self._torch.cuda.empty_cache()  # memory reserved for tensors that are gone is no need of what follows
        self._torch.cuda.reset_peak_memory_stats(self.index)

    def sensors(self) -> list[Sensor]:
        return self._sensors

    def missing(self) -> dict[str, str]:
        return dict(self._nvml.missing)

    def choose_threads(self) -> tuple[int, str]:
        if self._threads is not None:
            return self._threads, "asked for"
        return host.choose_threads()

    def close(self) -> None:
        self._nvml.close()

    def _memory_sensors(self) -> list[Sensor]:
        cuda = self._torch.cuda
        return [
            Sensor(
                "device_allocated_bytes",
                lambda: float(cuda.memory_allocated(self.index)),
                "torch caching allocator: allocated",
                "process",
            ),
            Sensor(
                "device_reserved_bytes",
                lambda: float(cuda.memory_reserved(self.index)),
                "torch caching allocator: reserved",
                "process",
            ),
        ]
