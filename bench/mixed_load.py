"""Clients of every kind at once, for a soak: whole answers and streams, some that leave in the middle, some
that vanish before an answer, bodies that are no request, and requests sent twice under one key. Each writes
down what it saw, and `disagreements` holds the server's metrics against that."""

from __future__ import annotations

import json
import random
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

MOST_TOKENS = 24
TIMEOUT_S = 120.0
BAD_BODIES = (b"", b"{", b"[]", b'{"model": 1}', b'{"prompt": "no model"}', b"\xff\xfe", b"[" * 9999)
BAD_FIELDS: tuple[dict[str, Any], ...] = (
    {"temperature": -1},
    {"max_tokens": 10**9},
    {"n": 0},
    {"stop": ["a"] * 5},
    {"prompt": [-1]},
    {"no_such_field": 1},
)


@dataclass
class Seen:
    """What the clients saw. `unsure`: of answers whose client vanished, nobody knows whether they began."""

    ended: Counter[str] = field(default_factory=Counter)  # answers by finish_reason
    statuses: Counter[int] = field(default_factory=Counter)
    tokens: int = 0  # of answers that came whole
    left: int = 0  # streams whose client left after the first of it
    unsure: int = 0
    replays: int = 0
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def requests(self) -> int:
        return sum(self.statuses.values()) + self.unsure


class MixedClient:
    """One client; `choices` are what it does, in turn, by its own random numbers."""

    def __init__(self, url: str, model: str, seen: Seen, seed: int) -> None:
        self._url = url
        self._model = model
        self._seen = seen
        self._random = random.Random(seed)
        self._http = httpx.Client(timeout=TIMEOUT_S)
        self._kinds: tuple[Callable[[], None], ...] = (
            *(self._whole, self._whole, self._stream, self._stream, self._several),
            *(self._leaves, self._vanishes, self._bad_body, self._bad_field, self._twice),
        )

    def run(self, goes_on: Iterator[bool]) -> None:
        with self._http:
            for _ in goes_on:
                try:
                    self._random.choice(self._kinds)()
                except Exception as error:
                    self._complain(f"{type(error).__name__}: {error}")

    def _body(self, **fields: Any) -> dict[str, Any]:
        length = self._random.randint(1, 40)
        return {
            "model": self._model,
            "prompt": "".join(self._random.choices("abcdefgh é🌶", k=length)),
            "max_tokens": self._random.randint(1, MOST_TOKENS),
            "temperature": self._random.choice([0, 1]),
            "stop": self._random.choice([None, "ab", ["c", "d"]]),
            **fields,
        }

    def _whole(self) -> None:
        self._count(self._post(self._body()))

    def _several(self) -> None:
        self._count(self._post(self._body(n=2)))

    def _stream(self) -> None:
        body = self._body(stream=True, stream_options={"include_usage": True})
        self._count_stream(self._post(body))

    def _twice(self) -> None:
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        body = json.dumps(self._body(stream=self._random.random() < 0.5)).encode()
        first = self._post(body, **headers)
        again = self._post(body, **headers)
        if first.status_code == 200:
            with self._seen.lock:
                self._seen.replays += 1
            if again.content != first.content:
                self._complain("a request under one key had two answers")
        if again.headers["content-type"].startswith("text/event-stream"):
            self._count_stream(again, usage=False)
        else:
            self._count(again)

    def _bad_body(self) -> None:
        self._expect(400, self._post(self._random.choice(BAD_BODIES)))

    def _bad_field(self) -> None:
        response = self._post(self._body(**self._random.choice(BAD_FIELDS)))
        if response.status_code != 429:  # a full server does not look at lengths
            self._expect(400, response)

    def _leaves(self) -> None:
        body = self._body(stream=True, max_tokens=MOST_TOKENS)
        with self._http.stream("POST", f"{self._url}/v1/completions", json=body) as response:
            with self._seen.lock:
                self._seen.statuses[response.status_code] += 1
                self._seen.left += response.status_code == 200
            next(response.iter_raw(), b"")

    def _vanishes(self) -> None:
        body = json.dumps(self._body(max_tokens=MOST_TOKENS)).encode()
        host, port = self._url.removeprefix("http://").split(":")
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as raw:
            raw.sendall(head.encode() + body[: self._random.choice([len(body) // 2, len(body)])])
        with self._seen.lock:
            self._seen.unsure += 1

    def _post(self, body: Any, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body)
        response = self._http.post(f"{self._url}/v1/completions", content=content, headers=headers)
        with self._seen.lock:
            self._seen.statuses[response.status_code] += 1
        return response

    def _count(self, response: httpx.Response) -> None:
        if response.status_code == 429:
            return
        self._expect(200, response)
        answer = response.json()
        self._add([choice["finish_reason"] for choice in answer["choices"]], answer["usage"])

    def _count_stream(self, response: httpx.Response, *, usage: bool = True) -> None:
        if response.status_code == 429:
            return
        self._expect(200, response)
        *parts, done, _rest = response.text.split("\n\n")
        events = [json.loads(part.removeprefix("data: ")) for part in parts]
        if done != "data: [DONE]":
            self._complain(f"a stream ended in {done!r}")
        reasons = [c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]]
        self._add(reasons, events[-1]["usage"] if usage else {"completion_tokens": 0})

    def _add(self, reasons: list[str], usage: dict[str, int]) -> None:
        with self._seen.lock:
            self._seen.ended.update(reasons)
            self._seen.tokens += usage["completion_tokens"]

    def _expect(self, status: int, response: httpx.Response) -> None:
        if response.status_code != status:
            self._complain(f"{status} was expected: {response.status_code} {response.text[:200]}")

    def _complain(self, words: str) -> None:
        with self._seen.lock:
            self._seen.wrong.append(words)


def run_clients(url: str, model: str, clients: int, goes_on: Callable[[], Iterator[bool]]) -> Seen:
    """Until each client's `goes_on` ends."""
    seen = Seen()
    threads = [
        threading.Thread(target=MixedClient(url, model, seen, seed).run, args=(goes_on(),))
        for seed in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


def metrics_of(url: str) -> dict[tuple[str, str], float]:
    """(name, finished_reason or status or '') -> value; buckets left out."""
    from prometheus_client.parser import text_string_to_metric_families

    found = {}
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=TIMEOUT_S).text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                labels = sample.labels
                found[sample.name, labels.get("finished_reason") or labels.get("status") or ""] = sample.value
    return found


def is_idle(found: dict[tuple[str, str], float]) -> bool:
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "trueup:kv_blocks_used")
    return all(found[name, ""] == 0 for name in names)


def disagreements(seen: Seen, found: dict[tuple[str, str], float]) -> list[str]:
    """Where the idle server's counts are not those of the clients. What became of answers whose client left
    is in between: they ended, or were given up."""
    wrong = list(seen.wrong)
    ended = {how: found.get(("vllm:request_success_total", how), 0.0) for how in ("stop", "length")}
    aborted = found.get(("vllm:request_success_total", "abort"), 0.0)
    open_ended = seen.left + seen.unsure

    def require(holds: bool, words: str) -> None:
        if not holds:
            wrong.append(words)

    whole, all_ended = sum(seen.ended.values()), sum(ended.values())
    for how, count in ended.items():
        require(
            seen.ended[how] <= count <= seen.ended[how] + open_ended,
            f"{how}: clients saw {seen.ended[how]}, the server counts {count:g}",
        )
    require(
        whole + seen.left <= all_ended + aborted <= whole + open_ended,
        f"answers: clients saw {whole} and left {open_ended}; the server: {all_ended:g} and {aborted:g}",
    )
    tokens = found["vllm:generation_tokens_total", ""]
    require(tokens == found["vllm:request_generation_tokens_sum", ""], "tokens by answer are not all tokens")
    require(tokens >= seen.tokens, f"tokens: clients saw {seen.tokens}, the server counts {tokens:g}")
    firsts = found["vllm:time_to_first_token_seconds_count", ""]
    require(all_ended <= firsts <= all_ended + aborted, f"{firsts:g} first tokens of {all_ended:g} answers")
    require(("vllm:request_success_total", "error") not in found, "the engine gave answers up")
    for status in (400, 429):
        count = found.get(("trueup:http_responses_total", str(status)), 0.0)
        require(
            seen.statuses[status] <= count <= seen.statuses[status] + seen.unsure,
            f"{status}: clients saw {seen.statuses[status]}, the server counts {count:g}",
        )
    replays = found["trueup:idempotent_replays_total", ""]
    require(replays == seen.replays, f"replays: clients saw {seen.replays}, the server counts {replays:g}")
    return wrong
