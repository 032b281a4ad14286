"""The host's processor, threads, limits and energy counters, on made-up /proc and /sys trees."""

from __future__ import annotations

import resource
import subprocess
import sys
import types
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.device import cpu, host
from trueup.device.cpu import CpuDevice
from trueup.device.rapl import Rapl

NO_LIMITS = host.CgroupLimits(None, None)


def topology(root: Path, siblings: list[str]) -> Path:
    for index, text in enumerate(siblings):
        folder = root / f"cpu{index}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text + "\n")
    return root


def test_two_siblings_are_one_core(tmp_path: Path) -> None:
    tree = topology(tmp_path, ["0,2", "1,3", "0,2", "1,3"])
    assert host.physical_cores(frozenset(range(4)), tree) == 2
    assert host.physical_cores(frozenset({0, 2}), tree) == 1
    assert host.physical_cores(frozenset({0, 1}), tree) == 2


def test_threads_follow_affinity_quota_and_ranks(tmp_path: Path) -> None:
    tree = topology(tmp_path, [str(i) for i in range(8)])
    cpus = frozenset(range(8))
    assert host.choose_threads({}, cpus=cpus, tree=tree, limits=NO_LIMITS)[0] == 8
    quota = host.CgroupLimits(2.5, None)
    n, reason = host.choose_threads({}, cpus=cpus, tree=tree, limits=quota)
    assert n == 2
    assert "2.5" in reason
    tiny = host.CgroupLimits(0.5, None)
    assert host.choose_threads({}, cpus=cpus, tree=tree, limits=tiny)[0] == 1
    assert host.choose_threads({"LOCAL_WORLD_SIZE": "4"}, cpus=cpus, tree=tree, limits=NO_LIMITS)[0] == 2


def test_torchruns_own_omp_setting_is_not_a_wish(tmp_path: Path) -> None:
    tree = topology(tmp_path, ["0", "1", "2", "3"])
    wish = {"OMP_NUM_THREADS": "3"}
    assert host.choose_threads(wish, cpus=frozenset(range(4)), tree=tree, limits=NO_LIMITS)[0] == 3
    torchrun = {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2"}
    assert host.choose_threads(torchrun, cpus=frozenset(range(4)), tree=tree, limits=NO_LIMITS)[0] == 2


def test_cgroup_v2_takes_the_tightest_limit_above(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("0::/a/b\n")
    root = tmp_path / "fs"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "cpu.max").write_text("150000 100000")
    (root / "a" / "b" / "cpu.max").write_text("max 100000")
    (root / "a" / "b" / "memory.max").write_text("1073741824")
    assert host.cgroup_limits(root, membership) == host.CgroupLimits(1.5, 1 << 30)


def test_cgroup_v1_and_its_ways_of_saying_no_limit(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("4:memory:/g\n1:cpu,cpuacct:/g\n")
    group = tmp_path / "fs" / "cpu,cpuacct" / "g"
    group.mkdir(parents=True)
    (group / "cpu.cfs_period_us").write_text("100000")
    (group / "cpu.cfs_quota_us").write_text("-1")
    memory = tmp_path / "fs" / "memory" / "g"
    memory.mkdir(parents=True)
    (memory / "memory.limit_in_bytes").write_text("9223372036854771712")
    assert host.cgroup_limits(tmp_path / "fs", membership) == NO_LIMITS
    (group / "cpu.cfs_quota_us").write_text("400000")
    assert host.cgroup_limits(tmp_path / "fs", membership).cpus == 4


@pytest.mark.parametrize(
    ("flags", "rates", "fast"),
    [
        ("avx2 fma", (2e9, 1e9), False),
        ("avx2 avx512f", (2e9, 1e9), False),
        ("avx512f avx512_bf16", (1e9, 2e9), False),
        ("avx512f avx512_bf16", (2e9, 1e9), True),
        ("amx_bf16", (9e9, 1e9), True),
    ],
)
def test_bf16_needs_its_own_instructions_and_the_higher_rate(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: str,
    rates: tuple[float, float],
    fast: bool,
) -> None:
    monkeypatch.setattr(CpuDevice, "_product_rates", rates)
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nmodel name\t: Test CPU\nflags\t\t: {flags}\n")
    info = host.cpu_info(cpuinfo)
    monkeypatch.setattr(host, "cpu_info", lambda: info)
    device = CpuDevice(powercap=tmp_path)
    assert device.name == "Test CPU"
    assert device.fast_bf16()[0] is fast


@pytest.mark.parametrize(("vendor", "slower"), [("AuthenticAMD", True), ("GenuineIntel", False), ("", False)])
def test_the_vendor_says_whose_products_are_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: str, slower: bool
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\n" + (f"vendor_id\t: {vendor}\n" if vendor else ""))
    info = host.cpu_info(cpuinfo)
    assert info.vendor == vendor
    monkeypatch.setattr(host, "cpu_info", lambda: info)
    assert host.mkl_is_slower.__wrapped__() is slower


def test_both_rates_are_measured() -> None:
    assert all(1e6 < rate < 1e15 for rate in CpuDevice()._product_rates)


def test_unknown_flags_are_not_fast(tmp_path: Path) -> None:
    info = host.cpu_info(tmp_path / "absent")
    assert info.flags is None
    assert info.model


def test_a_virtual_machines_constant_is_not_a_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = host.CpuInfo("Test CPU", frozenset({"hypervisor"}))
    monkeypatch.setattr(host, "cpu_info", lambda: info)
    monkeypatch.setattr(host, "CPU_TREE", tmp_path)
    assert "nominal" in CpuDevice(powercap=tmp_path).missing()["clock_mhz"]


@pytest.mark.parametrize("frequency", [None, (0.0, 0.0, 0.0)])
def test_an_unknown_clock_is_never_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frequency: tuple[float, ...] | None
) -> None:
    monkeypatch.setattr(host, "cpu_info", lambda: host.CpuInfo("Test CPU", frozenset()))
    given_ = None if frequency is None else types.SimpleNamespace(current=frequency[0], max=frequency[2])
    monkeypatch.setattr(psutil, "cpu_freq", lambda: given_)
    assert cpu.read_clock_mhz() is None
    assert "clock_mhz" in CpuDevice(powercap=tmp_path).missing()


def domain(root: Path, folder: str, name: str, energy_uj: int, range_uj: int = 1000) -> Path:
    path = root / folder
    path.mkdir(parents=True)
    (path / "name").write_text(name)
    (path / "max_energy_range_uj").write_text(str(range_uj))
    (path / "energy_uj").write_text(str(energy_uj))
    return path / "energy_uj"


@given(steps=st.lists(st.integers(0, 999_999), max_size=30), start=st.integers(0, 999_999))
def test_energy_survives_the_counters_wrap(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], start: int
) -> None:
    root = tmp_path_factory.mktemp("powercap")
    file = domain(root, "intel-rapl:0", "package-0", start, range_uj=1_000_000)
    rapl = Rapl.find(root)
    total_uj = 0
    for step in steps:
        total_uj += step
        file.write_text(str((start + total_uj) % 1_000_000))
        assert rapl.energy_j() == pytest.approx(total_uj / 1e6)


def test_packages_and_memory_count_once(tmp_path: Path) -> None:
    domain(tmp_path, "intel-rapl:0", "package-0", 0)
    domain(tmp_path, "intel-rapl:0:0", "core", 0)
    domain(tmp_path, "intel-rapl:0:1", "dram", 0)
    domain(tmp_path, "intel-rapl:1", "psys", 0)
    assert [d.name for d in Rapl.find(tmp_path).domains] == ["package-0", "dram"]


def test_power_is_energy_over_time(tmp_path: Path) -> None:
    now = [10.0]
    file = domain(tmp_path, "intel-rapl:0", "package-0", 0, range_uj=10**9)
    rapl = Rapl.find(tmp_path, clock=lambda: now[0])
    assert rapl.power_w() is None
    now[0], _ = 12.0, file.write_text("100000000")
    assert rapl.power_w() == pytest.approx(50)


def test_no_counter_says_so(tmp_path: Path) -> None:
    missing = CpuDevice(powercap=tmp_path / "absent").missing()
    assert missing["power_w"] == missing["energy_j"] == "this machine has no readable RAPL counter"


def test_a_counter_for_root_only_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    domain(tmp_path, "intel-rapl:0", "package-0", 0)
    read_text = Path.read_text

    def refuse(self: Path, *args: object, **kwargs: object) -> str:
        if self.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return read_text(self)

    monkeypatch.setattr(Path, "read_text", refuse)  # root may read everything, so file modes cannot show this
    assert "root only" in CpuDevice(powercap=tmp_path).missing()["energy_j"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no /proc here")
def test_the_peak_of_a_process_is_not_that_of_the_one_which_started_it() -> None:
    child = "from trueup.device import peak_resident_bytes; print(peak_resident_bytes())"
    fat = f"""import subprocess, sys
held = bytearray(b"x") * (256 << 20)
print(subprocess.check_output([sys.executable, "-c", {child!r}], text=True))"""
    done = subprocess.run([sys.executable, "-c", fat], capture_output=True, text=True, check=True)
    assert 1 << 20 < int(done.stdout) < 200 << 20


def test_where_the_system_has_no_status_the_peak_is_getrusages(tmp_path: Path) -> None:
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    assert peak <= host.peak_resident_bytes(tmp_path / "status") <= peak + (64 << 20)
    (tmp_path / "status").write_text("VmPeak:\t   9 kB\nVmHWM:\t    2048 kB\nVmRSS:\t  7 kB\n")
    assert host.peak_resident_bytes(tmp_path / "status") == 2048 * 1024
