"""Platform profiles: estimates that say where they are from, and what earlier runs teach in their place."""

from __future__ import annotations

from typing import Any

import pytest
from run_records import SMOL, make_record, make_step

from trueup.analysis.flops import training_flops
from trueup.analysis.learnt import learnt_profile
from trueup.analysis.profile import estimated_profile, pair_flops, token_flops
from trueup.schema import Event, Measurement, PlatformProfile, RunRecord

LIKE = {"model": {"path": "smol"}, "tune": {"method": "lora"}, "precision": {"policy": "auto"}}
CPU = "some CPU"


def figures(profile: PlatformProfile) -> list[Measurement]:
    alone = [profile.micro_batch_s, profile.token_s, profile.pair_s, profile.head_row_s]
    return alone + [
        figure
        for one in profile.compile.values()
        for figure in (one.first_shape_s, one.further_shape_s, one.evaluation_shape_s, one.step_ratio)
    ]


@pytest.mark.parametrize(
    ("kind", "name", "known"),
    [
        ("cpu", "any", True),
        ("cuda", "NVIDIA H100 80GB HBM3", True),
        ("cuda", "some card of tomorrow", False),
        ("neuron", "another chip", False),
    ],
)
def test_estimates_say_so_and_what_is_not_known_has_no_figure(kind: str, name: str, known: bool) -> None:
    profile = estimated_profile(kind, name, SMOL, static=kind == "neuron")
    assert {figure.kind for figure in figures(profile)} <= {"estimated", "unavailable"}
    assert all(figure.method or figure.reason for figure in figures(profile))
    assert (profile.token_s.value is not None) == known
    assert profile.rules.static == (kind == "neuron")
    assert profile.rules.multiple == {"cpu": 8, "cuda": 64, "neuron": 128}[kind]
    assert bool(profile.compile) == (kind != "neuron")  # nobody publishes its compile seconds


def test_the_estimate_is_the_published_step_of_the_published_model() -> None:
    """4 x 128 tokens at 185 tokens/s, every token through the head: 2.8 s, of which 0.09 s are fixed."""
    profile = estimated_profile("cpu", "any", SMOL, static=False)
    step_s = sum(
        figure.value * count
        for figure, count in (
            (profile.micro_batch_s, 1),
            (profile.token_s, 512),
            (profile.pair_s, 4 * 128**2),
            (profile.head_row_s, 512),
        )
        if figure.value is not None
    )
    assert step_s == pytest.approx(512 / 185, rel=0.02)
    whole = estimated_profile("cpu", "any", SMOL, static=False).compile["model"]
    assert whole.first_shape_s.value == pytest.approx(152.0)


def test_flops_of_tokens_pairs_and_head_rows_are_all_there_are() -> None:
    from trueup.analysis.flops import head_row_flops

    whole = training_flops(SMOL, tokens=512, head_rows=300, attention_sum_sq=512**2, causal=False)
    parts = 512 * token_flops(SMOL) + 300 * head_row_flops(SMOL) + 512**2 * pair_flops(SMOL)
    assert parts == pytest.approx(whole)


def run(
    compile_mode: str = "none",
    *,
    per_flop_s: float = 1e-11,
    fixed_s: float = 0.0,
    widths: tuple[int, ...] = (512,),
    events: list[Event] | None = None,
    recipe: dict[str, Any] | None = None,
) -> RunRecord:
    """Steps of one micro-batch each that take `fixed_s` and `per_flop_s` for every FLOP."""
    steps = []
    for number in range(1, 41):
        width = widths[number % len(widths)]
        rows = width // 2
        flops = training_flops(SMOL, tokens=width, head_rows=rows, attention_sum_sq=width**2, causal=False)
        seconds = fixed_s + per_flop_s * flops
        step = make_step(number, step_s=seconds, processed_tokens=width, shape=(1, width), head_rows=rows)
        step = step.model_copy(update={"attention_sum_sq": width**2})
        steps.append(step.model_copy(update={"useful_tokens": rows, "supervised_tokens": rows}))
    header = {
        "recipe": LIKE if recipe is None else recipe,
        "choices": {"compile": {"value": compile_mode, "reason": "test"}},
    }
    return make_record(steps=steps, events=events, header=header)


def learn(*records: RunRecord) -> PlatformProfile | None:
    return learnt_profile(records, LIKE, device_kind="cpu", device_name=CPU, static=False)


def test_runs_teach_what_a_token_takes_and_what_a_micro_batch_takes_at_least() -> None:
    found = learn(run(fixed_s=0.2, widths=(64, 256, 512)), run(fixed_s=0.2, widths=(64, 256, 512)))
    assert found is not None
    assert found.token_s.kind == "measured"
    assert found.token_s.n == 2
    assert found.token_s.value == pytest.approx(1e-11 * token_flops(SMOL), rel=1e-6)
    assert found.micro_batch_s.value == pytest.approx(0.2, rel=1e-6)
    alike = learn(run(fixed_s=0.0))
    assert alike is not None
    assert alike.micro_batch_s.kind == "estimated"  # one size of micro-batch cannot tell


@pytest.mark.parametrize(
    "other",
    [
        {"model": {"path": "another"}},
        {"tune": {"method": "full"}},
        {"precision": {"policy": "fp32"}},
    ],
)
def test_runs_of_another_kind_teach_nothing(other: dict[str, Any]) -> None:
    assert learn(run(recipe=LIKE | other)) is None
    assert learnt_profile([run()], LIKE, device_kind="cpu", device_name="else", static=False) is None


def compiled(seconds: float, phase: str, shape: list[int], hits: int = 0) -> Event:
    data = {"seconds": seconds, "phase": phase, "shape": shape, "cache_hits": hits}
    return Event(at_s=1.0, kind="compile", message="compiled", data=data)


def test_cold_compiles_teach_their_seconds_and_warm_ones_do_not() -> None:
    events = [
        compiled(20.0, "training", [4, 128]),
        compiled(5.0, "training", [4, 128]),  # its backward
        compiled(11.0, "training", [1, 512]),
        compiled(4.0, "evaluation", [4, 128]),
        compiled(0.5, "evaluation", [1, 512], hits=1),
    ]
    found = learn(run(), run("layer", per_flop_s=0.7e-11, events=events))
    assert found is not None
    layer = found.compile["layer"]
    assert layer.first_shape_s.value == 25.0
    assert layer.further_shape_s.value == 11.0
    assert layer.evaluation_shape_s.value == 4.0
    assert layer.step_ratio.value == pytest.approx(0.7)
    assert {layer.first_shape_s.kind, layer.step_ratio.kind} == {"measured"}
    assert found.compile["model"].first_shape_s.kind == "estimated"


def test_shapes_that_ran_out_of_memory_are_remembered() -> None:
    refused = Event(at_s=1.0, kind="smaller_plan", message="no memory", data={"refused": [8, 512]})
    found = learn(run(events=[refused]), run(events=[refused]))
    assert found is not None
    assert found.memory_edges == ((8, 512),)


def test_what_a_run_went_on_with_is_where_the_next_one_starts() -> None:
    def ran_out(refused: list[int], at_most: int, kind: str = "out_of_memory") -> Event:
        data = {"refused": refused, "at_most": at_most, "done": "halved"}
        return Event(at_s=1.0, kind=kind, message="no memory", data=data)

    found = learn(
        run(events=[ran_out([8, 512], 2048), ran_out([4, 512], 1024)]),
        run(events=[ran_out([16, 256], 2048, "smaller_plan")]),
    )
    assert found is not None
    assert found.memory_edges == ((8, 512), (4, 512), (16, 256))
    assert found.micro_batch_tokens == 1024
    assert learn(run()) is not None
    untouched = learn(run())
    assert untouched is not None
    assert untouched.micro_batch_tokens is None


def test_memory_with_other_activation_checkpointing_says_nothing() -> None:
    data = {"refused": [8, 512], "at_most": 2048}
    ran_out = Event(at_s=1.0, kind="out_of_memory", message="no memory", data=data)
    saving = LIKE | {"train": {"activation_checkpointing": True}}
    records = [run(events=[ran_out]), run(recipe=saving)]
    found = learnt_profile(records, saving, device_kind="cpu", device_name=CPU, static=False)
    assert found is not None
    assert found.memory_edges == ()
    assert found.token_s.n == 2


def test_a_run_of_too_few_steps_leaves_the_estimates() -> None:
    short = run().model_copy(update={"steps": run().steps[:2]})
    found = learn(short)
    assert found is not None
    assert {figure.kind for figure in figures(found)} == {"estimated"}
