"""What all runs left: read from run folders, kept in SQLite, carried between machines as bundles.

`store.bundle` (export and import) is imported by its own name where used.
"""

from .repository import RunSummary, Store
from .run_folder import read_run_folder

__all__ = ["RunSummary", "Store", "read_run_folder"]
