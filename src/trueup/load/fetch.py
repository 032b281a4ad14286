"""A short document of a server's, read whole within a time and a size: what it tells of itself must not hold
a load up, or fill the memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import httpx


class Document(NamedTuple):
    status: int
    body: bytes


class NoDocumentError(Exception):
    """Why there is none, in words."""


async def fetch(
    http: httpx.AsyncClient,
    url: str,
    *,
    within_s: float,
    most_bytes: int,
    headers: Mapping[str, str] | None = None,
) -> Document:
    """Raises NoDocumentError."""
    import httpx

    body = b""
    try:
        async with (
            asyncio.timeout(within_s),
            http.stream("GET", url, headers=headers, timeout=within_s) as response,
        ):
            async for part in response.aiter_bytes():
                body += part
                if len(body) > most_bytes:
                    raise NoDocumentError(f"more than {most_bytes} bytes, and no whole answer")
            return Document(response.status_code, body)
    except TimeoutError:
        raise NoDocumentError(f"no whole answer in {within_s:g} s") from None
    except httpx.HTTPError as error:
        raise NoDocumentError(str(error) or type(error).__name__) from None
