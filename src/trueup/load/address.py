"""Where a server is, which model it has, and how long a context it takes."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from trueup.schema import InputError, TrueupError

from .fetch import Document, NoDocumentError, fetch

if TYPE_CHECKING:
    import httpx

WITHIN_S = 10.0
MOST_BYTES = 16 << 20  # of the list of models
MOST_NAME = 1000  # characters of a model's
_LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


@dataclass(frozen=True)
class Address:
    """A server by its root, such as http://127.0.0.1:8000; the API is below /v1."""

    root: str

    @property
    def base_url(self) -> str:
        return f"{self.root}/v1"

    @property
    def local(self) -> bool:
        """Whether it is on this machine, so that this machine's sensors see it."""
        host = urlsplit(self.root).hostname or ""
        return host in _LOCAL or host.startswith("127.") or host == socket.gethostname()


@dataclass(frozen=True)
class ServedModel:
    """`context` in tokens, None where the server does not tell."""

    name: str
    context: int | None


def listeners(address: Address) -> set[int]:
    """Ids of the processes of this machine that listen at the address's port; none where the system does not
    say, as of another user's."""
    import psutil

    parts = urlsplit(address.root)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return set()
    listening = (one for one in found if one.status == psutil.CONN_LISTEN)
    return {one.pid for one in listening if one.pid and getattr(one.laddr, "port", None) == port}


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def address_of(url: str) -> Address:
    """The server of a URL, with or without /v1. InputError for one that is none, or holds a password."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(f"{url}: not a URL: {error}") from None
    if not host or parts.query or parts.fragment:
        raise InputError(f"{url}: expected the address of a server, such as http://127.0.0.1:8000")
    if parts.username is not None or parts.password is not None:
        raise InputError("the URL holds a password, which would be recorded; give the key in TRUEUP_API_KEY")
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Address(urlunsplit((parts.scheme, parts.netloc, path, "", "")))


async def served_model(
    http: httpx.AsyncClient, address: Address, asked: str | None, headers: dict[str, str]
) -> ServedModel:
    """The model asked for, or the first that the server names. TrueupError where no server answers,
    InputError where it does not have the model."""
    url = f"{address.base_url}/models"
    try:
        found = await fetch(http, url, within_s=WITHIN_S, most_bytes=MOST_BYTES, headers=headers)
    except NoDocumentError as error:
        raise TrueupError(f"no server answers at {url}: {error}; start it, or look at its address") from None
    models = _models(found)
    if models is None:
        if asked is not None:  # a server without the list, or with another: take the name on trust
            return ServedModel(asked, None)
        raise TrueupError(
            f"{url} answered HTTP {found.status} and no list of models; is this an OpenAI-compatible "
            "server? Name the model by --model to go on without the list"
        )
    names = [str(one["id"]) for one in models]
    if asked is not None and asked not in names:
        raise InputError(f"--model {asked}: the server at {address.root} has {', '.join(names) or 'none'}")
    if not names:
        raise InputError(f"the server at {address.root} has no model")
    chosen = models[names.index(asked) if asked is not None else 0]
    return ServedModel(str(chosen["id"]), _context(chosen))


def _models(found: Document) -> list[dict[str, Any]] | None:
    if found.status != 200:
        return None
    try:
        listed = json.loads(found.body)["data"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(listed, list):
        return None
    return [one for one in listed if isinstance(one, dict) and _is_name(one.get("id"))]


def _is_name(found: Any) -> bool:
    """Whether it is text that a request and the record can hold."""
    return isinstance(found, str) and 0 < len(found) <= MOST_NAME and found.isprintable()


def _context(model: dict[str, Any]) -> int | None:
    """vLLM and trueup call it max_model_len; llama.cpp has it, as n_ctx, under meta."""
    meta = model.get("meta")
    for found in (model.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None):
        if isinstance(found, int) and not isinstance(found, bool) and found > 0:
            return found
    return None
