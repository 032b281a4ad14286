"""Products are timed in rounds, in every layout, and their first ones by themselves."""

from __future__ import annotations

import pytest

from trueup.device import TimedProducts, products, settled
from trueup.device.cpu import CpuDevice
from trueup.schema import InputError


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> TimedProducts:
    monkeypatch.setattr(products, "SIDES", {"cpu": (16, 48)})
    return TimedProducts(CpuDevice(threads=1), "fp32")


def test_every_size_is_timed_in_every_layout(few: TimedProducts) -> None:
    for _ in range(2):
        few.round()
    found = few.times()
    assert len({(one.m, one.k, one.n, one.layout) for one in found}) == 3 * 8
    assert all(one.seconds > 0 for one in found)


def test_the_first_product_of_each_size_is_timed_by_itself(few: TimedProducts) -> None:
    few.round()
    assert all(one.first_s is not None and one.first_s > one.seconds for one in few.times())


def test_what_the_process_grows_by_is_that_of_the_programs(few: TimedProducts) -> None:
    few.round()
    assert few.program_bytes == pytest.approx(sum(one.program_bytes or 0.0 for one in few.times()))


def test_the_slowest_of_many_rounds_is_left_out() -> None:
    assert settled([1.0] * 7 + [100.0]) == 1.0
    assert settled([1.0, 3.0]) == 2.0


def test_products_of_an_unknown_precision_are_refused() -> None:
    with pytest.raises(InputError, match="fp7"):
        TimedProducts(CpuDevice(threads=1), "fp7")
