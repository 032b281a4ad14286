"""A run's model as ONNX: the graph by transformers' own exporter, read back and run by ONNX Runtime.

B rows, T positions: any of both, in what is written.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from trueup.schema import MissingExtraError

from .export import merged_state
from .load import LoadedModel
from .quantized_load import causal_lm
from .quiet import silence_libraries

MODEL_FILE = "model.onnx"  # its weights are in model.onnx.data beside it
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
TRACED = (2, 8)  # rows and positions of the tokens that the graph is traced with


def require_onnx() -> None:
    """Raises MissingExtraError where a package of the extra is not installed."""
    for package in (*PACKAGES, "transformers.exporters"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "onnx", "exporting an ONNX model")


def write_onnx(loaded: LoadedModel, tokenizer: Any, folder: Path) -> None:
    """The model in fp32, adapters merged in, from token ids and a mask of what is no padding to logits; its
    tokenizer and config beside it."""
    silence_libraries()
    exporters: Any = importlib.import_module("transformers.exporters.exporter_onnx")
    base, _ = causal_lm(loaded.base.config, merged_state(loaded))
    base.eval()
    base.config.use_cache = False
    tokens_BT = torch.arange(TRACED[0] * TRACED[1]).view(TRACED)
    shown = {"input_ids": tokens_BT, "attention_mask": torch.ones_like(tokens_BT)}
    exporter = exporters.OnnxExporter()
    with contextlib.redirect_stdout(io.StringIO()):  # torch.onnx tells each stage
        exported = exporter.export(base, shown, config=exporters.OnnxConfig(dynamic=True))
    exporter.save_program(exported.program, folder / MODEL_FILE)
    base.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class OnnxModel:
    """Answers like a causal LM, by ONNX Runtime on the CPU."""

    def __init__(self, folder: Path) -> None:
        runtime: Any = importlib.import_module("onnxruntime")
        self._session = runtime.InferenceSession(str(folder / MODEL_FILE), providers=["CPUExecutionProvider"])

    def eval(self) -> OnnxModel:
        return self

    def __call__(self, input_ids: torch.Tensor) -> Any:
        shown = {"input_ids": input_ids.numpy(), "attention_mask": torch.ones_like(input_ids).numpy()}
        (logits,) = self._session.run(["logits"], shown)
        return SimpleNamespace(logits=torch.from_numpy(logits))
