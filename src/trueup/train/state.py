"""What a run is at one step, as tensors and JSON, taken and put back: weights, optimizer, random states, and
what the loop remembers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trueup.checkpoint.manifest import OPTIMIZER, RANDOM, WEIGHTS
from trueup.checkpoint.snapshot import copied

from .randomness import put_back_random, require_same_ranks, take_random
from .session import Session

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, Mapping[str, "torch.Tensor"]]

_OF = "|"  # between a parameter's name and that of one of its optimizer's tensors; names have dots


@dataclass
class Tally:
    """What the loop remembers between steps. `step` is the cursor too: every step, done or skipped, takes the
    next of the plan."""

    step: int = 0
    useful_tokens: int = 0
    training_s: float = 0.0
    best_loss: float = math.inf
    best_step: int | None = None  # of what is kept; the model before the first step is not
    evaluated_at: int = -1
    eval_loss: float | None = None  # of the evaluation at `evaluated_at`
    last_evaluation_s: float = 0.0
    lr_factor: float = 1.0  # what rollbacks have made of the learning rate
    seen_shapes: set[tuple[int, int]] = field(default_factory=set)  # by the warm-up, or by a step since
    labels: list[str] = field(default_factory=list)  # of what happened since the last step

    def as_json(self) -> dict[str, Any]:
        """Without what belongs to one process alone."""
        found = {key: value for key, value in vars(self).items() if key not in ("seen_shapes", "labels")}
        return found | {"best_loss": None if math.isinf(self.best_loss) else self.best_loss}

    def go_back_to(self, found: Mapping[str, Any]) -> None:
        """Take over what `as_json` gave."""
        for key, value in found.items():
            setattr(self, key, value)
        if self.best_loss is None:
            self.best_loss = math.inf


def take(session: Session) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
    """(tensors by file, JSON) of weights, optimizer and random states, copied. Every rank calls this; what it
    gives is the same but for nothing: random states are those of all ranks."""
    weights = {name: copied(parameter.detach()) for name, parameter in session.model.trainable}
    optimizer = {
        f"{name}{_OF}{key}": copied(value)
        for name, parameter in session.model.trainable
        for key, value in session.optimizer.state.get(parameter, {}).items()
    }
    random_tensors, random_json = take_random(session.device, session.world)
    return {WEIGHTS: weights, OPTIMIZER: optimizer, RANDOM: random_tensors}, random_json


def put_back(session: Session, tensors: Tensors, found: Mapping[str, Any]) -> None:
    """The session as it was when `take` gave these. InputError, with nothing changed, where names or shapes
    are not this model's, or the number of processes is another."""
    from trueup.model.load import put_weights

    require_same_ranks(session.world, tensors[RANDOM])
    put_weights(session.model, tensors[WEIGHTS])
    parameters = dict(session.model.trainable)
    session.optimizer.zero_grad(set_to_none=True)
    session.optimizer.state.clear()
    for full_name, tensor in tensors[OPTIMIZER].items():
        name, _, key = full_name.rpartition(_OF)
        parameter = parameters[name]
        # as torch's own optimizers do: the count of steps stays where it was made
        like_parameter = tensor.shape == parameter.shape and tensor.dim() > 0
        kept = tensor.to(parameter, copy=True) if like_parameter else tensor.clone()  # its device and dtype
        if not like_parameter and _fused(session.optimizer):
            kept = kept.to(parameter.device)
        session.optimizer.state[parameter][key] = kept
    put_back_random(session.device, session.world, tensors[RANDOM], found)


def _fused(optimizer: torch.optim.Optimizer) -> bool:
    return any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
