"""A run that ends early and goes on computes, bit for bit, what one does that nothing happened to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from survivors import Runs, assert_whole, undisturbed

from trueup.checkpoint.folder import read_manifest, steps

Trouble = dict[str, Any]
ROUNDED = ("precision.policy=bf16", "precision.stochastic_rounding=true")
FULL, BUCKET, PLAIN = "tune.method=full", "shapes.strategy=bucket", "train.tokens_per_step=96"


def go_on(runs: Runs, *troubles: Trouble) -> None:
    """Start, and go on after each trouble, to the end."""
    for trouble in troubles:
        assert runs.train("--resume", "auto", trouble=trouble).code == 1
    done = runs.train("--resume", "auto")
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    "overrides",
    [
        (),  # LoRA with dropout, packed, three micro-batches a step
        (BUCKET, PLAIN),
        ("precision.policy=bf16-master",),
        pytest.param((FULL, PLAIN), marks=pytest.mark.slow),
        pytest.param((FULL, BUCKET, "train.tokens_per_step=192"), marks=pytest.mark.slow),
        pytest.param((FULL, BUCKET, *ROUNDED), marks=pytest.mark.slow),
    ],
    ids=lambda overrides: " ".join(overrides) or "lora-pack",
)
def test_ended_twice_and_gone_on(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    """Once by an error after step 5, the last save being of step 4; once by a signal. torchtitan#571: the
    second time it began at the step of the first; optimum-neuron#694 and aws-neuron-samples 52: without the
    optimizer."""
    runs = Runs(tmp_path, *overrides)
    go_on(runs, {"raise_in": 6}, {"interrupt_after": 9})
    told = runs.told()
    assert told == undisturbed(*overrides)
    assert told.executions == [*range(1, 7), *range(5, 10), *range(10, 13)]
    assert_whole(runs)


@pytest.mark.parametrize("overrides", [(), (FULL, BUCKET)], ids=" ".join)
@pytest.mark.parametrize(
    "beyond", [pytest.param(-1, marks=pytest.mark.slow), 0, pytest.param(1, marks=pytest.mark.slow)]
)
def test_at_the_edge_of_an_epoch(tmp_path: Path, overrides: tuple[str, ...], beyond: int) -> None:
    """accelerate pull 4071: neither the order within the epoch nor the number of the epoch starts again.
    transformers#17032: nor does what dropout draws, where the last save is at the edge itself."""
    overrides = (*overrides, "train.tokens_per_step=864", "train.epochs=2.5", "evaluate.every=50")
    expected = undisturbed(*overrides)
    per_epoch = expected.steps_per_epoch
    assert 1 < per_epoch <= 5
    first, second = ([expected.order[n + e * per_epoch] for n in range(1, per_epoch + 1)] for e in (0, 1))
    assert first != second
    runs = Runs(tmp_path, *overrides)
    go_on(runs, {"interrupt_after": per_epoch + beyond})
    assert runs.told() == expected


def test_after_a_step_that_was_skipped(tmp_path: Path) -> None:
    """transformers pull 46628: neither what is skipped nor the search for its cause moves the random state
    that a later step's dropout is drawn from, and the cursor counts it."""
    skipping: Trouble = {"not_finite": [3, 7]}
    policy = "failure.non_finite=skip"
    straight, runs = Runs(tmp_path / "straight", policy), Runs(tmp_path / "resumed", policy)
    assert straight.train(trouble=skipping).code == 0
    for trouble in ({"raise_in": 4}, {"interrupt_after": 7}):
        assert runs.train("--resume", "auto", trouble={**skipping, **trouble}).code == 1
    assert runs.train("--resume", "auto", trouble=skipping).code == 0
    assert runs.told() == straight.told()
    assert [step for step, one in runs.told().steps.items() if one["skipped"]] == [3, 7]
    assert runs.told().order == undisturbed().order
    assert runs.told().last != undisturbed().last


@pytest.mark.parametrize(
    "trouble",
    [
        {"interrupt_after": 6},
        pytest.param({"interrupt_in_evaluation": 6}, marks=pytest.mark.slow),
        pytest.param({"interrupt_after": 12}, marks=pytest.mark.slow),
        {"interrupt_in_evaluation": 12},
    ],
    ids=str,
)
def test_interrupted_where_an_evaluation_is_due(tmp_path: Path, trouble: Trouble) -> None:
    """It is made up for, and so are the best checkpoint and the end."""
    runs = Runs(tmp_path)
    go_on(runs, trouble)
    assert runs.told() == undisturbed()
    assert len(runs.record().evaluations) == 5


def test_ended_after_the_last_save(tmp_path: Path) -> None:
    """All steps are done: none is done beyond, though the record never said that it had finished."""
    runs = Runs(tmp_path)
    assert runs.train().code == 0
    header = json.loads((runs.only / "run.json").read_text())
    unsaid = {**header, "state": "running", "reason": None, "ended_at": None, "wall_s": None, "steady": None}
    (runs.only / "run.json").write_text(json.dumps(unsaid))
    done = runs.train("--resume", "auto")
    assert done.code == 0, done.err
    told = runs.told()
    assert told == undisturbed()
    assert told.executions == list(range(1, 13))
    assert_whole(runs)


def test_ended_at_once_by_a_second_interrupt(tmp_path: Path) -> None:
    """In the middle of a step: nothing of it is kept, and it is done again."""
    runs = Runs(tmp_path)
    done = runs.train(trouble={"interrupt_twice_in": 6})
    assert done.code == 1
    assert "stopping at the next safe place" in done.err
    assert steps(runs.checkpoints())[-1] == 4
    go_on(runs)
    told = runs.told()
    assert told == undisturbed()
    assert told.executions == [*range(1, 7), *range(5, 13)]


def test_stopped_by_hand_and_gone_on(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    stop = f"for run in {runs.home}/runs/*; do mkdir -p $run/control; echo enough > $run/control/stop; done"
    done = runs.train(trouble={"commands_after": {"5": ["sh", "-c", stop]}})
    assert done.code == 0, done.err
    header = runs.record().header
    assert (header.state, header.reason) == ("stopped", "the run ends, saved: by hand, enough")
    assert steps(runs.checkpoints())[-1] == 5
    go_on(runs)
    assert runs.told() == undisturbed()


def test_gone_on_by_as_many_threads_as_it_began_with(tmp_path: Path) -> None:
    """Sums of floats depend on how they are shared out, and another machine has other processors."""
    runs = Runs(tmp_path)
    assert runs.train(trouble={"raise_in": 6}).code == 1
    done = runs.train("--resume", "auto", env={"OMP_NUM_THREADS": "2"})
    assert done.code == 0, done.err
    assert runs.record().header.choices["threads"]["value"] == "1"
    assert runs.told() == undisturbed()


@pytest.mark.slow
def test_from_each_of_its_checkpoints(tmp_path: Path) -> None:
    """Whatever they were saved for. Megatron-Bridge#3267: each says the step whose state it has."""
    overrides = ("checkpoint.keep=20", "checkpoint.every=1")
    source = Runs(tmp_path / "source", *overrides)
    assert source.train().code == 0
    root = source.checkpoints()
    assert steps(root) == list(range(1, 13))
    for step in (1, 4, 11, 12):
        assert read_manifest(root / f"{step:08d}").state["tally"]["step"] == step
        elsewhere = Runs(tmp_path / f"from{step}", *overrides)
        done = elsewhere.train("--resume", root / f"{step:08d}")
        assert done.code == 0, done.err
        told, expected = elsewhere.told(), undisturbed()
        assert (told.last, told.executions) == (expected.last, list(range(step + 1, 13)))
        assert told.steps == expected.steps  # those before were recorded with the checkpoint


def test_with_most_of_the_time_budget_spent(tmp_path: Path) -> None:
    """Limits are of the whole run: what earlier processes took counts, time between them does not."""
    runs = Runs(tmp_path, "train.stop.minutes=10")
    assert runs.train(trouble={"raise_in": 6}).code == 1
    header = runs.only / "run.json"
    text = header.read_text()
    wall_s = runs.record().header.wall_s
    assert text.count(f'"wall_s": {wall_s}') == 1
    segments = runs.only / "segments.jsonl"
    with segments.open("a") as file:
        file.write(f'{{"name": "pause", "start_s": {wall_s}, "end_s": 601.0, "opens": true}}\n')
    header.write_text(text.replace(f'"wall_s": {wall_s}', '"wall_s": 601.0'))
    done = runs.train("--resume", "auto")
    assert done.code == 0, done.err
    assert runs.record().header.reason == "train.stop.minutes (10) reached"
    assert runs.told().executions == [1, 2, 3, 4, 5, 6]
