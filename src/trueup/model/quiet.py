"""Keeps the model libraries from talking: a run's own output is the only one on stdout and stderr."""

from __future__ import annotations

import warnings
from typing import Any


def silence_libraries() -> None:
    """Turns off the progress bars and advice of transformers and huggingface_hub, for this process.

    What they would only warn of and what matters (weights missing from a folder, for example) is checked by
    the caller and raised as an error instead.
    """
    from transformers.utils import logging

    library: Any = logging  # its functions have no type annotations
    library.set_verbosity_error()
    library.disable_progress_bar()
    for name in ("transformers", "peft", "huggingface_hub"):
        warnings.filterwarnings("ignore", category=FutureWarning, module=rf"{name}(\..*)?")
