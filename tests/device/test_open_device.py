"""Opening devices, and the ceilings measured on them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from trueup.device import ceiling, matmul_ceiling, memory_bandwidth, open_device
from trueup.device.open import WHY_ABSENT
from trueup.schema import InputError


@pytest.fixture(autouse=True)
def keep_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", ["cuda", "neuron"])
def test_an_absent_device_says_what_is_there(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WHY_ABSENT, kind, lambda: "no such card")  # type: ignore[misc]
    with pytest.raises(InputError, match=rf"'{kind}'.*no such card.*This machine has: cpu \(.+, \d+ logical"):
        open_device(kind)  # type: ignore[arg-type]


def test_auto_takes_the_cpu_when_there_is_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("cuda", "neuron"):
        monkeypatch.setitem(WHY_ABSENT, kind, lambda: "no such card")  # type: ignore[misc]
    assert open_device("auto").kind == "cpu"


def test_auto_takes_an_accelerator(fake_cuda: None) -> None:
    assert open_device("auto").kind == "cuda"


def test_an_index_beyond_the_devices_is_refused(fake_cuda: None) -> None:
    with pytest.raises(InputError, match="sees 1"):
        open_device("cuda", index=1)


def test_threads_are_set_and_remembered() -> None:
    device = open_device("cpu", threads=1)
    assert torch.get_num_threads() == 1
    assert device.choose_threads() == (1, "asked for")
    assert device.describe()["threads"] == 1


def test_import_needs_no_torch() -> None:
    code = "import sys, trueup.device; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_matmul_ceiling_is_a_rate_of_a_shape_it_ran() -> None:
    found = matmul_ceiling(open_device("cpu"), "fp32", budget_s=0.1)
    assert found.flops_per_s > 0
    assert found.n >= 2
    m, k, n = found.shape
    # the best multiply fits in the time the whole measurement took
    assert 2 * m * k * n / found.flops_per_s < found.seconds
    with pytest.raises(InputError, match="int4"):
        matmul_ceiling(open_device("cpu"), "int4")


def test_a_disturbed_first_try_does_not_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour held the first multiplies up for a second each; the rate they gave foretells nothing."""
    took_s = iter([[1.0, 1.0], [1e-3, 2e-3], [1e-3], [1e-2]])
    monkeypatch.setattr(ceiling, "SIZES", (64, 128))
    monkeypatch.setattr(ceiling, "_repeat", lambda device, run, share_s: next(took_s))
    found = matmul_ceiling(open_device("cpu"), "fp32", budget_s=5.0)
    assert found.shape == (128, 128, 128)
    assert found.flops_per_s == 2 * 128**3 / 1e-3


def test_bandwidth_reads_the_whole_buffer() -> None:
    bandwidth = memory_bandwidth(open_device("cpu"), 0.05)
    assert bandwidth.buffer_bytes >= 64 << 20
    assert bandwidth.buffer_bytes / bandwidth.bytes_per_s < bandwidth.seconds
