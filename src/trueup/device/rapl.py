"""Processor energy from the kernel's RAPL counters (Documentation/power/powercap in the Linux source)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


@dataclass
class _Domain:
    """One counter in microjoules. It starts again at 0 after `range_uj`, within minutes on a busy server."""

    file: Path
    name: str
    range_uj: int
    last_uj: int
    total_uj: int = 0

    def advance(self) -> int:
        """Microjoules since the domain was found. Right as long as it is read more than once per wrap."""
        now_uj = int(self.file.read_text())
        step_uj = now_uj - self.last_uj
        self.total_uj += step_uj if step_uj >= 0 else step_uj + self.range_uj
        self.last_uj = now_uj
        return self.total_uj


@dataclass
class Rapl:
    """Energy of all processor packages, with memory where it has a counter of its own outside the package.

    `domains` is empty when nothing is readable; `reason` then says why.
    """

    domains: list[_Domain] = field(default_factory=list)
    reason: str = ""
    clock: Callable[[], float] = time.monotonic
    _last: tuple[float, float] | None = None

    @classmethod
    def find(cls, root: Path = POWERCAP, clock: Callable[[], float] = time.monotonic) -> Rapl:
        """Packages are `intel-rapl:N` (AMD's too); `psys` overlaps them and the core domains are inside."""
        domains: list[_Domain] = []
        refused: Path | None = None
        for folder in sorted(root.glob("intel-rapl:*")) if root.is_dir() else []:
            try:
                name = (folder / "name").read_text().strip()
                if not (name.startswith("package") or name == "dram"):
                    continue
                file = folder / "energy_uj"
                range_uj = int((folder / "max_energy_range_uj").read_text())
                domains.append(_Domain(file, name, range_uj, int(file.read_text())))
            except PermissionError:
                refused = folder
            except (OSError, ValueError):
                continue
        if domains:
            return cls(domains, clock=clock)
        if refused is not None:
            return cls(reason=f"the RAPL counter {refused}/energy_uj is readable by root only")
        return cls(reason="this machine has no readable RAPL counter")

    def energy_j(self) -> float:
        """Joules since `find`."""
        return sum(domain.advance() for domain in self.domains) / 1e6

    def power_w(self) -> float | None:
        """Mean watts since the last call; None at the first."""
        now, energy_j = self.clock(), self.energy_j()
        last, self._last = self._last, (now, energy_j)
        if last is None or now <= last[0]:
            return None
        return (energy_j - last[1]) / (now - last[0])
