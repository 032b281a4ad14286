"""Neuron's texts: hand-made after the keys the vendor documents (its own sample is not valid JSON)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from trueup.device.neuron import NeuronDevice
from trueup.device.neuron_monitor import (
    NeuronMonitor,
    find_power_file,
    parse_monitor_line,
    parse_neuron_ls,
    parse_power,
)


def monitor_object() -> dict[str, Any]:
    cores = {
        "0": {"neuroncore_utilization": 80.0, "flops": 5},
        "1": {"neuroncore_utilization": 40.0, "flops": 7},
    }
    return {
        "neuron_runtime_data": [
            {
                "report": {
                    "neuroncore_counters": {"period": 5.0, "neuroncores_in_use": cores, "error": ""},
                    "memory_used": {
                        "period": 5.0,
                        "neuron_runtime_used_bytes": {
                            "host": 10,
                            "neuron_device": 2048,
                            "usage_breakdown": {},
                        },
                        "error": "",
                    },
                }
            }
        ],
        "system_data": {
            "neuron_hw_counters": {
                "period": 5.0,
                "error": "",
                "neuron_devices": [
                    {
                        "neuron_device_index": 0,
                        "mem_ecc_corrected": 1,
                        "mem_ecc_uncorrected": 0,
                        "sram_ecc_corrected": 2,
                        "sram_ecc_uncorrected": 0,
                    }
                ],
            }
        },
    }


def test_a_whole_line() -> None:
    assert parse_monitor_line(json.dumps(monitor_object())) == {
        "utilisation_share": pytest.approx(0.6),
        "flops_per_s": 12,
        "device_used_bytes": 2048,
        "ecc_corrected_count": 3,
        "ecc_uncorrected_count": 0,
    }


def test_a_group_with_an_error_gives_no_reading() -> None:
    data = monitor_object()
    data["neuron_runtime_data"][0]["report"]["neuroncore_counters"]["error"] = "no runtime"
    data["system_data"]["neuron_hw_counters"]["error"] = "no driver"
    assert parse_monitor_line(json.dumps(data)) == {"device_used_bytes": 2048}


@pytest.mark.parametrize(
    "line", ["", "{", "null", "[]", "{}", '{"neuron_runtime_data": null, "system_data": null}']
)
def test_nothing_to_read(line: str) -> None:
    assert parse_monitor_line(line) == {}


def test_neuron_ls_in_both_forms() -> None:
    row = {
        "neuron_device": 0,
        "bdf": "00:1e.0",
        "nc_count": 8,
        "memory_size": 96 << 30,
        "neuron_processes": [],
    }
    expected = [{"neuron_device": 0, "bdf": "00:1e.0", "nc_count": 8, "memory_size": 96 << 30}]
    assert parse_neuron_ls(json.dumps([row])) == expected
    assert parse_neuron_ls(json.dumps({"instance_type": "trn2", "devices": [row]})) == expected


def test_power_is_a_share_of_the_maximum() -> None:
    assert parse_power("POWER_STATUS_VALID,1764374400,10.0,50.0,25.0\n") == 0.25
    assert parse_power("POWER_STATUS_INVALID,1764374400,0,0,0") is None
    assert parse_power("") is None


@pytest.mark.parametrize("tree", ["neuron0/stats/power", "neuron_device/neuron0/info/stats/power"])
def test_power_file_is_found_by_name(tmp_path: Path, tree: str) -> None:
    file = tmp_path / tree / "utilization"
    file.parent.mkdir(parents=True)
    file.write_text("POWER_STATUS_VALID,1,0,0,50")
    assert find_power_file(0, tmp_path) == file
    assert find_power_file(1, tmp_path) is None


def test_monitor_process_is_read_and_ended(fake_neuron: None, tmp_path: Path) -> None:
    script = f"import time; print({json.dumps(monitor_object())!r}, flush=True); time.sleep(60)"
    monitor = NeuronMonitor([sys.executable, "-c", script])
    assert monitor.wait_first(20)
    device = NeuronDevice(sysfs=tmp_path, monitor=monitor)
    readings = {sensor.name: sensor.read() for sensor in device.sensors()}
    assert readings["utilisation_share"] == pytest.approx(0.6)
    assert readings["device_allocated_bytes"] == 1024
    assert "watts" in device.missing()["power_w"]
    device.close()
    with pytest.raises(RuntimeError, match="ended"):
        monitor.read("utilisation_share")


def test_nested_memory_statistics(fake_neuron: None, tmp_path: Path) -> None:
    memory = NeuronDevice(sysfs=tmp_path).memory()
    assert memory is not None
    assert (memory.allocated_bytes, memory.peak_allocated_bytes) == (1024, 4096)
    assert memory.reserved_bytes is None
