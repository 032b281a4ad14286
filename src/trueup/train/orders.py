"""What the guard wants of the loop."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from .world import World


@dataclass(frozen=True)
class Orders:
    """What the loop is to do after a step: save, then pause or stop. `pause` holds as long as the pause."""

    checkpoint: bool = False
    pause: bool = False
    stop: str | None = None


NOTHING = Orders()


def agreed(orders: Orders, world: World) -> Orders:
    """The leading rank's orders, on every rank."""
    if world.size == 1:
        return orders
    if not world.agree(orders != NOTHING):
        return NOTHING
    return Orders(**json.loads(world.from_leader(json.dumps(asdict(orders)))))
