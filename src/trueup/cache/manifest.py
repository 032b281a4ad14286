"""What a kept compile cache says of itself: the facts it holds for, its files with digests, a signature."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import AwareDatetime, Field, ValidationError, field_validator

from trueup.files.names import is_plain
from trueup.schema import Frozen

KEY_DIGITS = 16


class UnusableError(Exception):
    """A kept cache that cannot be used; the message says why."""


class NotSignedHereError(UnusableError):
    """Whole, but not signed by this home."""


class CachedFile(Frozen):
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class Manifest(Frozen):
    """`files` maps a path below the cache's folder to what is there."""

    kind: Literal["trueup compile cache"] = "trueup compile cache"
    format: Literal[1] = 1
    facts: dict[str, Any]
    files: dict[str, CachedFile]
    created: AwareDatetime
    last_used: AwareDatetime
    signature: str = ""  # hex HMAC-SHA256 of all the rest

    @field_validator("facts")
    @classmethod
    def _have_a_key(cls, facts: dict[str, Any]) -> dict[str, Any]:
        key_of(facts)  # raises ValueError for what JSON has no word for
        return facts

    @field_validator("files")
    @classmethod
    def _stay_below_the_folder(cls, files: dict[str, CachedFile]) -> dict[str, CachedFile]:
        for name in files:
            if not is_plain(name):
                raise ValueError(f"{name!r} is not a path below the cache's folder")
            if inside := next((str(p) for p in PurePosixPath(name).parents if str(p) in files), None):
                raise ValueError(f"{inside!r} is both a file and a folder")
        return files

    @classmethod
    def read(cls, raw: bytes) -> Manifest:
        """From JSON. Raises UnusableError where it is none."""
        try:
            return cls.model_validate_json(raw)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in problem["loc"])
            raise UnusableError(
                f"its manifest is damaged or of another version ({where} {problem['msg']})"
            ) from None

    @property
    def key(self) -> str:
        return key_of(self.facts)

    @property
    def size_bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    def signed(self, secret: bytes) -> Manifest:
        return self.model_copy(update={"signature": self._signature(secret)})

    def is_signed_with(self, secret: bytes) -> bool:
        return hmac.compare_digest(self.signature.encode(), self._signature(secret).encode())

    def text(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"

    def _signature(self, secret: bytes) -> str:
        signed = _canonical(self.model_dump(mode="json", exclude={"signature"}))
        return hmac.new(secret, signed, hashlib.sha256).hexdigest()


def key_of(facts: Mapping[str, Any]) -> str:
    """The name of the cache that holds for these facts (JSON-able): 16 hex digits of their digest."""
    return hashlib.sha256(_canonical(facts)).hexdigest()[:KEY_DIGITS]


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
