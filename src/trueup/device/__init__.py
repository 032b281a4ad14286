"""cpu, cuda and neuron behind one protocol: the only room that knows a vendor. Imports no torch by itself."""

from trueup.schema.choices import DeviceKind

from .ceiling import MatmulCeiling, MemoryBandwidth, matmul_ceiling, memory_bandwidth, product_times
from .cpu import CpuDevice
from .open import open_device
from .protocol import CompileRecord, Device, DeviceMemory, Sensor

__all__ = [
    "CompileRecord",
    "CpuDevice",
    "Device",
    "DeviceKind",
    "DeviceMemory",
    "MatmulCeiling",
    "MemoryBandwidth",
    "Sensor",
    "matmul_ceiling",
    "memory_bandwidth",
    "open_device",
    "product_times",
]
