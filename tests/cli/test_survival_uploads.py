"""What could not be copied to the other place is told at the end: its disk may go with the machine."""

from __future__ import annotations

import json
from pathlib import Path

from in_process import Main


def test_uploads_that_failed_are_told_at_the_end(
    main: Main, built: Path, recipe_file: Path, tmp_path: Path
) -> None:
    far = tmp_path / "far"
    far.write_text("a file, where a folder should be")
    done = main(
        "train", recipe_file, "--set", f"checkpoint.to={far}", "--set", "checkpoint.every=2", "--json"
    )
    assert (done.code, json.loads(done.out)["state"]) == (0, "finished")
    last = [line for line in done.err.splitlines() if line.startswith("note: ")][-1]
    assert "on the local disk alone, the last of step 6" in last
    assert str(far) in done.err
