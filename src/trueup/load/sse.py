"""Server-sent events, as far as answers use them: the data of each event, whole, from pieces of any size."""

from __future__ import annotations

MOST_BYTES = 4 << 20  # of one event, and of one line: what is longer is no chunk of an answer


class EventTooLongError(ValueError):
    """An event, or a line, that is too long to be a chunk of an answer, or that does not end."""


class EventReader:
    """Feed it what the socket gave; it returns the data of the events that are whole by then."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._rest: list[bytes] = []  # of a line that has not ended: joined once, however small its pieces
        self._rest_size = 0
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, raw: bytes) -> list[bytes]:
        """Raises EventTooLongError."""
        first, *others = raw.split(b"\n")
        self._keep(first)
        found: list[bytes] = []
        for following in others:
            line = b"".join(self._rest).removesuffix(b"\r")
            self._rest, self._rest_size = [], 0
            if line:
                self._take(line)
            elif self._data:
                found.append(b"\n".join(self._data))
                self._data, self._size = [], 0
            self._keep(following)
        return found

    def rest(self) -> bytes:
        """The data of an event that the end of the stream cut off, its last blank line included."""
        if self._rest:
            self._take(b"".join(self._rest).removesuffix(b"\r"))
        found, self._rest, self._data = b"\n".join(self._data), [], []
        self._rest_size = self._size = 0
        return found

    def _keep(self, part: bytes) -> None:
        if part:
            self._rest.append(part)
            self._rest_size += len(part)
            self._bound(self._rest_size + self._size)

    def _take(self, line: bytes) -> None:
        """Comments keep a connection open; names, ids and retry times say nothing of an answer."""
        if line.startswith(b"data:"):
            data = line[5:].removeprefix(b" ")
            self._data.append(data)
            self._size += len(data) + 1  # an event of empty lines is one without end as well
            self._bound(self._size)

    def _bound(self, size: int) -> None:
        if size > self._most_bytes:
            raise EventTooLongError(f"an event of more than {self._most_bytes} bytes")
