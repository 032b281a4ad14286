"""Disturbs a run from outside, within its process: nothing in the product knows of it.

`arm` replaces functions that the run calls. What can be asked for, all of it optional:

order: a folder; each step's examples are written there as RUN_ID.jsonl.
kill: {point, at, when}: SIGKILL before, in the middle of, or after the at-th call of `point`.
count: a file; in the end the number of calls of each point is written there.
raise_in: the number of a step that is not done: an exception comes in its place.
interrupt_after: the number of a step after which SIGTERM has come; interrupt_in_evaluation: the same, in the
    middle of the evaluation after it.
interrupt_twice_in: the number of a step in which SIGINT comes twice.
not_finite: numbers of steps whose loss is no number.
interrupt_in_load: SIGTERM comes while the model is loaded.
compile_only: the name of a layer's part that is compiled in the layer's place: seconds, not a minute.
hostname: what this machine calls itself.
ranks_saved: the number of processes that the checkpoint is said to be of.
commands_after: {step: argv}: programs that are run after steps, when what was being saved is saved.
unwritable: [first, after]: from this step until that one, files that are open already refuse what is
    written too, as they do when a disk turns read-only under a program; a mount alone does not do that.
lock_timeout_s: how long the store waits for the database.
cache_counters: a file; in the end torch's counters of its compiler's caches are written there.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import json
import math
import os
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

POINTS = ("write", "open", "fsync", "rename", "unlink", "save_file", "commit", "upload")
_write, _open, _getpid, _kill = os.write, os.open, os.getpid, os.kill


class Counted:
    """Calls by point, of all threads; kills this process at the one that is asked for."""

    def __init__(self, kill: dict[str, Any] | None) -> None:
        self.calls: Counter[str] = Counter()
        self._kill = kill
        self._lock = threading.Lock()

    def begins(self, point: str) -> str | None:
        """When to die in this call: before, middle, after; None: not in this one."""
        with self._lock:
            self.calls[point] += 1
            if self._kill is None or (point, self.calls[point]) != (self._kill["point"], self._kill["at"]):
                return None
        return str(self._kill["when"])


def die() -> None:
    _kill(_getpid(), signal.SIGKILL)


def arm(asked: dict[str, Any]) -> Callable[[], None]:
    """Returns what is to be called in the end."""
    counted = Counted(asked.get("kill"))
    _make_cheap(asked.get("lock_timeout_s", 10.0))
    if asked.get("kill") or asked.get("count"):
        _count_calls(counted)
    _disturb_steps(asked)
    _disturb_the_start(asked)

    def end() -> None:
        if "count" in asked:
            Path(asked["count"]).write_text(json.dumps(counted.calls))
        if "cache_counters" in asked:
            from torch._dynamo.utils import counters

            found = {**counters["inductor"], **counters["aot_autograd"]}
            of_caches = {name: count for name, count in found.items() if "cache_" in name}
            Path(asked["cache_counters"]).write_text(json.dumps(of_caches))

    return end


def _make_cheap(lock_timeout_s: float) -> None:
    """Measurements that no test here looks at."""
    import trueup.telemetry.environment
    import trueup.train.session
    from trueup.store import Store

    trueup.train.session.CEILING_BUDGET_S = 0.001
    trueup.train.session.BUSY_NEIGHBOURS = 1.0
    trueup.telemetry.environment.LOOK_S = 0.02
    trueup.telemetry.environment.PACKAGES = ("torch",)
    trueup.telemetry.environment.commit_of = lambda file: {"reason": "not looked for"}
    Store.open.__func__.__kwdefaults__["lock_timeout_s"] = lock_timeout_s  # type: ignore[attr-defined]


def _count_calls(counted: Counted) -> None:
    def around(point: str, call: Callable[..., Any], half: Callable[..., None] | None = None) -> Any:
        @functools.wraps(call)
        def disturbed(*arguments: Any, **named: Any) -> Any:
            when = counted.begins(point)
            if when == "before":
                die()
            if when == "middle":
                if half is not None:
                    half(*arguments, **named)
                die()
            try:
                return call(*arguments, **named)
            finally:
                if when == "after":
                    die()

        return disturbed

    def half_written(handle: int, data: Any) -> None:
        _write(handle, bytes(data)[: len(data) // 2])

    def half_saved(tensors: Any, path: Path, **named: Any) -> None:
        save_file(tensors, path, **named)
        raw = Path(path).read_bytes()
        handle = _open(path, os.O_WRONLY | os.O_TRUNC)
        _write(handle, raw[: len(raw) // 2])

    def half_uploaded(self: Any, local: Path, path: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        raw = Path(local).read_bytes()
        handle = _open(new_beside(Path(path)), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        _write(handle, raw[: len(raw) // 2])

    import safetensors.torch
    from fsspec.implementations.local import LocalFileSystem

    import trueup.store.database
    import trueup.store.migrate
    from trueup.checkpoint.remote_files import RemoteFiles
    from trueup.files.whole import new_beside

    save_file, plain_open = safetensors.torch.save_file, builtins.open
    safetensors.torch.save_file = around("save_file", save_file, half_saved)
    os.write = around("write", os.write, half_written)
    os.fsync = around("fsync", os.fsync)
    for name in ("rename", "replace"):
        setattr(os, name, around("rename", getattr(os, name)))
    for name in ("unlink", "remove", "rmdir"):
        setattr(os, name, around("unlink", getattr(os, name)))
    committed = around("commit", trueup.store.database.commit)
    trueup.store.database.commit = trueup.store.migrate.commit = committed
    RemoteFiles._put_once = around("upload", RemoteFiles._put_once, half_uploaded)  # type: ignore[method-assign]
    LocalFileSystem.rm_file = around("upload", LocalFileSystem.rm_file)

    def opened(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if mode.startswith("r") and "+" not in mode:
            return plain_open(file, mode, *arguments, **named)
        return around("open", plain_open)(file, mode, *arguments, **named)

    io.open = builtins.open = opened  # type: ignore[assignment]
    shutil.copyfile = around("open", shutil.copyfile)


def _disturb_steps(asked: dict[str, Any]) -> None:
    import trueup.train.evaluate as evaluation
    import trueup.train.loop as loop
    import trueup.train.stepper as stepper
    from trueup.train.recovery import Recovery

    do_step, record, look = Recovery.step, loop._record, loop._look
    now, unwritable = 0, False
    write_now = os.write

    def write(handle: int, data: Any) -> int:
        if unwritable and handle > 2:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return write_now(handle, data)

    def step(self: Any, session: Any, planned: Any, batch: Any, lr: float, *, step: int) -> Any:
        nonlocal now
        now = step
        if "order" in asked:
            line = json.dumps({"step": step, "rows": [one.rows for one in planned]}) + "\n"
            file = Path(asked["order"]) / f"{session.run_folder.name}.jsonl"
            handle = _open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            _write(handle, line.encode())
            os.close(handle)
        if asked.get("raise_in") == step:
            raise RuntimeError("the machine fell over")
        if asked.get("interrupt_twice_in") == step:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return do_step(self, session, planned, batch, lr, step=step)

    def recorded(running: Any, *arguments: Any, **named: Any) -> Any:
        found = record(running, *arguments, **named)
        if asked.get("interrupt_after") == running.tally.step:
            os.kill(os.getpid(), signal.SIGTERM)
        return found

    def looked(running: Any) -> Any:
        nonlocal unwritable
        first, after = asked.get("unwritable", (0, 0))
        unwritable = first <= running.tally.step < after
        if command := asked.get("commands_after", {}).get(str(running.tally.step)):
            running.saves.wait()
            subprocess.run(command, check=True)
        return look(running)

    def loss(session: Any, micro_batch: Any, phase: str) -> Any:
        found = loss_of(session, micro_batch, phase)
        if phase == "evaluation":
            if asked.get("interrupt_in_evaluation") == now:
                os.kill(os.getpid(), signal.SIGTERM)
            return found
        return found * math.nan if now in asked.get("not_finite", ()) else found

    loss_of = stepper.micro_batch_loss
    if "unwritable" in asked:
        os.write = write
    Recovery.step = step  # type: ignore[method-assign]
    loop._record, loop._look = recorded, looked
    stepper.micro_batch_loss = evaluation.micro_batch_loss = loss


def _disturb_the_start(asked: dict[str, Any]) -> None:
    import socket

    import trueup.model.compile
    import trueup.model.load
    import trueup.train.resume

    load_model, load_tensors = trueup.model.load.load_model, trueup.train.resume.load_tensors

    def interrupted(*arguments: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return load_model(*arguments, **named)

    def of_many(folder: Path, stem: str) -> Any:
        found = load_tensors(folder, stem)
        return {**found, "rank1": found["rank0"]} if stem == "random" else found

    if part := asked.get("compile_only"):
        layers = trueup.model.compile._layers
        trueup.model.compile._layers = lambda loaded, decoder: [
            layer.get_submodule(part) for layer in layers(loaded, decoder)
        ]
    if "hostname" in asked:
        socket.gethostname = lambda: str(asked["hostname"])
    if asked.get("interrupt_in_load"):
        trueup.model.load.load_model = interrupted
    if asked.get("ranks_saved") == 2:
        trueup.train.resume.load_tensors = of_many
