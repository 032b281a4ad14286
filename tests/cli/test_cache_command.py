"""`trueup cache`: what it lists, carries and removes, and how it refuses."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from in_process import Main, refused
from trueup.cache import CacheStore, key_of, opened

FACTS = {"device": "a [red] cpu", "mode": "layer", "shapes": [[4, 128]]}
KEY = key_of(FACTS)


def compile_once(home: Path, facts: dict[str, object] = FACTS) -> None:
    with opened(home, facts, variables=["CACHE"], say=print) as cache:
        Path(cache.environment["CACHE"], "kernel.o").write_bytes(b"code")


def documented_keys() -> set[str]:
    table = (
        (Path(__file__).parents[2] / "docs" / "compile-cache.md").read_text().split("| key | meaning |")[1]
    )
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    return {key for row in rows for key in re.findall(r"`(\w+)`", row)}


def test_list(main: Main, home: Path) -> None:
    assert "no compile caches yet" in main("cache", "list").err
    assert json.loads(main("cache", "list", "--json").out) == []
    compile_once(home)
    table = main("cache", "list").out
    for part in (KEY, "4 bytes", "ago", "yes", "a [red] cpu", "layer"):
        assert part in table
    (entry,) = json.loads(main("cache", "list", "--json").out)
    assert set(entry) == documented_keys()
    assert entry["facts"] == FACTS
    assert (entry["key"], entry["usable"], entry["files"], entry["bytes"]) == (KEY, True, 1, 4)
    (home / "signing.key").unlink()
    (entry,) = json.loads(main("cache", "list", "--json").out)
    assert not entry["usable"]
    assert "not this home's" in entry["problem"]
    assert "no:" in main("cache", "list").out


def test_export_and_import(main: Main, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    compile_once(home)
    exported = json.loads(main("cache", "export", KEY[:3], "--json").out)
    assert (exported["key"], exported["path"]) == (KEY, f"{KEY}.zip")
    assert exported["bytes"] == (tmp_path / f"{KEY}.zip").stat().st_size
    other = tmp_path / "other"
    refused(main("cache", "import", f"{KEY}.zip", home=other), 2, "--trust-cache", "executed")
    done = main("cache", "import", f"{KEY}.zip", "--trust-cache", "--json", home=other)
    assert json.loads(done.out) == {"key": KEY, "files": 1, "bytes": 4}
    assert [entry.problem for entry in CacheStore(other).entries()] == [None]


def test_prune(main: Main, home: Path) -> None:
    compile_once(home)
    compile_once(home, {"device": "another"})
    refused(main("cache", "prune"), 2, "--older-than DAYS, or --all")
    refused(main("cache", "prune", "--all", "--older-than", "3"), 2, "--older-than DAYS, or --all")
    assert json.loads(main("cache", "prune", "--older-than", "1", "--json").out)["removed"] == []
    tried = json.loads(main("cache", "prune", "--all", "--dry-run", "--json").out)
    assert (len(tried["removed"]), tried["dry_run"]) == (2, True)
    assert len(CacheStore(home).keys()) == 2
    assert KEY in main("cache", "prune", "--all").err
    assert CacheStore(home).keys() == []
    assert main("cache", "prune", "--all").code == 0


def test_prune_by_age_goes_by_the_last_use_and_takes_what_was_set_aside(main: Main, home: Path) -> None:
    compile_once(home)
    aside = CacheStore(home).set_aside(KEY)
    compile_once(home)
    os.utime(aside, (0, 0))
    assert json.loads(main("cache", "prune", "--older-than", "1", "--json").out)["removed"] == []
    assert not aside.exists()
    assert json.loads(main("cache", "prune", "--older-than", "0", "--json").out)["removed"] in ([KEY], [])


def test_refusals(main: Main, home: Path, tmp_path: Path) -> None:
    refused(main("cache", "export", "abc"), 2, "begins with 'abc'", "`trueup cache list`")
    compile_once(home)
    refused(main("cache", "export", ""), 2, "begins with ''")
    refused(main("cache", "export", KEY, "-o", tmp_path / "no" / "x.zip"), 2, "a folder that exists")
    refused(main("cache", "import", tmp_path / "no.zip"), 2, "there is no file")
