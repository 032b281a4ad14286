"""What the terminal shows: the bill's layout, plain where there is no terminal, data never as markup."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_samples import PRICE, make_record, make_sample_bill
from rich.console import Console, RenderableType

from trueup.report import terminal
from trueup.report.dataset_text import prepare_text
from trueup.report.runs_table import runs_table
from trueup.schema import Measurement, unavailable

HOSTILE = "[red]x[/red] \x1b[31mred\x1b[0m\a\u202e [/nope]"


def shown(renderable: RenderableType, width: int = 120, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=width, **options)
    console.print(renderable)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_bill_has_headline_lines_and_what_is_known() -> None:
    record = make_record()
    lines = shown(terminal.bill_text(make_sample_bill(record), record)).splitlines()
    assert lines[0].startswith("demo · 7f3a91c2 · smollm2-135m, LoRA r16 · cpu, 2 threads")
    assert lines[0].endswith("finished · 40 steps · 3 min 6 s")
    assert lines[1].startswith("$0.2138 per million useful tokens, all in")
    assert "steady $0.1582 ($0.1543 to $0.1635 within run)" in lines[1]
    assert lines[2] == f"price: $0.0816 an hour, quoted: {PRICE.source} (as of 2026-06-15)"
    text = "\n".join(lines)
    assert "measured 13 · derived 9 · quoted 1 · unavailable 4" in text
    assert "power_mean_w" in text or "energy_j and 2 more (this machine has no readable sensor)" in text
    assert "neighbours used 3.7 % of the CPU during the steady part" in text
    useful = next(line for line in lines if "useful compute" in line).split()
    assert useful[-4:] == ["0.002162", "51.2", "%", "█" * 20]
    total = next(line for line in lines if line.startswith("  total"))
    assert total.split() == ["total", "186.31", "0.004223", "100.0", "%"]


def test_a_steady_figure_of_few_steps_says_so() -> None:
    few = Measurement(value=0.16, unit="USD/1e6 tokens", kind="derived", n=12)
    text = shown(
        terminal.bill_text(make_sample_bill(make_record(), usd_per_million_useful_tokens_steady=few))
    )
    assert "steady $0.1600 (12 steps, too few for an interval)" in text


def test_lines_of_nothing_are_left_out() -> None:
    text = shown(terminal.bill_text(make_sample_bill(make_record())))
    assert "head padding" not in text
    assert "recompute" not in text
    assert "data wait" in text


def test_a_bill_without_useful_tokens_says_why() -> None:
    record = make_record(steps=0, state="failed", reason="no memory")
    text = shown(terminal.bill_text(make_sample_bill(record), record))
    assert "no dollars per million useful tokens: no step was trained" in text
    assert "no steps" in text


def test_where_there_is_no_terminal_there_are_no_escapes() -> None:
    record = make_record()
    bill = terminal.bill_text(make_sample_bill(record), record)
    assert "\x1b" not in shown(bill)
    assert "\x1b" in shown(bill, force_terminal=True, color_system="truecolor")


def test_the_head_counts_steps_done_again_once() -> None:
    record = make_record()
    again = record.model_copy(update={"steps": (*record.steps[:20], *record.steps[15:])})
    for text in (terminal.bill_text(make_sample_bill(again), again), terminal.run_text(again)):
        assert "finished · 40 steps · 3 min 6 s" in shown(text)


def test_a_long_reason_does_not_push_the_headline_out() -> None:
    record = make_record()
    no_steady = unavailable(
        "USD/million useful tokens", "40 steps that nothing else happened in are too few " * 4
    )
    bill = make_sample_bill(record, usd_per_million_useful_tokens_steady=no_steady)
    text = shown(terminal.bill_text(bill, record), width=80)
    assert "$0.2138 per million useful tokens, all in" in text
    assert "finished · 40 steps · 3 min 6 s" in text


def test_a_narrow_terminal_loses_no_figure() -> None:
    record = make_record()
    text = shown(terminal.bill_text(make_sample_bill(record), record), width=62)
    for figure in ("0.002162", "51.2 %", "0.000709", "0.004223", "$0.2138"):
        assert figure in text


def test_text_from_data_is_shown_as_it_is() -> None:
    record = make_record(name=HOSTILE, reason=HOSTILE, state="failed")
    for text in (
        shown(terminal.bill_text(make_sample_bill(record, notes=[HOSTILE]), record), width=400),
        shown(terminal.run_text(record), width=400),
        shown(runs_table([summary(name=HOSTILE, model=HOSTILE)]), width=400),
        shown(prepare_text(prepared(source=HOSTILE, dropped={HOSTILE: 3})), width=400),
    ):
        assert "[red]x[/red]" in text
        assert "[/nope]" in text
        assert not set(text) & set("\x1b\a\u202e")


def test_run_shows_spans_measurements_and_events() -> None:
    text = shown(
        terminal.run_text(make_record(state="interrupted", reason="SIGINT in step 12; resume with trueup"))
    )
    assert "SIGINT in step 12" in text
    assert "36 steady steps; a p99 needs 299" in text
    assert "pack into 1 x 512" in text
    assert "validation after step 20" in text


def test_run_with_many_events_says_how_many_are_not_shown() -> None:
    record = make_record(steps=400, step_s=0.1, samples_hz=0)
    assert f"and {len(record.events) - 20} more" in shown(terminal.run_text(record))


def test_runs_table_shows_unknown_as_unknown() -> None:
    text = shown(runs_table([summary(), summary(id="b2", useful_tokens=None, wall_s=None)]), width=160)
    first, second = text.splitlines()[1:3]
    assert "19,756" in first
    assert "$0.2138" in first
    assert "19,756" not in second
    assert "–" in second
    assert "trueup train" in shown(runs_table([]))


@pytest.mark.parametrize("width", [60, 80, 100, 110, 120, 160, 200])
def test_a_run_has_one_line_whatever_the_width(width: int) -> None:
    rows = [summary(name="demo-cpu-2-cores-with-a-long-name"), summary(id="b2", name="b")]
    lines = shown(runs_table(rows), width=width).splitlines()
    assert all(len(line) <= width for line in lines)
    assert [line.split()[0] for line in lines[1:3]] == [rows[0].id, rows[1].id]
    assert len(lines) == 3 + ("left out for width" in lines[-1])


def test_a_narrow_list_keeps_run_name_state_and_cost_and_says_what_it_leaves_out() -> None:
    header, row, last = shown(runs_table([summary()]), width=80).splitlines()
    for column in ("run", "name", "state", "$ per million"):
        assert column in header
    assert "$0.2138" in row
    assert "device" not in header
    assert "left out for width" in last
    assert "device" in last


def test_prepare_shows_counts_and_lengths() -> None:
    text = shown(prepare_text(prepared()))
    assert "3,072 records: train 2,764 · validation 308" in text
    assert [" ".join(line.split()) for line in text.splitlines()[3:7]] == [
        "dropped 35",
        "too long 31",
        "stdlib:9: 2,981 tokens",
        "empty answer 4",
    ]
    assert "the cache was damaged and made again" in text
    assert "p50 33" in text
    assert "151,204 in all" in text
    assert "0 – 15" in text


def test_prepare_says_what_the_rows_of_each_file_were_taken_for() -> None:
    files = [{"file": f"{n}.csv", "format": "alpaca", "rows": 1000, "evidence": "why"} for n in range(12)]
    found = {"name": "alpaca", "evidence": "12 files", "files": files}
    lines = shown(prepare_text(prepared(format=found))).splitlines()
    at = lines.index("read as alpaca: 12 files")
    assert lines[at + 1] == "  0.csv: alpaca, 1,000 rows; why"
    assert lines[at + 11] == "  and 2 more files"
    single = shown(prepare_text(prepared(format={**found, "files": files[:1]})))
    assert "read as alpaca: 12 files" in single
    assert "0.csv" not in single


def test_measurements_without_any_value_are_all_explained() -> None:
    record = make_record().model_copy(update={"measurements": {"a_s": unavailable("s", "because")}})
    assert "because" in shown(terminal.run_text(record))


@given(st.floats(0, 1), st.integers(1, 60))
def test_bar_is_as_long_as_its_part(part: float, cells: int) -> None:
    drawn = terminal.bar(part, cells)
    assert len(drawn) <= cells
    assert bool(drawn) == (part > 0)
    assert abs(len(drawn) - part * cells) <= 1.07


def test_importing_the_terminal_brings_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "peft", "numpy", "jinja2", "pydantic", "trueup.store")
    code = f"import sys, trueup.report.terminal; print([m for m in {heavy!r} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@dataclass(frozen=True)
class Summary:
    id: str
    name: str
    state: str
    started_at: str
    wall_s: float | None
    model: str | None
    device: str | None
    useful_tokens: float | None
    usd_per_million_useful_tokens: float | None
    output_tokens: float | None = None
    usd_per_million_output_tokens: float | None = None


def summary(**changes: Any) -> Summary:
    values: dict[str, Any] = {
        "id": "a1", "name": "demo", "state": "finished", "started_at": "2026-11-29T10:15:30Z",
        "wall_s": 186.3,
        "model": "smollm2-135m", "device": "cpu", "useful_tokens": 19756.0,
        "usd_per_million_useful_tokens": 0.2138,
    }  # fmt: skip
    return Summary(**{**values, **changes})


def prepared(**changes: Any) -> dict[str, Any]:
    """As `prepare --json` prints it."""
    document: dict[str, Any] = {
        "dataset": "5e1f", "source": "stdlib-docs", "folder": "/home/data/5e1f", "records": 3072,
        "splits": {"train": 2764, "validation": 308}, "dropped": {"too_long": 31, "empty_answer": 4},
        "changed": {}, "redacted": {},
        "messages": ["the cache was damaged and made again"], "cache_hit": False,
        "first": {"too_long": [{"where": "stdlib:9", "what": "2,981 tokens"}]},
        "tokens": {"min": 6, "p50": 33, "p90": 121, "p99": 402, "max": 512, "total": 151_204},
        "length_histogram": [[0, 16, 443], [16, 32, 1108], [32, 33, 9]],
    }  # fmt: skip
    return {**document, **changes}
