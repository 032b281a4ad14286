"""Never answered twice: what `Idempotency-Key` promises, after draft-ietf-httpapi-idempotency-key-header-07.

A key stands for one request of one client. While its answer is on the way, another request with it is told so
(409); once it is done, the answer is given again byte for byte, a stream as a stream; with another request
under the same key that is refused (422). The answer goes on when its client has left: it is what a retry asks
for. A request that was not carried out, or whose answer broke off with an error, frees its key.

All is in memory, for a day: a restart forgets it, and so do `entries` newer keys. Beyond `size` bytes of
answers the oldest are let go, and their keys still refuse to be answered twice (409).
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from itertools import islice, takewhile

from .openai_errors import ApiError

KEPT_S = 24 * 3600.0
MOST_ENTRIES = 10_000
MOST_BYTES = 256 << 20
_KEY = re.compile(r"[\x20-\x7e]{1,255}")


@dataclass(frozen=True)
class Head:
    """The beginning of an answer."""

    status: int
    headers: tuple[tuple[str, str], ...]


class KeptAnswer:
    """One key's answer as it comes in. `chunks` can be followed by any number of readers."""

    def __init__(self, fingerprint: bytes, began_s: float) -> None:
        self.fingerprint = fingerprint
        self.began_s = began_s
        self.done = False
        self.let_go = False  # done, and its bytes are no longer kept
        self._head: Head | None = None
        self._error: Exception | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._news = asyncio.Event()

    @property
    def size(self) -> int:
        return 0 if self.let_go else self._size

    async def head(self) -> Head:
        """Raises what the request ended in where it never had an answer."""
        while self._head is None and self._error is None:
            await self._wait()
        if self._head is None:
            assert self._error is not None
            raise self._error
        return self._head

    def chunks(self) -> AsyncIterator[bytes]:
        """From the first on, then as they come. Whole for whoever asked before they were let go."""
        return self._followed(self._chunks)

    async def _followed(self, chunks: list[bytes]) -> AsyncIterator[bytes]:
        at = 0
        while True:
            while at < len(chunks):
                at += 1
                yield chunks[at - 1]
            if self.done or self._error is not None:
                return
            await self._wait()

    def begin(self, head: Head) -> None:
        self._head = head
        self._tell()

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._size += len(chunk)
        self._tell()

    def end(self, error: Exception | None = None) -> None:
        """The answer is whole and has begun, or there is an error."""
        assert error is not None or self._head is not None
        self.done, self._error = error is None, error
        if self.done:  # one piece takes less room; readers under way have the pieces, which are theirs too
            self._chunks = [b"".join(self._chunks)]
        self._tell()

    def drop_bytes(self) -> None:
        """Readers under way keep what they have: the list is theirs too."""
        self.let_go, self._chunks = True, []

    async def _wait(self) -> None:
        await self._news.wait()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class KeptAnswers:
    """The keys of a day. Used within one event loop."""

    def __init__(
        self,
        *,
        entries: int = MOST_ENTRIES,
        size: int = MOST_BYTES,
        kept_s: float = KEPT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_entries = entries
        self._most_bytes = size
        self._kept_s = kept_s
        self._clock = clock
        self._kept: OrderedDict[bytes, KeptAnswer] = OrderedDict()
        self._bytes = 0  # of answers that are done

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def begin(self, owner: str, key: str, fingerprint: bytes) -> tuple[KeptAnswer, bool]:
        """The key's answer, and whether it is new and to be made now. Raises ApiError 409 and 422."""
        self._forget_aged()
        name = hashlib.sha256(f"{owner}\0{key}".encode()).digest()
        kept = self._kept.get(name)
        if kept is None:
            self._make_room()
            kept = self._kept[name] = KeptAnswer(fingerprint, self._clock())
            return kept, True
        if kept.fingerprint != fingerprint:
            raise ApiError.of_key(
                422, "idempotency_key_reused", "this key was sent with another request; take a new key"
            )
        if kept.let_go:
            raise ApiError.of_key(
                409,
                "idempotency_answer_gone",
                "this request was answered, and its answer is no longer kept; take a new key to ask again",
            )
        if not kept.done:
            raise ApiError.of_key(
                409, "idempotency_key_in_use", "this request is being answered; ask again in a moment"
            )
        return kept, False

    def close(self, owner: str, key: str, kept: KeptAnswer, error: Exception | None) -> None:
        """The answer is whole, or there is none and the key is free again."""
        kept.end(error)
        if error is not None:
            self._kept.pop(hashlib.sha256(f"{owner}\0{key}".encode()).digest(), None)
            return
        self._bytes += kept.size
        for old in self._kept.values():
            if self._bytes <= self._most_bytes:
                break
            if old.done:
                self._bytes -= old.size
                old.drop_bytes()

    def _forget_aged(self) -> None:
        oldest = self._clock() - self._kept_s
        aged = takewhile(lambda item: item[1].began_s <= oldest, self._kept.items())
        self._forget([name for name, kept in aged if kept.done])

    def _make_room(self) -> None:
        """For one key more: the oldest go that are done."""
        spare = len(self._kept) + 1 - self._most_entries
        done = (name for name, kept in self._kept.items() if kept.done)
        self._forget(list(islice(done, max(0, spare))))

    def _forget(self, names: Iterable[bytes]) -> None:
        for name in names:
            self._bytes -= self._kept.pop(name).size


def key_of(header: str | None, *, required: bool) -> str | None:
    """The key, as a structured string (quoted) or bare. Raises ApiError 400 where it is missing and required,
    or cannot be a key."""
    if header is None:
        if required:
            raise ApiError.of_key(
                400,
                "idempotency_key_missing",
                "this server requires the header Idempotency-Key: a new one "
                "for each request, and the same one when it is sent again",
            )
        return None
    bare = header.strip()
    if len(bare) >= 2 and bare[0] == bare[-1] == '"':
        bare = bare[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    if not _KEY.fullmatch(bare):
        raise ApiError.of_key(
            400,
            "idempotency_key_invalid",
            "the header Idempotency-Key is to hold 1 to 255 printable ASCII characters",
        )
    return bare


def fingerprint_of(method: str, path: str, body: bytes) -> bytes:
    """What makes two requests the same."""
    digest = hashlib.sha256(f"{method} {path}\n".encode())
    digest.update(body)
    return digest.digest()
