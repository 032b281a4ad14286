"""From a model folder to an engine that is warm."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.files.whole import read_json_object
from trueup.model.folder import config_of
from trueup.schema import InputError

from .codec import Codec
from .plan import ServingPlan, StepShape

if TYPE_CHECKING:
    from trueup.device.protocol import Device
    from trueup.model.inference import ServedAs

    from .engine import Engine

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


@dataclass(frozen=True)
class Opened:
    """`memory_bytes`: what was taken for it, by owner, as the plan's lines have them; the weights with the
    plan's packing and rounding."""

    engine: Engine
    memory_bytes: dict[str, int]
    decoded_by: str  # what takes the steps, and why where it is not the faster


@dataclass(frozen=True)
class Opening:
    """What is loaded, and how. `kv`: of keys and values, 'fp32' or 'bf16'."""

    folder: Path
    served_as: ServedAs
    kv: str
    plan: ServingPlan
    end_ids: frozenset[int]
    prefix_cache: bool = True

    def to_warm(self, device: Device) -> tuple[StepShape, ...]:
        """Every shape, where each is compiled; else those that show whether there is memory for all."""
        return self.plan.shapes() if device.static_shapes_only else self.plan.largest_shapes()

    def open(self, device: Device, warmed: Callable[[int, int], None] = lambda done, all_: None) -> Opened:
        """Loads the weights and warms up; `warmed` is told how many of how many shapes are done."""
        import torch

        from trueup.model.inference import InferenceModel

        from .engine import Engine

        static = device.static_shapes_only
        backend, _ = device.compile_backend() if static else (None, "")
        model = InferenceModel.load(
            self.folder,
            self.served_as,
            device=device.torch_device,
            max_positions=self.plan.max_context,
            compile_mode="layer" if static else "none",
            **({"backend": backend} if backend is not None else {}),
        )
        pool = model.new_pool(self.plan.blocks, self.plan.block_size, getattr(torch, DTYPES[self.kv]))
        engine = Engine(model, self.plan, eos_ids=self.end_ids, prefix_cache=self.prefix_cache)
        shapes, done = self.to_warm(device), itertools.count(1)
        engine.warm_up(lambda shape: warmed(next(done), len(shapes)), shapes=shapes)
        weights = model.weight_bytes()
        rotary = weights.pop("rotary")  # follows the context: a line of its own in the plan
        held = {
            "weights": sum(weights.values()),
            "rotary": rotary,
            "kv_cache": sum(layer.untyped_storage().nbytes() for layer in pool.layers),
        }
        by = model.decoded_by if self.kv == "fp32" else f"torch's operators: keys and values are {self.kv}"
        return Opened(engine, held, by)


def codec_of(folder: Path, tokenizer: Any, template: Any) -> Codec:
    """`template`: the conversation template that the model was trained with, `data.template.ChatTemplate`."""
    rows = int(config_of(folder)["vocab_size"])
    return Codec(
        tokenizer,
        render=lambda messages: template.apply(messages, generation_prompt=True),
        end_ids=frozenset(template.end_ids) | end_ids_of(folder),
        vocabulary=rows,
    )


def end_ids_of(folder: Path) -> frozenset[int]:
    """Tokens that end an answer by the model's own files. Raises InputError where they do not say."""
    path = folder / "generation_config.json"
    try:
        generation = read_json_object(path) if path.is_file() else {}
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: not a readable JSON object ({error}); copy the model again") from None
    return _end_ids(folder / "config.json", config_of(folder)) | _end_ids(path, generation)


def _end_ids(path: Path, config: dict[str, Any]) -> frozenset[int]:
    ids = config.get("eos_token_id")
    found = ids if isinstance(ids, list) else [] if ids is None else [ids]
    if any(not isinstance(one, int) or isinstance(one, bool) for one in found):
        raise InputError(
            f"{path}: eos_token_id is {str(ids)[:40]!r}; a token's number, or several, is expected"
        )
    return frozenset(found)
