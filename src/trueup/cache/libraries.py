"""Telling a whole shared library from one whose making was cut off.

Most of what compilers make they put in place whole, but some have the linker write libraries where they are
to stay. Where it is killed, by the system for want of memory say, a piece is left that no run could load.
"""

from __future__ import annotations

import struct
from pathlib import Path

SUFFIX = ".so"
_ELF = b"\x7fELF"
_MACH_O = b"\xcf\xfa\xed\xfe"  # what macOS has; its length is not looked at
# Where in the ELF header, by its class, the offset of the table of sections and the size of an entry are.
_TABLE = {1: ("I", 0x20, 0x2E), 2: ("Q", 0x28, 0x3A)}
_HEADER_BYTES = 64


def is_whole(path: Path) -> bool:
    """Whether a shared library is complete: linkers write its header last, and the table of sections is at
    its end (System V ABI, ELF header). Raises OSError."""
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
        size = file.seek(0, 2)
    if header[:4] == _MACH_O:
        return True
    if header[:4] != _ELF or len(header) < _HEADER_BYTES or header[4] not in _TABLE:
        return False
    order = ">" if header[5] == 2 else "<"
    kind, offset_at, sizes_at = _TABLE[header[4]]
    (offset,) = struct.unpack_from(order + kind, header, offset_at)
    entry_bytes, entries = struct.unpack_from(order + "HH", header, sizes_at)
    return bool(offset) and offset + entry_bytes * entries <= size
