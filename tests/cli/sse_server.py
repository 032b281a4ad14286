"""A server on a real socket that answers at once, as OpenAI's streams do."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._whole({"data": [{"id": "told", "max_model_len": 512}]})
        elif self.path == "/metrics":
            self._send(
                200, b"# TYPE vllm:num_preemptions counter\nvllm:num_preemptions_total 2\n", "text/plain"
            )
        else:
            self._send(404, b"{}", "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.keys.append(self.headers.get("Authorization"))  # type: ignore[attr-defined]
        events: list[Any] = [
            {"choices": [{"index": 0, "text": " w", "finish_reason": None}]}
            for _ in range(body["max_tokens"])
        ]
        usage = {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": body["max_tokens"]}
        events += [{"choices": [{"text": "", "finish_reason": "length"}]}, {"choices": [], "usage": usage}]
        raw = "".join(f"data: {json.dumps(one)}\n\n" for one in events) + "data: [DONE]\n\n"
        self._send(200, raw.encode(), "text/event-stream")

    def _whole(self, document: Any) -> None:
        self._send(200, json.dumps(document).encode(), "application/json")

    def _send(self, status: int, raw: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, form: str, *arguments: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    request_queue_size = 256  # socketserver's five are fewer than come at once
    daemon_threads = True
    keys: list[str | None]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone is no error: a load that ends looks no longer at metrics."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def answering() -> Iterator[tuple[str, list[str | None]]]:
    """Its address, and the keys that requests came with."""
    server = _Server(("127.0.0.1", 0), Answering)
    server.keys = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.keys
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
