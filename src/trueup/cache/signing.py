"""The home's own key, with which it knows again the compiled code it has kept."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from trueup.files.whole import flush, new_beside

KEY_FILE = "signing.key"
KEY_BYTES = 32


def read_key(home: Path) -> bytes | None:
    """The key, or None where there is none yet or what is there is not one."""
    try:
        key = (home / KEY_FILE).read_bytes()
    except OSError:
        return None
    return key if len(key) == KEY_BYTES else None


def make_key(home: Path) -> bytes:
    """A new random key, readable by its owner alone. For who holds the cache's lock. Raises OSError."""
    key = secrets.token_bytes(KEY_BYTES)
    part = new_beside(home / KEY_FILE)
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)
        flush(part)
        part.replace(home / KEY_FILE)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    return key
