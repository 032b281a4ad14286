"""What one client may ask, and who may ask at all."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path

from trueup.schema import InputError


@dataclass(frozen=True)
class ApiLimits:
    """Bounds on one request. `answers` counts prompts times `n`."""

    body_bytes: int = 4 << 20
    head_s: float = 10.0  # to receive the head in, from the connection or from its first byte
    body_s: float = 30.0  # to receive the body in
    unread_s: float = 60.0  # that a client may leave what it is sent unread
    request_s: float = 600.0  # from arrival to the last token
    answers: int = 64


class ApiKeys:
    """The keys that open the API; without one it is open to all. Only digests are kept, and all are compared
    each time, so that neither the text nor the time of an answer tells how near a guess was."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    @property
    def required(self) -> bool:
        return bool(self._digests)

    def owner_of(self, authorization: str | None) -> str | None:
        """Who sent this header: a name for their key; '' for anybody where no key is needed; None: nobody
        known."""
        if not self._digests:
            return ""
        scheme, _, given = (authorization or "").partition(" ")
        digest = _digest(given.strip())
        hits = [hmac.compare_digest(digest, known) for known in self._digests]
        return digest.hex()[:16] if scheme.lower() == "bearer" and any(hits) else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(path: Path) -> list[str]:
    """At least one. One key a line; empty lines and those that begin with # are none. Raises InputError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"{path}: the API keys cannot be read: {reason}; expected one key a line") from None
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise InputError(f"{path}: holds no API key; write one a line, or leave --api-key-file out")
    if any(not key.isprintable() or " " in key or not key.isascii() for key in keys):
        raise InputError(f"{path}: a key has a space or a character that no HTTP header carries")
    return keys
