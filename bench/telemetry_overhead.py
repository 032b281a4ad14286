"""Rule 8: measuring is nearly free. Two figures, on the demo model and data:

- what telemetry itself used: the sampler thread's CPU seconds plus the time spent changing spans, over the
  wall clock of the run; at most 1%, or the benchmark exits with 1;
- what a person would notice: the median step with the sampler on over the same with it off, runs interleaved,
  as a ratio with its 95% interval (paired t on logs). Spans cannot be turned off and are in both.

    python bench/telemetry_overhead.py [PAIRS]
"""

from __future__ import annotations

import math
import sys

from repeat import ratio_interval, train, value

STEPS = 12
LIMIT_SHARE = 0.01


def main(pairs: int) -> int:
    shares, log_ratios = [], []
    for n in range(pairs):
        order = ("10", "0") if n % 2 == 0 else ("0", "10")  # neither side is always the second
        medians = {}
        for hz in order:
            settings = (f"telemetry.hz={hz}", f"train.max_steps={STEPS}", "evaluate.every=null")
            record = train("bench-telemetry", *settings, f"train.seed={n}")
            medians[hz] = value(record, "step_p50_s")
            if hz == "10":
                shares.append(value(record, "telemetry_cpu_s") / value(record, "wall_s"))
        log_ratios.append(math.log(medians["10"] / medians["0"]))
        print(
            f"pair {n + 1}: telemetry used {shares[-1]:.3%} of the wall clock; "
            f"median step {medians['10']:.3f} s on, {medians['0']:.3f} s off"
        )
    ratio, low, high = ratio_interval(log_ratios)
    print(f"step time on over off: {ratio:.3f} ({low:.3f} to {high:.3f}), {pairs} pairs")
    print(f"telemetry's own share: at most {max(shares):.3%}, limit {LIMIT_SHARE:.0%}")
    return int(max(shares) > LIMIT_SHARE)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
