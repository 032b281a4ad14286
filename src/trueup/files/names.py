"""Names of files that came from elsewhere."""

from __future__ import annotations

from pathlib import PureWindowsPath


def is_plain(name: str) -> bool:
    """Relative, with nothing in it that leads elsewhere on any system."""
    parts = name.split("/")
    leads_elsewhere = {"", ".", ".."} & {*parts} or "\\" in name or PureWindowsPath(name).drive
    return name.isprintable() and not leads_elsewhere
