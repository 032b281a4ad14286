"""What the quality gate said of a quantised folder, kept in it. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from trueup.files.whole import put_in_place, read_json_object, replace_text
from trueup.schema import InputError, TrueupError
from trueup.schema.quality import QUALITY_FILE, QUALITY_FORMAT, QualityRecord

from .folder import digest_of

REFUSED = ".refused"  # behind the name of a folder that is kept aside


class RefusedQualityError(TrueupError):
    """The quality gate refused this model, or never saw it as it is."""


def write_quality(folder: Path, record: QualityRecord) -> None:
    replace_text(folder / QUALITY_FILE, record.model_dump_json(indent=1) + "\n")


def read_quality(folder: Path) -> QualityRecord | None:
    """None where there is none. Raises InputError for a file that cannot be read."""
    path = folder / QUALITY_FILE
    if not path.is_file():
        return None
    try:
        content = read_json_object(path)
        if content.get("format") != QUALITY_FORMAT:
            raise ValueError(f"format {content.get('format')}, not {QUALITY_FORMAT}")
        return QualityRecord.model_validate(content)
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: cannot be read ({error}); quantise the original again") from None


def require_accepted(folder: Path) -> QualityRecord:
    """Before a quantised folder is served. Raises RefusedQualityError where the gate refused it, where it
    never judged it, and where the weights are others than those it judged."""
    record = read_quality(folder)
    if record is None:
        raise RefusedQualityError(
            f"{folder}: quantised, and no {QUALITY_FILE} says that its answers are the original's; quantise "
            "the original with `trueup quantize`, which judges it"
        )
    if record.weights_digest != digest_of(folder):
        raise RefusedQualityError(
            f"{folder}: its weights are not those that {QUALITY_FILE} was written of; quantise the original "
            "again"
        )
    if record.verdict == "refused":
        raise RefusedQualityError(
            f"{folder}: the quality gate refused this model: {'; '.join(record.reasons)}. Quantise the "
            "original with more bits, smaller groups or --method gptq"
        )
    return record


def kept_aside(folder: Path) -> Path:
    """Moves a refused folder to its name and `.refused`, where an older refused one of ours makes way. Raises
    InputError where something else has that name."""
    aside = folder.with_name(folder.name + REFUSED)
    older = read_quality(aside) if aside.is_dir() else None
    if aside.exists() and older is None:
        raise InputError(
            f"{aside}: exists, and a refused model was to be kept there; it is in {folder}, and its "
            f"{QUALITY_FILE} says that it is refused"
        )
    put_in_place(folder, aside, replace=True)
    return aside
