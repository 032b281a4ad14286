"""What a checkpoint says of itself: whose it is, at which step, and the digest of every file in it."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from pydantic import Field, ValidationError, field_validator

from trueup.files.names import is_plain
from trueup.schema import Frozen, InputError, ShapePlan

FORMAT = 1
MANIFEST_FILE = "manifest.json"
WEIGHTS = "weights"  # stems of the tensor files
OPTIMIZER = "optimizer"
RANDOM = "random"
_SEAL = re.compile(rb',\n "sha256": "([0-9a-f]{64})"\n}\n\Z')
_END = b"\n}"


class FileDigest(Frozen):
    sha256: str
    bytes: int


class Origin(Frozen):
    """The run a checkpoint belongs to: what must be the same for going on to give the same result."""

    run: str = Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z_-]*$")  # also the name of its folder
    name: str
    started_at: str  # of the run's first process
    trueup_version: str
    recipe: dict[str, Any]  # resolved
    recipe_digest: str
    choices: dict[str, dict[str, str]]
    shape_plan: ShapePlan
    data_digest: str
    model_digest: str | None = None  # of the base model, see `model.folder.digest_of`


class CheckpointManifest(Frozen):
    """`files` names every file of the folder but this one, by its path below it. `state` is all that is not
    tensors: cursor, tally, random states of Python and numpy, loss scale, guard."""

    format: int = FORMAT
    origin: Origin
    step: int
    best_step: int | None  # the step whose checkpoint is the best by evaluation so far; may be this one
    eval_loss: float | None  # of the evaluation at this step, where there was one
    why: tuple[str, ...]  # every, minutes, best, last, asked, signal
    created: str
    state: dict[str, Any]
    files: dict[str, FileDigest] = Field(default_factory=dict)

    @field_validator("files")
    @classmethod
    def _stay_below_the_folder(cls, files: dict[str, FileDigest]) -> dict[str, FileDigest]:
        for name in files:
            if not is_plain(name):
                raise ValueError(f"{name!r} is not a path below the checkpoint's folder")
        return files

    @property
    def size_bytes(self) -> int:
        """Of all files but the manifest."""
        return sum(file.bytes for file in self.files.values())


def sealed(manifest: CheckpointManifest) -> bytes:
    """The manifest as JSON whose last field, `sha256`, is the digest of the JSON without it.

    Numbers come back as they were, to the last bit; NaN and infinities are written as Python's json does.
    Raises TypeError where `state` holds what JSON has no word for.
    """
    fields = manifest.model_dump(mode="json") | {"state": manifest.state}  # as it is: nothing made to fit
    text = json.dumps(fields, indent=1)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f'{text.removesuffix(_END.decode())},\n "sha256": "{digest}"\n}}\n'.encode()


def unsealed(raw: bytes) -> CheckpointManifest:
    """From what `sealed` wrote. Raises ValueError where any byte of it is another, InputError where a newer
    trueup wrote it."""
    seal = _SEAL.search(raw)
    if seal is None:
        raise ValueError("it does not end in its digest")
    content = raw[: seal.start()] + _END
    if hashlib.sha256(content).hexdigest() != seal[1].decode():
        raise ValueError("it is not what its digest says")
    try:
        fields = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply to be one of trueup's") from None
    if isinstance(fields, dict) and isinstance(fields.get("format"), int) and fields["format"] > FORMAT:
        raise InputError(
            f"the checkpoint has format {fields['format']}, and this trueup reads up to {FORMAT}; "
            "update trueup"
        )
    try:
        return CheckpointManifest.model_validate(fields)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise ValueError(f"it is no checkpoint's ({where}: {problem['msg']})") from None
