"""Measure a recipe on this machine with several seeds and leave the runs as bundles for docs/measured.

`python bench/measured_bundle.py docs/measured/NAME` runs the demo's recipe with five seeds, each in a process
of its own and in a home without earlier runs, as the first run of a user is, one after the other, and exports
each finished run into the folder as SEED.zip. What an earlier run taught would let a later one choose other
shapes. With `--set` a
setting is measured beside the recipe as it is, by turns on this host: `--set compile.mode=layer --beside
docs/measured/OTHER` leaves the recipe's own runs in NAME and those with the setting in OTHER, so that the two
can be compared in pairs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from peers.process import cold_home
from repeat import DEMO, HOME, train


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="the folder of the bundles; made if absent")
    parser.add_argument("--recipe", type=Path, default=DEMO)
    parser.add_argument("--seeds", type=int, default=5, help="at least 3: fewer give no verdict")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--beside", type=Path, help="with --set: the folder of the runs with the setting")
    asked = parser.parse_args()
    if bool(asked.settings) != (asked.beside is not None):
        parser.error("--set and --beside go together: the runs with the setting need a folder of their own")
    sides = [(asked.out, ())] + ([(asked.beside, tuple(asked.settings))] if asked.beside else [])
    for folder, _ in sides:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.glob("*.zip")):
            sys.exit(f"{folder} holds bundles already: measure into a new folder, or remove them")
    for seed in range(asked.seeds):
        for folder, settings in sides:
            measure(asked.recipe, seed, settings, folder)
    return 0


def measure(recipe: Path, seed: int, settings: tuple[str, ...], folder: Path) -> None:
    """One run, exported. A run that did not finish ends the whole."""
    target = (folder / f"{seed}.zip").resolve()
    with cold_home(HOME) as cold:
        record = train(
            f"{folder.name}-{seed}", f"train.seed={seed}", *settings, recipe=recipe, variables=cold
        )
        if record["state"] != "finished":
            sys.exit(f"run {record['id']} {record['state']}: {record['reason']}")
        command = [sys.executable, "-m", "trueup", "runs", "export", record["id"], "-o", str(target)]
        subprocess.run(command, env={**os.environ, **cold}, check=True)
    cost = record["measurements"]["usd_per_million_useful_tokens"]
    told = f"${cost['value']:.4g} per million useful tokens" if cost["value"] is not None else cost["reason"]
    print(f"{target}: run {record['id']}, seed {seed}, {told}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
