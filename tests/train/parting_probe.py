"""`trueup` as one of several processes, of which the second is gone when all take leave of each other.

Arguments: those of `trueup`.
"""

from __future__ import annotations

import os

import trueup.cli
from trueup.train.world import World

close = World.close


def closed(self: World) -> None:
    if self.rank == 1:
        os._exit(9)
    close(self)


if __name__ == "__main__":
    World.close = closed  # type: ignore[method-assign]
    trueup.cli.main()
