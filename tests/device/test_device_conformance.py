"""What every device keeps, whoever made it. Runs on those that are here and on stand-ins."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest

from trueup.device import Device, DeviceMemory, open_device
from trueup.device.cpu import CpuDevice
from trueup.device.cuda import CudaDevice
from trueup.device.neuron import NeuronDevice
from trueup.device.open import WHY_ABSENT

UNITS = ("_w", "_j", "_c", "_mhz", "_share", "_bytes", "_count", "_per_s")
KINDS = ("cpu", "cuda", "neuron", "stand-in cuda", "stand-in neuron")


@pytest.fixture(params=KINDS)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    made: Device
    if request.param == "stand-in cuda":
        request.getfixturevalue("fake_cuda")
        made = CudaDevice()
    elif request.param == "stand-in neuron":
        request.getfixturevalue("fake_neuron")
        made = NeuronDevice()
    elif request.param == "cpu":
        made = CpuDevice()
    else:
        if (reason := WHY_ABSENT[request.param]()) is not None:
            pytest.skip(f"no {request.param} here: {reason}")
        made = open_device(request.param)
    yield made
    made.close()
    made.close()


def test_it_says_what_it_is(device: Device) -> None:
    assert device.kind in ("cpu", "cuda", "neuron")
    assert device.name
    assert 0 <= device.index < device.count
    described = json.loads(json.dumps(device.describe(), allow_nan=False))
    assert described["kind"] == device.kind
    assert described["name"] == device.name
    assert device.torch_device.index in (None, device.index)


def test_it_can_be_waited_for(device: Device) -> None:
    device.synchronize()


def test_bf16_verdict_has_a_reason(device: Device) -> None:
    fast, reason = device.fast_bf16()
    assert isinstance(fast, bool)
    assert reason


def test_it_says_what_compiled_code_holds_for(device: Device) -> None:
    facts = json.loads(json.dumps(device.compiled_for(), allow_nan=False))
    assert (facts["kind"], facts["name"]) == (device.kind, device.name)
    assert facts == device.compiled_for()  # nothing in it changes from one moment to the next
    assert device.compile_caches
    assert all(name.isupper() for name in device.compile_caches)


def test_memory_or_a_reason(device: Device) -> None:
    device.reset_peak()
    memory = device.memory()
    assert (memory is None) == bool(device.memory_reason)
    if memory is not None:
        assert isinstance(memory, DeviceMemory)
        assert 0 <= memory.allocated_bytes <= memory.peak_allocated_bytes


def test_sensors_name_their_unit_and_give_finite_numbers(device: Device) -> None:
    names = [sensor.name for sensor in device.sensors()]
    assert len(set(names)) == len(names)
    for sensor in device.sensors():
        assert sensor.name.endswith(UNITS), sensor.name
        assert sensor.method
        for _ in range(2):
            value = sensor.read()
            assert value is None or math.isfinite(value)
        if sensor.name.endswith("_share") and value is not None:
            assert 0 <= value <= 1


def test_what_cannot_be_read_has_a_reason(device: Device) -> None:
    sensors = {sensor.name for sensor in device.sensors()}
    missing = device.missing()
    assert all(missing.values())
    assert not sensors & set(missing)
    assert {"power_w", "energy_j", "temperature_c", "clock_mhz"} <= sensors | set(missing)


def test_energy_counts_from_zero_and_never_falls(device: Device) -> None:
    for sensor in device.sensors():
        if sensor.name == "energy_j":
            first, second = sensor.read(), sensor.read()
            assert first is not None
            assert second is not None
            assert 0 <= first <= second


def test_threads_are_chosen_with_a_reason(device: Device) -> None:
    n, reason = device.choose_threads()
    assert n >= 1
    assert reason


def test_how_it_compiles_is_told_with_a_reason(device: Device) -> None:
    backend, reason = device.compile_backend()
    assert backend is None or backend
    assert reason
    assert isinstance(device.static_shapes_only, bool)
    assert backend or not device.static_shapes_only  # what takes only compiled shapes can compile


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("heads", "head_dim"), [((4, 2), 16), ((9, 3), 64), ((32, 8), 128)])
def test_flex_attention_agrees_with_an_explicit_mask_where_it_is_for(
    heads: tuple[int, int], head_dim: int, dtype: str
) -> None:
    """What a CUDA run asks before it takes the kernel, for heads of the sizes that models have."""
    if (reason := WHY_ABSENT["cuda"]()) is not None:
        pytest.skip(f"FlexAttention trains on CUDA alone, and there is none here: {reason}")
    import torch

    from trueup.model.flex import TOLERANCE, check_kernel

    device = open_device("cuda")
    wanted = getattr(torch, dtype)
    errors = check_kernel(device.torch_device, wanted, heads=heads, head_dim=head_dim)
    device.close()
    assert len(errors) == 4  # the output and three gradients
    assert max(errors.values()) <= TOLERANCE[wanted]


def test_what_its_compiler_did_has_seconds(device: Device) -> None:
    for record in device.compile_records():
        assert record.graph
        assert math.isfinite(record.seconds)
        assert record.seconds >= 0
