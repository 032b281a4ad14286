"""Claim files made in tests, and the example of docs/claims."""

from __future__ import annotations

from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from trueup.analysis.audit import audit_claims
from trueup.analysis.audit_file import read_claims
from trueup.schema.claim import Audit, AuditedClaim

TODAY = date(2026, 11, 30)
EXAMPLES = Path(__file__).parents[2] / "docs" / "claims"


def audited(text: str) -> Audit:
    return audit_claims(read_claims(text, "claims.yaml"), TODAY)


def one(claim: dict[str, Any], **figures: Any) -> AuditedClaim:
    """The audit of a single claim."""
    content = {"title": "a test", "figures": figures, "claims": {"it": claim}}
    return audited(yaml.safe_dump(content, allow_unicode=True)).claims[0]


@cache
def example(name: str) -> dict[str, AuditedClaim]:
    """Every claim of docs/claims/NAME.yaml."""
    text = (EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8")
    return {claim.name: claim for claim in audited(text).claims}
