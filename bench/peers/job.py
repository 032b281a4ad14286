"""What every contestant is given: the same model, examples and settings. B rows, T tokens of one example."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trueup.recipe import Recipe

IGNORED = -100  # a label without loss, in transformers and TRL


@dataclass(frozen=True)
class Job:
    """One training. `recipe` is trueup's, defaults included; the peers take their settings from it."""

    recipe: dict[str, Any]
    model: str  # folder
    data: str  # prepared folder whose training split is learnt, each example once
    rows: int  # examples of one optimizer step, where a row holds one example
    row_tokens: int  # length of the packed row that is one optimizer step, in TRL
    bf16: bool  # autocast to bf16 over fp32 weights, as trueup chose here; otherwise fp32
    threads: int
    adapter: str  # folder the trained adapter is saved in
    result: str  # file for what was measured

    @classmethod
    def read(cls, path: str) -> Job:
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    def settings(self) -> Recipe:
        from trueup.recipe import Recipe

        return Recipe.model_validate(self.recipe)


def examples(folder: str, split: str) -> list[tuple[NDArray[np.int32], NDArray[np.bool_]]]:
    """(tokens_T, loss_T) of every example of a split, as trueup prepared them."""
    from trueup.data.splits import SPLITS
    from trueup.data.table import ExampleFile, TokenTable

    table = TokenTable(ExampleFile(Path(folder)), SPLITS.index(split))
    return [table.example(n) for n in range(len(table))]
