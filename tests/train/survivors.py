"""Runs that are disturbed and go on, and what must then be as if nothing had happened."""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trueup.analysis.totals import split_repeated
from trueup.checkpoint.folder import best_of, folder_name, read_manifest, steps, verified
from trueup.schema import RunRecord
from trueup.store.run_folder import RunParts, read_run_parts

RECIPE = """\
name: tiny
model: {path: tiny}
data: {source: DATA, max_length: 96, split: {validation: 0.2, test: 0.1}}
tune: {rank: 4, dropout: 0.2}
precision: {policy: fp32}
shapes: {tokens_per_microbatch: 96, strategy: pack}
compile: {mode: none}
train: {max_steps: 12, epochs: 10, tokens_per_step: 288}
evaluate: {every: 3, max_tokens: 300}
checkpoint: {every: 2}
price: {usd_per_hour: 3.6, source: a test}
"""
OF_THE_CLOCK = ("training_s", "last_evaluation_s")  # parts of a tally that no two runs have alike
PATIENCE_S = 120


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


class ForkServer:
    """See fork_server.py. `template` is a home with model and data prepared, and no run."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="trueup-survivors-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self.recipe, self.template = self.folder / "tiny.yaml", self.folder / "template"
        data = self.folder / "records.jsonl"
        data.write_text("".join(json.dumps(_record(n)) + "\n" for n in range(60)))
        self.recipe.write_text(RECIPE.replace("DATA", str(data)))
        here = Path(__file__).parent
        paths = [str(here), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, str(here / "fork_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"},
        )
        atexit.register(self._close)
        self.template.mkdir()
        first = self.run("train", self.recipe, home=self.template, modules=str(self.folder / "modules.json"))
        assert first.code == 0, first.err
        shutil.rmtree(self.template / "runs")
        (self.template / "trueup.sqlite").unlink()

    def run(self, *arguments: str | Path, home: Path, **request: Any) -> Done:
        out, err = self.folder / "out", self.folder / "err"
        environment = {"TRUEUP_HOME": str(home), "HF_HUB_OFFLINE": "1", **request.pop("env", {})}
        argv = [str(one) for one in arguments]
        asked = {"argv": argv, "env": environment, "out": str(out), "err": str(err), **request}
        code = self._ask(asked)
        return Done(code, out.read_text(), err.read_text())

    @contextmanager
    def running(self, *arguments: str | Path, home: Path) -> Iterator[None]:
        """A command beside others, killed in the end."""
        argv = [str(one) for one in arguments]
        environment = {"TRUEUP_HOME": str(home), "HF_HUB_OFFLINE": "1"}
        asked = {"argv": argv, "env": environment, "out": os.devnull, "err": os.devnull}
        pid = self._ask({**asked, "background": True})
        try:
            yield
        finally:
            assert self._ask({"kill": pid}) == -signal.SIGKILL

    def _ask(self, request: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(json.loads(self._process.stdout.readline()))

    def _close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()


def _record(n: int) -> dict[str, str]:
    return {"prompt": f"What is {n}?", "completion": " ".join(f"{n + k}" for k in range(1 + 7 * n % 19))}


@functools.cache
def server() -> ForkServer:
    """One for all tests."""
    return ForkServer()


class Runs:
    """Commands in a home of their own, on one recipe."""

    def __init__(self, folder: Path, *overrides: str, home: Path | None = None) -> None:
        self.server = server()
        self.overrides = [part for one in overrides for part in ("--set", one)]
        self.home, self.orders = home or folder / "home", folder / "orders"
        self.orders.mkdir(parents=True, exist_ok=True)
        if home is None:
            shutil.copytree(self.server.template, self.home, copy_function=os.link)

    def train(self, *arguments: str | Path, trouble: dict[str, Any] | None = None, **request: Any) -> Done:
        return self.command(
            "train",
            self.server.recipe,
            *self.overrides,
            *arguments,
            trouble={"order": str(self.orders), **(trouble or {})},
            **request,
        )

    def command(self, *arguments: str | Path, **request: Any) -> Done:
        done = self.server.run(*arguments, home=self.home, **request)
        assert "Traceback" not in done.err, done.err
        return done

    def document(self, *arguments: str) -> Any:
        """What a command prints with --json."""
        done = self.command(*arguments, "--json")
        assert done.code == 0, done.err
        return done.document

    @property
    def folders(self) -> list[Path]:
        """Run folders, by the time they were begun."""
        return sorted((self.home / "runs").iterdir(), key=lambda run: run.stat().st_ctime_ns)

    @property
    def only(self) -> Path:
        (folder,) = self.folders
        return folder

    def parts(self, run: Path | None = None) -> RunParts:
        return read_run_parts(run or self.only)

    def record(self, run: Path | None = None) -> RunRecord:
        return self.parts(run).record

    def checkpoints(self, run: Path | None = None) -> Path:
        return (run or self.only) / "checkpoints"

    def told(self, run: Path | None = None) -> Told:
        return Told.of(run or self.only, self.orders)


@dataclass(frozen=True)
class Told:
    """What a run computed, nothing of when or where. Two runs of one recipe are equal in this."""

    steps: dict[int, Any]
    evaluations: dict[int, Any]
    order: dict[int, Any]
    steps_per_epoch: int
    last: Any
    best: Any
    executions: list[int] = field(compare=False, default_factory=list)  # steps in the order they were done

    @classmethod
    def of(cls, run: Path, orders: Path) -> Told:
        record = read_run_parts(run).record
        assert record.header.state == "finished", record.header.reason
        order = orders / f"{run.name}.jsonl"
        lines = order.read_text().splitlines() if order.exists() else []
        rows = [(one["step"], one["rows"]) for one in map(json.loads, lines)]
        root = run / "checkpoints"
        best, plan = best_of(root), record.header.shape_plan
        assert plan is not None
        return cls(
            steps=_same_each_time([(one.step, _computed(one)) for one in record.steps]),
            evaluations=_same_each_time([(one.step, _computed(one)) for one in record.evaluations]),
            order=_same_each_time(rows),
            steps_per_epoch=plan.steps_per_epoch,
            last=_state_of(root / folder_name(steps(root)[-1])),
            best=None if best is None else (best[0].name, _tensors_of(best[0])),
            executions=[step for step, _ in rows],
        )


def _same_each_time(found: list[tuple[int, Any]]) -> dict[int, Any]:
    """By step; what was done again came out the same."""
    by_step: dict[int, Any] = {}
    for step, value in found:
        assert by_step.setdefault(step, value) == value, f"step {step} done again is another"
    return dict(sorted(by_step.items()))


def _computed(record: Any) -> dict[str, Any]:
    found = record.model_dump(mode="json")
    timed = ("start_s", "step_s", "data_wait_s", "communication_s", "at_s", "seconds", "labels")
    return {key: "nan" if value != value else value for key, value in found.items() if key not in timed}


def _tensors_of(checkpoint: Path) -> dict[str, str]:
    """Digest of each file of tensors."""
    verified(checkpoint)
    files = sorted(checkpoint.glob("*.safetensors"))
    assert [file.stem for file in files] == ["optimizer", "random", "weights"]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _state_of(checkpoint: Path) -> dict[str, Any]:
    manifest = read_manifest(checkpoint)
    state = {key: value for key, value in manifest.state.items() if key != "guard"}
    state["tally"] = {key: value for key, value in state["tally"].items() if key not in OF_THE_CLOCK}
    facts = (manifest.step, manifest.best_step, manifest.eval_loss)
    return {"state": state, "facts": facts, "tensors": _tensors_of(checkpoint)}


@functools.cache
def undisturbed(*overrides: str) -> Told:
    """A run that nothing happened to."""
    folder = Path(tempfile.mkdtemp(dir=server().folder))
    runs = Runs(folder, *overrides)
    done = runs.train()
    assert done.code == 0, done.err
    return runs.told()


def assert_whole(runs: Runs, run: Path | None = None) -> None:
    """A finished run's folder, its place in the database and its bill."""
    run = run or runs.only
    parts = runs.parts(run)
    record, header = parts.record, parts.record.header
    assert (header.state, header.id) == ("finished", run.name)
    assert not [event for event in record.events if event.kind == "warning"]
    _assert_partition(parts)
    root = runs.checkpoints(run)
    assert {path.name for path in root.iterdir() if path.suffix != ".left"} == {
        folder_name(step) for step in steps(root)
    }
    for step in steps(root):
        assert verified(root / folder_name(step)).origin.run == run.name

    shown = runs.document("runs", "show", run.name)
    assert (shown["state"], shown["wall_s"]) == ("finished", header.wall_s)
    stand, lost = split_repeated(record.steps)
    bill = runs.document("bill", run.name)
    lines = {line["name"]: line["seconds"] for line in bill["lines"]}
    assert math.isclose(math.fsum(lines.values()), header.wall_s or 0, rel_tol=1e-9)
    assert bill["useful_tokens"] == sum(step.useful_tokens for step in stand)
    assert math.isclose(lines["lost_work"], math.fsum(step.step_s for step in lost), abs_tol=1e-9)
    assert not [note for note in bill["notes"] if "no recorded span" in note]


def _assert_partition(parts: RunParts) -> None:
    """Each instant of the wall clock is one segment's, in the folder's own file."""
    end_s = 0.0
    for segment in sorted(parts.told, key=lambda segment: segment.start_s):
        assert segment.start_s == end_s, f"{segment.name} begins at {segment.start_s}, not {end_s}"
        end_s = segment.end_s
    assert end_s == parts.record.header.wall_s
