"""Talking with a server that is not what it should be: always an error in words."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from trueup.schema import InputError, TrueupError
from trueup.serve.conversation import Remote

TEXT = b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
ASK = [{"role": "user", "content": "x"}]


@contextmanager
def server_of(body: bytes, length: int | None = None) -> Iterator[str]:
    """Answers everything with this body, and says that it has that length."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def answer_of(body: bytes, length: int | None = None) -> list[tuple[str, int]]:
    with server_of(body, length) as address:
        talk = Remote(address, "m", None)
        return list(talk.answer(ASK, max_tokens=4, temperature=0.0, seed=None))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (TEXT + b'data: {"error": "plain"}\n\n', "plain"),
        (TEXT + b'data: {"error": {"message": "half \\ud800"}}\n\n', r"half \?"),
        (TEXT + b"data: {\n\n", "no JSON object"),
        (b"data: [1]\n\n", "no JSON object"),
    ],
)
def test_an_answer_that_is_none_is_told_in_words(body: bytes, words: str) -> None:
    with pytest.raises(TrueupError, match=words):
        answer_of(body)


@pytest.mark.parametrize("missing", [0, 1000])
def test_an_answer_that_breaks_off_is_told_in_words(missing: int) -> None:
    with pytest.raises(TrueupError, match=r"the answer broke off after 1 token$"):
        answer_of(TEXT, length=len(TEXT) + missing)


def test_an_answer_that_says_why_it_ended_is_whole_without_a_last_word() -> None:
    end = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
    assert answer_of(TEXT + end) == [("hi", 1)]


@pytest.mark.parametrize(
    "odd",
    [
        b'{"choices": [{"delta": null}, 3]}',
        b'{"choices": null, "usage": null}',
        b'{"choices": [], "usage": {"prompt_tokens": 1}}',
        b'{"choices": [{"delta": {"content": 5}}], "error": null}',
    ],
)
def test_what_a_chunk_lacks_is_left_out(odd: bytes) -> None:
    assert answer_of(b"data: " + odd + b"\n\n" + TEXT + DONE) == [("hi", 1)]


def test_nothing_is_read_behind_the_end() -> None:
    assert answer_of(TEXT + DONE + b"data: {\n\n") == [("hi", 1)]


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"data": []}', b"[" * 100_000])
def test_a_server_that_names_no_model_asks_for_one(body: bytes) -> None:
    with server_of(body) as address, pytest.raises(InputError, match="give --model"):
        Remote(address, None, None)


@pytest.mark.parametrize("address", ["http://", "http://127.0.0.1:1/a b", "http://127.0.0.1:none"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="no server answers there"):
        Remote(address, None, None)
