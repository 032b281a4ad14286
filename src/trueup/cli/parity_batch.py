"""The batch that both sides of a comparison are shown: of a run's data, of a recipe's, or random tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trueup.schema import InputError

from .sides import Opened

if TYPE_CHECKING:
    from trueup.data import MicroBatch
    from trueup.model.batch import BatchTensors
    from trueup.model.parity_subject import Subject
    from trueup.recipe import Recipe


TOKENS = 512


@dataclass(frozen=True)
class Given:
    """What the command line says of the batch."""

    data: str | None
    tokens: int | None
    seed: int | None

    @property
    def own(self) -> bool:
        return self.data is not None or self.seed is not None or self.tokens is not None

    @property
    def at_most(self) -> int:
        return TOKENS if self.tokens is None else self.tokens


def batch_for(sides: Sequence[Opened], given: Given) -> tuple[BatchTensors, str]:
    """The batch that both sides are shown, and what it is. Raises InputError where a saved side was shown
    another."""
    from trueup.model.parity_compare import require_same_batch
    from trueup.model.parity_file import OutputFile

    files = {one.text: one.run for one in sides if isinstance(one.run, OutputFile)}
    first = next(iter(files.values()), None)
    if first is not None and not given.own:
        batch, source = first.batch(), first.facts.source
    else:
        made, source = _made([one.subject for one in sides if one.subject is not None], given)
        batch = _tensors(made)
    for text, file in files.items():
        require_same_batch(batch, file.batch(), ("here", text))
    return batch, source


def _made(subjects: Sequence[Subject], given: Given) -> tuple[MicroBatch, str]:
    if not subjects:
        raise InputError(
            "both sides are files, and the batch is in them; leave out --data, --tokens and --seed"
        )
    if given.data is not None and given.seed is not None:
        raise InputError("--data takes tokens of a data set and --seed random ones; give one of them")
    recipe = next((one.recipe for one in subjects if one.recipe is not None), None)
    if given.data is not None:
        from trueup.recipe import load_recipe

        recipe = load_recipe(given.data, []).recipe
    if recipe is None or given.seed is not None:
        return _random(subjects, given)
    return _of_data(recipe, subjects[0], given.at_most)


def _of_data(recipe: Recipe, subject: Subject, tokens: int) -> tuple[MicroBatch, str]:
    """Of the validation split, else the training split, as the subject's tokenizer has it."""
    from trueup.data.packed_sample import sample_of
    from trueup.recipe.models import ModelSection

    from .prepare import prepare_data_of

    model = ModelSection(path=str(subject.resolved.folder))
    try:
        prepared, _, _ = prepare_data_of(recipe.model_copy(update={"model": model}))
    except InputError as error:
        raise InputError(
            f"the batch's data cannot be read: {error}; give --data RECIPE, or --seed 0 for random tokens"
        ) from error
    split = "validation" if len(prepared.split("validation")) else "train"
    batch = sample_of(prepared.split(split), prepared.pad.id, tokens=tokens)
    return batch, f"{split} split of data {prepared.digest[:12]}"


def _random(subjects: Sequence[Subject], given: Given) -> tuple[MicroBatch, str]:
    from trueup.data.packed_sample import random_sample
    from trueup.model.dims import most_positions
    from trueup.model.load import read_config

    configs = [read_config(one.resolved) for one in subjects]
    vocab = min(int(config["vocab_size"]) for config in configs)
    longest = min((most_positions(config) or given.at_most for config in configs), default=None)
    seed = given.seed or 0
    batch = random_sample(tokens=given.at_most, vocab=vocab, longest=longest, seed=seed)
    return batch, f"random tokens, seed {seed}"


def _tensors(batch: MicroBatch) -> BatchTensors:
    from trueup.model.batch import BatchTensors

    arrays = batch.tokens_BT, batch.positions_BT, batch.segments_BT
    return BatchTensors.from_arrays(*arrays, *batch.targets())
