"""Files at an fsspec address: put, fetched, listed, removed. What fails for a moment is tried again.

fsspec and the package behind a protocol are imported when an address is opened. What they raise differs from
one to the next, so everything here raises StorageError with the address and what the far side said."""

from __future__ import annotations

import errno
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trueup.files.whole import replacing_file
from trueup.schema import InputError, MissingExtraError, StorageError

Value = TypeVar("Value")

# What may be better after a wait. Classes by their names: botocore's and aiohttp's may not be installed.
_PASSING_ERRNOS = {
    *(errno.EBUSY, errno.EIO, errno.EAGAIN, errno.ETIMEDOUT, errno.ENETDOWN, errno.ENETUNREACH),
    *(errno.EHOSTDOWN, errno.EHOSTUNREACH),
}
_PASSING_NAMES = {
    *("HTTPClientError", "ConnectionError", "ClientConnectionError", "ClientPayloadError", "IncompleteRead"),
    "ResponseParserError",  # a throttled answer may be no XML
}
_PASSING_STATUSES = {408, 429, 500, 502, 503, 504}
_PASSING_CODES = {  # of status 400: too many requests, or bytes that were lost on the way
    *("Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestTimeout"),
    *("IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch"),
}
_CREDENTIALS_NAMES = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}
_SLOWEST_BYTES_PER_S = 250e3
_S3_CONCURRENCY = 4  # parts of 50 MB that s3fs holds in memory at once


@dataclass(frozen=True)
class Retry:
    """How often, and how long. No wait begins that would end later than `patience_s` after the first
    failure; the waits of a default one add up to 31 s. A request may take `answer_s` and what its bytes take
    at 250 kB/s: s3fs waits for minutes on a far side that takes a request and falls silent."""

    waits_s: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    patience_s: float = 60.0
    answer_s: float = 30.0
    sleep: Callable[[float], object] = time.sleep


class RemoteFiles:
    """Names are relative to the address, parts separated by `/`."""

    def __init__(self, address: str, retry: Retry) -> None:
        """Touches no network. MissingExtraError, InputError: the protocol's package is not installed, or
        there is no such protocol."""
        self.address = shown(address).rstrip("/") or "/"
        self._retry = retry
        self._fs, base = _opened(address)
        self._base = base.rstrip("/")
        protocols = self._fs.protocol
        self._local = "file" in ((protocols,) if isinstance(protocols, str) else protocols)

    def put(self, local: Path, name: str) -> None:
        """The file under that name, replacing what is there."""
        try:
            self._tried("upload", name, lambda: self._put_once(local, self._path(name)))
        except StorageError as error:
            if local.is_file():
                raise
            raise StorageError(f"{local} was removed while it went to {self.address}") from error

    def fetch(self, name: str, local: Path, size: int) -> None:
        """The file of that name into a local one; `size` is about how many bytes it has."""
        limit = self._limit(size)
        self._tried("download", name, lambda: self._fs.get_file(self._path(name), str(local), **limit))

    def read(self, name: str) -> bytes | None:
        """All of a small file; None where there is none."""
        path, limit = self._path(name), self._limit()
        return self._tried("read", name, lambda: _or_none(lambda: bytes(self._fs.cat_file(path, **limit))))

    def find(self, folder: str) -> list[str]:
        """Names of all files below a folder, sorted; none where there is no such folder."""
        return self._tried("list", folder, lambda: self._find_once(self._path(folder)))

    def folders(self) -> list[str]:
        """Names of the folders at the address, sorted."""
        return self._tried("list", "", self._folders_once)

    def remove(self, name: str) -> None:
        """A file; nothing where there is none."""
        path, limit = self._path(name), self._limit()
        self._tried("remove", name, lambda: _or_none(lambda: self._fs.rm_file(path, **limit)))

    def remove_folder(self, folder: str) -> None:
        """All files below a folder, and the folder where the far side has such."""
        path, limit = self._path(folder), self._limit()
        self._tried("remove", folder, lambda: _or_none(lambda: self._fs.rm(path, recursive=True, **limit)))
        if left := self.find(folder):  # s3fs says nothing of what a bulk removal was refused
            raise StorageError(
                f"cannot remove {self.where(folder)}: {len(left)} files are still there, {left[0]} the first"
            )

    def where(self, name: str) -> str:
        """The address of a name, to show."""
        return f"{self.address}/{name}" if name else self.address

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base or "/"

    def _put_once(self, local: Path, path: str) -> None:
        if not self._local:  # an object store shows an object when it is whole
            self._fs.put_file(str(local), path, **self._limit(local.stat().st_size))
            return
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replacing_file(Path(path)) as part:
            shutil.copyfile(local, part)

    def _find_once(self, path: str) -> list[str]:
        self._fs.invalidate_cache()  # another process may have put something there
        wanted: dict[str, Any] = (
            {"on_error": "raise"} if self._local else {}
        )  # else it hides what it may not read
        found = _or_none(lambda: self._fs.find(path, **wanted, **self._limit())) or []
        return sorted(one.removeprefix(self._base).lstrip("/") for one in found if not one.endswith("/"))

    def _folders_once(self) -> list[str]:
        self._fs.invalidate_cache()
        found = _or_none(lambda: self._fs.ls(self._path(""), detail=True, **self._limit())) or []
        return sorted(
            one["name"].rstrip("/").rpartition("/")[2] for one in found if one["type"] == "directory"
        )

    def _limit(self, size: int = 0) -> dict[str, float]:
        """Clients with an event loop of their own end a call after `timeout`; the others have none."""
        if not getattr(self._fs, "async_impl", False):
            return {}
        return {"timeout": self._retry.answer_s + size / _SLOWEST_BYTES_PER_S}

    def _tried(self, verb: str, name: str, call: Callable[[], Value]) -> Value:
        first_failure: float | None = None
        for tries, wait_s in enumerate((*self._retry.waits_s, None), start=1):
            try:
                return call()
            except (StorageError, InputError):
                raise
            except Exception as error:  # each package has classes of its own
                now = time.monotonic()
                first_failure = now if first_failure is None else first_failure
                late = wait_s is None or now + wait_s > first_failure + self._retry.patience_s
                if late or not _passes(error):
                    raise StorageError(self._explained(verb, name, error, tries)) from error
            self._retry.sleep(wait_s or 0.0)
        raise AssertionError("the last try returns or raises")

    def _explained(self, verb: str, name: str, error: Exception, tries: int) -> str:
        often = f" (tried {tries} times)" if tries > 1 else ""
        return f"cannot {verb} {self.where(name)}: {shown(_said(error))}{often}. {_advice(error)}"


def shown(address: str) -> str:
    """The address without a password that it may hold."""
    return re.sub(r"(?<=://)[^/@\s]*:[^/@\s]*@", "***@", address)


def _opened(address: str) -> tuple[Any, str]:
    """The file system behind an address, and the path there."""
    from fsspec.core import url_to_fs

    try:
        # An instance of its own: the settings below are not for others who use the package.
        fs, path = url_to_fs(address, skip_instance_cache=True)
    except ImportError as error:
        if address.startswith(("s3://", "s3a://")):
            raise MissingExtraError("s3fs", "s3", f"the address {shown(address)}") from None
        raise InputError(f"the address {shown(address)} needs another package: {error}") from error
    except ValueError as error:
        raise InputError(
            f"{shown(address)} is no address to keep checkpoints at: {error}. Give a folder, "
            "s3://BUCKET/PREFIX or another address that fsspec knows"
        ) from error
    if not path.strip("/") and "file" not in fs.protocol:
        raise InputError(f"{shown(address)} names no place: expected s3://BUCKET/PREFIX or the like")
    if "s3" in fs.protocol:
        # Three layers that try again would multiply. One more try here is for a part of a large file.
        fs.retries = 2
        fs.max_concurrency = _S3_CONCURRENCY
        fs.config_kwargs = {"retries": {"total_max_attempts": 1}, **fs.config_kwargs}
    return fs, path


def _or_none(call: Callable[[], Value]) -> Value | None:
    """None where there is no such file. A bucket that is missing is an error still."""
    try:
        return call()
    except FileNotFoundError as error:
        if _code(error) == "NoSuchBucket":
            raise
        return None


def _response(error: BaseException) -> dict[str, Any]:
    """The far side's own answer, where it gave one: s3fs keeps botocore's error as the cause of its own."""
    response = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    return response if isinstance(response, dict) else {}


def _code(error: BaseException) -> str:
    """Such as SlowDown; empty where there is none."""
    return str(_response(error).get("Error", {}).get("Code", ""))


def _said(error: Exception) -> str:
    """On one line, with the far side's word for it."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:  # without the number, which means another thing there
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    text = " ".join(text.split()).rstrip(".") or type(error).__name__
    if isinstance(error, TimeoutError) and text == type(error).__name__:
        text = "no answer in time"
    code = _code(error)
    return f"{code}: {text}" if code and code not in text else text


def _names(error: BaseException) -> set[str]:
    return {one.__name__ for one in type(error).__mro__}


def _passes(error: Exception) -> bool:
    """Whether waiting may help."""
    status = _response(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
    if status is not None:
        return status in _PASSING_STATUSES or _code(error) in _PASSING_CODES
    if isinstance(error, (ConnectionError, TimeoutError)) or _names(error) & _PASSING_NAMES:
        return True
    return isinstance(error, OSError) and error.errno in _PASSING_ERRNOS


def _advice(error: Exception) -> str:
    if _names(error) & _CREDENTIALS_NAMES:
        return "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if isinstance(error, PermissionError):
        return "Check the credentials, and that they may list, read, write and remove there"
    if isinstance(error, FileNotFoundError):
        return "Check that the bucket or folder is there and its name is right"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Make room there"
    if _passes(error):
        return "Check the network and the endpoint, then try again"
    return "Check the address"
