"""What compiling needs is looked for before anything is compiled."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from trueup.device import CpuDevice
from trueup.device.compiler import inductor_for_cpu, inductor_for_cuda
from trueup.device.neuron import NeuronDevice


def executable(folder: Path, name: str) -> None:
    program = folder / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)


@pytest.fixture
def headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An include folder with Python.h, and a PATH with nothing on it."""
    include = tmp_path / "include"
    include.mkdir()
    (include / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(include))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    return include


def test_a_cpu_without_a_compiler_says_so(headers: Path) -> None:
    backend, reason = CpuDevice().compile_backend()
    assert backend is None
    assert "C++ compiler" in reason


def test_a_cpu_compiles_with_the_compiler_that_cxx_names(
    headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(tmp_path, "my-cxx")
    assert inductor_for_cpu()[0] is None
    monkeypatch.setenv("CXX", "my-cxx")
    backend, reason = inductor_for_cpu()
    assert backend == "inductor"
    assert "my-cxx" in reason


def test_a_cpu_without_pythons_headers_says_so(
    headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(tmp_path, "g++")
    executable(tmp_path, "clang++")
    assert inductor_for_cpu()[0] == "inductor"
    (headers / "Python.h").unlink()
    backend, reason = inductor_for_cpu()
    assert backend is None
    assert "Python.h" in reason


def test_a_gpu_that_triton_does_not_take_says_so(headers: Path) -> None:
    backend, reason = inductor_for_cuda((6, 1))
    assert backend is None
    assert "6.1" in reason


def test_neurons_own_records_are_added_up(fake_neuron: None) -> None:
    (record,) = NeuronDevice().compile_records()
    assert (record.graph, record.seconds) == ("7", 33.0)
