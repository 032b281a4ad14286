"""A run's folder on disk: records are appended as they happen, and no full disk stops the run.

Threads: any may emit. Emitting puts a line in memory; a flush, at least every second and at once for rare
records, writes what is held. A step therefore never waits for a slow disk while the sampler is flushing.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from trueup.files.whole import needs_another_place, prove_writable, replace_text
from trueup.schema import (
    Evaluation,
    Event,
    Frozen,
    InputError,
    Measurement,
    RequestResult,
    RunHeader,
    Sample,
    Segment,
    Step,
    StorageError,
)
from trueup.schema.run import (
    EVALUATIONS_FILE,
    EVENTS_FILE,
    HEADER_FILE,
    HEARTBEAT_EVERY_S,
    HEARTBEAT_FILE,
    MEASUREMENTS_FILE,
    REQUESTS_FILE,
    SAMPLES_FILE,
    SEGMENTS_FILE,
    STEPS_FILE,
)

from .line_file import LineFile

# Most precious first.
LINE_FILES = (STEPS_FILE, REQUESTS_FILE, EVALUATIONS_FILE, EVENTS_FILE, SEGMENTS_FILE, SAMPLES_FILE)
HOLD_AT_MOST_BYTES = 64 << 20
BATCH_LINES = 2048
PROBE_BYTES = 64 << 10  # what must fit when a run starts: enough for its header and first minute
MOST_PROBLEMS = 50


class RunFolder:
    """The sink that writes one folder.

    Making it raises StorageError when the disk is full and InputError when the place cannot be written.
    After that nothing raises: see `problems`. A folder that is there already is continued.
    """

    def __init__(self, path: Path, *, hold_at_most_bytes: int = HOLD_AT_MOST_BYTES) -> None:
        self.path = path
        self._limit_bytes = hold_at_most_bytes
        self._lock = threading.RLock()  # re-entrant: a signal handler may emit while its thread emits
        self._writing = threading.Lock()
        self._writer: int | None = None  # thread that writes now
        self._held: dict[str, list[str]] = {name: [] for name in LINE_FILES}
        self._held_bytes = 0
        self._documents: dict[str, str] = {}
        self._measured: dict[str, Measurement] = {}
        self._dropped: dict[str, int] = {}
        self._problems: list[str] = []
        self._failing_since: float | None = None
        self._flushed = time.monotonic()
        self._closed = False
        self.complete = False  # whether the folder holds the whole run; known once it is closed
        _create(path)
        self._files = {name: LineFile(path / name) for name in LINE_FILES}

    def header(self, header: RunHeader) -> None:
        """Also a sign of life. There must be none before the first header: until then the folder's record is
        that of the process before, and its end."""
        self._document(HEADER_FILE, header.model_dump_json(indent=2), beat=True)

    def measurements(self, measurements: dict[str, Measurement]) -> None:
        with self._lock:
            self._measured |= measurements
            rows = {name: m.model_dump(mode="json") for name, m in self._measured.items()}
        self._document(MEASUREMENTS_FILE, json.dumps(rows, indent=1))

    def segment(self, segment: Segment) -> None:
        self._line(SEGMENTS_FILE, segment)

    def step(self, step: Step) -> None:
        self._line(STEPS_FILE, step)

    def request(self, request: RequestResult) -> None:
        self._line(REQUESTS_FILE, request)

    def sample(self, sample: Sample) -> None:
        self._line(SAMPLES_FILE, sample)

    def event(self, event: Event) -> None:
        self._line(EVENTS_FILE, event, at_once=True)

    def evaluation(self, evaluation: Evaluation) -> None:
        self._line(EVALUATIONS_FILE, evaluation, at_once=True)

    def heartbeat(self) -> None:
        """Say that the run is alive, and write what is held, unless another thread is writing."""
        self._flush(wait=False, beat=True)

    def flush(self) -> None:
        """Write what is held now, after another thread that is writing."""
        self._flush(wait=True)

    def problems(self) -> list[str]:
        """What went wrong while writing, in order; empty if nothing did."""
        with self._lock:
            return list(self._problems)

    def close(self) -> None:
        """Write the rest; what the folder still cannot take goes into the system's temporary folder."""
        if self._closed:
            return
        self._flush(wait=True)
        self._closed = True
        if self._documents or any(self._held.values()):
            self._rescue()
        elif self._dropped or any(file.removed_bytes for file in self._files.values()):
            self._problem(f"{self.path} is incomplete: {self._losses()}")
        else:
            self.complete = True
        for file in self._files.values():
            file.close()

    def _line(self, name: str, record: Frozen, *, at_once: bool = False) -> None:
        line = record.model_dump_json() + "\n"
        with self._lock:
            if self._closed:
                self._problem(f"a record for {name} came after the run folder was closed and was not written")
                return
            self._held[name].append(line)
            self._held_bytes += len(line)
        full = self._held_bytes > self._limit_bytes
        failing = self._failing_since is not None
        if at_once or (full and not failing) or time.monotonic() - self._flushed > HEARTBEAT_EVERY_S:
            self._flush(wait=False)
        if full:
            self._shed(name)

    def _document(self, name: str, text: str, *, beat: bool = False) -> None:
        with self._lock:
            self._documents[name] = text
        self._flush(wait=True, beat=beat)

    def _shed(self, newest: str) -> None:
        """Memory is full: let go of the older half of the samples; without samples, of the newest line."""
        with self._lock:
            if self._held_bytes > self._limit_bytes:
                self._drop(newest)

    def _drop(self, newest: str) -> None:
        samples = self._held[SAMPLES_FILE]
        name, gone = (
            (SAMPLES_FILE, samples[: len(samples) // 2 + 1]) if samples else (newest, self._held[newest][-1:])
        )
        if samples:
            del samples[: len(gone)]
        else:
            del self._held[newest][-1:]
        self._held_bytes -= sum(map(len, gone))
        self._dropped[name] = self._dropped.get(name, 0) + len(gone)

    def _flush(self, *, wait: bool, beat: bool = False) -> None:
        if self._writer == threading.get_ident():  # a signal handler in the middle of this thread's own flush
            return
        if not self._writing.acquire(
            blocking=wait
        ):  # another thread is at it and takes these lines next time
            return
        try:
            self._writer = threading.get_ident()
            self._flushed = time.monotonic()
            whole = [self._write_held(name) for name in LINE_FILES]
            if beat:  # after the segments up to here, before a header that says it is running
                whole.append(self._attempt(HEARTBEAT_FILE, (self.path / HEARTBEAT_FILE).touch))
            whole += [self._write_document(name) for name in list(self._documents)]
            if all(whole):
                self._recovered()
        finally:
            self._writer = None
            self._writing.release()

    def _write_held(self, name: str) -> bool:
        """In batches, so that a disk that stays full costs little at each attempt."""
        while self._held[name]:
            if not self._write_batch(name):
                return False
        return True

    def _write_batch(self, name: str) -> bool:
        with self._lock:
            lines = self._held[name][:BATCH_LINES]
            del self._held[name][:BATCH_LINES]
        data = "".join(lines).encode()
        written = False
        try:
            written = self._attempt(name, lambda: self._files[name].append(data))
        finally:  # an interrupt must not lose them either
            with self._lock:
                if written:
                    self._held_bytes -= sum(map(len, lines))
                else:
                    self._held[name][:0] = lines
        return written

    def _write_document(self, name: str) -> bool:
        text = self._documents[name]
        if not self._attempt(name, lambda: replace_text(self.path / name, text)):
            return False
        with self._lock:
            if self._documents.get(name) is text:  # not replaced by a newer one meanwhile
                del self._documents[name]
        return True

    def _attempt(self, name: str, write: Callable[[], None]) -> bool:
        try:
            write()
        except OSError as error:
            if self._failing_since is None:
                self._failing_since = time.monotonic()
                why = error.strerror or str(error)
                self._problem(
                    f"cannot write {self.path / name}: {why}; keeping records in memory and trying again"
                )
            return False
        return True

    def _recovered(self) -> None:
        if self._failing_since is None:
            return
        seconds = time.monotonic() - self._failing_since
        self._failing_since = None
        self._problem(f"{self.path} can be written again after {seconds:.0f} s; {self._losses()}")

    def _losses(self) -> str:
        dropped = [f"{n} lines of {name}" for name, n in self._dropped.items()]
        removed = [name for name, file in self._files.items() if file.removed_bytes]
        losses = [f"memory ran out and dropped {', '.join(dropped)}"] if dropped else []
        losses += [f"what had been written to {', '.join(removed)} was removed by others"] if removed else []
        return "; ".join(losses) or "nothing was lost"

    def _rescue(self) -> None:
        try:
            folder = Path(tempfile.mkdtemp(prefix=f"trueup-{self.path.name}-"))
            for name, lines in self._held.items():
                if lines:
                    (folder / name).write_text("".join(lines), encoding="utf-8")
            for name, text in self._documents.items():
                (folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            left = ", ".join(f"{len(lines)} lines of {name}" for name, lines in self._held.items() if lines)
            self._problem(
                f"neither {self.path} nor a temporary folder could be written ({error}); lost: {left}"
            )
            return
        self._problem(
            f"{self.path} could not be written to the end; the rest is in {folder}: append its .jsonl files "
            f"to those of the same name and copy its .json files over; {self._losses()}"
        )

    def _problem(self, message: str) -> None:
        with self._lock:
            if len(self._problems) < MOST_PROBLEMS:
                self._problems.append(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z {message}")


def _create(path: Path) -> None:
    """Make the folder and show that it can be written, before the run has cost anything."""
    existed = path.is_dir()
    try:
        prove_writable(path, PROBE_BYTES)
    except OSError as error:
        if not existed:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise _creation_error(path, error) from error


def _creation_error(path: Path, error: OSError) -> StorageError | InputError:
    why = error.strerror or str(error)
    if needs_another_place(error):
        return InputError(
            f"cannot make the run folder {path}: {why}. Set TRUEUP_HOME to a folder that can be written."
        )
    return StorageError(
        f"cannot make the run folder {path}: {why}. A run needs room for its records: free some space, or "
        "set TRUEUP_HOME to another disk."
    )
