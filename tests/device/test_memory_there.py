"""How much host memory can still be taken, in a container and without one."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from trueup.device.allocator_figures import allocator_figures
from trueup.device.memory_there import accelerator_by_node, host_memory
from trueup.device.protocol import DeviceMemory

MIB = 1 << 20


def group(root: Path, **files: str) -> Path:
    """A version 2 hierarchy with one group, this process's, which it returns the membership of."""
    folder = root / "fs" / "box"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)
    membership = root / "cgroup"
    membership.write_text("0::/box\n")
    return membership


def test_without_a_limit_it_is_what_the_system_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("M", (), {"available": 123})())
    found = host_memory(tmp_path, tmp_path / "none")
    assert (found.available_bytes, found.how) == (123, "available, as the system tells")


def test_a_container_leaves_its_limit_less_what_it_holds(tmp_path: Path) -> None:
    stat = f"anon 1\ninactive_file {10 * MIB}\n"
    membership = group(tmp_path, memory_max=str(64 * MIB), memory_current=str(30 * MIB), memory_stat=stat)
    found = host_memory(tmp_path / "fs", membership)
    assert found.available_bytes == (64 - 30 + 10) * MIB
    assert "container" in found.how


def test_a_full_container_leaves_nothing(tmp_path: Path) -> None:
    membership = group(tmp_path, memory_max=str(8 * MIB), memory_current=str(9 * MIB))
    assert host_memory(tmp_path / "fs", membership).available_bytes == 0


def test_version_1_is_read_too(tmp_path: Path) -> None:
    folder = tmp_path / "fs" / "memory" / "box"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(str(32 * MIB))
    (folder / "memory.usage_in_bytes").write_text(str(20 * MIB))
    (folder / "memory.stat").write_text(f"total_inactive_file {5 * MIB}\n")
    (tmp_path / "cgroup").write_text("4:memory:/box\n")
    assert host_memory(tmp_path / "fs", tmp_path / "cgroup").available_bytes == 17 * MIB


def test_an_accelerator_shows_by_its_drivers_node(tmp_path: Path) -> None:
    assert accelerator_by_node(tmp_path) is None
    (tmp_path / "neuron0").touch()
    assert accelerator_by_node(tmp_path) == "neuron"


class Told:
    """As much of a device as its allocator's figures need."""

    kind, index, memory_reason = "neuron", 0, None

    def __init__(self, requested: int | None) -> None:
        self._requested = requested

    def memory(self) -> DeviceMemory:
        return DeviceMemory(
            allocated_bytes=0,
            peak_allocated_bytes=700,
            peak_requested_bytes=self._requested,
            peak_reserved_bytes=1000,
        )


def test_fragmentation_is_what_lies_between_the_allocators_figures() -> None:
    found = allocator_figures(Told(650))  # type: ignore[arg-type]
    assert (found["internal_bytes"].value, found["external_bytes"].value) == (50, 300)
    assert found["unreleasable_bytes"].value is None  # the vendor does not tell


def test_what_an_allocator_does_not_tell_is_unavailable() -> None:
    found = allocator_figures(Told(None))  # type: ignore[arg-type]
    assert found["requested_bytes"].value is None
    assert found["internal_bytes"].value is None
    assert found["external_bytes"].value == 300
