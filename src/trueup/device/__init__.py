"""cpu, cuda and neuron behind one protocol: the only room that knows a vendor. Imports no torch by itself."""

from trueup.schema.choices import DeviceKind

from .ceiling import MatmulCeiling, MemoryBandwidth, matmul_ceiling, memory_bandwidth
from .cpu import CpuDevice
from .host import peak_resident_bytes, settled_resident_bytes
from .open import open_device
from .products import TimedProducts, settled
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
    "TimedProducts",
    "matmul_ceiling",
    "memory_bandwidth",
    "open_device",
    "peak_resident_bytes",
    "settled",
    "settled_resident_bytes",
]
