"""What must never reach a record: credentials in arguments, variables and addresses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HIDDEN = "***"
# Variables are left out on any likeness; an argument needs the whole word: `tokens_per_step` is no secret.
SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
SECRET_ARGUMENT = re.compile(
    r"(?:^|[._-])(?:\w*apikey|key|token|secret|passw(?:or)?d|passphrase|credentials?|auth)(?:$|[._-])",
    re.IGNORECASE,
)
# Forms that are credentials wherever they stand: Hugging Face, AWS, OpenAI-style, GitHub, Slack, bearer.
SECRET_VALUE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}"
    r"|github_pat_\w{8,}|xox[a-z]-[A-Za-z0-9-]{8,})"
)
BEARER = re.compile(r"(?i)\b(bearer|basic)\s+\S+")
USER_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+@")
SIGNED_QUERY = re.compile(r"(?i)([?&][^=&\s]*(?:sig|key|token|secret|passw|credential|auth)[^=&\s]*=)[^&\s]+")

# Variables that can change a result or a time, by prefix. Everything else stays out.
PREFIXES = (
    "OMP_",
    "MKL_",
    "KMP_",
    "GOMP_",
    "OPENBLAS_",
    "ONEDNN_",
    "DNNL_",
    "TORCH",
    "PYTORCH_",
    "TRITON_",
    "CUDA_",
    "CUBLAS_",
    "CUDNN_",
    "NVIDIA_VISIBLE_DEVICES",
    "NCCL_",
    "GLOO_",
    "NEURON_",
    "XLA_",
    "FI_",
    "ATEN_",
    "MALLOC_",
    "LD_PRELOAD",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "PYTHONHASHSEED",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "RANK",
    "WORLD_SIZE",
)


def scrub(text: str) -> str:
    """The text with every credential in a known form replaced by ***."""
    text = SECRET_VALUE.sub(HIDDEN, text)
    text = BEARER.sub(rf"\1 {HIDDEN}", text)
    text = USER_IN_ADDRESS.sub(f"{HIDDEN}@", text)
    return SIGNED_QUERY.sub(rf"\1{HIDDEN}", text)


def scrub_arguments(arguments: Iterable[str]) -> list[str]:
    """Command-line arguments; the value of `--hub-token X` or `api_key=X` is hidden whole."""
    scrubbed: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        secret = bool(SECRET_ARGUMENT.search(name)) and "/" not in name
        if hide_next:
            scrubbed.append(HIDDEN)
        elif secret and equals:
            scrubbed.append(f"{name}={HIDDEN}")
        else:
            scrubbed.append(scrub(argument))
        hide_next = secret and not equals and argument.startswith("-")
    return scrubbed


def variables_that_matter(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that could explain a result or a time, never one whose name speaks of a secret."""
    return {
        name: scrub(value)
        for name, value in sorted(environ.items())
        if name.startswith(PREFIXES) and not SECRET_VARIABLE.search(name)
    }
