"""`trueup serve` and `trueup chat` from the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest

from in_process import Done, call, refused
from trueup.analysis.serving_memory import ServingAsk, serving_lines, value_of
from trueup.analysis.serving_memory_fit import WEIGHTS
from trueup.cli.memory_place import find_model
from trueup.cli.serve import _address, _warm_up
from trueup.cli.serve_plan import _way
from trueup.device import open_device
from trueup.model.tiny import write_tiny
from trueup.schema.quantization import FACTS_FILE
from trueup.serve.opening import Opening
from trueup.serve.plan import plan_serving
from trueup.serve.server import listen

SMALL = ("--context", "64", "--concurrency", "2", "--prefill-chunk", "32", "--device", "cpu")
ENDS_S = 60

Main = Callable[..., Done]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared: the built-in model is written once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def main(home: Path) -> Main:
    return lambda *arguments, folder=None: call(*arguments, home=home, folder=folder)


# --- what is refused before anything is loaded --------------------------------------------------------------


def test_a_check_says_what_would_be_served_and_ends(main: Main) -> None:
    done = main("serve", "tiny", *SMALL, "--check", "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert (document["context"], document["weights"], document["fit"]["fits"]) == (64, "fp32", True)
    assert [2, 1, 4] in document["shapes"]
    assert document["pool"]["blocks"] == 2 * 4 + 1


def test_what_cannot_fit_is_refused_with_what_would(main: Main) -> None:
    done = main("serve", "tiny", "--memory", "0.01", "--device", "cpu", "--context", "4096")
    refused(done, 2, "does not fit", "needs", "has", "--context")


@pytest.mark.parametrize(
    ("scheme", "folder"), [("int8", False), ("bf16", False), ("int4", True), ("fp8", True)]
)
def test_what_only_a_quantised_folder_can_have_is_suggested_as_one(scheme: str, folder: bool) -> None:
    assert ("trueup quantize" in _way(f"{scheme} weights and bf16 keys and values")) == folder


def test_a_device_that_compiles_warms_every_shape_and_another_the_largest_and_both_say_so() -> None:
    plan = plan_serving(max_context=4096, blocks=2049, concurrency=8)
    opening = Opening(Path(), "fp32", "fp32", plan, frozenset())
    compiles: Any = SimpleNamespace(static_shapes_only=True)
    eager: Any = SimpleNamespace(static_shapes_only=False)
    assert opening.to_warm(compiles) == plan.shapes()
    assert opening.to_warm(eager) == plan.largest_shapes()
    assert _warm_up(6, 85).startswith("warm-up: 6 of the plan's 85 shapes; nothing is compiled here")
    assert _warm_up(85, 85).startswith("warm-up: all 85 shapes")


@pytest.mark.parametrize("quant", ["fp32", "int8"])
def test_weights_and_rotary_tables_are_counted_as_the_plan_has_them(tmp_path: Path, quant: Any) -> None:
    write_tiny(tmp_path)
    ask = ServingAsk(find_model(str(tmp_path)).dims, 32, 1, quant=quant, kv="fp32", device="cpu")
    plan = plan_serving(max_context=32, blocks=3, concurrency=1, prefill_chunk=16)
    opened = Opening(tmp_path, quant, "fp32", plan, frozenset()).open(open_device("cpu", threads=1))
    lines = serving_lines(ask)
    planned = sum(value_of(lines, name) for name in (*WEIGHTS, "packing_bytes"))
    assert opened.memory_bytes["weights"] == planned
    assert opened.memory_bytes["rotary"] == value_of(lines, "rotary_bytes")


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1", "127.0.0.1:80"), ("::1", "[::1]:80"), ("a.example", "a.example:80")]
)
def test_an_address_can_be_asked_as_it_is_said(host: str, address: str) -> None:
    assert _address(host, 80) == address


def test_less_memory_than_all_could_use_is_served_and_said(main: Main) -> None:
    done = main("serve", "tiny", "--memory", "0.02", "--device", "cpu", "--concurrency", "4", "--check")
    assert done.code == 0, done.err
    assert "blocks" in done.err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--context", "5000"), ("--context", "4,096 positions")),
        (("--quant", "int3"), ("--quant int3", "int8")),
        (("--kv-dtype", "fp8"), ("--kv-dtype fp8", "bf16")),
        (("--request", "0"), ("--request 0",)),
        (("--concurrency", "0"), ("--concurrency 0",)),
        (("--concurrency", "9" * 20), ("--concurrency 99999999999999999999",)),
        (("--waiting", "9" * 20), ("--waiting 99999999999999999999",)),
        (("--memory", "1e30"), ("--memory 1e+30", "below 1e9")),
        (("--port", "99999"), ("--port 99999",)),
        (("--device", "tpu"), ("--device tpu", "cpu")),
        (("--api-key-file", "/no/such/file"), ("/no/such/file", "No such file")),
        (("--host", "a" * 64), ("--host",)),
        (("--name", "two\nlines"), ("--name", "cannot be sent")),
        (("--name", "half \ud800"), ("--name", "cannot be sent")),
        (("--set", "serve.port=1"), ("--set is for a recipe",)),
    ],
)
def test_bad_options_are_refused_in_words(
    main: Main, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    refused(main("serve", "tiny", *arguments), 2, *parts)


def test_more_threads_than_can_be_counted_are_refused(main: Main) -> None:
    done = main("serve", "tiny", *SMALL, "--check", "--threads", str(2**63))
    assert (done.code, done.out) == (2, "")
    assert "--threads" in done.err


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("generation_config.json", "{", "not a readable JSON object"),
        ("generation_config.json", "[]", "not a readable JSON object"),
        ("generation_config.json", '{"eos_token_id": "x"}', "eos_token_id is 'x'"),
        ("config.json", '{"num_hidden_layers": 0}', "num_hidden_layers 0"),
        ("config.json", '{"num_hidden_layers": 1}', "says 1 layer"),
        ("config.json", '{"hidden_size": "x"}', "hidden_size 'x'"),
        ("config.json", '{"num_key_value_heads": 3}', "num_key_value_heads 3"),
        ("config.json", '{"model_type": "gpt2"}', "not built as Llama's"),
    ],
)
def test_a_folder_that_cannot_be_served_is_refused_before_it_listens(
    main: Main, home: Path, tmp_path: Path, file: str, content: str, words: str
) -> None:
    assert main("serve", "tiny", *SMALL, "--check").code == 0
    folder = tmp_path / "broken"
    shutil.copytree(home / "models" / "tiny", folder)
    if file == "config.json":
        content = json.dumps(json.loads((folder / file).read_text()) | json.loads(content))
    (folder / file).write_text(content)
    done = main("serve", folder, *SMALL, "--port", "0")
    refused(done, 2, words)
    assert "listening" not in done.err


def test_a_server_that_would_end_at_once_with_another_process_is_refused(main: Main) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        running = main("serve", "tiny", "--check", "--end-with", str(other.pid))
        other.communicate(b"\n")
    refused(running, 2, f"--end-with {other.pid}: that process did not start this one", "end at once")
    for gone in (other.pid, 2**40):
        done = main("serve", "tiny", "--check", "--end-with", str(gone))
        refused(done, 2, f"--end-with {gone}: that process is not there", f"its parent is {os.getppid()}")
    assert main("serve", "tiny", *SMALL, "--check", "--end-with", str(os.getppid())).code == 0


def test_a_device_that_is_not_here_is_refused(main: Main) -> None:
    refused(main("serve", "tiny", "--device", "neuron", "--check"), 2, "--device neuron")


def test_an_unknown_model_is_refused(main: Main) -> None:
    refused(main("serve", "no-such-model", "--check"), 2, "no-such-model")


def test_a_quantised_model_that_no_gate_has_accepted_is_not_served(
    main: Main, home: Path, tmp_path: Path
) -> None:
    assert main("serve", "tiny", "--check").code == 0
    shutil.copytree(home / "models" / "tiny", tmp_path / "rounded")
    (tmp_path / "rounded" / FACTS_FILE).write_text("{}")
    refused(main("serve", tmp_path / "rounded", "--check"), 1, "quantised, and no", "trueup quantize")


def test_a_port_that_is_taken_is_refused_before_the_model_is_loaded(main: Main) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        refused(main("serve", "tiny", *SMALL, "--port", port), 2, "is taken")


def test_a_recipes_section_is_what_is_served_and_options_come_before_it(main: Main, tmp_path: Path) -> None:
    recipe = tmp_path / "my.yaml"
    recipe.write_text(
        "model: {path: tiny}\ndata: {source: stdlib-docs}\nplatform: {device: cpu}\n"
        "serve: {context: 96, concurrency: 3, block_size: 8, quant: int8}\n"
    )
    done = main("serve", recipe, "--context", "80", "--check", "--json", "--set", "serve.waiting=5")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert (document["context"], document["settings"]["concurrency"]) == (80, 3)
    assert (document["weights"], document["settings"]["waiting"]) == ("int8", 5)
    assert "no quality gate" in done.err


def test_a_recipes_unknown_key_is_refused_with_the_nearest(main: Main, tmp_path: Path) -> None:
    recipe = tmp_path / "my.yaml"
    recipe.write_text("model: {path: tiny}\ndata: {source: stdlib-docs}\nserve: {contxt: 96}\n")
    refused(main("serve", recipe, "--check"), 2, "my.yaml:3", "serve.context")


# --- a server under way -------------------------------------------------------------------------------------


@dataclass
class Served:
    url: str
    process: subprocess.Popen[str]


@pytest.fixture(scope="module")
def served(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("secret\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "trueup", "serve", "tiny", *SMALL, "--port", "0", "--api-key-file", str(keys)],
        env={**os.environ, "TRUEUP_HOME": str(home), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    url = ""
    for line in process.stderr:
        url = url or "".join(re.findall(r"listening at (http://\S+)/v1", line))
        if line.startswith("ready:"):
            break
    assert url
    try:
        yield Served(url, process)
    finally:
        process.kill()


def test_a_served_model_answers_the_openai_package(served: Served) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="secret", max_retries=0)
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=4, temperature=0
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


def test_a_chat_with_a_server_shows_its_answer_and_how_fast_it_was(
    main: Main, served: Served, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("# the server's\nsecret\n")
    done = main("chat", served.url, "-p", "hi", "--max-tokens", "4", "--api-key-file", tmp_path / "key")
    assert done.code == 0, done.err
    assert done.out
    assert "first token after" in done.err
    assert "; 4 tokens" in done.err
    refused(main("chat", served.url, "-p", "hi"), 1, "401")


def test_a_signal_ends_it_with_code_0(served: Served) -> None:
    assert httpx.get(f"{served.url}/ready").status_code == 200
    served.process.send_signal(signal.SIGTERM)
    _, err = served.process.communicate(timeout=ENDS_S)
    assert served.process.returncode == 0
    assert "everything accepted was answered" in err


# --- a chat without a server --------------------------------------------------------------------------------


def test_a_chat_with_a_model_shows_its_answer_and_how_fast_it_was(main: Main) -> None:
    arguments = ("chat", "tiny", "-p", "hi", "--max-tokens", "4", "--context", "64", "--temperature", "0")
    done, again = main(*arguments), main(*arguments)
    assert done.code == 0, done.err
    assert "; 4 tokens" in done.err
    assert again.out == done.out


def test_a_conversation_longer_than_the_context_is_refused_in_words(main: Main) -> None:
    refused(main("chat", "tiny", "-p", "x" * 100, "--context", "64"), 2, "context is 64")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("tiny", "--model", "x"), "--model"),
        (("http://127.0.0.1:9", "--quant", "int8"), "--quant"),
        (("http://127.0.0.1:9",), "no server answers there"),
        (("http://",), "no server answers there"),
        (("http://127.0.0.1:9", "--api-key-file", "/no/such/file"), "cannot be read"),
    ],
)
def test_a_chat_that_cannot_be_is_refused_in_words(main: Main, arguments: tuple[str, ...], part: str) -> None:
    refused(main("chat", *arguments, "-p", "hi"), 2, part)


def test_a_missing_package_names_the_extra(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    refused(main("serve", "tiny", "--check"), 2, "uvicorn", "pip install 'trueup[serve]'")
