"""A plan and a profile of memory as they are shown: nothing left out, nothing that a name could break."""

from __future__ import annotations

import re

from rich.console import Console

from trueup.analysis.memory_summary import Alternative, MemorySummary, summary_of
from trueup.analysis.serving_memory import ServingAsk, serving_lines
from trueup.analysis.serving_memory_fit import fit
from trueup.report.memory import plan_text
from trueup.report.memory_profile import page, picture, profile_text
from trueup.schema import Measurement, ModelDims, unavailable
from trueup.schema.memory_trace import Held, MemoryTrace

MIB = 2**20
DIMS = ModelDims(
    layers=2,
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate=176,
    vocab=260,
    tied_head=False,
    parameters=0,
    trainable_parameters=0,
)
EVIL = "<script>alert(1)</script>\x1b[31m"


def trace(module: str = "model.layers.0.mlp") -> MemoryTrace:
    held = (
        Held(8 * MIB, "weights", "model.embed_tokens", "", 0, None),
        Held(3 * MIB, "activations", module, "aten.mm", 1, 4),
        Held(5 * MIB, "activations", "model.layers.1.mlp", "aten.mul", 2, 3),
        Held(2 * MIB, "kv_pool", "cache.0", "aten.cat", 5, None),
    )
    return MemoryTrace(held, 6, 4, ((1, "prompt"), (5, "next token")), ((2, 100 * MIB),))


def summary(one: MemoryTrace) -> MemorySummary:
    return summary_of(one, rss_before_bytes=50 * MIB, alternatives=[Alternative("chunks of 8", 12 * MIB)])


def shown(renderable: object) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable)
    return console.export_text()


def plan(has: Measurement, ask: ServingAsk) -> str:
    found = fit(ask, has.value, positions=4096)
    return shown(plan_text(serving_lines(ask), found, title="a model", ask=ask, has=has, notes=("a note",)))


def test_a_plan_shows_every_line_the_verdict_and_why_some_have_no_figure() -> None:
    ask = ServingAsk(DIMS, 256, 4, device="neuron", chip="trainium2")
    text = plan(Measurement(value=2.0**34, unit="bytes", kind="quoted", method="a sheet"), ask)
    for part in (
        "weights of the layers",
        "KV pool",
        "logits",
        "headroom",
        "needs",
        "has",
        "a sheet",
        "a note",
    ):
        assert part in text
    said = " ".join(text.split())
    assert "fits, if what is not known (allocator's rounding, scratchpad, DMA rings, collectives)" in said
    assert re.search(r"takes no more than 1[56]\.?\d* GiB: needs", said)
    assert "scratchpad: known only once the model is compiled" in text
    assert "longest context of 4 at once: 4,096 tokens" in text


def test_a_plan_that_does_not_fit_lists_what_would() -> None:
    ask = ServingAsk(DIMS, 4096, 64, quant="fp32", kv="fp32", device="cpu")
    text = plan(Measurement(value=80.0 * MIB, unit="bytes", kind="measured", method="left"), ask)
    assert "does not fit: needs" in text
    assert "what to change:" in text
    assert "bf16 keys and values: needs" in text


def test_memory_that_is_not_known_is_a_dash_and_no_verdict() -> None:
    text = plan(unavailable("bytes", "nobody says"), ServingAsk(DIMS, 256, 4))
    assert "how much there is is not known" in text
    assert "fits:" not in text


def test_a_profile_shows_the_peak_its_owners_and_what_would_lower_it() -> None:
    text = shown(profile_text(summary(trace()), title="tiny"))
    assert "at most 16 MiB of tensors, in 3 storages: prompt" in text
    for part in ("model.layers.*.mlp", "aten.mul", "weights", "RSS at most", "unreleasable", "estimated"):
        assert part in text
    assert "chunks of 8: 4 MiB less, a peak of 12 MiB" in text


def test_the_picture_marks_the_peak_and_says_in_words_what_it_shows() -> None:
    svg = picture(trace())
    assert 'id="memory-peak"' in svg
    assert "at most 16 MiB, 10 MiB at the end" in svg
    assert ">mlp<" in svg


def test_an_empty_trace_is_drawn_too() -> None:
    assert "Nothing was held." in picture(MemoryTrace((), 0, 0))


def test_a_long_trace_is_thinned_and_keeps_its_peak() -> None:
    held = tuple(
        Held(MIB * (9 if n == 777 else 1), "activations", "m", "aten.add", 2 * n, 2 * n + 1)
        for n in range(5000)
    )
    svg = picture(MemoryTrace(held, 10000, 5000))
    assert len(svg) < 120_000
    assert "peak 9 MiB" in svg


def test_the_page_holds_everything_in_one_file_and_escapes_what_comes_from_data() -> None:
    one = trace(EVIL)
    html = page(one, summary(one), title=EVIL)
    assert "<script>" not in html
    assert "\x1b" not in html
    assert "&lt;script&gt;" in html
    assert not re.findall(r'(?:src|href)="(?!data:|#)', html)
    for part in ("By module", "By operator", "By kind", "What would lower the peak", "estimated"):
        assert part in html
