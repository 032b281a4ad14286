"""The page holds everything it should, says what is missing, and lets nothing from data become markup."""

from __future__ import annotations

import errno
import io
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_samples import make_record, make_sample_bill
from rich.console import Console

from trueup.analysis.bill import make_bill
from trueup.analysis.measure import summarize
from trueup.report import html, plots
from trueup.report.terminal import bill_text
from trueup.report.wording import dollars, line_label
from trueup.schema import Event, InputError, Measurement, RunRecord, StorageError

MOST_BYTES = 1_500_000
HOSTILE = "</style></title><script>alert(1)</script><img src=x onerror=alert(2)>\"'{{7*7}} $x^{$ & \x1b[31m"
VOID = {"meta", "link", "br", "img", "input", "hr", "path", "use", "rect", "circle", "line"}


class Tags(HTMLParser):
    """Which elements and attributes the page really has, and whether every element is closed in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open, f"</{tag}> closes nothing"
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page(*records: RunRecord, priced: bool = True) -> str:
    return html.render(records, bills={r.header.id: make_sample_bill(r) for r in records} if priced else {})


def parsed(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    return tags


def test_one_run_shows_bill_plots_and_every_measurement() -> None:
    record = make_record()
    text = page(record)
    tags = parsed(text)
    said = " ".join(" ".join(tags.text).split())
    assert "$0.2138" in said
    assert "per million useful tokens, all in" in said
    assert tags.seen["svg"] == 5  # loss, step time, memory, CPU, lengths
    for name, found in record.measurements.items():
        assert f">{name}<" in text
        assert (found.reason or found.method).replace("'", "&#39;") in text
    for key in ("cpu.physical_cores", "tune.rank", "optimizer.clip"):
        assert key in said
    assert "command line" in said
    assert "this CPU has no AVX-512-BF16 or AMX" in said
    assert len(text.encode()) < MOST_BYTES


def test_seconds_on_a_logarithmic_axis_are_plain_numbers() -> None:
    """One step far slower than the others, as beside a busy neighbour."""
    record = make_record()
    slow = record.steps[12].model_copy(update={"step_s": 20 * record.steps[12].step_s})
    drawn = plots.step_time(
        record.model_copy(update={"steps": [*record.steps[:12], slow, *record.steps[13:]]}), "p"
    )
    assert drawn is not None
    ticks = set(re.findall(r"<text[^>]*>([^<]+)</text>", drawn))
    assert {"5", "10", "20", "50"} <= ticks


def test_the_bill_of_the_record_itself_is_shown() -> None:
    """With the measurements and the bill that analysis makes, not those of this test's sample."""
    record = make_record()
    ceiling = {"matmul_ceiling_flops_per_s": record.measurements["matmul_ceiling_flops_per_s"]}
    measurements, steady = summarize(record, extra=ceiling)
    header = record.header.model_copy(update={"steady": steady})
    record = record.model_copy(update={"header": header, "measurements": measurements})
    bill = make_bill(record)
    text = html.render([record], bills={record.header.id: bill})
    parsed(text)
    for line in bill.lines:
        assert (f">{line_label(line.name)}</th>" in text) == (line.seconds > 0)
    for name in measurements:
        assert f">{name}<" in text
    console = Console(file=io.StringIO(), width=100)
    console.print(bill_text(bill, record))
    assert dollars(bill.usd_per_million_useful_tokens.value or 0) in console.file.getvalue()  # type: ignore


def test_the_bill_shows_no_line_of_nothing_and_bars_meet() -> None:
    text = page(make_record())
    bars = [(float(a), float(b)) for a, b in re.findall(r"margin-left:([\d.]+)%;width:([\d.]+)%", text)]
    assert "head padding</th>" not in text
    end = 0.0
    for start, width in bars:
        assert start == pytest.approx(end, abs=0.002)
        end = start + width
    assert end == pytest.approx(100, abs=0.01)


def test_several_runs_start_with_a_table_and_share_no_id() -> None:
    first = make_record()
    text = page(first, make_record(run_id="other", name="second", seed=8), first)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    for used in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"|aria-labelledby="([^"]+)"', text):
        assert next(filter(None, used)) in ids
    assert text.index('class="plain runs"') < text.index("<h1>")
    assert text.count("<h1>") == 3


def test_text_from_data_is_never_markup() -> None:
    record = make_record(
        run_id=HOSTILE, name=HOSTILE, reason=HOSTILE, state="failed", recipe={HOSTILE: {"model": HOSTILE}},
        environment={HOSTILE: HOSTILE}, choices={HOSTILE: {"value": HOSTILE, "reason": HOSTILE}},
        recipe_sources={HOSTILE: HOSTILE}, recipe_digest=HOSTILE,
    )  # fmt: skip
    measurement = record.measurements["energy_j"].model_copy(update={"reason": HOSTILE, "unit": HOSTILE})
    step = record.steps[5].model_copy(update={"labels": (HOSTILE,)})
    event = Event(at_s=1, kind=HOSTILE, message=HOSTILE, data={HOSTILE: HOSTILE})
    record = record.model_copy(
        update={"measurements": {HOSTILE: measurement}, "steps": (*record.steps, step), "events": (event,)}
    )
    bill = make_sample_bill(record, notes=[HOSTILE], name=HOSTILE, known={HOSTILE: 1})
    text = html.render([record], bills={record.header.id: bill})
    tags = parsed(text)
    assert "script" not in tags.seen
    assert "img" not in tags.seen
    assert not [name for name, _ in tags.attributes if name.startswith("on")]
    assert "49" not in re.findall(r"&#39;(\d+) \$x", text)
    assert "\x1b" not in text
    assert "alert(1)" in " ".join(tags.text)  # it is shown, as text


def test_nothing_is_fetched_and_nothing_runs() -> None:
    text = page(make_record())
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in text
    assert "<script" not in text
    assert "@import" not in text
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", text)


@pytest.mark.parametrize("state", ["failed", "interrupted", "stopped", "running"])
def test_a_run_that_did_not_finish_says_so_at_the_top(state: str) -> None:
    reason = None if state == "running" else "what happened, and what to try"
    text = page(make_record(state=state, reason=reason, wall_s=None, ended_at=None, steps=3), priced=False)
    parsed(text)
    top = text[: text.index('class="hero"')]
    assert "Still running." in top if reason is None else reason in top
    assert "duration not known" in top


def test_a_run_without_price_says_how_to_give_one() -> None:
    text = page(make_record(priced=False), priced=False)
    assert "usd_per_hour" in text
    assert "no price" in text


def test_a_run_that_left_nothing_still_has_a_page() -> None:
    header = make_record(steps=0).header.model_copy(
        update={
            "dataset": None,
            "choices": {},
            "environment": {},
            "steady": None,
            "recipe": {},
            "model": None,
        }
    )
    text = page(RunRecord(header=header), priced=False)
    assert "svg" not in parsed(text).seen
    assert "No step was trained" in text
    assert "This run left no measurements" in text


def test_a_bill_without_useful_tokens_gives_the_reason() -> None:
    text = page(make_record(steps=0, state="failed", reason="out of memory in step 1"))
    assert "no step was trained" in text


def test_a_steady_figure_of_few_steps_says_so() -> None:
    few = Measurement(value=0.16, unit="USD/1e6 tokens", kind="derived", n=12)
    record = make_record()
    bill = make_sample_bill(record, usd_per_million_useful_tokens_steady=few)
    text = html.render([record], bills={record.header.id: bill})
    assert "<small>12 steps, too few for an interval</small>" in text


def test_losses_that_are_not_numbers_are_left_out_of_the_plot() -> None:
    record = make_record()
    bad = [record.steps[3].model_copy(update={"step": 41, "loss": float("nan"), "grad_norm": float("inf")})]
    with_bad = page(record.model_copy(update={"steps": (*record.steps, *bad)}))
    assert "to 2.5" in (re.search(r"Training loss from .* at 40\.", with_bad) or [""])[0]


def test_a_long_run_stays_small() -> None:
    long = [make_record(run_id=f"r{n}", steps=6000, step_s=0.5, samples_hz=10, seed=n) for n in range(2)]
    text = page(*long)
    assert len(text.encode()) < MOST_BYTES
    assert text.count("<path") < 1000


def test_the_same_record_gives_the_same_page() -> None:
    assert page(make_record()) == page(make_record())


def test_no_record_is_an_input_error() -> None:
    with pytest.raises(InputError, match="at least one run"):
        html.render([])


def test_write_replaces_whole_and_is_readable(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")
    html.write(target, "<p>né \ud800</p>")
    assert target.read_bytes() == "<p>né ?</p>".encode()
    assert target.stat().st_mode & 0o444 == 0o444
    assert os.listdir(tmp_path) == ["report.html"]


def test_write_refuses_a_folder_and_a_missing_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        html.write(tmp_path, "x")
    with pytest.raises(InputError, match="does not exist"):
        html.write(tmp_path / "no" / "report.html", "x")


def test_a_full_disk_keeps_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        html.write(target, "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]


def test_importing_the_report_brings_neither_torch_nor_numpy() -> None:
    heavy = ("torch", "transformers", "peft", "numpy", "trueup.store")
    code = f"import sys, trueup.report.html; print([m for m in {heavy!r} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
