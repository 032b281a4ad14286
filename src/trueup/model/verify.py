"""Reads an export back, as the program it is for would, and compares its logits with the run's own.

B rows, T positions in a row, V vocabulary.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from trueup.schema import TrueupError

from .gguf_tokenizer import PROBES, check_same_tokens, is_sentencepiece
from .load import LoadedModel
from .onnx_export import OnnxModel
from .quiet import silence_libraries

# Of fp32 files the largest difference of a logit is limited: only the order of additions differs. Rounded
# weights move single logits far, so there it is the root mean square of the differences, as a share of the
# logits' standard deviation, in which models differ thirtyfold. Measured on trained weights of tiny
# and SmolLM2-135M: f16 0.0004 to 0.003, q8_0 0.010 to 0.036; queries and keys in a wrong order 0.16 and 0.77.
# A few tokens' huge activations can carry the order of additions past the limit of a single logit (3.3e-3 was
# seen on SmolLM2-135M, where fp32 is itself 6e-3 off fp64 and the export in fp64 5e-5): fp32 files that are
# beyond it are judged as the others are, two hundred times closer.
TOLERANCE_F32 = 1e-3
TOLERANCE_SD = {"f32": 1e-4, "f16": 0.02, "q8_0": 0.1}
LENGTH = 64


Compared = Literal["max_abs_difference", "rms_difference"]


@dataclass(frozen=True)
class LogitCheck:
    """What a comparison found, in logits. `compared` names the difference that `tolerance` limits; `tokens`
    were looked at, all of the vocabulary at each; `reader` is what read the export back."""

    max_abs_difference: float
    rms_difference: float
    compared: Compared
    tolerance: float
    tokens: int
    reader: str

    def document(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        differ = f"at most {self.max_abs_difference:.2g}"
        if self.compared == "rms_difference":
            differ += f"; their root mean square is {self.rms_difference:.2g}"
        return (
            f"read back by {self.reader}: logits of {self.tokens} tokens differ from the run's own by "
            f"{differ}, allowed {self.tolerance:.2g}"
        )

    @property
    def passed(self) -> bool:
        """False too where a difference is not a number."""
        return bool(getattr(self, self.compared) <= self.tolerance)


@dataclass(frozen=True)
class OwnLogits:
    """The run's own answer on two rows of tokens: real text, and ids from all of the vocabulary."""

    tokens_BT: torch.Tensor
    logits_BTV: torch.Tensor

    def limit(self, kind: str, largest: float) -> tuple[Compared, float]:
        """Which difference is limited, and to what, in logits, for weights kept as `kind`. `largest`: the
        largest difference of a logit that was found."""
        if kind == "f32" and largest <= TOLERANCE_F32:
            return "max_abs_difference", TOLERANCE_F32
        return "rms_difference", TOLERANCE_SD[kind] * float(self.logits_BTV.std())


def own_logits(loaded: LoadedModel, tokenizer: Any) -> OwnLogits:
    """By the path that training takes: hidden states times the head, in fp32 on the CPU."""
    loaded.module.eval()
    length = min(LENGTH, loaded.max_positions or LENGTH)
    rows = loaded.head_weight.shape[0]
    text = [token for probe in PROBES for token in tokenizer(probe, add_special_tokens=False).input_ids]
    text = (text * length)[:length]
    spread = [(3 + 7919 * place) % rows for place in range(length)]
    tokens_BT = torch.tensor([text, spread], device=loaded.head_weight.device)
    places_BT = torch.arange(length, device=tokens_BT.device).expand(2, length)
    with torch.no_grad():
        hidden_BTH = loaded.forward_hidden(tokens_BT, places_BT, torch.zeros_like(tokens_BT))
        logits_BTV = hidden_BTH @ loaded.head_weight.T
    return OwnLogits(tokens_BT.cpu(), logits_BTV.float().cpu())


def check_adapter(own: OwnLogits, base: Path, folder: Path) -> LogitCheck:
    """peft puts the adapter on the base model. Raises TrueupError where the logits are others."""

    def read() -> Any:
        from peft import PeftModel

        return PeftModel.from_pretrained(_model(base), str(folder))

    return _compare(own, read, "f32", "peft")


def check_merged(own: OwnLogits, folder: Path, tokenizer: Any) -> LogitCheck:
    """transformers loads the folder. Raises TrueupError where logits or tokens are others."""

    def read() -> Any:
        _check_tokens(tokenizer, folder)
        return _model(folder)

    return _compare(own, read, "f32", "transformers")


def check_onnx(own: OwnLogits, folder: Path, tokenizer: Any) -> LogitCheck:
    """ONNX Runtime runs the graph. Raises TrueupError where logits or tokens are others."""

    def read() -> Any:
        _check_tokens(tokenizer, folder)
        return OnnxModel(folder)

    return _compare(own, read, "f32", "ONNX Runtime")


def check_gguf(own: OwnLogits, file: Path, kind: str, tokenizer: Any, rope: dict[str, Any]) -> LogitCheck:
    """transformers loads the file, by its own GGUF reader. Raises TrueupError where logits or tokens are
    others. `rope` are the model's rotary parameters: that reader leaves their scaling out. It also treats
    SentencePiece's spaces in its own way: those tokens were compared before writing (`read_tokenizer`)."""

    def read() -> Any:
        from transformers import AutoConfig

        where = {"gguf_file": file.name, "local_files_only": True}
        _check_tokens(tokenizer, file.parent, texts=not is_sentencepiece(tokenizer), **where)
        config = AutoConfig.from_pretrained(file.parent, **where)
        if rope.get("rope_type", "default") != "default":
            config.rope_parameters = {**config.rope_parameters, **rope}
        return _model(file.parent, config=config, **where)

    return _compare(own, read, kind, "transformers' GGUF reader")


def _model(folder: Path, **options: Any) -> Any:
    from transformers import AutoModelForCausalLM

    options = {"local_files_only": True, **options}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)


def _check_tokens(tokenizer: Any, folder: Path, *, texts: bool = True, **options: Any) -> None:
    from transformers import AutoTokenizer

    options = {"local_files_only": True, **options}
    reread = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **options)
    otherwise = check_same_tokens(tokenizer, reread, texts=texts)
    if otherwise is not None:
        raise TrueupError(f"the tokenizer read back is not the run's: {otherwise}")


def _compare(own: OwnLogits, read: Callable[[], Any], kind: str, reader: str) -> LogitCheck:
    silence_libraries()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that no setting turns off
            model = read().eval()
        with torch.no_grad():
            reread_BTV = model(input_ids=own.tokens_BT).logits.float()
    except (TrueupError, MemoryError):
        raise
    except Exception as error:  # the libraries raise many kinds; all mean that a reader would fail as well
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise TrueupError(f"what was written cannot be read back by {reader}: {first_line}") from error
    difference_BTV = reread_BTV - own.logits_BTV
    largest = float(difference_BTV.abs().max())
    compared, tolerance = own.limit(kind, largest)
    check = LogitCheck(
        max_abs_difference=largest,
        rms_difference=float(difference_BTV.square().mean().sqrt()),
        compared=compared,
        tolerance=tolerance,
        tokens=own.tokens_BT.numel(),
        reader=reader,
    )
    if not check.passed:
        raise TrueupError(f"the export is not the run's model ({check}); it was removed")
    return check
