"""Probes: micro-batches as the loop sees them, counted as they are, and steps that end."""

from __future__ import annotations

import numpy as np
import psutil
import pytest

from trueup.analysis.predict_products import ProductTable
from trueup.device import open_device
from trueup.model.precision import Precision
from trueup.schema import ProductTime
from trueup.train import step_probe
from trueup.train.step_probe import PROBES, SMALL_PROBES, Asked, ProbedSteps, random_micro_batch
from trueup.train.step_work import counted

FP32 = Precision(policy="fp32", compute_dtype="float32", reason="a test")
TABLE = ProductTable((ProductTime(m=16, k=16, n=16, seconds=1e-5),))
ALL = [asked for probe in PROBES for asked in probe.steps]


@pytest.mark.parametrize("asked", ALL)
def test_a_probes_rows_are_full_of_its_examples(asked: Asked) -> None:
    one = random_micro_batch(asked, 512, 0)
    assert one.shape == (asked.rows, asked.width)
    numbers = range(1, len(asked.lengths) + 1)
    assert all(
        [np.count_nonzero(row == n) for n in numbers] == list(asked.lengths) for row in one.segments_BT
    )
    assert one.attention_sum_sq == asked.rows * sum(length * length for length in asked.lengths)


def test_some_probes_take_examples_in_several_groups() -> None:
    """Else a layer's own calls and a group's could not be told apart."""
    groups = {
        counted(
            list(asked.lengths) * asked.rows,
            rows=asked.rows,
            width=asked.width,
            supervised=1,
            head=1,
            attention="example",
        ).groups
        for asked in ALL
    }
    assert len(groups) >= 3


@pytest.mark.parametrize("asked", ALL)
def test_no_first_token_of_an_example_is_supervised(asked: Asked) -> None:
    one = random_micro_batch(asked, 512, 0)
    assert one.supervised_tokens > 0
    assert not one.loss_BT[one.positions_BT == 0].any()


def test_attention_with_a_mask_counts_whole_rows() -> None:
    found = counted([10, 20], rows=1, width=32, supervised=5, head=5, attention="row")
    assert (found.scores, found.scores_again, found.groups) == (32 * 32, 32 * 32, 1)


def test_attention_by_example_counts_the_places_it_takes() -> None:
    found = counted([16, 16, 32], rows=1, width=64, supervised=5, head=5, attention="example")
    assert found.scores >= 2 * 16 * 16 + 32 * 32
    assert found.useful == 64
    assert found.attention_sum_sq == 2 * 16 * 16 + 32 * 32


def test_long_examples_leave_out_later_keys_block_by_block() -> None:
    found = counted([1024], rows=1, width=1024, supervised=5, head=5, attention="example")
    assert 1024 * 1024 / 2 < found.scores < 1024 * 1024
    assert found.scores_again == found.scores


def test_the_softmax_of_short_examples_is_kept() -> None:
    found = counted([128, 64], rows=1, width=192, supervised=5, head=5, attention="example")
    assert found.scores_again == 0


def test_a_spent_budget_still_times_the_small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_probe, "WIDENED", ())
    monkeypatch.setattr(step_probe, "READY_TOKENS", 32)
    probes = ProbedSteps(open_device("cpu", threads=1), FP32, budget_s=0.0)
    called: list[int] = []
    for _ in range(2):
        probes.round(lambda: called.append(1))
    timed = probes.timed(TABLE)
    assert len(timed) == sum(len(probe.steps) for probe in PROBES[:SMALL_PROBES])
    assert all(seconds > 0 for _, seconds in timed)
    assert probes.attention == "example"
    assert len(called) == 2 * len(timed)


def test_what_making_attention_ready_takes_is_no_part_of_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_probe, "WIDENED", ())
    monkeypatch.setattr(step_probe, "SMALL_PROBES", 1)
    resident = psutil.Process().memory_info().rss
    probes = ProbedSteps(open_device("cpu", threads=1), FP32, budget_s=0.0)
    assert probes.attention_program_bytes >= 0
    assert 0 < probes.base_host_bytes <= max(resident, psutil.Process().memory_info().rss)


def test_the_first_step_of_a_width_comes_with_sizes_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_probe, "PROBES", PROBES[:1])
    monkeypatch.setattr(step_probe, "WIDENED", (0,))
    monkeypatch.setattr(step_probe, "NEW_WIDTHS", (456, 408))
    found = ProbedSteps(open_device("cpu", threads=1), FP32, budget_s=60.0).new_widths
    assert len(found) == 2
    assert found[0].sizes
    assert not found[0].sizes & found[1].sizes


def test_new_widths_are_met_by_no_probe_before() -> None:
    assert not set(step_probe.NEW_WIDTHS) & {asked.rows * asked.width for asked in ALL}


def test_assembling_batches_takes_time() -> None:
    example_s, token_s = step_probe.assembly_seconds(repeats=3)
    assert example_s >= 0
    assert token_s >= 0
    assert example_s + token_s > 0
