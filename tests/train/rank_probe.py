"""Run under torchrun: three optimizer steps in fp64; the leading rank writes losses and weights.

Arguments: recipe, home, output (.safetensors; losses as the tensor `losses`).
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from probe_session import opened
from safetensors.torch import save_file

from trueup.model.reference import widen
from trueup.train.evaluate import held_out
from trueup.train.stepper import gather, train_step


def main(recipe_path: str, home: str, out: str) -> None:
    session, _ = opened(recipe_path, home, "train.tokens_per_step=288")
    world = session.world
    session = replace(session, model=widen(session.model))
    steps = session.epoch(0)
    chosen = [steps[0], steps[1], steps[-1]]  # the last one is short: some rank may have no micro-batch
    results = [train_step(session, gather(session, step), lr=1e-2) for step in chosen]
    evaluation = held_out(session)
    if world.leads:
        numbers = [value for result in results for value in (result.loss, result.grad_norm)]
        numbers += [evaluation.loss_sum, float(evaluation.tokens)]
        tensors = {name: parameter.detach().clone() for name, parameter in session.model.trainable}
        save_file({**tensors, "numbers": torch.tensor(numbers, dtype=torch.float64)}, out)
    world.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
