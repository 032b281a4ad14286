"""A whole run in this process: what it records when it finishes, fails or is interrupted."""

from __future__ import annotations

import itertools
import math
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from trueup.checkpoint import writer
from trueup.checkpoint.folder import best_of, checkpoints_of, folder_name, read_manifest, steps
from trueup.checkpoint.remote import Remote
from trueup.checkpoint.uploads import Uploads
from trueup.schema import StorageError, TrueupError
from trueup.telemetry import MemorySink
from trueup.train import recovery, saves, stepper, warm_up
from trueup.train.world import World

SHORT = ("compile.mode=none", "evaluate.every=null")


def folder_of_step(home: Path, step: int) -> Path:
    return checkpoints_of(home / "run") / folder_name(step)


def test_a_finished_run_is_whole(run_tiny: Any, home: Path) -> None:
    outcome, sink = run_tiny("checkpoint.every=2", "checkpoint.keep=2")
    assert outcome.header.state == "finished", outcome.header.reason
    assert outcome.error is None
    assert [step.step for step in sink.steps] == [1, 2, 3, 4, 5, 6]
    assert [one.step for one in sink.evaluations] == [0, 3, 6]
    assert sink.closed
    assert sink.headers[0].state == "running"
    assert sink.headers[-1] == outcome.header
    assert set(outcome.header.choices) >= {"precision", "threads", "shapes", "device"}
    best = read_manifest(folder_of_step(home, 6)).best_step
    assert steps(checkpoints_of(home / "run")) == sorted({4, 6, best})


def test_spans_partition_the_wall_clock(run_tiny: Any) -> None:
    outcome, sink = run_tiny()
    segments = sink.segments
    assert segments[0].start_s == 0.0
    assert all(a.end_s == b.start_s for a, b in itertools.pairwise(segments))
    assert outcome.header.wall_s is not None
    assert abs(segments[-1].end_s - outcome.header.wall_s) < 1e-3
    assert outcome.measurements["other_share"].value is not None


def test_the_record_is_written_before_a_checkpoint_takes_it(
    run_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat would not do: it does not wait for the sampler, which may be writing."""
    written = set()
    monkeypatch.setattr(MemorySink, "flush", lambda self: written.add(len(self.steps)))
    run_tiny("checkpoint.every=2", "compile.mode=none", "evaluate.every=null")
    assert written == {2, 4, 6}


def test_a_compile_after_the_last_step_is_in_the_record(
    run_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    save = saves.Saves.save

    def save_and_compile(self: Any, tally: Any, why: tuple[str, ...]) -> None:
        save(self, tally, why)
        if saves.LAST in why:
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))

    monkeypatch.setattr(saves.Saves, "save", save_and_compile)
    found = run_tiny()[0].measurements
    assert found["compile_count"].value == found["compile_after_warm_up_count"].value == 1
    assert found["compile_s"].value > 0


def test_counts_are_of_real_batches_only(run_tiny: Any) -> None:
    """optimum-habana 1533 (warm-up in the books), transformers#32469 (throughput counts padding)."""
    outcome, sink = run_tiny()
    found = outcome.measurements
    assert found["useful_tokens"].value == sum(step.useful_tokens for step in sink.steps)
    assert found["supervised_tokens"].value < found["useful_tokens"].value < found["processed_tokens"].value
    training_s = math.fsum(step.step_s + step.data_wait_s for step in sink.steps)
    assert found["useful_tokens_per_s"].value == pytest.approx(found["useful_tokens"].value / training_s)
    assert all(step.step_s > 0 and step.data_wait_s >= 0 for step in sink.steps)


def test_the_same_recipe_gives_the_same_losses(run_tiny: Any) -> None:
    first = [step.loss for step in run_tiny()[1].steps]
    assert first == [step.loss for step in run_tiny()[1].steps]
    assert first != [step.loss for step in run_tiny("train.seed=1")[1].steps]


def test_loss_falls_and_the_best_weights_are_kept(run_tiny: Any, home: Path) -> None:
    outcome, sink = run_tiny("train.max_steps=20", "optimizer.lr=2e-2", "evaluate.every=10", "train.epochs=9")
    first, best = (outcome.measurements[f"eval_perplexity_{which}"].value for which in ("first", "best"))
    assert best < first
    chosen = min(sink.evaluations, key=lambda one: one.loss)
    best = best_of(checkpoints_of(home / "run"))
    assert best is not None
    folder, manifest = best
    assert int(folder.name) == manifest.step == chosen.step
    assert manifest.eval_loss == chosen.loss


def test_an_epoch_trains_every_example_once(run_tiny: Any) -> None:
    outcome, sink = run_tiny("train.max_steps=null", "train.epochs=2", "evaluate.every=null")
    assert outcome.header.dataset is not None
    per_epoch = sum(step.useful_tokens for step in sink.steps) / 2
    assert per_epoch == int(per_epoch)
    half = run_tiny("train.max_steps=null", "train.epochs=1", "evaluate.every=null")[1]
    assert sum(step.useful_tokens for step in half.steps) == per_epoch


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("train.stop.useful_tokens=200", "useful_tokens"),
        ("train.stop.usd=1e-9", "usd"),
        ("train.stop.minutes=1e-6", "minutes"),
    ],
)
def test_stop_conditions_end_the_run(run_tiny: Any, override: str, reason: str) -> None:
    outcome, sink = run_tiny(override)
    assert outcome.header.state == "finished"
    assert reason in str(outcome.header.reason)
    assert 1 <= len(sink.steps) < 6
    assert sink.evaluations[-1].step == sink.steps[-1].step


def test_without_held_out_data_perplexity_is_unavailable(run_tiny: Any) -> None:
    outcome, sink = run_tiny("data.split.validation=0", "data.split.test=0")
    assert sink.evaluations == []
    assert outcome.measurements["eval_perplexity_best"].kind == "unavailable"
    assert outcome.header.state == "finished"


def test_divergence_is_recorded_with_what_to_try(run_tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = stepper.accumulate
    monkeypatch.setattr(stepper, "accumulate", lambda *a: original(*a) * math.nan)
    outcome, sink = run_tiny()
    assert outcome.header.state == "failed"
    assert "optimizer.lr" in str(outcome.header.reason)
    assert [event.kind for event in sink.events if event.kind != "warm_up"] == ["non_finite", "failed"]
    assert outcome.measurements["useful_tokens_per_s"].kind == "unavailable"


def test_out_of_memory_says_what_was_too_large(run_tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*arguments: Any) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate")

    monkeypatch.setattr(recovery, "train_step", no_memory)
    outcome, sink = run_tiny()
    assert outcome.header.state == "failed"
    assert "out of memory" in str(outcome.header.reason)
    assert "shapes.tokens_per_microbatch=48" in str(outcome.header.reason)
    assert 48 < math.prod(sink.events[-1].data["largest_shape"]) <= 96


def test_a_signal_ends_the_run_after_the_step_and_keeps_what_was_measured(
    run_tiny: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = recovery.train_step

    def interrupted(session: Any, *arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return original(session, *arguments)

    monkeypatch.setattr(recovery, "train_step", interrupted)
    before = signal.getsignal(signal.SIGINT)
    outcome, sink = run_tiny()
    assert outcome.header.state == "interrupted"
    assert len(sink.steps) == 1
    assert outcome.measurements["useful_tokens"].value == sink.steps[0].useful_tokens
    assert signal.getsignal(signal.SIGINT) is before
    assert read_manifest(folder_of_step(home, 1)).why == ("signal",)


def test_a_signal_while_warming_up_ends_the_run_before_its_first_step(
    run_tiny: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = warm_up._step

    def interrupted(session: Any, shape: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        original(session, shape)

    monkeypatch.setattr(warm_up, "_step", interrupted)
    outcome, sink = run_tiny(*SHORT)
    assert outcome.header.state == "interrupted"
    assert "start the run again" in str(outcome.header.reason)
    assert (sink.steps, steps(checkpoints_of(home / "run"))) == ([], [])
    assert outcome.header.wall_s is not None


def test_wrong_data_is_a_failed_run_with_an_input_error(run_tiny: Any) -> None:
    outcome, _sink = run_tiny("data.max_length=3")
    assert outcome.header.state == "failed"
    assert getattr(outcome.error, "exit_code", None) == 2
    assert outcome.header.wall_s is not None


def test_what_happens_after_all_is_saved_undoes_nothing(
    run_tiny: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rank that dies in the last barrier, say: the run has finished, and tells what came after."""

    def gone(self: World) -> None:
        raise TrueupError("another process is gone")

    monkeypatch.setattr(World, "close", gone)
    outcome, sink = run_tiny(*SHORT)
    assert (outcome.header.state, outcome.error) == ("finished", None)
    assert outcome.header.reason == "all 6 steps done; later: another process is gone"
    assert [event.kind for event in sink.events][-1] == "after_the_end"
    assert steps(checkpoints_of(home / "run"))[-1] == 6


def test_what_happens_before_the_last_save_is_whole_ends_the_run(
    run_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(root: Path, snapshot: Any) -> Path:
        raise StorageError("no room")

    def gone(self: World) -> None:
        raise TrueupError("another process is gone")

    monkeypatch.setattr(World, "close", gone)
    monkeypatch.setattr(writer, "write_checkpoint", full)
    outcome, _ = run_tiny(*SHORT)
    assert outcome.header.state == "failed"
    assert "another process is gone" in str(outcome.header.reason)
    assert str(outcome.error) == "another process is gone"


def test_a_signal_while_the_last_save_is_written_lets_it_be_written(
    run_tiny: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = writer.CheckpointWriter.finish

    def interrupted(self: writer.CheckpointWriter) -> None:
        signal.raise_signal(signal.SIGTERM)
        wait(self)

    monkeypatch.setattr(writer.CheckpointWriter, "finish", interrupted)
    outcome, _ = run_tiny(*SHORT)
    assert (outcome.header.state, outcome.header.reason) == ("finished", "all 6 steps done")
    assert steps(checkpoints_of(home / "run"))[-1] == 6


def test_a_second_signal_while_the_last_uploads_go_on_leaves_the_run_finished(
    run_tiny: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says which checkpoints are not away."""
    arrived = threading.Event()

    def slow(self: Remote, folder: Path, run_id: str) -> None:
        arrived.wait()

    def twice(self: Uploads) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Remote, "upload", slow)
    monkeypatch.setattr(Uploads, "wait", twice)
    outcome, sink = run_tiny(*SHORT, f"checkpoint.to={home / 'far'}")
    arrived.set()
    assert outcome.header.state == "finished"
    assert outcome.header.reason == "all 6 steps done; later: SIGINT received"
    told = [event for event in sink.events if event.kind == "upload_failed"]
    assert [event.data["steps"] for event in told] == [[6]]
