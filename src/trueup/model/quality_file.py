"""What the quality gate said of a quantised folder, kept in it. Imports no torch.

The file has a checksum of itself, and one of the weights that were judged. They show an edit and a flipped
byte; whoever wants to deceive can compute them anew.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from trueup.files.whole import put_in_place, read_json_object, replace_text
from trueup.schema import InputError, TrueupError
from trueup.schema.quality import QUALITY_FILE, QUALITY_FORMAT, QualityRecord
from trueup.schema.quantization import FACTS_FILE

from .folder import weight_files

REFUSED = ".refused"  # behind the name of a folder that is kept aside


class RefusedQualityError(TrueupError):
    """The quality gate refused this model, or never saw it as it is."""


def judged_digest(folder: Path) -> str:
    """SHA-256 of every byte of a quantised folder's weights, of its config and of how they are stored."""
    digest = hashlib.sha256()
    said = [path for name in ("config.json", FACTS_FILE) if (path := folder / name).is_file()]
    for path in (*said, *weight_files(folder)):
        with path.open("rb") as file:
            digest.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def write_quality(folder: Path, record: QualityRecord) -> None:
    content = json.loads(record.model_dump_json())
    text = json.dumps({**content, "checksum": _checksum(content)}, indent=1, ensure_ascii=False)
    replace_text(folder / QUALITY_FILE, text + "\n")


def read_quality(folder: Path) -> QualityRecord | None:
    """None where there is none. Raises InputError for a file that cannot be read or was edited."""
    path = folder / QUALITY_FILE
    if not path.is_file():
        return None
    try:
        content = read_json_object(path)
        if content.get("format") != QUALITY_FORMAT:
            raise ValueError(f"format {content.get('format')}, not {QUALITY_FORMAT}")
        if content.pop("checksum", None) != _checksum(content):
            raise ValueError("it was edited: its checksum is not that of its content")
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
    if record.weights_digest != judged_digest(folder):
        raise RefusedQualityError(
            f"{folder}: its weights are not those that {QUALITY_FILE} was written of; quantise the original "
            "again"
        )
    if record.verdict == "refused":
        reasons = "".join(f"\n  {reason}" for reason in record.reasons)
        raise RefusedQualityError(
            f"{folder}: the quality gate refused this model:{reasons}\nMore bits or smaller groups keep more "
            "of the original; --method gptq is a thing to try, and its result is judged too"
        )
    return record


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def refused_of(folder: Path) -> Path:
    """Where a folder is kept that was to have this name and was refused."""
    return folder.with_name(folder.name + REFUSED)


def kept_aside(folder: Path) -> Path:
    """Moves a refused folder to its name and `.refused`, where an older refused one of ours makes way. Raises
    InputError where something else has that name."""
    aside = refused_of(folder)
    if aside.exists() and not (aside / QUALITY_FILE).is_file():
        raise InputError(
            f"{aside}: exists, and a refused model was to be kept there; it is in {folder}, and its "
            f"{QUALITY_FILE} says that it is refused"
        )
    put_in_place(folder, aside, replace=True)
    return aside
