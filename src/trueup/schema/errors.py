"""Errors a person can act on. Each says what happened, where, what was expected and what to do."""

from __future__ import annotations


class TrueupError(Exception):
    """The work failed. The command line prints the message and exits with code 1."""

    exit_code = 1


class InputError(TrueupError):
    """What was asked for is wrong: a recipe, a file, a name. Exit code 2."""

    exit_code = 2


class MissingExtraError(InputError):
    """An optional dependency is needed and absent."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package '{package}': pip install 'trueup[{extra}]'")


class StorageError(TrueupError):
    """A file or database could not be written or read: full disk, read-only folder, locked database."""
