"""Takes this machine's absolute paths out of what leaves it.

The trueup home becomes $TRUEUP_HOME and the user's home folder ~, so that a reader still knows which file is
meant; of any other absolute path only the last part is kept, as .../name.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

# A slash that begins a path: not inside a word, a relative path, a URL's host or a unit such as tokens/s.
_POSIX = re.compile(r"""(?:(?<![\w.~$/)\]}-])|(?<=file://)|(?<=-[ILFR]))/(?=[^\s/])[^\s'"`,;:<>|()\[\]{}]+""")
_WINDOWS = re.compile(r"""(?<!\w)[A-Za-z]:[\\/](?![\\/])[^\s'"`,;<>|]*""")
_PASSES = 8  # paths of two kinds in one word may only show one after the other


class Scrubber:
    """Scrubs strings, and whatever holds strings, of absolute paths."""

    def __init__(self, home: Path) -> None:
        user = Path("~").expanduser()
        named = [(home, "$TRUEUP_HOME"), (home.resolve(), "$TRUEUP_HOME"), (user, "~"), (user.resolve(), "~")]
        # The longest first: the trueup home is often inside the user's. A bare "/" is no folder to name.
        self._named = sorted(
            {(str(folder), name) for folder, name in named if folder.is_absolute() and len(folder.parts) > 1},
            key=lambda pair: -len(pair[0]),
        )

    def value(self, value: Any) -> Any:
        """`value` with every string in it scrubbed, keys of mappings too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.value(key): self.value(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.value(inner) for inner in value)
        return value

    def text(self, text: str) -> str:
        if "/" not in text and "\\" not in text:
            return text
        for _ in range(_PASSES):
            before = text
            for folder, name in self._named:
                text = re.sub(rf"(?<![\w.~$-]){re.escape(folder)}(?=$|[^\w.-])", name, text)
            text = _POSIX.sub(_last_part_of_posix, text)
            text = _WINDOWS.sub(lambda found: _last_part(found[0]), text)
            if text == before:
                break
        return text


def _last_part_of_posix(found: re.Match[str]) -> str:
    path = found[0]
    first = path[1:].split("/", 1)[0]
    # "/s" or "/1k" alone is more likely a unit than a path, unless this machine has it.
    if "/" not in path[1:] and not os.path.lexists(f"/{first}"):
        return path
    return _last_part(path)


def _last_part(path: str) -> str:
    parts = [part for part in re.split(r"[\\/]", path) if part]
    return f".../{parts[-1]}" if parts else path  # nothing but separators names no file
