"""A file that a person names, read whole as text, whatever is there instead."""

from __future__ import annotations

from pathlib import Path

from trueup.schema import InputError


def read_text(path: Path, what: str, *, most_bytes: int, named: str = "", example: str = "") -> str:
    """InputError where there is no such file, or it is a folder, larger than `most_bytes` or not UTF-8.

    `what` says what was expected, such as `claim file`; `named` how the person named it, by default the path;
    `example` where one is to be found.
    """
    named = named or str(path)
    try:
        if path.is_dir():
            raise InputError(f"{named}: is a folder; give one {what}")
        with path.open("rb") as file:  # a pipe or a device does not tell its size
            raw = file.read(most_bytes + 1)
        if len(raw) > most_bytes:
            raise InputError(f"{named}: larger than {most_bytes} bytes; this is no {what}")
        return raw.decode("utf-8-sig")
    except FileNotFoundError:
        more = f"; {example}" if example else ""
        raise InputError(f"{named}: no such {what}{more}") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{named}: not UTF-8 text ({error.reason} at byte {error.start}); a {what} is expected"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{named}: cannot be read: {reason}") from None
