"""What is in a bundle: the entries of the zip, how a run becomes them, and what a reader insists on."""

from __future__ import annotations

import hashlib
import json
import math
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

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
    SpanTotal,
    Step,
)
from trueup.schema.measurement import Frozen

from .liveness import parse_instant
from .parquet import from_parquet, to_parquet
from .run_folder import FORMAT as RUN_FORMAT
from .run_folder import RunParts, first_problem, span_totals

FORMAT = 1
MAX_ENTRY_BYTES = 512 * 2**20
MAX_TOTAL_BYTES = 1024 * 2**20
MANIFEST = "manifest.json"
HEADER = "run.json"
MEASUREMENTS = "measurements.json"
SERIES: dict[str, type[Frozen]] = {
    "spans.parquet": SpanTotal,
    "segments.parquet": Segment,
    "events.parquet": Event,
    "steps.parquet": Step,
    "evaluations.parquet": Evaluation,
    "samples.parquet": Sample,
}
CONTENT = (HEADER, MEASUREMENTS, *SERIES)
REQUESTS = "requests.parquet"  # of a load run only: bundles of training runs stay as they were

RUN_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
WALL_TOLERANCE_S = 1e-3  # spans partition the wall clock this closely
SPAN_TOLERANCE_S = 1e-6

# Figures that may be NaN or infinite: a run that diverged says so with them. Every other number is finite.
_MAY_DIVERGE = {"loss", "grad_norm", "perplexity"}


class Entry(Frozen):
    sha256: str
    bytes: int


class Manifest(Frozen):
    kind: Literal["trueup run"] = "trueup run"
    format: int = FORMAT
    run_id: str
    trueup_version: str
    entries: dict[str, Entry]


def pack(parts: RunParts) -> dict[str, bytes]:
    """The zip's entries, manifest first. The same run gives the same bytes."""
    record = parts.record
    measured = {name: measurement.model_dump() for name, measurement in record.measurements.items()}
    content = {
        HEADER: _json(record.header.model_dump()),
        MEASUREMENTS: _json(measured),
        **{name: to_parquet(model, _series(parts, name)) for name, model in SERIES.items()},
    }
    if record.kind == "load":
        content[REQUESTS] = to_parquet(RequestResult, record.requests)
    entries = {
        name: Entry(sha256=hashlib.sha256(raw).hexdigest(), bytes=len(raw)) for name, raw in content.items()
    }
    header = record.header
    manifest = Manifest(run_id=header.id, trueup_version=header.trueup_version, entries=entries)
    return {MANIFEST: _json(manifest.model_dump()), **content}


def unpack(entries: Mapping[str, bytes]) -> RunParts:
    """The run in a bundle's entries, every check done. InputError for anything wrong."""
    manifest = _manifest(entries)
    for name in manifest.entries:
        told, raw = manifest.entries[name], entries[name]
        if told.bytes != len(raw) or told.sha256 != hashlib.sha256(raw).hexdigest():
            raise InputError(f"{name} in the bundle is not what its manifest says: it was damaged or changed")
    try:
        header = RunHeader.model_validate_json(entries[HEADER])
        adapter = TypeAdapter(dict[str, Measurement])
        measurements = adapter.validate_json(entries[MEASUREMENTS])
    except ValidationError as error:
        problem = f"{first_problem(error)} (trueup {manifest.trueup_version} wrote it)"
        raise InputError(f"the bundle's JSON is not a run's: {problem}") from None
    segments = from_parquet(Segment, entries["segments.parquet"], "segments.parquet")
    record = RunRecord(
        header=header,
        measurements=measurements,
        spans=from_parquet(SpanTotal, entries["spans.parquet"], "spans.parquet"),
        events=from_parquet(Event, entries["events.parquet"], "events.parquet"),
        steps=from_parquet(Step, entries["steps.parquet"], "steps.parquet"),
        evaluations=from_parquet(Evaluation, entries["evaluations.parquet"], "evaluations.parquet"),
        samples=from_parquet(Sample, entries["samples.parquet"], "samples.parquet"),
        requests=from_parquet(RequestResult, entries[REQUESTS], REQUESTS) if REQUESTS in entries else (),
    )
    _check_header(record.header, manifest)
    _check_finite(record, segments)
    _check_clock(record, segments)
    # Totals are kept as they follow from the segments, so that every reader of this run gets the same.
    return RunParts(record.model_copy(update={"spans": span_totals(segments)}), segments)


def read_entries(path: Path) -> dict[str, bytes]:
    """The entries of a bundle, their names and sizes checked before and while unpacking."""
    if path.exists() and not path.is_file():
        raise InputError(
            f"{path} cannot be read: it is not a file. Give the zip that `trueup runs export` wrote"
        )
    try:
        with zipfile.ZipFile(path) as bundle:
            _check_directory(bundle.infolist())
            return {info.filename: _read_entry(bundle, info) for info in bundle.infolist()}
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise InputError(f"{path} is not a readable bundle: {error}") from None


def _check_directory(infos: list[zipfile.ZipInfo]) -> None:
    names = [info.filename for info in infos]
    expected = {MANIFEST, *CONTENT}
    if unknown := sorted(set(names) - expected - {REQUESTS}):
        raise InputError(
            f"the bundle has entries that no run bundle has: {', '.join(map(repr, unknown[:5]))}; where a "
            "newer trueup wrote it, update this one"
        )
    if missing := sorted(expected - set(names)):
        raise InputError(f"the bundle lacks {', '.join(missing)}")
    if len(names) != len(set(names)):
        raise InputError("the bundle has an entry twice")
    largest, total = max(info.file_size for info in infos), sum(info.file_size for info in infos)
    if largest > MAX_ENTRY_BYTES or total > MAX_TOTAL_BYTES:
        raise InputError(
            f"the bundle unpacks to {total} bytes, its largest entry to {largest}; "
            f"at most {MAX_TOTAL_BYTES} and {MAX_ENTRY_BYTES} are read"
        )
    if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in infos):
        raise InputError("the bundle is compressed in a way that a run bundle never is")


def _read_entry(bundle: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """One entry, never more of it than its declared size: the declaration may lie."""
    with bundle.open(info) as stream:
        raw = stream.read(info.file_size + 1)
    if len(raw) != info.file_size:
        raise InputError(f"{info.filename} in the bundle unpacks to another size than declared")
    return raw


def _refuse_newer(entries: Mapping[str, bytes]) -> None:
    """Before what a newer trueup added is taken for damage."""
    for name, what, reads in ((MANIFEST, "the bundle", FORMAT), (HEADER, "the bundle's run", RUN_FORMAT)):
        try:
            fields = json.loads(entries[name])
        except (ValueError, RecursionError):
            continue  # said where it is read
        found = fields.get("format") if isinstance(fields, dict) else None
        if isinstance(found, int) and found > reads:
            raise InputError(
                f"{what} has format {found}; this trueup reads up to {reads}: update trueup to read it"
            )


def _manifest(entries: Mapping[str, bytes]) -> Manifest:
    _refuse_newer(entries)
    try:
        manifest = Manifest.model_validate_json(entries[MANIFEST])
    except ValidationError as error:
        raise InputError(f"the bundle's {MANIFEST} is not one: {first_problem(error)}") from None
    if manifest.format != FORMAT:
        raise InputError(f"the bundle has format {manifest.format}; this trueup reads {FORMAT}")
    if set(manifest.entries) != entries.keys() - {MANIFEST}:
        raise InputError(f"the bundle's {MANIFEST} does not list the entries of a run bundle")
    return manifest


def _check_header(header: RunHeader, manifest: Manifest) -> None:
    if not RUN_ID.fullmatch(header.id) or header.id != manifest.run_id:
        raise InputError(f"the bundle's run id is not valid: {header.id[:80]!r}")
    if any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in header.name):
        raise InputError(f"the run's name has control characters: {header.name[:80]!r}")
    if header.format != RUN_FORMAT:
        raise InputError(f"the bundle's run has format {header.format}; this trueup reads {RUN_FORMAT}")
    if header.state == "running" or header.wall_s is None:
        raise InputError("the bundle's run has not ended; only ended runs travel")
    if parse_instant(header.started_at) is None:
        raise InputError(f"the run's started_at is not an instant: {header.started_at[:80]!r}")


def _check_finite(record: RunRecord, segments: Iterable[Segment]) -> None:
    header = record.header
    numbers = {"wall_s": header.wall_s, "price": header.price.usd_per_hour if header.price else 0.0}
    items = [*segments, *record.spans, *record.events, *record.steps, *record.evaluations]
    items += record.requests
    bad = [name for name, value in numbers.items() if value is None or not math.isfinite(value)]
    for item in items:
        for name in type(item).model_fields.keys() - _MAY_DIVERGE:
            value = getattr(item, name)
            values = value if isinstance(value, tuple) else (value,)
            if any(isinstance(one, float) and not math.isfinite(one) for one in values):
                bad.append(f"{type(item).__name__.lower()}.{name}")
    for sample in record.samples:
        bad += [
            f"sample.{n}" for n, v in (*sample.values.items(), ("at_s", sample.at_s)) if not math.isfinite(v)
        ]
    for name, measurement in record.measurements.items():
        if not all(map(math.isfinite, measurement.ci or ())) or abs(measurement.n or 0) >= 2**63:
            bad.append(f"measurement {name}")
    if bad:
        raise InputError(f"the bundle has numbers that are not finite: {', '.join(sorted(set(bad))[:5])}")


def _check_clock(record: RunRecord, segments: Iterable[Segment]) -> None:
    if any(segment.start_s < 0 or segment.end_s < segment.start_s for segment in segments):
        raise InputError("the bundle has a segment that ends before it starts")
    told = {span.name: span for span in record.spans}
    made = {span.name: span for span in span_totals(segments)}
    for name in told.keys() | made.keys():
        one, other = told.get(name), made.get(name)
        same = one and other and math.isclose(one.seconds, other.seconds, abs_tol=SPAN_TOLERANCE_S)
        if not one or not other or not same or one.count != other.count:
            raise InputError(f"the bundle's span '{name}' is not the sum of its segments")
    wall_s = record.header.wall_s or 0.0
    total = math.fsum(span.seconds for span in made.values())
    if abs(total - wall_s) > WALL_TOLERANCE_S:
        raise InputError(f"the bundle's spans sum to {total:.6f} s, its wall clock is {wall_s:.6f} s")


def _series(parts: RunParts, name: str) -> tuple[Frozen, ...]:
    if name == "segments.parquet":
        return parts.segments
    series: tuple[Frozen, ...] = getattr(parts.record, name.removesuffix(".parquet"))
    return series


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n"
