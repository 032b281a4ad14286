"""Chat templates in the styles of well-known model families, written for these tests, and broken ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SPECIAL = [
    *("<s>", "</s>", "<unk>", "<pad>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>"),
    *("<|end_header_id|>", "<|begin_of_text|>", "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>"),
    *("<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|endoftext|>", "[INST]", "[/INST]"),
]


@dataclass(frozen=True)
class Family:
    """A template with the special tokens its tokenizer has. `learned` is what its answers become."""

    template: str
    bos: str | None
    eos: str
    learned: str  # with {answer} in it
    system: bool = True  # whether it takes a system message
    turns: bool = True  # whether it takes more than one exchange
    adds_bos: bool = False
    trims: bool = False
    special: list[str] = field(default_factory=lambda: SPECIAL)

    def tokens(self) -> dict[str, Any]:
        names = {"bos_token": self.bos, "eos_token": self.eos, "pad_token": "<pad>", "unk_token": "<unk>"}
        return {key: token for key, token in names.items() if token is not None}


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_WITH_ITS_OWN_SYSTEM = (
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    + CHATML
)
LLAMA_3 = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
LLAMA_2 = (
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}"
    "{% set before = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}"
    "{% else %}{% set rest = messages %}{% set before = '' %}{% endif %}"
    "{% for m in rest %}{% if m.role == 'user' %}"
    "{{ bos_token + '[INST] ' + (before if loop.first else '') + m.content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim }}"
    "{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
GEMMA_FOLDING = (
    "{{ bos_token }}{% set first = messages[0].content + '\n\n' if messages[0].role == 'system' else '' %}"
    "{% for m in (messages[1:] if messages[0].role == 'system' else messages) %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
    "{{ (first if loop.first else '') + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}"
    "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"
)
ALPACA = (
    "{{ 'Below is an instruction. Write a response that completes the request.\n\n' }}"
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content + '\n\n' }}"
    "{% elif m.role == 'user' %}{{ '### Instruction:\n' + m.content + '\n\n' }}"
    "{% else %}{{ '### Response:\n' + m.content + eos_token + '\n\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}"
)
PHI_3 = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
VICUNA = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content + '\n\n' }}"
    "{% elif m.role == 'user' %}{{ 'USER: ' + m.content + '\n' }}"
    "{% else %}{{ 'ASSISTANT: ' + m.content + eos_token + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT: ' }}{% endif %}"
)
THINKING = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

FAMILIES = {
    "ChatML": Family(CHATML, None, "<|im_end|>", "{answer}<|im_end|>"),
    "ChatML, own system": Family(CHATML_WITH_ITS_OWN_SYSTEM, None, "<|im_end|>", "{answer}<|im_end|>"),
    "Llama 3": Family(
        LLAMA_3, "<|begin_of_text|>", "<|eot_id|>", "{answer}<|eot_id|>", adds_bos=True, trims=True
    ),
    "Llama 2": Family(LLAMA_2, "<s>", "</s>", " {answer} </s>", adds_bos=True, trims=True),
    "Mistral": Family(MISTRAL, "<s>", "</s>", "{answer}</s>", system=False, adds_bos=True),
    "Gemma": Family(
        GEMMA, "<bos>", "<eos>", "{answer}<end_of_turn>", system=False, adds_bos=True, trims=True
    ),
    "Gemma, folding": Family(
        GEMMA_FOLDING, "<bos>", "<eos>", "{answer}<end_of_turn>", adds_bos=True, trims=True
    ),
    "Zephyr": Family(ZEPHYR, "<s>", "</s>", "{answer}</s>"),
    "Alpaca": Family(ALPACA, "<s>", "</s>", "{answer}</s>"),
    "Phi 3": Family(PHI_3, None, "<|endoftext|>", "{answer}<|end|>"),
    "Vicuna": Family(VICUNA, "<s>", "</s>", "{answer}</s>"),
    "thinking": Family(THINKING, None, "<|im_end|>", "{answer}<|im_end|>"),
}


@dataclass(frozen=True)
class Broken:
    """A template with one fault, and what the refusal must say and show."""

    template: str
    says: str  # of the fault
    shows: str  # of the rendered text
    needs: str = "question"  # the kind of record it spoils: question, system, turns


_ASK = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
BROKEN = {
    "drops the system message": Broken(
        "{% for m in messages if m.role != 'system' %}"
        "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}" + _ASK,
        "leaves the system message out",
        "<|im_start|>user\\nWhy is the sky blue?",
        needs="system",
    ),
    "shows the system message to the prompt only": Broken(  # the last user turn is the last turn only then
        "{% for m in messages if m.role != 'system' %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if m.role == 'user' and loop.last and messages[0].role == 'system' %}"
        "{{ messages[0].content + '\n\n' }}{% endif %}{{ m.content + '<|im_end|>\n' }}{% endfor %}" + _ASK,
        "leaves the system message out",
        "<|im_start|>user\\nWhy is the sky blue?",
        needs="system",
    ),
    "escapes": Broken(
        CHATML.replace("m.content", "m.content | e"), "what the user says", "Is 1 &lt; 2 &amp;"
    ),
    "escapes answers": Broken(
        CHATML.replace("m.content", "(m.content | e if m.role == 'assistant' else m.content)"),
        "changes the answer",
        "Yes, 1 &lt; 2",
    ),
    "quotes answers as JSON": Broken(
        CHATML.replace("m.content", "(m.content | tojson if m.role == 'assistant' else m.content)"),
        "changes the answer",
        "Yes, 1",
    ),
    "squeezes white space": Broken(
        CHATML.replace("m.content", "(m.content.split() | join(' '))"),
        "changes the answer",
        'Yes, 1 < 2 & "3"',
    ),
    "lower case": Broken(
        CHATML.replace("m.content", "m.content | lower"), "leaves the answer out or changes it", "how many?"
    ),
    "answers cut": Broken(
        CHATML.replace("m.content", "(m.content[:24] if m.role == 'assistant' else m.content)"),
        "changes the answer",
        "<|im_start|>assistant\\nYes, 1",
    ),
    "answers first": Broken(
        "{% for m in messages | reverse %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
        "{% endfor %}" + _ASK,
        "another order",
        "<|im_start|>user\\nIs 1 < 2",
    ),
    "leaves the question out": Broken(
        "{% for m in messages if m.role == 'assistant' %}"
        "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}" + _ASK,
        "leaves out what the user says",
        "<|im_start|>assistant\\nYes",
    ),
    "question only with its answer": Broken(
        "{% for m in messages if m.role == 'assistant' %}"
        "{{ '<|im_start|>' + messages[loop.index0 * 2].content + '\n' }}{{ m.content + '<|im_end|>\n' }}"
        "{% endfor %}",
        "the loss would be on the question",
        "<|im_start|>Is 1 < 2",
    ),
    "question again with its answer": Broken(
        CHATML.replace(
            "m.content", "(messages[0].content + m.content if m.role == 'assistant' else m.content)"
        ),
        "the loss would be on the question",
        "<|im_start|>assistant\\nIs 1 < 2",
    ),
    "only the last exchange": Broken(
        "{% set said = messages if messages | length < 3 else messages[2:] %}"
        + CHATML.replace("in messages", "in said"),
        "leaves out what the user says",
        "<|im_start|>user\\nSecond, name a peak.",
        needs="turns",
    ),
    "no end after the last answer": Broken(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
        "{% if not loop.last or add_generation_prompt %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}" + _ASK,
        "leaves the end-of-turn token out",
        "Triglav.'",
    ),
    "an end after the last answer only": Broken(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
        "{% if loop.last or m.role == 'user' %}{{ '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}" + _ASK,
        "leaves the end-of-turn token out",
        "The Danube.\\n<|im_start|>user",
        needs="turns",
    ),
    "BOS twice inside": Broken(
        "{% for m in messages %}"
        "{{ '<|im_start|>' + m.role + bos_token + bos_token + m.content + '<|im_end|>' }}"
        "{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|im_start|>assistant' + bos_token + bos_token }}{% endif %}",
        "writes the BOS token twice",
        "user<s><s>Is 1 < 2",
    ),
}
