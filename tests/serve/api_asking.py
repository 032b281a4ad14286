"""Asking the API, by the openai package and raw."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
from api_server import MODEL, Running

ASK: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
PLAIN: dict[str, Any] = {"model": MODEL, "prompt": "hi"}


def client_of(server: Running, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, **options)


def post(server: Running, path: str, body: Any, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body)
    return httpx.post(f"{server.url}/v1/{path}", content=content, headers=headers, timeout=30)


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def events(response: httpx.Response) -> list[Any]:
    """The stream's documents; its last event must be [DONE]."""
    *parts, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(part.removeprefix("data: ")) for part in parts]
