"""Reads a run folder: the files a run appends to as it happens, whole or cut off by a crash.

A folder may end in mid-line and may lack any file but run.json. A run that says "running" and whose process
is gone is returned as interrupted, with the wall clock up to the last instant known of it and every stretch
that no segment claims under the span `other`, so that its spans partition its wall clock like anyone's.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from trueup.schema import (
    Evaluation,
    Event,
    InputError,
    Measurement,
    RequestResult,
    RunHeader,
    RunRecord,
    Sample,
    Segment,
    SpanName,
    SpanTotal,
    Step,
)
from trueup.schema.counting import counted
from trueup.schema.measurement import Frozen
from trueup.schema.run import (
    CHECKPOINTS_FOLDER,
    EVALUATIONS_FILE,
    EVENTS_FILE,
    HEADER_FILE,
    HEARTBEAT_STALE_S,
    MEASUREMENTS_FILE,
    REQUESTS_FILE,
    SAMPLES_FILE,
    SEGMENTS_FILE,
    STEPS_FILE,
)

from .liveness import changed_at, last_beat, parse_instant, why_stopped

FORMAT = 1  # newest RunHeader.format this code reads
TAIL_BYTES = 65536  # enough of a samples file to hold its last whole line

Line = TypeVar("Line", bound=Frozen)


@dataclass(frozen=True)
class RunParts:
    """A run folder's whole content: the record, the segments its span totals are made of, and those of them
    that are in the folder's file."""

    record: RunRecord
    segments: tuple[Segment, ...]
    told: tuple[Segment, ...] = ()


def read_run_folder(path: Path, *, samples: bool = True) -> RunRecord:
    """The run kept in `path`. Raises InputError if there is no readable run.json, or if a file is there and
    cannot be read."""
    return read_run_parts(path, samples=samples).record


def read_run_parts(path: Path, *, samples: bool = True) -> RunParts:
    """As `read_run_folder`, with the segments."""
    header = read_header(path)
    stopped = why_stopped(path, header) if header.state == "running" else None
    if stopped:
        # The run may have ended properly between the two looks; what it wrote last counts.
        header = read_header(path)
        stopped = stopped if header.state == "running" else None
    damage: dict[str, int] = {}
    told = segments = _read_lines(path / SEGMENTS_FILE, Segment, damage)
    record = RunRecord(
        header=header,
        events=_read_lines(path / EVENTS_FILE, Event, damage),
        steps=_read_lines(path / STEPS_FILE, Step, damage),
        evaluations=_read_lines(path / EVALUATIONS_FILE, Evaluation, damage),
        measurements=_read_measurements(path / MEASUREMENTS_FILE, damage),
        samples=_read_lines(path / SAMPLES_FILE, Sample, damage) if samples else (),
        requests=_read_lines(path / REQUESTS_FILE, RequestResult, damage),
    )
    if stopped or (header.state != "running" and header.wall_s is None):
        wall_s = _last_instant(path, record, segments)
        segments = _fill_holes(segments, wall_s)
        header = _closed(header, wall_s, stopped and f"{stopped}; {_how_far(path, record)}")
    changes: dict[str, Any] = {"header": header, "spans": span_totals(segments)}
    if damage:
        changes["events"] = (*record.events, _damage_event(damage, header.wall_s))
    return RunParts(record.model_copy(update=changes), segments, told)


def span_totals(segments: Iterable[Segment]) -> tuple[SpanTotal, ...]:
    """Seconds and number of visits per span name, in order of first appearance."""
    seconds: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    for segment in segments:
        seconds.setdefault(segment.name, []).append(segment.end_s - segment.start_s)
        counts[segment.name] = counts.get(segment.name, 0) + segment.opens
    return tuple(
        SpanTotal(name=name, seconds=math.fsum(parts), count=counts[name]) for name, parts in seconds.items()
    )


def read_header(path: Path) -> RunHeader:
    """run.json of a run folder. InputError if missing, unreadable as a header, or of a newer format."""
    file = path / HEADER_FILE
    raw = _read_bytes(file)
    if raw is None:
        raise InputError(f"{path} is not a run folder: it has no {HEADER_FILE}")
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not readable JSON: {error}") from None
    newest = fields.get("format", FORMAT) if isinstance(fields, dict) else FORMAT
    if isinstance(newest, int) and newest > FORMAT:
        raise InputError(
            f"{file} has format {newest}; this trueup reads up to {FORMAT}: update trueup to read this run"
        )
    try:
        return RunHeader.model_validate_json(raw)
    except ValidationError as error:
        raise InputError(f"{file} is not a run's header: {first_problem(error)}") from None


def first_problem(error: ValidationError) -> str:
    """The first complaint of a validation, on one line."""
    problem = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])


def _read_bytes(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None


def _read_lines(file: Path, model: type[Line], damage: dict[str, int]) -> tuple[Line, ...]:
    """Every whole record of a JSONL file. The torn end that a killed run leaves is dropped; other unreadable
    lines are counted in `damage` under the file's name."""
    raw = _read_bytes(file)
    if not raw:
        return ()
    lines = raw.split(b"\n")
    torn = lines.pop()  # empty when the file ends in a newline
    read = [(line, _parse(line, model)) for line in lines if line.strip()]
    found = [item for _, item in read if item is not None]
    if len(found) < len(read):
        damage[file.name] = len(read) - len(found)
    last = _parse(torn, model) if torn.strip() else None
    return (*found, last) if last is not None else tuple(found)


def _parse(line: bytes, model: type[Line]) -> Line | None:
    try:
        return model.model_validate_json(line)
    except ValidationError:
        pass
    # JSON has no NaN; some writers put null where training diverged. A diverged loss is a fact, not damage.
    nullable = {Step: ("loss", "grad_norm"), Evaluation: ("loss", "perplexity")}.get(model, ())
    try:
        fields = json.loads(line) if nullable else None
        if not isinstance(fields, dict) or all(fields.get(name, 0) is not None for name in nullable):
            return None
        return model.model_validate({**fields, **{n: math.nan for n in nullable if fields.get(n) is None}})
    except (ValueError, RecursionError):
        return None


def _read_measurements(file: Path, damage: dict[str, int]) -> dict[str, Measurement]:
    raw = _read_bytes(file)
    if not raw:
        return {}
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        damage[file.name] = 1
        return {}
    found: dict[str, Measurement] = {}
    for name, value in fields.items():
        try:
            found[name] = Measurement.model_validate(value)
        except ValidationError:
            damage[file.name] = damage.get(file.name, 0) + 1
    return found


def _damage_event(damage: dict[str, int], wall_s: float | None) -> Event:
    what = ", ".join(f"{count} of {file}" for file, count in sorted(damage.items()))
    return Event(
        at_s=wall_s or 0.0,
        kind="warning",
        message=f"unreadable records were left out: {what}",
        data={"unreadable": dict(sorted(damage.items()))},
    )


def _last_sample(file: Path) -> Sample | None:
    """The last whole sample, found from the end: a long run's samples file is large."""
    try:
        with file.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - TAIL_BYTES))
            lines = stream.read().split(b"\n")
    except OSError:
        return None
    return next((sample for line in reversed(lines) if (sample := _parse(line, Sample))), None)


def _last_instant(path: Path, record: RunRecord, segments: Iterable[Segment]) -> float:
    """Seconds from the run's origin to the last thing known of it."""
    known = [0.0, *(segment.end_s for segment in segments), *(event.at_s for event in record.events)]
    known += [step.start_s + step.step_s for step in record.steps]
    known += [evaluation.at_s for evaluation in record.evaluations]
    known += [request.done_s for request in record.requests]
    sample = record.samples[-1] if record.samples else _last_sample(path / SAMPLES_FILE)
    if sample:
        known.append(sample.at_s)
    told = max(instant for instant in known if math.isfinite(instant))
    origin = parse_instant(record.header.started_at)
    beat, header_written = last_beat(path), changed_at(path / HEADER_FILE)
    if not (beat and origin and header_written):
        return told
    # A running run writes run.json before its last records. Where the file is newer than all they tell, the
    # folder is a copy with the times of the copying, which would put days on the bill.
    copied = (header_written - origin).total_seconds() > told + HEARTBEAT_STALE_S
    return told if copied else max(told, (beat - origin).total_seconds())


def _fill_holes(segments: tuple[Segment, ...], wall_s: float) -> tuple[Segment, ...]:
    """The segments in time order, and `other` wherever none of them claims the clock up to `wall_s`."""
    filled: list[Segment] = []
    cursor = 0.0
    for segment in sorted(segments, key=lambda segment: segment.start_s):
        if segment.start_s > cursor:
            filled.append(Segment(name=SpanName.OTHER, start_s=cursor, end_s=segment.start_s))
        filled.append(segment)
        cursor = max(cursor, segment.end_s)
    if wall_s > cursor:
        filled.append(Segment(name=SpanName.OTHER, start_s=cursor, end_s=wall_s))
    return tuple(filled)


def _how_far(path: Path, record: RunRecord) -> str:
    """The last step, and how to go on where the run has saved itself; of a load run, how many requests."""
    if record.kind == "load":
        return f"after {counted(sum(not one.warm_up for one in record.requests), 'request')}"
    last = f"after step {record.steps[-1].step}" if record.steps else "before the first step"
    try:
        saved = any(name.isdigit() for name in os.listdir(path / CHECKPOINTS_FOLDER))
    except OSError:
        saved = False
    return f"{last}; go on: {_again(record)}" if saved else last


def _again(record: RunRecord) -> str:
    """The command that goes on, as a shell takes it: the one that began the run, where one did."""
    process = record.header.environment.get("process")
    argv = process.get("argv") if isinstance(process, dict) else None
    given = ["RECIPE"]
    if isinstance(argv, list) and argv[1:2] == ["train"]:
        given = [str(word) for word in argv[2:]]
    resumed = [at for at, word in enumerate(given) if word.partition("=")[0] == "--resume"]
    for at in reversed(resumed):
        del given[at : at + (1 if "=" in given[at] else 2)]
    return shlex.join(["trueup", "train", *given, "--resume", record.header.id])


def _closed(header: RunHeader, wall_s: float, stopped: str | None) -> RunHeader:
    """The header a run would have written had it lived to."""
    origin = parse_instant(header.started_at)
    ended = (origin + timedelta(seconds=wall_s)).isoformat() if origin else None
    changes: dict[str, Any] = {"wall_s": wall_s, "ended_at": header.ended_at or ended}
    if stopped:
        changes |= {"state": "interrupted", "reason": stopped}
    return header.model_copy(update=changes)
