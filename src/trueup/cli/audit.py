"""`trueup audit CLAIMS.yaml`."""

from __future__ import annotations

from pathlib import Path

import typer

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
    from trueup.recipe.text_file import read_text

    text = read_text(path, "claim file", most_bytes=MOST_BYTES)
    found = audit_claims(read_claims(text, str(path)), today())
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        from trueup.report.audit import audit_text

        print_rich(audit_text(found))
    if not found.confirmed:
        raise typer.Exit(1)
