"""The catalog says what its sources say, and nothing about what it does not know."""

from __future__ import annotations

import pytest

from trueup.catalog import (
    Accelerator,
    Figure,
    accelerator,
    accelerator_for_device_name,
    accelerators,
    instance,
    instance_price,
    instances,
)
from trueup.schema import InputError


def figures_of(chip: Accelerator) -> list[Figure]:
    return [chip.memory, chip.bandwidth, chip.bf16_dense, chip.fp8_dense, chip.link, chip.power]


# name, memory GiB, bandwidth bytes/s, bf16 TFLOP/s, fp8 TFLOP/s, power W
CHIPS = [
    ("trainium1", 32, 820 * 2**30, 190, 190, None),
    ("inferentia2", 32, 820 * 2**30, 190, 190, None),
    ("trainium2", 96, 2.9e12, 667, 1299, None),
    ("trainium3", 144, 4.9e12, 671, 2517, None),
    ("a100-40gb", 40, 1.555e12, 312, None, 400),
    ("a100-80gb", 80, 2.04e12, 312, None, 400),
    ("h100", 80, 3.35e12, 989, 1979, 700),
    ("h200", 141, 4.8e12, 989, 1979, 700),
    ("b200", 180, 8e12, 2250, 4500, 1000),
    ("l40s", 48, 864e9, 362, 733, 350),
]


@pytest.mark.parametrize(("name", "gib", "bandwidth", "bf16", "fp8", "power"), CHIPS)
def test_chip_figures(
    name: str, gib: int, bandwidth: float, bf16: float, fp8: float | None, power: float | None
) -> None:
    chip = accelerator(name)
    assert chip.memory_bytes == gib * 2**30
    assert chip.bandwidth_bytes_per_s == pytest.approx(bandwidth)
    assert chip.bf16_flops_per_s == bf16 * 1e12
    assert chip.fp8_dense.value == fp8
    assert chip.power_w == power


def test_every_chip_has_a_row_and_every_figure_a_source_and_date() -> None:
    assert set(accelerators()) == {row[0] for row in CHIPS}
    for chip in accelerators().values():
        for figure in figures_of(chip):
            assert figure.source
            assert figure.as_of.startswith("2026-")
            assert (figure.value is None) == (figure.reason is not None)


PRICES = [
    ("trn1.2xlarge", "trainium1", 1, 1.34375),
    ("trn1.32xlarge", "trainium1", 16, 21.50),
    ("trn1n.32xlarge", "trainium1", 16, 24.78),
    ("trn2.3xlarge", "trainium2", 1, None),
    ("trn2.48xlarge", "trainium2", 16, None),
    ("p4d.24xlarge", "a100-40gb", 8, 21.957642),
    ("p4de.24xlarge", "a100-80gb", 8, 27.44705),
    ("p5.4xlarge", "h100", 1, 6.88),
    ("p5.48xlarge", "h100", 8, 55.04),
    ("p5en.48xlarge", "h200", 8, 63.296),
    ("p6-b200.48xlarge", "b200", 8, 113.9328),
    ("g5.48xlarge", "a10g", 8, 16.288),
    ("g6e.12xlarge", "l40s", 4, 10.49264),
    ("m7g.large", None, 0, 0.0816),
]


@pytest.mark.parametrize(("name", "chip", "count", "usd_per_hour"), PRICES)
def test_instance_rows(name: str, chip: str | None, count: int, usd_per_hour: float | None) -> None:
    row = instance(name)
    assert (row.chip, row.chip_count) == (chip, count)
    if usd_per_hour is None:
        with pytest.raises(InputError, match=r"no on-demand price.*price\.usd_per_hour"):
            instance_price(name)
    else:
        price = instance_price(name)
        assert price.usd_per_hour == usd_per_hour
        assert price.kind == "quoted"
        assert price.as_of is not None
        assert name in price.source


def test_every_instance_has_a_row() -> None:
    assert set(instances()) == {row[0] for row in PRICES}


def test_a_misspelt_instance_names_its_neighbours() -> None:
    with pytest.raises(InputError, match=r"p5\.48xlarge"):
        instance_price("p5.48xlrage")


def test_a_chip_without_figures_is_unknown() -> None:
    with pytest.raises(InputError, match="no accelerator named 'a10g'"):
        accelerator("a10g")


@pytest.mark.parametrize(
    ("device_name", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("nvidia a100-sxm4-40gb", "a100-40gb"),
        ("A100-SXM4-80GB", "a100-80gb"),
        ("trainium", "trainium1"),
        ("trainium2", "trainium2"),
    ],
)
def test_driver_names(device_name: str, name: str) -> None:
    chip = accelerator_for_device_name(device_name)
    assert chip is not None
    assert chip.name == name


@pytest.mark.parametrize(
    "device_name",
    [
        "",
        "NVIDIA",
        "NVIDIA H100 PCIe",
        "NVIDIA H100 NVL",
        "NVIDIA H200 NVL",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GH200 480GB",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA A10G",
        "trainium4",
        "AMD Instinct MI300X",
        "Intel(R) Xeon(R) CPU",
    ],
)
def test_an_unknown_chip_is_never_another_chip(device_name: str) -> None:
    assert accelerator_for_device_name(device_name) is None
