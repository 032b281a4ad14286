"""Where a step's first NaN or infinity came from: the step is done again, watched, and forgotten.

The replay begins with the random state that the step began with, so that it drops out the same; afterwards
there are no gradients, and the random state is as it was before the replay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from trueup.data import MicroBatch
from trueup.schema import Frozen

from .failure import is_out_of_memory
from .randomness import RandomState
from .session import Session
from .stepper import GlobalBatch, StepResult, micro_batch_loss

if TYPE_CHECKING:
    import torch

    from trueup.model.non_finite import Fault

MOST_NAMED = 5  # parameters with the largest norms, and parameters that are no numbers themselves


class Finding(Frozen):
    """`module` and `direction` are of the first part of the model whose output, or gradient, was no number
    though what it was given was; None where every one was. Example numbers are the data's: all those of the
    micro-batch, and those at whose tokens it happened, where that can be told. Norms that are no numbers are
    text: JSON has none."""

    module: str | None
    direction: Literal["forward", "backward"] | None
    batch_examples: tuple[int, ...] = ()
    examples: tuple[int, ...] = ()
    non_finite_parameters: tuple[str, ...] = ()
    norms: dict[str, float | str] = Field(
        default_factory=dict
    )  # the largest parameters, and those of the module
    note: str = ""

    @property
    def message(self) -> str:
        parameters = ", ".join(self.non_finite_parameters)
        already = f" (no numbers already: {parameters})" if parameters else ""
        if self.module is None:
            return f"{self.note}{already}"
        what = "output" if self.direction == "forward" else "gradient"
        batch = self.examples or self.batch_examples
        shown = ", ".join(map(str, batch[:MOST_NAMED])) + (", ..." if len(batch) > MOST_NAMED else "")
        return f"the first {what} that is no number is that of {self.module}{already}, at examples {shown}"


def first_non_finite(
    session: Session, batch: GlobalBatch, before: RandomState, *, scale: float = 1.0
) -> Finding:
    """Replay this step. `before` is the random state that it began with, `scale` its loss scale. Of several
    ranks' findings it is the lowest rank's, on all of them."""
    now = RandomState.of(session.device)
    before.restore()
    try:
        own = _replayed(session, batch, scale)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        own = Finding(module=None, direction=None, note="the replay of the step ran out of memory")
    finally:
        session.optimizer.zero_grad(set_to_none=True)
        now.restore()
    parameters = dict(session.model.base.named_parameters())
    wrong = tuple(name for name, value in parameters.items() if not _is_finite(value))[:MOST_NAMED]
    own = own.model_copy(update={"non_finite_parameters": wrong, "norms": _norms(parameters, own.module)})
    return _first_of_ranks(session, own)


def record(
    session: Session, finding: Finding, result: StepResult, *, lr: float, step: int, action: str
) -> None:
    """The event `non_finite`."""
    session.timeline.event(
        "non_finite",
        f"step {step}: {finding.message}",
        step=step,
        lr=lr,
        loss=plain(result.loss),
        grad_norm=plain(result.grad_norm),
        loss_scale=result.loss_scale,
        action=action,
        **finding.model_dump(mode="json"),
    )


def plain(value: float) -> float | str:
    """As JSON can hold it."""
    return value if math.isfinite(value) else str(value)


def _replayed(session: Session, batch: GlobalBatch, scale: float) -> Finding:
    for micro_batch in batch.own:
        fault = _fault(session, micro_batch, batch.counts.supervised, scale)
        if fault is not None:
            return Finding(
                module=fault.module,
                direction=fault.direction,
                batch_examples=micro_batch.example_ids,
                examples=examples_at(micro_batch, fault.places or ()),
            )
    return Finding(
        module=None,
        direction=None,
        note="in a replay of the step every output and gradient was a number by itself: their sum over "
        "micro-batches and ranks, or its norm, was too large",
    )


def _fault(session: Session, micro_batch: MicroBatch, supervised: int, scale: float) -> Fault | None:
    from dataclasses import replace

    from trueup.model.non_finite import Fault, Watch, head_name, watched

    watch = Watch(micro_batch.processed_tokens)
    with watched(session.model, watch) as model:
        loss = micro_batch_loss(replace(session, model=model), micro_batch, "training")
        if watch.fault is None and not _is_finite(loss):
            return Fault(head_name(model), "forward", None)
        if watch.fault is None:
            watch.backward(loss / supervised * scale)
    return watch.fault


def examples_at(micro_batch: MicroBatch, places: Iterable[int]) -> tuple[int, ...]:
    """The numbers of the examples that these places of the flattened tokens belong to, in the batch's order.
    Padding belongs to none."""
    before_B = np.concatenate([[0], np.cumsum(micro_batch.segments_BT.max(axis=1))])
    width = micro_batch.shape[1]
    found: dict[int, None] = {}
    for place in places:
        row, column = divmod(place, width)
        segment = int(micro_batch.segments_BT[row, column])
        if segment:
            found[micro_batch.example_ids[int(before_B[row]) + segment - 1]] = None
    return tuple(found)


def _is_finite(tensor: torch.Tensor) -> bool:
    from trueup.model.non_finite import is_finite

    return is_finite(tensor)


def _norms(parameters: dict[str, torch.nn.Parameter], module: str | None) -> dict[str, float | str]:
    """Of the largest parameters, those that are no numbers first, and of the named module's own."""
    norms = {name: float(value.detach().float().norm()) for name, value in parameters.items()}
    largest = sorted(norms, key=lambda name: -norms[name] if math.isfinite(norms[name]) else -math.inf)
    inside = [name for name in norms if module is not None and name.startswith(f"{module}.")]
    return {name: plain(norms[name]) for name in dict.fromkeys([*largest[:MOST_NAMED], *inside])}


def _first_of_ranks(session: Session, own: Finding) -> Finding:
    """The lowest rank's finding that names a module, or the leading one's, on every rank."""
    world = session.world
    if world.size == 1:
        return own
    text = own.model_dump_json().encode()
    lengths, known = [0.0] * world.size, [0.0] * world.size
    lengths[world.rank], known[world.rank] = float(len(text)), float(own.module is not None)
    sums = world.sum([*lengths, *known])
    rank = next((n for n, has in enumerate(sums[world.size :]) if has), 0)
    spoken = list(map(float, text)) if rank == world.rank else [0.0] * int(sums[rank])
    return Finding.model_validate_json(bytes(int(byte) for byte in world.sum(spoken)))
