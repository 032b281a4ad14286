"""Where trueup keeps what it makes. Read from the environment at the edge, here, and passed down."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from trueup.files.whole import needs_another_place, prove_writable
from trueup.schema import InputError, StorageError


@dataclass(frozen=True)
class Home:
    """The trueup home and its rooms on disk."""

    path: Path

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def platforms(self) -> Path:
        """What `trueup calibrate` measured, a file for each platform."""
        return self.path / "platforms"

    def for_writing(self) -> Home:
        """This home, made if absent and proven writable; raises InputError or StorageError if it is not."""
        try:
            prove_writable(self.path)
        except OSError as error:
            kind = InputError if needs_another_place(error) else StorageError
            raise kind(
                f"the trueup home {self.path} cannot be written: {error.strerror}; "
                "set TRUEUP_HOME to a folder that can"
            ) from None
        return self


def find_home() -> Home:
    """TRUEUP_HOME if set, else the platform's folder for a user's data."""
    given = os.environ.get("TRUEUP_HOME")
    if given:
        return Home(Path(given).expanduser().absolute())
    import platformdirs

    return Home(Path(platformdirs.user_data_dir("trueup", appauthor=False)))
