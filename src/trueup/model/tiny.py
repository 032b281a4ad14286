"""The built-in tiny model: a random Llama of two layers with a tokenizer whose tokens are bytes. For tests,
and for trying the whole house without a network. Byte b is token b; the four special tokens follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SPECIALS = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>")
VOCAB = 256 + len(SPECIALS)
MAX_POSITIONS = 4096
SEED = 20

# ChatML: each turn opens with <|im_start|>role and ends with <|im_end|>.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
}


def write_tiny(folder: Path, *, tied_head: bool = False, **sizes: int) -> None:
    """Writes the model and its tokenizer as an ordinary Hugging Face folder. Same bytes every time on one
    version of torch: the weights are drawn from a fixed seed, and the caller's random state is left as it
    was. `sizes` in place of those of SIZES, by the names of config.json; the vocabulary never below VOCAB."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    all_sizes: Any = SIZES | sizes
    config = LlamaConfig(
        **all_sizes,
        tie_word_embeddings=tied_head,
        pad_token_id=256,
        bos_token_id=257,
        eos_token_id=258,
    )
    state = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(SEED)
        model = LlamaForCausalLM(config)
    finally:
        torch.set_rng_state(state)
    model.save_pretrained(folder)
    _byte_tokenizer().save_pretrained(folder)


def _byte_tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {letter: byte for byte, letter in enumerate(byte_letters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    make: Any = PreTrainedTokenizerFast  # its constructor carries no annotations
    fast = make(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def byte_letters() -> list[str]:
    """The printable letter that stands for each byte in a byte-level vocabulary (GPT-2's convention):
    printable Latin-1 bytes stand for themselves, the others take the letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(shifted)) for byte in range(256)]
