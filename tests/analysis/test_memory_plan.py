"""Training memory from dimensions: the design's worked figures, what fits on real chips, and how it grows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.analysis.flops import training_memory_bytes
from trueup.analysis.memory_plan import MemoryAsk, Policy, largest_fit, memory_lines, state_bytes
from trueup.analysis.predict_terms import Tuning
from trueup.catalog import accelerators
from trueup.catalog.models import published_models
from trueup.model.dims import expected_dims
from trueup.recipe.models import TuneSection

FULL, LORA = TuneSection(method="full"), TuneSection(method="lora", rank=16)


def ask(
    tune: TuneSection,
    *,
    policy: Policy = "bf16-master",
    rows: int = 1,
    width: int = 2048,
    model: str = "llama-3.1-8b",
) -> MemoryAsk:
    dims = expected_dims(dict(published_models()[model].config), tune)
    return MemoryAsk(
        dims=dims,
        tuning=Tuning.of(tune),
        policy=policy,
        rows=rows,
        width=width,
        head_rows=rows * (width - 1),
        attention="row",
    )


def memory_of(chip: str) -> float:
    found = accelerators()[chip].memory_bytes
    assert found is not None
    return found


def test_full_tuning_of_llama_8b_takes_16_bytes_a_parameter_in_mixed_precision() -> None:
    assert state_bytes(ask(FULL)) == 16 * 8_030_261_248


def test_full_tuning_of_llama_8b_takes_8_bytes_a_parameter_all_in_bf16() -> None:
    assert state_bytes(ask(FULL, policy="bf16")) == 8 * 8_030_261_248


def test_lora_takes_2_bytes_a_frozen_and_16_an_adapter_parameter() -> None:
    one = ask(LORA)
    adapters = one.dims.lora_parameters
    assert state_bytes(one) == 2 * 8_030_261_248 + 16 * adapters


@pytest.mark.parametrize(("policy", "state"), [("fp32", "fp32"), ("bf16-master", "mixed"), ("bf16", "bf16")])
@pytest.mark.parametrize("tune", [FULL, LORA], ids=["full", "lora"])
def test_the_state_is_what_the_formulas_say(tune: TuneSection, policy: Policy, state: str) -> None:
    one = ask(tune, policy=policy)
    assert state_bytes(one) == training_memory_bytes(one.dims, state=state)  # type: ignore[arg-type]


@pytest.mark.parametrize("chip", ["trainium1", "trainium2", "a100-40gb", "a100-80gb", "h100", "l40s"])
def test_full_tuning_of_llama_8b_fits_no_chip_of_less_than_128_gb(chip: str) -> None:
    fit = largest_fit(ask(FULL), memory_of(chip))
    assert fit.micro_batch_rows is None
    assert "128.5 GB" in fit.why
    assert "16 B for each parameter" in fit.why


def test_what_a_device_holds_is_told_in_gib() -> None:
    assert "more than the 40 GiB (42.9 GB) there are" in largest_fit(ask(FULL), memory_of("a100-40gb")).why
    assert "fits into 180 GiB (193.3 GB)" in largest_fit(ask(FULL), memory_of("b200")).why
    assert "than the 24.5 GiB (26.3 GB) there are" in largest_fit(ask(FULL), 24.5 * 2**30).why


def test_full_tuning_of_llama_8b_fits_a_b200_with_rows_to_spare() -> None:
    fit = largest_fit(ask(FULL), memory_of("b200"))
    assert fit.as_asked
    assert fit.micro_batch_rows is not None
    assert fit.micro_batch_rows >= 1


@pytest.mark.parametrize("chip", ["trainium1", "a100-40gb", "h100"])
def test_lora_of_llama_8b_fits_a_chip_of_32_gb_with_checkpointing(chip: str) -> None:
    assert largest_fit(replace(ask(LORA), checkpointing=True), memory_of(chip)).as_asked


def test_the_longest_row_ends_at_the_models_positions() -> None:
    fit = largest_fit(ask(LORA, width=128), 1e15, positions=131072)
    assert fit.longest_row == 131072


@given(st.floats(2e10, 4e11), st.sampled_from([FULL, LORA]), st.sampled_from([256, 1024, 4096]))
def test_the_largest_micro_batch_fits_and_one_row_more_does_not(
    limit: float, tune: TuneSection, width: int
) -> None:
    one = ask(tune, width=width)
    fit = largest_fit(one, limit)

    def bytes_of(rows: int) -> float:
        shaped = replace(one, rows=rows, head_rows=rows * (width - 1), longest=width)
        return memory_lines(shaped)["training_bytes"].value or 0.0

    if fit.micro_batch_rows is None:
        assert bytes_of(1) > limit
    else:
        assert bytes_of(fit.micro_batch_rows) <= limit < bytes_of(fit.micro_batch_rows + 1)


@given(st.integers(1, 32), st.sampled_from([FULL, LORA]), st.booleans())
def test_more_rows_take_more_memory_and_the_lines_add_up(rows: int, tune: TuneSection, again: bool) -> None:
    one = replace(ask(tune, rows=rows), checkpointing=again)
    lines = memory_lines(one)
    parts = [line.value or 0.0 for name, line in lines.items() if name != "training_bytes"]
    assert lines["training_bytes"].value == pytest.approx(sum(parts))
    more = memory_lines(replace(one, rows=rows + 1))
    assert (more["training_bytes"].value or 0.0) > (lines["training_bytes"].value or 0.0)


def test_checkpointing_takes_less_memory() -> None:
    one = ask(LORA, rows=4)
    saved = memory_lines(replace(one, checkpointing=True))["activations_bytes"].value or 0.0
    assert saved < (memory_lines(one)["activations_bytes"].value or 0.0) / 4


def test_every_line_says_its_arithmetic() -> None:
    assert all(line.method for line in memory_lines(ask(FULL)).values())
