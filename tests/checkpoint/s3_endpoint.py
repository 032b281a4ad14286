"""An S3 endpoint over HTTP on this machine: moto's server, with faults put before it on purpose."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal

import boto3
import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

Fault = Literal["slow_down", "cut", "denied", "silent"]
BUCKET = "bucket"
CREDENTIALS = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
_ANSWERS = {
    "slow_down": ("503 Slow Down", "SlowDown", "Please reduce your request rate."),
    "denied": ("403 Forbidden", "AccessDenied", "Access Denied"),
}


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:
        pass


class Endpoint:
    """`fault` sees method and path of each request and may name what goes wrong with it. `requests` are the
    requests so far, as "PUT /bucket/key"."""

    def __init__(self) -> None:
        self.fault: Callable[[str, str], Fault | None] | None = None
        self.requests: list[str] = []
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._server = make_server("127.0.0.1", 0, self, threaded=True, request_handler=_Quiet)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def serving(self) -> Iterator[Endpoint]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._end.set()
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    @cached_property
    def client(self) -> Any:
        """boto3's, beside the code under test."""
        return boto3.client("s3", endpoint_url=self.url, **CREDENTIALS)

    def reset(self) -> None:
        """No faults, and one empty bucket."""
        self.fault = None
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/moto-api/reset", method="POST")).close()
        self.client.create_bucket(Bucket=BUCKET)
        self.requests.clear()

    def stored(self) -> list[str]:
        """Keys in the bucket."""
        return [one["Key"] for one in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", [])]

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        with self._lock:
            self.requests.append(f"{method} {path}")
            fault = self.fault(method, path) if self.fault else None
        if fault is None:
            return self._moto(environ, start_response)
        if fault == "silent":
            start_response("500 Silent", [])
            self._end.wait()
            return []
        length = int(environ.get("CONTENT_LENGTH") or 0)
        if fault == "cut":
            environ["wsgi.input"].read(length // 2)
            start_response("500 Cut", [])
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        environ["wsgi.input"].read(length)
        status, code, message = _ANSWERS[fault]
        body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]


def first(times: int, fault: Fault, method: str = "", ending: str = "") -> Callable[[str, str], Fault | None]:
    """That fault for the first so many requests of the method to a path that ends so."""
    left = iter(range(times))

    def choose(given: str, path: str) -> Fault | None:
        if given.startswith(method) and path.endswith(ending) and next(left, None) is not None:
            return fault
        return None

    return choose


def point_at(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process, and those it starts, speak to the endpoint."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", CREDENTIALS["aws_access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CREDENTIALS["aws_secret_access_key"])
    monkeypatch.setenv("AWS_DEFAULT_REGION", CREDENTIALS["region_name"])
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
