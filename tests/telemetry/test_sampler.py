"""The sampler: what it reads is right, a broken sensor does not end it, and it says that the run lives."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.device import CpuDevice, Sensor
from trueup.telemetry import MemorySink, Sampler
from trueup.telemetry.host_load import HostLoad, Reading, available_bytes, busy_and_capacity_s, shares
from trueup.telemetry.process_tree import TICKS_PER_S, process_tree
from trueup.telemetry.sampler import _next_due, _Reading


class OneSensor(CpuDevice):
    def __init__(self, *sensors: Sensor) -> None:
        super().__init__()
        self._sensors = list(sensors)


def wait_for(condition: Callable[[], bool]) -> None:
    stop = time.monotonic() + 10
    while not condition() and time.monotonic() < stop:
        time.sleep(0.01)
    assert condition()


def test_samples_carry_the_host_and_the_devices_sensors() -> None:
    sink, ticks = MemorySink(), itertools.count(1)
    device = OneSensor(Sensor("power_w", lambda: float(next(ticks)), "made up"))
    with Sampler(device, sink, time.perf_counter, hz=50) as sampler:
        wait_for(lambda: len(sink.samples) >= 5)
    assert sampler.samples == len(sink.samples)
    assert 0 < sampler.cpu_s < 10
    assert sink.heartbeats >= 2  # the first at once, the last at the end
    names = {name for sample in sink.samples for name in sample.values}
    assert {"cpu_share", "others_cpu_share", "host_rss_bytes", "host_available_bytes", "power_w"} <= names
    times = [sample.at_s for sample in sink.samples]
    assert times == sorted(times)
    readings = [sample.values["power_w"] for sample in sink.samples if "power_w" in sample.values]
    assert readings == [float(i) for i in range(1, len(readings) + 1)]


def test_a_broken_sensor_is_one_event_and_ends_no_other() -> None:
    def broken() -> float:
        raise OSError("the card fell off the bus")

    sink = MemorySink()
    sensors = (Sensor("power_w", broken, "made up"), Sensor("clock_mhz", lambda: 1000.0, "made up"))
    with Sampler(OneSensor(*sensors), sink, time.perf_counter, hz=100):
        wait_for(lambda: len(sink.samples) >= 5)
    (event,) = sink.events
    assert (event.kind, event.data["sensor"]) == ("sensor_lost", "power_w")
    assert "fell off the bus" in event.message
    assert sink.samples[-1].values["clock_mhz"] == 1000


def told(reading: _Reading, *times_s: float) -> list[tuple[str, str, float]]:
    """What is said of readings at these times: kind, sensor, since when."""
    events = [event for at_s in times_s for event in reading.take(at_s, at_s)[1]]
    return [(event.kind, event.data["sensor"], event.data["since_s"]) for event in events]


def test_a_sensor_that_falls_silent_is_said_once_and_again_when_it_is_back() -> None:
    gives = {"power_w": 100.0}
    reading = _Reading("power_w", lambda: gives)
    assert told(reading, 0, 1) == []
    gives = {}
    assert told(reading, 2, 10.9) == []  # a reading or two may fail
    assert told(reading, 11, 12, 300) == [("sensor_silent", "power_w", 1)]
    gives = {"power_w": 90.0}
    assert told(reading, 400, 401) == [("sensor_back", "power_w", 1)]
    gives = {"power_w": math.nan}
    assert told(reading, 402, 412) == [("sensor_silent", "power_w", 401)]


def test_a_sensor_that_was_never_read_has_not_fallen_silent() -> None:
    assert told(_Reading("power_w", dict), 0, 100, 200) == []


def test_of_a_source_with_several_values_the_one_that_is_gone_is_named() -> None:
    gives = {"cpu_share": 0.5, "host_rss_bytes": 1.0}
    reading = _Reading("host load", lambda: gives)
    assert told(reading, 0) == []
    gives = {"host_rss_bytes": 1.0}
    assert told(reading, 5, 10) == [("sensor_silent", "cpu_share", 0)]


@pytest.mark.parametrize("source", ["power_w", "host load"])
def test_a_sensor_that_failed_is_tried_again(source: str) -> None:
    works, asked = False, 0

    def read() -> dict[str, float]:
        nonlocal asked
        asked += 1
        if not works:
            raise OSError("the driver is being changed")
        return {"power_w": 100.0}

    reading = _Reading(source, read)
    assert told(reading, 0, 1, 29, 30, 59) == [("sensor_lost", source, 0)]
    assert asked == 2
    works = True
    assert told(reading, 60, 61) == [("sensor_back", source, 0)]


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_reading_that_is_no_number_is_absent(value: float | None) -> None:
    sink = MemorySink()
    with Sampler(OneSensor(Sensor("power_w", lambda: value, "made up")), sink, time.perf_counter, hz=100):
        wait_for(lambda: len(sink.samples) >= 2)
    assert not any("power_w" in sample.values for sample in sink.samples)


def test_zero_hz_sends_heartbeats_only() -> None:
    sink = MemorySink()
    with Sampler(CpuDevice(), sink, time.perf_counter, hz=0):
        wait_for(lambda: sink.heartbeats >= 1)
    assert sink.samples == []


def test_stop_without_start_is_harmless() -> None:
    Sampler(CpuDevice(), MemorySink(), time.perf_counter, hz=1).stop()


def test_a_dear_reading_is_taken_less_often() -> None:
    def dear() -> dict[str, float]:
        stop = time.thread_time() + 0.003
        while time.thread_time() < stop:
            pass
        return {"power_w": 1.0}

    reading = _Reading("dear", dear)
    assert reading.take(0.0, 0.0)[0] == {"power_w": 1.0}
    assert reading.take(0.5, 0.5)[0] == {}  # 3 ms at 0.3% of a core: once a second
    assert reading.take(100.0, 100.0)[0] == {"power_w": 1.0}


@given(late=st.floats(0, 100), period=st.floats(0.01, 2))
def test_the_next_instant_is_on_the_grid_and_ahead(late: float, period: float) -> None:
    due, missed = _next_due(10.0, period, 10.0 + late)
    assert due == pytest.approx(10.0 + (missed + 1) * period)
    assert 10.0 + late - 1e-9 <= due <= 10.0 + late + period + 1e-9


def test_shares_from_counters() -> None:
    first = Reading(at_s=0, own_s=5, busy_s=100, capacity_s=1000)
    last = Reading(at_s=10, own_s=10, busy_s=112, capacity_s=1020)
    # 5 CPU seconds of our own in 10 s on two CPUs; the machine was busy for 12, so 7 were others'
    assert shares(first, last, cpus=2) == {"cpu_share": 0.25, "others_cpu_share": 0.35}
    assert shares(first, first, cpus=2) == {}
    stopped = last._replace(capacity_s=1000)
    assert shares(first, stopped, cpus=2) == {"cpu_share": 0.25}


def test_stolen_time_is_busy_and_waiting_for_a_disk_is_not() -> None:
    #                                       user nice system idle iowait irq softirq steal guest guest_nice
    busy, capacity = busy_and_capacity_s(b"cpu  100 10 20 1000 500 3 4 63 90 0")
    assert busy == 200 / TICKS_PER_S
    assert capacity == 1700 / TICKS_PER_S


def test_available_memory_is_read_in_bytes() -> None:
    assert (
        available_bytes(b"MemTotal:  9 kB\nMemFree:  1 kB\nMemAvailable:    2048 kB\nBuffers: 0 kB\n")
        == 2048 * 1024
    )


@contextmanager
def spent(cpu_s: float, memory_bytes: int = 0) -> Iterator[int]:
    """The id of a child of this process that has spent so much CPU time and holds memory, and now waits."""
    code = (
        f"import time\nheld = bytearray({memory_bytes})\nbegan = time.process_time()\n"
        f"while time.process_time() - began < {cpu_s}: pass\nprint('done', flush=True)\ninput()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        yield child.pid
    finally:
        child.communicate(b"\n")


def test_a_child_counts_as_ours() -> None:
    tree = process_tree()
    before_s, before_bytes = tree.read()
    with spent(0.2, 80 << 20):
        wait_for(lambda: (tree.read()[0] - before_s) > 0.2)
        assert tree.read()[1] - before_bytes > 60 << 20
    # ended and waited for: its time stays with us, its memory does not
    after_s, after_bytes = tree.read()
    assert after_s - before_s > 0.2
    assert after_bytes - before_bytes < 60 << 20


@pytest.mark.parametrize("kind", ["LinuxTree", "PortableTree"])
def test_the_other_ranks_of_a_machine_are_the_run_not_its_neighbours(kind: str) -> None:
    if kind == "LinuxTree" and not sys.platform.startswith("linux"):
        pytest.skip("no /proc here")
    code = (
        f"from trueup.telemetry.process_tree import {kind}\n"
        f"alone, together = {kind}(siblings=False).read(), {kind}(siblings=True).read()\n"
        "print(together[0] - alone[0], together[1] - alone[1])"
    )
    with spent(0.3) as sibling:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        own_s, others_bytes = time.process_time(), psutil.Process(sibling).memory_info().rss
    more_s, more_bytes = (float(word) for word in done.stdout.split())
    assert more_s > own_s * 0.9 + 0.3 - 0.05  # this process, which launched both, and the sibling
    assert more_bytes > others_bytes


@pytest.mark.parametrize("kind", ["LinuxTree", "PortableTree"])
def test_a_process_that_is_named_is_no_neighbour_though_another_started_it(kind: str) -> None:
    if kind == "LinuxTree" and not sys.platform.startswith("linux"):
        pytest.skip("no /proc here")
    with spent(0.3) as server:
        code = (
            f"from trueup.telemetry.process_tree import {kind}\n"
            f"alone, together = ({kind}(siblings=False, also=also).read()[0] for also in ([], [{server}]))\n"
            "print(together - alone)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 0.3 - 0.05


def test_ranks_are_siblings_where_a_launcher_started_several() -> None:
    ours, alone = process_tree({"LOCAL_WORLD_SIZE": "2"}), process_tree({"LOCAL_WORLD_SIZE": "1"})
    assert ours.read()[1] > alone.read()[1]  # the launcher's memory at least
    assert process_tree({}).read()[1] < ours.read()[1]


def test_first_reading_has_no_share_and_the_second_has() -> None:
    load = HostLoad()
    time.sleep(0.05)
    values = load.read()
    assert 0 <= values["cpu_share"] <= 1
    assert 0 <= values["others_cpu_share"] <= 1
    assert values["host_rss_bytes"] > 1 << 20
    assert values["host_available_bytes"] > 1 << 20
