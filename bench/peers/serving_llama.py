"""llama.cpp behind its OpenAI-compatible server, asked over HTTP as anybody would."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .serving_job import ServingJob, alike, decode_part, kv_bytes

START_S = 120.0


def measure(job: ServingJob, config: dict[str, Any], bandwidth: float) -> dict[str, Any]:
    """Decode of one request: the server of llama-cpp-python has one sequence, so several take turns."""
    assert job.gguf is not None
    size = float(Path(job.gguf).stat().st_size)
    text, tokens = _prompt(job)
    with _server(job, tokens) as port:
        _stream(port, text, 8)  # once unmeasured
        times = _stream(port, text, job.new)
    # its cache is half precision
    contexts = alike(1, tokens, len(times) - 1)
    part = decode_part(1, times, contexts, size, kv_bytes(config, 2))
    return {
        "decode": [asdict(part)],
        "trace": None,
        "bandwidth": bandwidth,
        "weights": {"all": int(size)},
    }


def _prompt(job: ServingJob) -> tuple[str, int]:
    """The others' prompt as text, since this server takes no tokens, and how many tokens that text has."""
    from tokenizers import Tokenizer

    (asked,) = job.decoded(1)
    tokenizer = Tokenizer.from_file(str(Path(job.model) / "tokenizer.json"))
    text = tokenizer.decode(asked.prompt)
    return text, len(tokenizer.encode(text, add_special_tokens=False).ids)


@contextmanager
def _server(job: ServingJob, tokens: int) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [job.llama_python, "-m", "llama_cpp.server", "--model", str(job.gguf)]
    command += ["--port", str(port), "--n_threads", str(job.threads), "--n_threads_batch", str(job.threads)]
    command += ["--n_ctx", str(2 * (tokens + job.new) + 64), "--verbose", "False"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(port, process)
        yield port
    finally:
        process.terminate()
        process.wait()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/v1/models")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"the server of llama-cpp-python was not there after {START_S:.0f} s")


def _stream(port: int, prompt: str, new: int) -> list[float]:
    """When each chunk of an answer came. A chunk is a token; where several came as one, fewer are counted."""
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": new, "temperature": 0.0, "stream": True}
    # a token that ends the answer would end it early
    body["logit_bias"] = {str(token): -100 for token in (0, 2)}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"llama.cpp answered {response.status}: {response.read()[:300]!r}")
    return [
        time.perf_counter()
        for line in response
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0].get("text")
    ]
