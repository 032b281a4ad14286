"""The environment record: whole, JSON-able, and without a secret in it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.device import CpuDevice
from trueup.telemetry import collect
from trueup.telemetry.environment import commit_of
from trueup.telemetry.instance import instance
from trueup.telemetry.scrub import scrub, scrub_arguments, variables_that_matter

# made up, in the forms that such credentials have
SECRETS = ("hf_" + "a1B2" * 5, "AKIA" + "ABCD" * 4, "ghp_" + "x9" * 10, "sk-" + "q" * 24)


def test_the_record_is_whole_and_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("HF_TOKEN", SECRETS[0])
    monkeypatch.setenv("NCCL_API_KEY", "abc123")
    monkeypatch.setattr(sys, "argv", ["trueup", "train", "--hub-token", "abc123", f"note={SECRETS[1]}"])
    record = collect(CpuDevice(), metadata=False)
    text = json.dumps(record, allow_nan=False)
    assert set(record) == {
        *(
            "host",
            "process",
            "versions",
            "commit",
            "device",
            "missing_sensors",
            "variables",
            "load",
            "instance",
        )
    }
    assert record["versions"]["torch"]
    assert record["variables"]["OMP_NUM_THREADS"] == "2"
    assert record["device"]["kind"] == "cpu"
    assert 0 <= record["load"]["others_cpu_share"] <= 1
    assert "platform.metadata" in record["instance"]["reason"]
    for secret in ("abc123", *SECRETS):
        assert secret not in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--token", "abc"], ["--token", "***"]),
        (["--hub-token=abc"], ["--hub-token=***"]),
        (["--set", "hub.api_key=abc"], ["--set", "hub.api_key=***"]),
        (["--password", "a b", "x"], ["--password", "***", "x"]),
        (["--tokenizer-path", "dir"], ["--tokenizer-path", "dir"]),
        (["--set", "train.tokens_per_step=512"], ["--set", "train.tokens_per_step=512"]),
        (["--set", "train.stop.useful_tokens=9"], ["--set", "train.stop.useful_tokens=9"]),
        (["token", "x"], ["token", "x"]),
        (["s3://me:pw@host/x"], ["s3://***@host/x"]),
        (["https://h/x?a=1&X-Amz-Signature=abc&b=2"], ["https://h/x?a=1&X-Amz-Signature=***&b=2"]),
        (["Authorization: Bearer abc.def"], ["Authorization: Bearer ***"]),
    ],
)
def test_arguments_keep_their_sense_and_lose_their_secrets(arguments: list[str], expected: list[str]) -> None:
    assert scrub_arguments(arguments) == expected


@given(
    before=st.text("abc /=:\"'", max_size=5),
    secret=st.sampled_from(SECRETS),
    after=st.text(" /\"',", max_size=5),
)
def test_known_forms_are_hidden_wherever_they_stand(before: str, secret: str, after: str) -> None:
    if not before or not before[-1].isalnum():  # inside a longer word it is not a credential
        assert secret not in scrub(before + secret + after)


@pytest.mark.parametrize(
    "name",
    ["NEURON_API_KEY", "TORCH_TOKEN", "CUDA_SECRET_X", "XLA_PASSWORD", "FI_CREDENTIALS", "HF_TOKEN", "PATH"],
)
def test_secret_and_unrelated_variables_stay_out(name: str) -> None:
    assert variables_that_matter({name: "v", "OMP_NUM_THREADS": "3"}) == {"OMP_NUM_THREADS": "3"}


def test_an_installed_copy_inside_another_repository_has_no_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    git("init")
    file = tmp_path / "file.py"
    file.write_text("x = 1\n")
    assert "installed copy" in commit_of(file)["reason"]
    git("add", "file.py")
    git("-c", "user.name=n", "-c", "user.email=e", "commit", "-m", "m")
    assert commit_of(file)["dirty"] is False
    file.write_text("x = 2\n")
    assert commit_of(file)["dirty"] is True


def test_outside_a_repository_there_is_a_reason(tmp_path: Path) -> None:
    assert commit_of(tmp_path / "file.py")["reason"]


class Metadata(BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        self._answer("the-token" if self.headers["X-aws-ec2-metadata-token-ttl-seconds"] else "", 200)

    def do_GET(self) -> None:
        if self.headers["X-aws-ec2-metadata-token"] != "the-token":
            self._answer("", 401)
        elif self.path == "/latest/dynamic/instance-identity/document":
            self._answer(
                json.dumps({"instanceType": "m7g.large", "region": "us-east-1", "accountId": "42"}), 200
            )
        elif self.path == "/latest/meta-data/instance-life-cycle":
            self._answer("spot", 200)
        else:
            self._answer("", 404)

    def _answer(self, text: str, status: int) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def metadata_service() -> Iterator[tuple[str, int]]:
    server = HTTPServer(("127.0.0.1", 0), Metadata)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield "127.0.0.1", server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_metadata_service_is_asked_with_a_token(metadata_service: tuple[str, int]) -> None:
    facts = instance(metadata=True, address=metadata_service)
    facts.pop("firmware", None)
    assert facts == {
        "instanceType": "m7g.large",
        "region": "us-east-1",
        "lifeCycle": "spot",
    }  # no account number


def test_a_silent_metadata_service_costs_no_more_than_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts and never answers
        address = ("127.0.0.1", server.getsockname()[1])
        facts = instance(metadata=True, address=address, limit_s=0.1)
    assert "no answer" in facts["reason"]


def test_an_absent_metadata_service_is_a_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert "no answer" in instance(metadata=True, address=("127.0.0.1", port))["reason"]
