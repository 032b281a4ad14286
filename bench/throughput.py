"""Useful tokens per second of the demo recipe, model and data: fresh processes, one after the other.

    python bench/throughput.py [REPEATS]

A benchmark of the machine as it is now: the share of the CPU that other processes took stands beside each.
"""

from __future__ import annotations

import statistics
import sys

from repeat import train, value

STEPS = 12


def main(repeats: int) -> None:
    print("run        useful tokens/s   median step s   MFU, useful   others' CPU   padding")
    rates = []
    for n in range(repeats):
        settings = (f"train.max_steps={STEPS}", "evaluate.every=null", f"train.seed={n}")
        record = train("bench-throughput", *settings)
        rates.append(value(record, "useful_tokens_per_s"))
        print(
            f"{record['id']}   {rates[-1]:15.1f}   {value(record, 'step_p50_s'):13.3f}   "
            f"{value(record, 'mfu_useful'):11.1%}   {value(record, 'others_cpu_share'):11.1%}   "
            f"{value(record, 'padding_share'):7.1%}"
        )
    print(f"median {statistics.median(rates):.1f}, from {min(rates):.1f} to {max(rates):.1f}, {repeats} runs")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
