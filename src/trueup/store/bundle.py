"""Carries one run between machines: a zip of JSON and Parquet, with a digest of every entry.

Nothing in a bundle is trusted on the way in: names, sizes, digests, types and sums are checked before the
first byte is kept, and a bundle that fails leaves nothing behind. It holds no absolute path of the machine
that made it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trueup.files.whole import new_beside, put_in_place, replacing_file
from trueup.schema import InputError, RunRecord, Segment, StorageError, TrueupError
from trueup.schema.measurement import Frozen
from trueup.schema.run import (
    EVALUATIONS_FILE,
    EVENTS_FILE,
    HEADER_FILE,
    MEASUREMENTS_FILE,
    REQUESTS_FILE,
    SAMPLES_FILE,
    SEGMENTS_FILE,
    STEPS_FILE,
)

from .bundle_format import pack, read_entries, unpack
from .repository import IMPORTED_FILE, RUNS_FOLDER, Store
from .run_folder import RunParts, read_run_parts
from .scrub import Scrubber

_EPOCH = (1980, 1, 1, 0, 0, 0)  # a zip knows no earlier time; a fixed one makes bundles reproducible


class ImportedRun(Frozen):
    """The run a bundle held. `already_here`: the same run was in this home before; nothing was changed."""

    run_id: str
    already_here: bool


def bundled(text: str) -> list[RunRecord] | None:
    """The run of a bundle, or of every bundle in a folder; nothing is imported. None where the text names
    neither."""
    path = Path(text)
    files = [path] if path.suffix == ".zip" else _zips_in(path) if path.is_dir() else []
    return [unpack(read_entries(file)).record for file in files] or None


def bundles_in(folder: Path) -> list[Path]:
    """The bundles of a folder, by name. InputError where it has none, with the way for a run folder."""
    if files := _zips_in(folder):
        return files
    if (folder / HEADER_FILE).exists():
        raise InputError(
            f"{folder} is a run folder, not a bundle: copy it into runs/ of TRUEUP_HOME, or write a bundle "
            "with `trueup runs export` where it was made"
        )
    raise InputError(f"{folder} holds no bundle (*.zip) that `trueup runs export` wrote")


def _zips_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.zip"))


def export_run(home: Path, run_id: str, out: Path) -> Path:
    """Writes the run as a bundle to `out` and returns `out`. InputError if its folder is gone, it has not
    ended, or `out` cannot be a file there; StorageError if the disk refuses."""
    folder = home / RUNS_FOLDER / run_id
    if not (folder / HEADER_FILE).exists():
        raise InputError(f"the run folder {folder} is gone: a run is exported from its folder")
    parts = read_run_parts(folder)
    if parts.record.header.state == "running":
        raise InputError(f"run {run_id} is still running; export it when it has ended")
    parts = _scrubbed(parts, Scrubber(home.absolute()))
    _refuse_absolute_paths(_content(parts))
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise InputError(f"{out} cannot be written: give the name of a file in a folder that exists")
    entries = pack(parts)
    with (
        _explained(out),
        replacing_file(out) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as bundle,
    ):
        for name, raw in entries.items():
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type, info.create_system, info.external_attr = zipfile.ZIP_DEFLATED, 3, 0o644 << 16
            bundle.writestr(info, raw)
    return out


def import_run(home: Path, zip_path: Path) -> ImportedRun:
    """Brings the run of a bundle into a home. InputError, with nothing left behind, if anything in the bundle
    is not as it should be or another run has its id."""
    parts = unpack(read_entries(zip_path))
    run_id = parts.record.header.id
    folder = home / RUNS_FOLDER / run_id
    with Store.open(home) as store:
        if store.read_only:
            raise StorageError(f"TRUEUP_HOME ({home}) cannot be written; set it to a folder that can")
        if folder.exists():
            _refuse_another(folder, parts, Scrubber(home.absolute()))
            store.ingest(folder)
            return ImportedRun(run_id=run_id, already_here=True)
        _write_run_folder(folder, parts, zip_path.name)
        try:
            store.ingest(folder)
        except InputError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return ImportedRun(run_id=run_id, already_here=False)


def _refuse_another(folder: Path, incoming: RunParts, scrubber: Scrubber) -> None:
    here = read_run_parts(folder)
    if _text(_scrubbed(here, scrubber)) != _text(_scrubbed(incoming, scrubber)):
        raise InputError(
            f"another run with the id {here.record.header.id} is here already "
            f"({here.record.header.name}, started {here.record.header.started_at}); nothing was imported"
        )


def _write_run_folder(folder: Path, parts: RunParts, source: str) -> None:
    """The folder as if the run had been made here, complete before it gets its name."""
    record = parts.record
    series: dict[str, tuple[Frozen, ...]] = {
        SEGMENTS_FILE: parts.segments,
        EVENTS_FILE: record.events,
        STEPS_FILE: record.steps,
        EVALUATIONS_FILE: record.evaluations,
        SAMPLES_FILE: record.samples,
    }
    if record.kind == "load":
        series[REQUESTS_FILE] = record.requests
    measured = {name: measurement.model_dump() for name, measurement in record.measurements.items()}
    imported = {"imported_at": datetime.now(UTC).isoformat(timespec="seconds"), "from": source}
    temporary = new_beside(folder)
    try:
        temporary.mkdir(parents=True)
        for name, items in series.items():
            lines = (json.dumps(item.model_dump(), ensure_ascii=False) + "\n" for item in items)
            (temporary / name).write_text("".join(lines), encoding="utf-8")
        _write_json(temporary / MEASUREMENTS_FILE, measured)
        _write_json(temporary / IMPORTED_FILE, imported)
        _write_json(temporary / HEADER_FILE, record.header.model_dump())
        put_in_place(temporary, folder, replace=False)
    except OSError as error:
        raise StorageError(
            f"the run could not be written under TRUEUP_HOME ({folder.parent}): {error.strerror}; "
            "nothing was kept. Free some space or set TRUEUP_HOME to another folder, and import again."
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


@contextmanager
def _explained(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{out} could not be written: {error.strerror}; the run is unharmed. Free some space, or name "
            "another file with -o"
        ) from None


def _scrubbed(parts: RunParts, scrubber: Scrubber) -> RunParts:
    record = RunRecord.model_validate(scrubber.value(parts.record.model_dump(exclude={"samples"})))
    segments = tuple(
        Segment.model_validate(scrubber.value(segment.model_dump())) for segment in parts.segments
    )
    # Samples are numbers under sensor names: nothing to scrub, and there are many.
    return RunParts(record.model_copy(update={"samples": parts.record.samples}), segments)


def _content(parts: RunParts) -> dict[str, Any]:
    return {**parts.record.model_dump(), "segments": [segment.model_dump() for segment in parts.segments]}


def _text(parts: RunParts) -> str:
    return json.dumps(_content(parts), sort_keys=True)


def _refuse_absolute_paths(value: Any, where: str = "run") -> None:
    """A last look, by other means than the scrubber's: no word of any string is a path of this machine."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _refuse_absolute_paths(key, where)
            _refuse_absolute_paths(inner, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for inner in value:
            _refuse_absolute_paths(inner, where)
    elif isinstance(value, str) and "/" in value:
        for word in re.split(r"[\s'\"=,:;()<>\[\]{}|`]+", value):
            first = word[1:].split("/", 1)[0]
            if word.startswith("/") and first and os.path.lexists(f"/{first}"):
                raise TrueupError(
                    f"{where} still holds a path of this machine ({word}); nothing was exported"
                )
