"""`trueup audit CLAIMS.yaml`."""

from __future__ import annotations

from pathlib import Path

import typer

from trueup.schema import InputError

from .output import JSON_OPTION, print_json, print_rich
from .price_book import today

MOST_BYTES = 1 << 18


def audit(
    path: Path = typer.Argument(help="A file of published figures and claims.", metavar="CLAIMS"),
    as_json: bool = JSON_OPTION,
) -> None:
    """Recompute published claims from their own inputs, with units and rounding, and hold them against
    physical limits and the catalog. Exit code 1 where a claim does not follow, does not hold, is implausible,
    impossible or cannot be decided."""
    from trueup.analysis.audit import audit_claims
    from trueup.analysis.audit_file import read_claims

    found = audit_claims(read_claims(_text(path), str(path)), today())
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        from trueup.report.audit import audit_text

        print_rich(audit_text(found))
    if not found.confirmed:
        raise typer.Exit(1)


def _text(path: Path) -> str:
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder; give one claim file")
        with path.open("rb") as file:  # a pipe or a device does not tell its size
            raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise InputError(f"{path}: larger than {MOST_BYTES} bytes; this is no claim file")
        return raw.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such claim file; docs/audit.md says how to write one") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{path}: cannot be read: {reason}") from None
