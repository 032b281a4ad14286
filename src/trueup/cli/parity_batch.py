"""The batch that both sides of a comparison are shown: of a run's data, of a recipe's, or random tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.schema import InputError

from .sides import Asked, Subject, find_subject

if TYPE_CHECKING:
    from trueup.model.batch import BatchTensors
    from trueup.model.parity_file import OutputFile
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


@dataclass(frozen=True)
class SideOf:
    """One side: what to run, or what was run and saved."""

    asked: Asked
    subject: Subject | None = None
    saved: OutputFile | None = None


def side_of(asked: Asked) -> SideOf:
    path = Path(asked.subject).expanduser()
    if not path.is_file():
        return SideOf(asked, subject=find_subject(asked.subject))
    if asked.options or asked.threads:
        raise InputError(f"{asked.text}: a file holds what was run already; leave out the keys")
    from trueup.model.parity_file import OutputFile

    saved = OutputFile(path)
    saved.verify()
    return SideOf(asked, saved=saved)


def batch_for(sides: list[SideOf], given: Given) -> tuple[BatchTensors, str]:
    """The batch that both sides are shown, and what it is. Raises InputError where a saved side was shown
    another."""
    from trueup.model.parity_compare import require_same_batch

    files = [one for one in sides if one.saved is not None]
    made = None if files and not given.own else _made(sides, given)
    if made is None:
        assert files[0].saved is not None
        made = files[0].saved.batch(), files[0].saved.facts.source
    for one in files:
        assert one.saved is not None
        require_same_batch(made[0], one.saved.batch(), ("here", one.asked.subject))
    return made


def _made(sides: list[SideOf], given: Given) -> tuple[BatchTensors, str]:
    subjects = [one.subject for one in sides if one.subject is not None]
    if not subjects:
        raise InputError(
            "both sides are files, and the batch is in them; leave out --data, --tokens and --seed"
        )
    if given.data is not None and given.seed is not None:
        raise InputError("--data takes tokens of a data set and --seed random ones; give one of them")
    if given.data is not None:
        from trueup.recipe import load_recipe

        return _of_data(load_recipe(given.data, []).recipe, subjects[0], given.at_most)
    recipe = next((one.recipe for one in subjects if one.recipe is not None), None)
    if recipe is not None and given.seed is None:
        return _of_data(recipe, subjects[0], given.at_most)
    return _random(subjects, given)


def _of_data(recipe: Recipe, subject: Subject, tokens: int) -> tuple[BatchTensors, str]:
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
    return _tensors(batch), f"{split} split of data {prepared.digest[:12]}"


def _random(subjects: list[Subject], given: Given) -> tuple[BatchTensors, str]:
    from trueup.data.packed_sample import random_sample
    from trueup.model.dims import most_positions
    from trueup.model.load import read_config

    configs = [read_config(one.resolved) for one in subjects]
    vocab = min(int(config["vocab_size"]) for config in configs)
    longest = min((most_positions(config) or given.at_most for config in configs), default=None)
    seed = given.seed or 0
    batch = random_sample(tokens=given.at_most, vocab=vocab, longest=longest, seed=seed)
    return _tensors(batch), f"random tokens, seed {seed}"


def _tensors(batch: Any) -> BatchTensors:
    from trueup.model.batch import BatchTensors

    arrays = batch.tokens_BT, batch.positions_BT, batch.segments_BT
    return BatchTensors.from_arrays(*arrays, *batch.targets())
