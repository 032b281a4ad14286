"""Server-sent events, as far as answers use them: the data of each event, whole, from pieces of any size."""

from __future__ import annotations

MOST_BYTES = 4 << 20  # of one event: what is longer is no chunk of an answer


class EventTooLongError(ValueError):
    """An event that does not end."""


class EventReader:
    """Feed it what the socket gave; it returns the data of the events that are whole by then."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, raw: bytes) -> list[bytes]:
        """Raises EventTooLongError."""
        *lines, self._rest = (self._rest + raw).split(b"\n")
        found = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line:
                self._take(line)
            elif self._data:
                found.append(b"\n".join(self._data))
                self._data, self._size = [], 0
        if len(self._rest) + self._size > self._most_bytes:
            raise EventTooLongError(f"an event of more than {self._most_bytes} bytes")
        return found

    def rest(self) -> bytes:
        """The data of an event that the end of the stream cut off, its last blank line included."""
        if self._rest:
            self._take(self._rest.removesuffix(b"\r"))
        found, self._rest, self._data = b"\n".join(self._data), b"", []
        return found

    def _take(self, line: bytes) -> None:
        """Comments keep a connection open; names, ids and retry times say nothing of an answer."""
        if line.startswith(b"data:"):
            data = line[5:].removeprefix(b" ")
            self._data.append(data)
            self._size += len(data)
