"""Machines that are not here: torch as it would answer on them."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from vendor_stand_ins import FakeNvml


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda as on a machine with one Hopper GPU that has served no tensor yet."""
    properties = types.SimpleNamespace(
        name="Stand-in GPU", uuid="1234", major=9, minor=0, total_memory=80 << 30, multi_processor_count=132
    )
    monkeypatch.setattr(torch.version, "cuda", "12.9")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda index: None)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda index: {})
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda index: 0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 0)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda index: None)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())


@pytest.fixture
def fake_neuron(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.neuron with the nested memory statistics that the vendor documents."""
    stats = {"allocated_bytes": {"current": 1024, "peak": 4096}}
    compiled = {
        "graph_id": 7,
        "torch_neuronx_fx_passes_us": 1_000_000,
        "torch_neuronx_lower_us": 2_000_000,
        "torch_neuronx_compile_us": 30_000_000,
    }
    neuron = types.SimpleNamespace(
        memory_stats=lambda: stats,
        reset_peak_memory_stats=lambda index: None,
        get_dynamo_metrics=lambda: [compiled],
    )
    monkeypatch.setattr(torch, "neuron", neuron, raising=False)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda index: None)
    torch_device = torch.device
    # a torch without torch-neuronx does not know the word "neuron"
    monkeypatch.setattr(
        torch, "device", lambda kind, i=0: torch_device("meta" if kind == "neuron" else kind, i)
    )
