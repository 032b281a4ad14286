"""What saving costs the training loop: stretches of steps with one save each, and without, in turn.

    python bench/checkpoint_cost.py [--steps 20] [--pairs 6] [--set KEY=VALUE ...]

A save is begun after the first step of its stretch and written while the others are trained, as in a run. The
whole of it counts: the copy, and what the thread that writes takes from the steps beside it. The last line
says how long the copy kept the loop, and the size of one save.
"""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repeat import ratio_interval
from warmed import warmed_session

if TYPE_CHECKING:
    from trueup.data import PlannedBatch
    from trueup.train.saves import Saves
    from trueup.train.session import Session
    from trueup.train.state import Tally

TARGET = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="of a stretch")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of the demo's recipe"
    )
    asked = parser.parse_args()
    from trueup.train.loop import planned_steps
    from trueup.train.state import Tally

    session = warmed_session(asked.set)
    run = Path(tempfile.mkdtemp(prefix="trueup-bench-"))
    try:
        saves = _saves(session, run)
        steps, tally = planned_steps(session), Tally()
        _stretch(session, steps, tally, None, 3)
        ratios = []
        for pair in range(asked.pairs):
            seconds = {}
            for saving in (pair % 2 == 0, pair % 2 == 1):  # neither is always the first
                seconds[saving] = _stretch(session, steps, tally, saves if saving else None, asked.steps)
            ratios.append(math.log(seconds[True] / seconds[False]))
            print(f"pair {pair + 1}: {seconds[True]:.2f} s saving, {seconds[False]:.2f} s not", flush=True)
        _print(ratios, session)
    finally:
        shutil.rmtree(run, ignore_errors=True)


def _saves(session: Session, run: Path) -> Saves:
    """Saving into an empty run folder."""
    from trueup import __version__
    from trueup.schema import RunHeader
    from trueup.train.saves import open_saves

    recipe = session.recipe.model_dump(mode="json")
    header = RunHeader(
        id="bench",
        name="bench",
        state="running",
        trueup_version=__version__,
        recipe=recipe,
        recipe_digest="bench",
        started_at="2026-01-01T00:00:00Z",
    )
    saves = open_saves(replace(session, run_folder=run), header, remember=dict, settle=lambda: None)
    return saves


def _stretch(
    session: Session,
    steps: Iterator[tuple[PlannedBatch, ...]],
    tally: Tally,
    saves: Saves | None,
    count: int,
) -> float:
    from trueup.train.stepper import gather, train_step

    began = time.perf_counter()
    for n in range(count):
        train_step(session, gather(session, next(steps)), session.recipe.optimizer.lr)
        tally.step += 1
        if n == 0 and saves is not None:
            saves.save(tally, ("every",))
    seconds = time.perf_counter() - began
    if saves is not None:
        saves.wait()  # a save longer than its stretch shows in the next: said below
    return seconds


def _print(ratios: list[float], session: Session) -> None:
    ratio, low, high = ratio_interval(ratios)
    events: Any = session.timeline._sink
    written = [one.data for one in events.events if one.kind == "checkpoint"]
    copies = [span for span in session.timeline.totals() if span.name == "checkpoint"]
    met = "met" if ratio - 1 < TARGET else "not met"
    interval = f"{low - 1:.2%} to {high - 1:.2%}"
    print(f"\n{met:10}one save in a stretch costs {ratio - 1:.2%} ({interval}), target {TARGET:.0%}")
    if written and copies:
        copy_s = copies[0].seconds / copies[0].count
        longest = max(one["seconds"] for one in written)
        size = f"{written[0]['bytes'] / 1e6:.1f} MB, written in at most {longest:.2f} s"
        print(f"the loop waited {copy_s:.3f} s a save; {size}")
    for one in events.events:
        if one.kind == "checkpoint_failed":
            print(one.message)


if __name__ == "__main__":
    main()
