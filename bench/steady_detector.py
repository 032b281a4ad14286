"""How well the steady part is found: synthetic step times with a known answer, by kind.

    python bench/steady_detector.py [SERIES_A_KIND]

Prints the share of series whose start and end were found to within 5 steps (the whole series where nothing
changes, "no steady state" where it drifts), for the series of the tests and for harder ones; and how often
maximum likelihood, which knows more than any detector can, places a single change to within 5 steps. The
seeds are not those of the tests: choose the detector by these.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "analysis"))

from step_series import CORRELATION, KINDS, Series, correlated_noise, make_series

from trueup.analysis.steady import find_plateau

SEED = 7
SETTINGS: dict[str, dict[str, Any]] = {
    "as in the tests": {},
    "2.5 to 5 deviations": {"hardest": 2.5},
    "46 to 59 steps": {"steps": (46, 59)},
    "independent noise": {"rho": 0.0},
    "correlation 0.6": {"rho": 0.6},
}


def right(series: Series) -> bool:
    found = find_plateau(series.times_s)
    if series.start is None or series.end is None:
        return found.verdict == "no steady state"
    if found.start is None or found.end is None:
        return False
    reach = 5 if "shift" in series.kind or series.kind == "disturbance" else 0
    return abs(found.start - series.start) <= reach and abs(found.end - series.end) <= reach


def most_likely_change(values: NDArray[np.float64]) -> int:
    """Of AR(1) values of known correlation with one change of level."""
    n = len(values)
    white = values[1:] - CORRELATION * values[:-1]
    at = np.arange(1, n)
    residuals = {}
    for cut in range(5, n - 4):
        after = np.where(at > cut, 1 - CORRELATION, 0.0)
        after[cut - 1] = 1.0
        fit = np.stack([np.full(n - 1, 1 - CORRELATION), after], axis=1)
        rest = white - fit @ np.linalg.lstsq(fit, white, rcond=None)[0]
        residuals[cut] = float(rest @ rest)
    return min(residuals, key=residuals.__getitem__)


def limit(deviations: float, count: int) -> float:
    rng = np.random.default_rng(SEED)
    placed = 0
    for _ in range(count):
        n = int(rng.integers(60, 161))
        cut = int(rng.integers(10, n - 9))
        values = correlated_noise(rng, n) + deviations * (np.arange(n) >= cut)
        placed += abs(most_likely_change(values) - cut) <= 5
    return placed / count


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 125
    print(f"share found, of {count} series a kind")
    for name, changes in SETTINGS.items():
        print(f"  {name}")
        for number, kind in enumerate(KINDS):
            rng = np.random.default_rng([SEED, number])
            share = np.mean([right(make_series(rng, kind, **changes)) for _ in range(count)])
            print(f"    {kind:18} {100 * share:6.1f} %")
    print(f"share of {count} single changes that maximum likelihood places to within 5 steps")
    for deviations in (1.5, 2.0, 2.5, 3.0):
        print(f"    {deviations} deviations    {100 * limit(deviations, count):6.1f} %")


if __name__ == "__main__":
    main()
