"""`prepare --show` and `prepare -o`: what the model sees, in the terminal, as JSON and as a page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from in_process import Main

ROWS = [
    {"prompt": f"Say [red]{n}[/red] \x1b[31m", "completion": f"{n} 🙂\nand <b>{n}</b>"} for n in range(20)
]


def data_in(folder: Path) -> list[str]:
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return ["--set", f"data.source={data}"]


def test_examples_are_printed_with_what_is_learned(main: Main, recipe_file: Path, tmp_path: Path) -> None:
    done = main("prepare", recipe_file, *data_in(tmp_path), "--show", "2")
    assert done.code == 0
    assert done.out.count("\nexample ") == 2
    assert "Say [red]" in done.out
    assert "␛[31m<|im_end|>↵" in done.out
    assert "«" in done.out
    assert "</b><|im_end|>»↵" in done.out
    assert "\x1b" not in done.out
    assert "example 1" not in main("prepare", recipe_file, *data_in(tmp_path)).out


def test_examples_as_json_are_the_tokens(main: Main, recipe_file: Path, tmp_path: Path) -> None:
    report = json.loads(main("prepare", recipe_file, *data_in(tmp_path), "--show", "3", "--json").out)
    assert len(report["shown"]) == 3
    for example in report["shown"]:
        assert "".join(token["text"] for token in example["tokens"]) == example["text"]
        learned = "".join(token["text"] for token in example["tokens"] if token["loss"])
        assert learned.removesuffix("<|im_end|>") in {row["completion"] for row in ROWS}
        assert all(set(token) == {"id", "text", "loss", "special"} for token in example["tokens"])
    assert "shown" not in json.loads(main("prepare", recipe_file, *data_in(tmp_path), "--json").out)


def test_the_page_is_written_and_its_place_said(main: Main, recipe_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "data.html"
    done = main("prepare", recipe_file, *data_in(tmp_path), "-o", out)
    assert done.code == 0
    assert f"wrote {out} (" in done.err
    page = out.read_text()
    assert page.count('<figure class="example">') == 6
    assert "&lt;" in page
    assert "<b>0</b>" not in page
    shown = json.loads(
        main("prepare", recipe_file, *data_in(tmp_path), "-o", out, "--show", "8", "--json").out
    )
    assert shown["page"] == {"path": str(out), "bytes": out.stat().st_size}
    assert out.read_text().count('<figure class="example">') == 8


def test_every_message_is_printed_once(main: Main, recipe_file: Path, built: Path, tmp_path: Path) -> None:
    """On stdout with the rest of the result; in the document with --json."""
    data = tmp_path / "two.jsonl"
    data.write_text(
        "".join(json.dumps({"prompt": f"{n}", "chosen": "x", "rejected": "y"}) + "\n" for n in range(9))
    )
    command = ("prepare", recipe_file, "--set", f"data.source={data}")
    report = json.loads(main(*command, "--json").out)
    assert any("preference pairs are read as their chosen side" in message for message in report["messages"])
    for more in ([], ["--json"]):
        done = main(*command, *more)
        said = done.out + done.err
        assert done.err == ""
        assert all(said.replace("\n", " ").count(message) == 1 for message in report["messages"]), said


def test_a_page_that_cannot_be_written(main: Main, recipe_file: Path, tmp_path: Path) -> None:
    done = main("prepare", recipe_file, *data_in(tmp_path), "-o", tmp_path / "none" / "data.html")
    assert done.code == 2
    assert "does not exist; make it first" in done.err
    done = main("prepare", recipe_file, *data_in(tmp_path), "--show", "-1")
    assert done.code == 2


def test_a_template_at_fault_is_refused(main: Main, recipe_file: Path, tmp_path: Path, built: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(built / "models" / "tiny", model)
    (model / "trueup-model.json").unlink()
    template = model / "chat_template.jinja"
    template.write_text(template.read_text().replace("message['content']", "message['content'] | e"))
    done = main("prepare", recipe_file, *data_in(tmp_path), "--set", f"model.path={model}")
    assert done.code == 2
    for part in (str(model), "what the user says", "&lt; 2 &amp;", "Mend chat_template"):
        assert part in done.err, done.err
