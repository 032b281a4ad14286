"""Two sides compared: each on the device it names, A's outputs in a file, B's beside them one at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from trueup.device import open_device
from trueup.files.whole import replacing_file
from trueup.schema import InputError
from trueup.schema.parity import Compared, NotCompared, SideFacts

from .batch import BatchTensors
from .parity import Side, points_at_most, run_side
from .parity_compare import Comparison, Text
from .parity_file import OutputFile, OutputWriter, batch_facts
from .parity_watch import Take
from .staging import storage_errors

Say = Callable[[str], None]


@contextmanager
def outputs_of(
    side: Side, batch: BatchTensors, source: str, save: Path | None, say: Say, *, gradient: bool
) -> Iterator[OutputFile]:
    """The side's outputs in the new file `save`, or in one that is gone afterwards. `source` says what the
    batch is. Raises InputError where `save` exists, StorageError for a full disk."""
    if save is None:
        with tempfile.TemporaryDirectory(prefix="trueup-parity-") as folder:
            file = Path(folder) / "a.safetensors"
            with storage_errors("writing the outputs of side A", Path(folder).parent):
                _write(file, side, batch, source, say, gradient=gradient)
            yield OutputFile(file)
        return
    if save.exists() or save.is_symlink():
        raise InputError(f"{save}: exists; name a new file or remove this one")
    with storage_errors("writing the outputs", save.parent):
        save.parent.mkdir(parents=True, exist_ok=True)
        with replacing_file(save) as part:
            _write(part, side, batch, source, say, gradient=gradient)
    yield OutputFile(save)


def compared(
    a: OutputFile, b: Side | OutputFile, batch: BatchTensors, text: Text | None, say: Say, *, gradient: bool
) -> tuple[SideFacts, list[Compared], list[NotCompared]]:
    """How B was run, and what the comparison found. `text` gives a token's."""
    comparison = Comparison(a, text)
    if isinstance(b, OutputFile):
        facts = b.side
        for point, value in b:
            comparison.take(point, value)
    else:
        facts = _run(b, batch, comparison.take, say, gradient=gradient)
    return facts, *comparison.finish()


def _write(path: Path, side: Side, batch: BatchTensors, source: str, say: Say, *, gradient: bool) -> None:
    with path.open("wb") as file:
        writer = OutputWriter(file, batch, points=points_at_most(side))
        facts = _run(side, batch, writer.take, say, gradient=gradient)
        writer.finish(facts, batch_facts(batch, source))


def _run(side: Side, batch: BatchTensors, take: Take, say: Say, *, gradient: bool) -> SideFacts:
    say(f"running {side.subject}")
    with closing(open_device(side.device, threads=side.threads)) as device:
        return run_side(side, device, batch, take, gradient=gradient)
