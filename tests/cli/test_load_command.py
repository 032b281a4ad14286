"""`trueup load` and what the other commands make of its runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from sse_server import answering

from in_process import Main, call, refused

LOAD = (
    "--rate",
    "500",
    "--requests",
    "30",
    "--output-tokens",
    "4",
    "--prompt-tokens",
    "12",
    "--warm-up",
    "1",
)
PRICED = ("--usd-per-hour", "3.6", "--price-source", "a test")


@pytest.fixture(scope="module")
def loaded_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two loads, `before` and `after`. Not to be changed: copy it."""
    home = tmp_path_factory.mktemp("loads")
    gate = home / "gate.json"
    figure = {"value": 11.5, "unit": "1", "kind": "measured", "method": "the gate", "ci": [11.0, 12.0]}
    gate.write_text(json.dumps({"gate": {"perplexity": figure}}))
    plan = home / "plan.json"
    line = {"value": 3e8, "unit": "bytes", "kind": "estimated", "method": "the plan"}
    plan.write_text(json.dumps({"lines": {"weights": line}}))
    given = ("--quality", gate, "--memory-plan", plan, "--ttft-limit", "60")
    with answering() as (url, _):
        for name in ("before", "after"):
            done = call("load", url, *LOAD, *PRICED, *given, "--name", name, home=home)
            assert done.code == 0, done.err
    return home


@pytest.fixture
def loaded(loaded_home: Path, home: Path) -> Path:
    shutil.copytree(loaded_home, home, dirs_exist_ok=True)
    return home


def document(main: Main, *arguments: str) -> Any:
    done = main(*arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_a_load_is_a_run_with_figures_and_the_server_that_was_asked(loaded: Path, main: Main) -> None:
    shown = document(main, "runs", "show", "before")
    assert (shown["kind"], shown["state"]) == ("load", "finished")
    figures = {name: one["value"] for name, one in shown["measurements"].items()}
    assert figures["completed_requests_count"] == 30
    assert figures["output_tokens"] == 120
    assert figures["input_tokens"] == 360
    assert figures["preemptions_count"] == 0
    assert figures["quality_perplexity"] == 11.5
    assert figures["plan_weights_bytes"] == 3e8
    assert figures["usd_per_million_output_tokens"] > 0
    assert shown["model"] is None
    assert shown["recipe"]["model"]["path"] == "told"
    assert shown["recipe"]["server"]["context"] == 512
    assert sum(span["seconds"] for span in shown["spans"]) == pytest.approx(shown["wall_s"], abs=1e-6)


def test_loads_are_listed_with_their_tokens_and_their_cost(loaded: Path, main: Main) -> None:
    listed = document(main, "runs", "list", "kind=load")
    assert {one["name"] for one in listed} == {"before", "after"}
    assert all(one["output_tokens"] == 120 and one["usd_per_million_output_tokens"] > 0 for one in listed)
    assert "120 output" in main("runs", "list").out


def test_a_load_is_shown_on_the_terminal(loaded: Path, main: Main) -> None:
    done = main("runs", "show", "before")
    assert done.code == 0
    assert "30 requests" in done.out
    assert "foretold" not in done.out


def test_a_loads_bill_has_costs_lines_and_a_month(loaded: Path, main: Main) -> None:
    bill = document(main, "bill", "before", "--traffic", "100000", "--peak", "2")
    assert set(bill["costs"]) >= {"usd_per_million_output_tokens", "usd_per_million_total_tokens"}
    assert sum(line["usd"] for line in bill["lines"]) == pytest.approx(bill["total_usd"])
    assert bill["monthly"]["instances"]["value"] == 1
    assert bill["monthly"]["usd_per_month"]["value"] == pytest.approx(3.6 * 730)
    text = main("bill", "before", "after", "--traffic", "100000").out
    assert text.count("per million output tokens (all dollars over them)") == 2
    assert "a month on 1 instance for 100,000 requests a day" in text


def test_two_loads_are_compared_on_one_page(loaded: Path, main: Main, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = main("compare", "before", "after", "--traffic", "100000", "-o", str(page))
    assert done.code == 0, done.err
    for row in ("$ per million output tokens", "$ a month, whole instances", "TTFT, p50", "plan: weights"):
        assert row in done.out
        assert row in page.read_text()
    assert "quality: perplexity" in done.out


def test_a_report_of_loads_says_what_a_token_costs_and_how_latency_is_reckoned(
    loaded: Path, main: Main, tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    done = main("report", "before", "after", "-o", str(out), "--traffic", "1000")
    assert done.code == 0, done.err
    page = out.read_text()
    for words in (
        "per million output tokens",
        "first text − instant the request was due",
        "a month on 1 instance",
        "plan weights",
        "answering requests",
        "Side by side",
        "$ a month, whole instances",
        "quality: perplexity",
    ):
        assert words in page
    assert "<script" not in page


def test_a_load_travels_between_homes_with_its_requests(loaded: Path, main: Main, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert main("runs", "export", "before", "-o", str(tmp_path / "load.zip")).code == 0
    assert main("runs", "import", str(tmp_path / "load.zip"), home=other).code == 0
    there = document(lambda *a: main(*a, home=other), "runs", "show", "before")
    here = document(main, "runs", "show", "before")
    assert there["measurements"] == here["measurements"]
    (folder,) = (other / "runs").iterdir()
    assert len((folder / "requests.jsonl").read_text().splitlines()) == 31


def test_loads_and_trainings_are_not_billed_reported_or_compared_together(
    loaded: Path, finished_home: Path, main: Main, tmp_path: Path
) -> None:
    (trained,) = (finished_home / "runs").iterdir()
    shutil.copytree(trained, loaded / "runs" / trained.name)
    for verb in ("bill", "report"):
        refused(
            main(verb, "before", "tiny"), 2, "is a load on a server", "trained a model", f"{verb} them apart"
        )
    refused(main("compare", "before", "tiny"), 2, "is a load on a server", "trained a model")
    refused(main("bill", "tiny", "--traffic", "10"), 2, "--traffic and --peak are for loads")
    refused(main("compare", "tiny", "before", "--traffic", "10"), 2, "is a load on a server")


def test_options_of_training_bills_are_refused_for_loads(loaded: Path, main: Main) -> None:
    refused(main("bill", "before", "--budget", "1"), 2, "--budget is for training runs")
    refused(main("bill", "before", "--study"), 2, "--study is for training runs")
    refused(main("reproduce", "before"), 2, "was a load on a server", "trueup load")


def test_the_name_of_a_load_that_got_no_answer_means_the_one_that_did_to_every_command(
    loaded: Path, main: Main, tmp_path: Path
) -> None:
    (whole,) = (run["id"] for run in document(main, "runs", "list", "name=before"))
    header = json.loads((loaded / "runs" / whole / "run.json").read_text())
    cut_off = loaded / "runs" / "00000001"
    cut_off.mkdir()
    (cut_off / "run.json").write_text(json.dumps({**header, "id": "00000001", "state": "interrupted"}))
    shown = main("runs", "show", "before", "--json")
    assert json.loads(shown.out)["id"] == whole
    assert f"note: before is run {whole}, the only one so named that was answered; not 00000001" in shown.err
    assert main("bill", "before").code == 0
    assert main("report", "before", "after", "-o", str(tmp_path / "page.html")).code == 0
    assert main("compare", "before", "after").code == 0


def test_a_load_that_was_killed_is_listed_by_its_name_and_keeps_it(loaded: Path, main: Main) -> None:
    """As a load leaves its folder that has not summed itself up: a header, and what was answered."""
    (run,) = (run["id"] for run in document(main, "runs", "list", "name=before"))
    folder = loaded / "runs" / run
    header = json.loads((folder / "run.json").read_text())
    begun = {"state": "running", "reason": None, "ended_at": None, "wall_s": None}
    (folder / "run.json").write_text(json.dumps({**header, **begun}))
    (folder / "measurements.json").unlink()
    heartbeat = (folder / "heartbeat").stat().st_mtime - 3600
    os.utime(folder / "heartbeat", (heartbeat, heartbeat))
    (listed,) = document(main, "runs", "list", "before")
    assert (listed["name"], listed["state"], listed["output_tokens"]) == ("before", "interrupted", None)
    again = ("load", "http://127.0.0.1:9", "--rate", "1", "--name", "before")
    refused(main(*again), 2, f"run {run} has this name")
    first = json.loads((folder / "requests.jsonl").read_text().splitlines()[0])
    # killed in its warm-up, before its first answer
    (folder / "requests.jsonl").write_text(json.dumps(first | {"warm_up": True}) + "\n")
    assert main(*again).code == 1


def test_the_key_of_the_environment_is_sent_and_not_recorded(
    home: Path, main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUEUP_API_KEY", "sk-not-to-be-seen")
    with answering() as (url, keys):
        assert main("load", url, "--concurrency", "2", "--requests", "3", "--output-tokens", "2").code == 0
    assert set(keys) == {"Bearer sk-not-to-be-seen"}
    (folder,) = (home / "runs").iterdir()
    assert all(b"sk-not-to-be-seen" not in path.read_bytes() for path in folder.iterdir() if path.is_file())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "how do requests arrive?"),
        (("--rate", "1", "--concurrency", "2"), "give one of them"),
        (("--rate", "-1"), "--rate -1"),
        (("--rate", "nan"), "--rate nan"),
        (("--rate", "1", "--rate-end", "2"), "--rate-end needs"),
        (("--concurrency-end", "2", "--rate", "1"), "--concurrency-end needs"),
        (("--rate", "1", "--requests", "0"), "--requests 0"),
        (("--trace", "none.csv"), "there is no such file"),
        (("--rate", "1", "--prompts", "none.txt"), "there is no such file"),
        (("--rate", "1", "--quality", "none.json"), "there is no such file"),
        (("--rate", "1", "--traffic", "100"), "--traffic is priced a month"),
        (("--rate", "1", "--peak", "2"), "--peak is for --traffic"),
        (("--rate", "1", *PRICED, "--traffic", "1e300"), "--traffic 1e+300, requests a day: expected"),
        (("--rate", "1", *PRICED, "--traffic", "100", "--peak", "1e9"), "--peak 1e+09, the busiest rate"),
        (("--rate", "1", "--serve-option", "x"), "--serve-option is for a MODEL"),
        (("--rate", "1", "--instance", "no-such"), "no-such"),
        (("--rate", "1", "--ttft-limit", "-1"), "--ttft-limit -1"),
        (("--rate", "1", "--timeout", "0"), "--timeout 0"),
        (("--rate", "1", "--duration", "-1"), "--duration -1"),
    ],
)
def test_mistakes_are_told_before_anything_is_recorded(
    home: Path, main: Main, options: tuple[str, ...], words: str
) -> None:
    refused(main("load", "http://127.0.0.1:9", *options), 2, words)
    assert not (home / "runs").exists() or not list((home / "runs").iterdir())


@pytest.mark.parametrize("option", ["--port=8124", "--host=0.0.0.0", "--end-with=1", "--check", "--json"])
def test_an_option_with_which_the_load_would_not_find_its_server_is_refused(
    home: Path, main: Main, option: str
) -> None:
    done = main("load", "tiny", "--rate", "1", f"--serve-option={option}")
    refused(done, 2, f"--serve-option={option}: ", "leave it out")
    assert not (home / "runs").exists() or not list((home / "runs").iterdir())


@pytest.mark.parametrize("url", ["http://", "http://user:secret@host", "http://host:port", "http://host?x=1"])
def test_an_address_that_is_none_is_refused(main: Main, url: str) -> None:
    done = main("load", url, "--rate", "1")
    refused(done, 2)
    assert "secret" not in done.err


def test_a_server_that_is_not_there_is_said_and_recorded(home: Path, main: Main) -> None:
    done = main("load", "http://127.0.0.1:9", "--rate", "1", "--requests", "1")
    assert done.code == 1
    assert "no server answers at http://127.0.0.1:9/v1/models" in done.err
    assert document(main, "runs", "show", "last")["state"] == "failed"


PAGE = Path(__file__).parents[2] / "docs" / "load.md"


def commands_of_the_page() -> list[list[str]]:
    """Every command of docs/load.md, which its readers need a server for."""
    blocks = re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("trueup ")]


def test_the_pages_commands_on_loads_work(
    loaded: Path, main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = [words for words in commands_of_the_page() if words[1] != "load"]
    assert {words[1] for words in asked} == {"bill", "compare", "report"}
    for words in asked:
        done = main(*words[1:])
        assert done.code == 0, (words, done.err)


def test_the_pages_loads_work_on_a_server_that_answers(
    home: Path, main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the address of one in place of theirs, on a machine whose price is known."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "azure_llm_conv.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:15:46.{n:03d},{40 + n},{3 + n % 4}\n" for n in range(20))
    )
    asked = [words for words in commands_of_the_page() if words[1] == "load"]
    assert len(asked) == 2
    with answering() as (url, _):
        for words in asked:
            options = [word for word in words[3:] if not word.startswith("--serve-option")]
            done = main("load", url, *options)
            assert done.code == 0, (words, done.err)


def test_every_key_of_a_loads_bill_is_documented_and_there(loaded: Path, main: Main) -> None:
    bill = document(main, "bill", "before", "--traffic", "1000")
    documented = re.findall(
        r"^\| `([a-z_]+)(?:\[\])?(?:\.[^`]*)?` \| (?:kept)? ?\|", PAGE.read_text(), re.MULTILINE
    )
    assert set(documented) == set(bill)
