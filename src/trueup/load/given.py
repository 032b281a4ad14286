"""Measurements made elsewhere that are to stand with a load's own: a quality gate's, a memory plan's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trueup.schema import InputError, Measurement

MOST_BYTES = 16 << 20
_SECTIONS = ("measurements", "gate", "lines")


def original_of(path: Path) -> str | None:
    """The model that what a gate's file judges was made of, None where it does not say. The file was read by
    `read_given`."""
    document = json.loads(path.read_bytes())
    named = document.get("original") if isinstance(document, Mapping) else None
    return named if isinstance(named, str) else None


def read_given(path: Path, option: str, prefix: str, suffix: str = "") -> dict[str, Measurement]:
    """What a command's --json printed: an object with NAME: measurement at its top, or under `measurements`,
    `gate` or `lines`. Names get the prefix, and the suffix where they end in no unit. InputError for a file
    without any."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{option} {path}: larger than {MOST_BYTES} bytes")
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{option} {path}: there is no such file") from None
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{option} {path}: not JSON") from None
    found = _measurements(document)
    for section in _SECTIONS:
        found |= _measurements(document.get(section)) if isinstance(document, Mapping) else {}
    if not found:
        raise InputError(
            f"{option} {path}: it holds no measurement; give what the command printed with --json"
        )
    return {_named(name, prefix, suffix): one for name, one in found.items()}


def _named(name: str, prefix: str, suffix: str) -> str:
    name = name if name.startswith(prefix) else prefix + name
    return name if name.endswith(suffix) else name + suffix


def _measurements(section: Any) -> dict[str, Measurement]:
    found: dict[str, Measurement] = {}
    if not isinstance(section, Mapping):
        return found
    for name, value in section.items():
        if isinstance(value, Mapping) and "unit" in value and "kind" in value:
            try:
                found[str(name)] = Measurement.model_validate(value)
            except ValidationError:
                continue
    return found
