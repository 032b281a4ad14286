"""GGUF files in llama.cpp itself: the run's own tokens, logits, continuations, template and end of turn.

Needs the package llama-cpp-python, which trueup does not depend on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sentencepiece_samples import TEXTS, sentencepiece_tokenizer
from test_gguf_export import ADDS_BOS, GPT2, LLAMA3_SPLIT, LORA, bpe, split_then_bytes, trained, with_merges

from trueup.model.builtin import ResolvedModel, damage_of, resolve_model
from trueup.model.gguf_export import write_gguf
from trueup.model.load import LoadedModel, load_model, load_tokenizer
from trueup.model.verify import TOLERANCE_SD

pytest.importorskip("gguf", reason="the extra gguf is not installed")
llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

# A file keeps f32 as it is, but llama.cpp on a CPU rounds what it multiplies f16 and q8_0 weights by as well.
SHARES = {**TOLERANCE_SD, "f32": 1e-3}
CHAT = [{"role": "user", "content": "Where do I find the error log?"}]


def opened(file: Path) -> Any:
    return llama_cpp.Llama(
        str(file), n_ctx=256, n_threads=1, logits_all=True, flash_attn=False, verbose=False
    )


def written(loaded: LoadedModel, tokenizer: Any, path: Path, kind: Any = "f32") -> Any:
    write_gguf(loaded, tokenizer, path, kind, name="x")
    return opened(path)


def resized(tiny: ResolvedModel, rows: int) -> LoadedModel:
    loaded = load_model(tiny, LORA)
    loaded.base.resize_token_embeddings(rows)
    loaded.base.config.vocab_size = rows
    return loaded


def assert_same_tokens(llama: Any, tokenizer: Any, before: str = "") -> None:
    for text in TEXTS:
        ours = tokenizer(before + text, add_special_tokens=False).input_ids
        assert llama.tokenize((before + text).encode(), add_bos=False, special=True) == ours, text


def logits_of(llama: Any, tokens: list[int]) -> torch.Tensor:
    llama.reset()
    llama.eval(tokens)
    return torch.tensor(llama.scores[: len(tokens)])


def assert_same_model(llama: Any, loaded: LoadedModel, tokenizer: Any, kind: str) -> None:
    prompt = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    tokens = tokenizer(prompt, add_special_tokens=False).input_ids
    assert llama.tokenize(prompt.encode(), add_bos=False, special=True) == tokens
    with torch.no_grad():
        ours = loaded.module(input_ids=torch.tensor([tokens])).logits[0].float()
    difference = (logits_of(llama, tokens) - ours).square().mean().sqrt()
    assert difference < SHARES[kind] * ours.std(), f"{difference / ours.std()} sd"
    if kind == "f32":
        with torch.no_grad():
            going_on = loaded.module.generate(
                input_ids=torch.tensor([tokens]), do_sample=False, max_new_tokens=16
            )[0].tolist()
        most_likely = logits_of(llama, going_on).argmax(-1).tolist()
        assert most_likely[len(tokens) - 1 : -1] == going_on[len(tokens) :]


def assert_same_specials(llama: Any, tokenizer: Any) -> None:
    vocabulary = llama_cpp.llama_model_get_vocab(llama._model.model)
    if tokenizer.bos_token_id is not None:
        assert llama.token_bos() == tokenizer.bos_token_id
    assert llama.token_eos() == tokenizer.eos_token_id
    if tokenizer.pad_token_id is not None:
        assert llama_cpp.llama_vocab_pad(vocabulary) == tokenizer.pad_token_id
    assert llama_cpp.llama_vocab_is_eog(vocabulary, tokenizer.eos_token_id)
    assert llama.metadata["tokenizer.chat_template"] == tokenizer.chat_template


def chat_tokens(llama: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What llama-cpp-python gives the model for a chat with the file's own template."""
    given: list[list[int]] = []

    def completion(prompt: list[int], **_: Any) -> Any:
        given.append(list(prompt))
        raise RuntimeError("seen")

    monkeypatch.setattr(llama, "create_completion", completion)
    with pytest.raises(RuntimeError, match="seen"):
        llama.create_chat_completion(CHAT)
    return given[0]


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
def test_the_tiny_model(
    tiny: ResolvedModel, tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, tokenizer = trained(tiny), load_tokenizer(tiny)
    llama = written(loaded, tokenizer, tmp_path / "out.gguf", kind)
    assert_same_tokens(llama, tokenizer)
    assert_same_specials(llama, tokenizer)
    assert_same_model(llama, loaded, tokenizer, kind)
    ours = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert chat_tokens(llama, monkeypatch) == ours


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
def test_the_real_model(tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    home = Path(os.environ.get("TRUEUP_HOME", tmp_path))
    if damage_of(home / "models" / "smollm2-135m") is not None:
        pytest.skip("smollm2-135m is not in TRUEUP_HOME")
    resolved = resolve_model("smollm2-135m", home)
    loaded, tokenizer = trained(resolved, scale=0.02), load_tokenizer(resolved)
    llama = written(loaded, tokenizer, tmp_path / "out.gguf", kind)
    assert_same_tokens(llama, tokenizer)
    assert_same_specials(llama, tokenizer)
    assert_same_model(llama, loaded, tokenizer, kind)
    ours = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert chat_tokens(llama, monkeypatch) == ours


@pytest.mark.parametrize(
    ("split", "whole"),
    [
        (GPT2, False),
        (split_then_bytes(LLAMA3_SPLIT), True),
        (split_then_bytes(LLAMA3_SPLIT.replace("{1,3}", "")), False),
    ],
    ids=["gpt-2", "llama-bpe", "qwen2"],
)
def test_each_way_of_splitting(
    tiny: ResolvedModel, tmp_path: Path, split: dict[str, Any], whole: bool
) -> None:
    tokenizer = with_merges(load_tokenizer(tiny), split, ignore_merges=whole)
    assert_same_tokens(written(resized(tiny, 270), tokenizer, tmp_path / "out.gguf"), tokenizer)


@pytest.mark.parametrize("spaces", ["legacy", "first", "never"])
def test_sentencepiece(tiny: ResolvedModel, tmp_path: Path, spaces: str) -> None:
    tokenizer = sentencepiece_tokenizer(spaces)
    loaded = resized(tiny, len(tokenizer) + 3)
    llama = written(loaded, tokenizer, tmp_path / "out.gguf")
    assert_same_tokens(llama, tokenizer, before="<s>" if spaces == "first" else "")
    assert_same_specials(llama, tokenizer)
    assert_same_model(llama, loaded, tokenizer, "f32")


def test_one_bos_where_the_template_writes_it(
    tiny: ResolvedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama-cpp-python issue 1501."""
    tokenizer = bpe(load_tokenizer(tiny), post_processor=ADDS_BOS)
    tokenizer.chat_template = "{{ bos_token + messages[0]['content'] }}"
    llama = written(load_model(tiny, LORA), tokenizer, tmp_path / "out.gguf")
    assert chat_tokens(llama, monkeypatch).count(257) == 1
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    (tmp_path / "out.gguf").unlink()
    llama = written(load_model(tiny, LORA), tokenizer, tmp_path / "out.gguf")
    assert llama.tokenize(b"a", special=True) == [257, 97]
