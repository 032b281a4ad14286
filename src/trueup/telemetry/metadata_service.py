"""Amazon's instance metadata service, version 2: whoever asks shows a token that the service has given."""

from __future__ import annotations

import http.client
import time

ADDRESS = ("169.254.169.254", 80)
TOKEN_LIVES_S = 6 * 3600  # the longest that the service grants
MOST_BYTES = 1 << 16
NOT_AUTHORIZED = 401
_TOKEN_PATH = "/latest/api/token"


class MetadataService:
    """What it raises: OSError, http.client.HTTPException, and ValueError where the token is refused."""

    def __init__(self, address: tuple[str, int] = ADDRESS) -> None:
        self._address = address
        self._token: tuple[str, float] | None = None  # and until when it is good

    def get(self, path: str, *, within_s: float) -> tuple[int, str]:
        """(status, text) of a path, token and all in this time."""
        stop = time.monotonic() + within_s
        status, text = self._get(path, stop)
        if status == NOT_AUTHORIZED:  # the token is no longer good
            self.forget()
            status, text = self._get(path, stop)
        return status, text

    def forget(self) -> None:
        """Ask for a new token the next time."""
        self._token = None

    def _get(self, path: str, stop: float) -> tuple[int, str]:
        if self._token is None or time.monotonic() > self._token[1]:
            lives = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_LIVES_S)}
            status, token = self._request("PUT", _TOKEN_PATH, lives, stop)
            if status != http.client.OK:
                raise ValueError(f"PUT {_TOKEN_PATH} answered {status}")
            self._token = token.strip(), time.monotonic() + TOKEN_LIVES_S / 2
        return self._request("GET", path, {"X-aws-ec2-metadata-token": self._token[0]}, stop)

    def _request(self, method: str, path: str, headers: dict[str, str], stop: float) -> tuple[int, str]:
        """http.client uses no proxy, as this address needs none."""
        left_s = stop - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("out of time")
        connection = http.client.HTTPConnection(*self._address, timeout=left_s)
        try:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read(MOST_BYTES).decode("utf-8", "replace")
        finally:
            connection.close()
