"""Small byte-level tokenizers and chat templates of the kinds met in the wild."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Writes BOS itself and trims contents, as Llama 3 does.
BOS_AND_TRIM = (
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n\n' "
    "+ (message['content'] | trim) + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n\n' }}{% endif %}"
)
# Ignores add_generation_prompt, puts spaces around answers, ends them with EOS, has no system turn: Llama 2.
BRACKETS = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + ' ' + eos_token }}"
    "{% else %}{{ raise_exception('no system turn') }}{% endif %}{% endfor %}"
)
# An empty thought before the last answer only, and none in the generation prompt: Qwen 3.
THINKING = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if loop.last and message['role'] == 'assistant' %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{{ message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# No token ends an answer, and the prompt ends in a space.
PLAIN = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ 'Q: ' + message['content'] + '\nA: ' }}"
    "{% else %}{{ message['content'] + '\n' }}{% endif %}{% endfor %}"
)

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<pad>"]
MERGES = [("Ġ", "t"), ("Ċ", "Ċ"), ("h", "e"), ("Ġt", "he"), ("Ġ", "Ġ")]


def byte_tokenizer(
    template: str | None = CHATML, *, adds_bos: bool = False, special: list[str] | None = None, **tokens: Any
) -> PreTrainedTokenizerFast:
    """Every byte is a token, a few pairs merge; special tokens have the lowest ids. `tokens` are bos_token,
    eos_token, pad_token, unk_token."""
    names = SPECIAL if special is None else special
    pieces = [*names, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in MERGES)]
    backend = Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(names)
    if adds_bos:
        bos = tokens["bos_token"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, pieces.index(bos))]
        )
    wrapped = PreTrainedTokenizerFast(tokenizer_object=backend, **tokens)
    wrapped.chat_template = template
    return wrapped


def chatml_tokenizer() -> PreTrainedTokenizerFast:
    """Like SmolLM2's: pad and end are one token."""
    return byte_tokenizer(
        bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>", unk_token="<|endoftext|>"
    )
