"""Rounding to the nearest, packing, and what fp8's range does to values."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trueup.model.compressed_tensors import pack, unpack
from trueup.model.fp8 import check_range
from trueup.model.quantize_round import LARGEST, round_to_nearest, scales_of
from trueup.model.quantized import FP8, dequantise
from trueup.schema.quantization import Scheme

INTEGERS: tuple[Scheme, ...] = ("int8", "int4")


def weights(outputs: int, inputs: int, seed: int = 0, spread: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(outputs, inputs, generator=generator) * spread


@given(st.integers(1, 5), st.integers(1, 40), st.sampled_from([4, 8]), st.integers(0, 1000))
def test_packing_gives_back_what_was_packed(outputs: int, inputs: int, bits: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    low, high = -(1 << (bits - 1)), 1 << (bits - 1)
    values = torch.randint(low, high, (outputs, inputs), generator=generator, dtype=torch.int8)
    packed = pack(values, bits)
    assert packed.dtype == torch.int32
    assert packed.shape == (outputs, -(-inputs * bits // 32))
    assert torch.equal(unpack(packed, bits, inputs), values)


def test_more_rows_than_are_unpacked_at_once_are_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trueup.model.compressed_tensors.UNPACKED_ROWS", 2)
    values = weights(7, 12).mul(20).to(torch.int8)
    assert torch.equal(unpack(pack(values, 8), 8, 12), values)


def test_the_first_value_is_in_the_lowest_bits() -> None:
    values = torch.tensor([[-8, 7, 0, 0, 0, 0, 0, 1]], dtype=torch.int8)
    assert int(pack(values, 4)[0, 0]) & 0xFFFFFFFF == 0x988888F0
    assert int(pack(torch.tensor([[-128, 127, 0, 1]], dtype=torch.int8), 8)[0, 0]) & 0xFFFFFFFF == 0x8180FF00


@pytest.mark.parametrize("scheme", INTEGERS)
@pytest.mark.parametrize("group", [None, 8, 32])
def test_no_weight_is_further_than_half_a_step_from_its_value(scheme: Scheme, group: int | None) -> None:
    weight_OI = weights(6, 64)
    found = round_to_nearest(weight_OI, scheme, group)
    step = found.scales_OG.repeat_interleave(64 // found.scales_OG.shape[1], dim=1)
    # a scale in half precision may be half of its last bit too small for the largest weight of its group
    slack = LARGEST[scheme] * 2.0**-11 if group == 32 else 1e-5
    assert bool(((dequantise(found) - weight_OI).abs() <= step * (0.5 + slack)).all())


@pytest.mark.parametrize("scheme", [*INTEGERS, "fp8"])
def test_the_largest_weight_of_an_output_is_kept(scheme: Scheme) -> None:
    weight_OI = weights(6, 64)
    places = weight_OI.abs().argmax(1, keepdim=True)
    found = dequantise(round_to_nearest(weight_OI, scheme, None)).gather(1, places)
    assert torch.allclose(found, weight_OI.gather(1, places), rtol=1e-5)


@pytest.mark.parametrize("scheme", [*INTEGERS, "fp8"])
def test_an_output_of_zeros_stays_zero_with_a_scale_that_is_a_number(scheme: Scheme) -> None:
    weight_OI = weights(3, 32)
    weight_OI[1] = 0
    found = round_to_nearest(weight_OI, scheme, None)
    assert bool(torch.isfinite(found.scales_OG).all())
    assert bool((dequantise(found)[1] == 0).all())


def test_a_group_does_not_feel_what_is_in_another() -> None:
    weight_OI = weights(4, 64)
    louder = weight_OI.clone()
    louder[:, :32] *= 1000
    before, after = (round_to_nearest(one, "int4", 32) for one in (weight_OI, louder))
    assert torch.equal(before.values_OI[:, 32:], after.values_OI[:, 32:])
    assert torch.equal(before.scales_OG[:, 1:], after.scales_OG[:, 1:])


def test_smaller_groups_are_nearer() -> None:
    weight_OI = weights(32, 256)
    errors = [
        float((dequantise(round_to_nearest(weight_OI, "int4", group)) - weight_OI).norm())
        for group in (16, 64, None)
    ]
    assert errors == sorted(errors)


def test_scales_of_groups_of_32_are_half_precision() -> None:
    scales_OG = scales_of(weights(16, 64), "int8", 32)
    assert torch.equal(scales_OG, scales_OG.half().float())


def test_a_group_too_small_for_half_precision_keeps_its_own_scale() -> None:
    weight_OI = weights(2, 32, spread=1e-9)
    assert bool((scales_of(weight_OI, "int8", 32) > 0).all())
    assert float((dequantise(round_to_nearest(weight_OI, "int8", 32)) - weight_OI).abs().max()) < 1e-10


def test_values_that_fp8_cannot_hold_are_counted_as_saturated() -> None:
    weight_OI = torch.tensor([[1.0, 447.0, 448.0, 463.0, 465.0, -1e6]])
    found = check_range("w", weight_OI, torch.ones(1, 1))
    assert (found.saturated, found.plain_saturated) == (2, 2)
    assert (found.largest, found.smallest) == (1e6, 1.0)


def test_values_that_become_zero_are_counted_as_they_are_lost() -> None:
    weight_OI = torch.cat([weights(4, 64) * 10.0**power for power in range(-8, 1)])
    ones = torch.ones(len(weight_OI), 1)
    found = check_range("w", weight_OI, ones)
    lost = (weight_OI != 0) & (weight_OI.to(FP8).float() == 0)
    assert found.underflowed == int(lost.sum()) > 0


def test_a_scale_for_each_output_saves_what_one_for_the_matrix_loses() -> None:
    weight_OI = torch.cat([weights(4, 64), weights(4, 64) * 1e-6])
    whole = check_range("w", weight_OI, scales_of(weight_OI, "fp8", None, per_tensor=True))
    each = check_range("w", weight_OI, scales_of(weight_OI, "fp8", None))
    assert whole.underflowed > each.underflowed
    assert whole.saturated == each.saturated == 0


def test_one_scale_for_a_matrix_is_the_same_for_all_outputs() -> None:
    found = round_to_nearest(weights(4, 64), "fp8", None, per_tensor=True)
    assert len(found.scales_OG.unique()) == 1
    assert found.scales_OG.shape == (4, 1)
