"""What the guard wants of the loop, and how every rank does it together."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from trueup.schema import Sample, SpanName, Step
from trueup.telemetry import Timeline

from .world import World

if TYPE_CHECKING:
    from .guard import Guard


@dataclass(frozen=True)
class Orders:
    """What the loop is to do after a step: save, then pause or stop. `pause` holds as long as the pause;
    `asked` says that a person wants the checkpoint, and not a rule."""

    checkpoint: bool = False
    pause: bool = False
    stop: str | None = None
    why: str = ""
    asked: bool = False


NOTHING = Orders()


def agreed(orders: Orders, world: World) -> Orders:
    """The leading rank's orders, on every rank."""
    if world.size == 1:
        return orders
    if not world.agree(orders != NOTHING):
        return NOTHING
    return Orders(**json.loads(world.from_leader(json.dumps(asdict(orders)))))


@dataclass(frozen=True)
class Follower:
    """Does on one rank what the leading rank's guard orders. `guard` is None on the others.

    `save` takes the orders that want it; `ends` raises, on every rank, if the run was asked to end; `asked`
    says on the leading one whether it was; `writing` whether a checkpoint is being written.
    """

    guard: Guard | None
    world: World
    timeline: Timeline
    samples: Callable[[], Sequence[Sample]]
    save: Callable[[Orders], None]
    ends: Callable[[], None]
    asked: Callable[[], bool]
    writing: Callable[[], bool] = lambda: False

    def after(self, step: Step) -> str | None:
        """Carry out what follows from this step, a pause to its end; returns why the run is to stop, if it
        is. Before a stop nothing is saved: whoever ends the run does."""
        orders = NOTHING
        if self.guard is not None:
            orders = self.guard.look(step, self.samples(), checkpoint_in_flight=self.writing())
        orders = self._saved(agreed(orders, self.world))
        if orders.pause:
            with self.timeline.span(SpanName.PAUSE):
                while orders.pause:
                    self.ends()
                    if self.guard is not None:
                        orders = self.guard.wait_out_pause(self.samples, self.asked)
                    orders = self._saved(agreed(orders, self.world))
        return orders.stop

    def _saved(self, orders: Orders) -> Orders:
        if orders.checkpoint and orders.stop is None:
            self.save(orders)
        return orders
