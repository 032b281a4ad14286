"""What AWS's neuron-monitor, neuron-ls and driver files say, parsed. The keys are those of its user guides.

neuron-monitor prints one JSON object per line, every 5 s as delivered. It has no power, energy or
temperature field. The driver's power file holds percent of an unpublished maximum, so watts cannot be had.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NEURON_SYSFS = Path("/sys/devices/virtual/neuron_device")


def parse_monitor_line(line: str) -> dict[str, float]:
    """Readings of one neuron-monitor line; empty for a line that is not a whole JSON object.

    utilisation_share: mean over the NeuronCores in use, 0..1. device_used_bytes: device memory of all
    runtimes. flops_per_s: sum over cores, as the monitor counts. ecc_*_count: sum over devices.
    """
    try:
        data = json.loads(line)
    except json.JSONDecodeError:
        return {}
    if not isinstance(data, dict):
        return {}
    values: dict[str, float] = {}
    cores: list[dict[str, Any]] = []
    used: list[float] = []
    for runtime in data.get("neuron_runtime_data") or ():
        report = runtime.get("report") or {}
        cores += _healthy(report, "neuroncore_counters").get("neuroncores_in_use", {}).values()
        memory = _healthy(report, "memory_used").get("neuron_runtime_used_bytes", {})
        used += [float(memory["neuron_device"])] if memory.get("neuron_device") is not None else []
    utilisation = _numbers(cores, "neuroncore_utilization")
    if utilisation:
        values["utilisation_share"] = sum(utilisation) / len(utilisation) / 100
    if flops := _numbers(cores, "flops"):
        values["flops_per_s"] = sum(flops)
    if used:
        values["device_used_bytes"] = sum(used)
    devices = _healthy(data.get("system_data") or {}, "neuron_hw_counters").get("neuron_devices") or []
    for kind in ("corrected", "uncorrected"):
        counts = _numbers(devices, f"mem_ecc_{kind}") + _numbers(devices, f"sram_ecc_{kind}")
        if counts:
            values[f"ecc_{kind}_count"] = sum(counts)
    return values


def _healthy(groups: dict[str, Any], name: str) -> dict[str, Any]:
    """The named group, or nothing when it is absent or reports an error of its own."""
    group = groups.get(name) or {}
    return {} if group.get("error") else group


def _numbers(rows: Sequence[dict[str, Any]], key: str) -> list[float]:
    return [float(row[key]) for row in rows if row.get(key) is not None]


def parse_neuron_ls(text: str) -> list[dict[str, Any]]:
    """Devices of `neuron-ls`: a list under `-j`, an object holding that list in its successor."""
    data = json.loads(text)
    if isinstance(data, dict):
        lists = [value for value in data.values() if isinstance(value, list)]
        data = next((rows for rows in lists if rows and "neuron_device" in rows[0]), [])
    keep = ("neuron_device", "bdf", "nc_count", "logical_neuroncore_config", "memory_size")
    return [{key: row[key] for key in keep if key in row} for row in data]


def parse_power(text: str) -> float | None:
    """Mean power of the last minute as a share of the maximum; None unless the driver calls it valid.

    The file holds POWER_STATUS_VALID,<epoch>,<min>,<max>,<avg>, in percent with the idle baseline removed.
    """
    fields = text.strip().split(",")
    if len(fields) != 5 or fields[0] != "POWER_STATUS_VALID":
        return None
    return float(fields[4]) / 100


def find_power_file(index: int, root: Path = NEURON_SYSFS) -> Path | None:
    """The driver's power file of device `index`. Driver 2.31 moved the tree, so it is searched by name."""
    for folder in sorted(root.rglob(f"neuron{index}")) if root.is_dir() else []:
        for file in sorted(folder.rglob("utilization")):
            if file.parent.name == "power":
                return file
    return None


class NeuronMonitor:
    """A running neuron-monitor and its newest readings."""

    def __init__(self, command: Sequence[str] = ("neuron-monitor",)) -> None:
        self._latest: dict[str, float] = {}
        self._process = subprocess.Popen(
            list(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        self._first = threading.Event()
        self._reader = threading.Thread(target=self._follow, name="neuron-monitor", daemon=True)
        self._reader.start()

    def wait_first(self, timeout_s: float) -> bool:
        """Whether a reading (or the monitor's end) came within the time."""
        return self._first.wait(timeout_s)

    def read(self, name: str) -> float | None:
        """The newest value, None before the first line. Raises when the monitor has ended."""
        if self._process.poll() is not None and not self._reader.is_alive():
            raise RuntimeError(f"neuron-monitor ended with code {self._process.returncode}")
        return self._latest.get(name)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join(2)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if values := parse_monitor_line(line):
                self._latest = values
                self._first.set()
        self._first.set()
