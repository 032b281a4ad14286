"""A file that a person names, read whole as text, whatever is there instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trueup.schema import InputError

if TYPE_CHECKING:
    from pathlib import Path


def read_text(path: Path, what: str, *, most_bytes: int) -> str:
    """InputError where there is no such file, or it is a folder, larger than `most_bytes` or not UTF-8;
    `what` says what was expected, such as `claim file`."""
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder; give one {what}")
        with path.open("rb") as file:  # a pipe or a device does not tell its size
            raw = file.read(most_bytes + 1)
        if len(raw) > most_bytes:
            raise InputError(f"{path}: larger than {most_bytes} bytes; this is no {what}")
        return raw.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such {what}") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); a {what} is expected"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{path}: cannot be read: {reason}") from None
