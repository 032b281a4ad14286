"""Where trueup keeps what it makes. Read from the environment once, here, and passed down."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

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

    def for_writing(self) -> Home:
        """This home, made if absent and proven writable; raises InputError or StorageError if it is not."""
        probe = self.path / f".probe-{os.getpid()}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"trueup")
            probe.unlink()
        except (PermissionError, FileExistsError, NotADirectoryError) as error:
            raise InputError(self._refusal(error)) from None
        except OSError as error:
            probe.unlink(missing_ok=True) if self.path.is_dir() and not _read_only(error) else None
            kind = InputError if _read_only(error) else StorageError
            raise kind(self._refusal(error)) from None
        return self

    def _refusal(self, error: OSError) -> str:
        return (
            f"the trueup home {self.path} cannot be written: {error.strerror}; "
            "set TRUEUP_HOME to a folder that can"
        )


def _read_only(error: OSError) -> bool:
    import errno

    return error.errno == errno.EROFS


def find_home() -> Home:
    """TRUEUP_HOME if set, else the platform's folder for a user's data."""
    given = os.environ.get("TRUEUP_HOME")
    if given:
        return Home(Path(given).expanduser().absolute())
    import platformdirs

    return Home(Path(platformdirs.user_data_dir("trueup", appauthor=False)))
