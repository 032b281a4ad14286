"""Any number of processes gives the same bytes; a killed prepare goes on; two do the work once; memory is
bounded; nothing is left behind."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from pipeline_samples import TOKENIZER, prepared, row, write

from trueup.data import prepare, shard_work, work_folder, workers
from trueup.data.arrow_folder import EXAMPLES_FILE, INDEX_FILE, MANIFEST_FILE
from trueup.data.check import SAMPLE_RECORDS
from trueup.data.records import Record
from trueup.data.shards import Shard, read_shard, shard_path
from trueup.device.host import CgroupLimits
from trueup.recipe.models import DataSection
from trueup.schema import InputError, StorageError, TrueupError

ROWS = [*(row(n % 350, changed=n // 350) for n in range(500)), row(1), {"instruction": "Q", "output": " "}]
SETTINGS: dict[str, Any] = {"max_length": 128, "overlong": "split-sentence"}


@pytest.fixture(autouse=True)
def _many_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "CHUNK_RECORDS", 50)


def files_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in (EXAMPLES_FILE, INDEX_FILE, MANIFEST_FILE)}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "CHUNK_RECORDS", 50)
        return files_of(prepared(tmp_path_factory.mktemp("one"), ROWS, workers=1, **SETTINGS).folder)


def test_several_processes_write_the_same_bytes(tmp_path: Path, expected: dict[str, bytes]) -> None:
    found = prepared(tmp_path, ROWS, workers=2, **SETTINGS)
    assert files_of(found.folder) == expected
    assert os.listdir(tmp_path / "data") == [found.digest]


def test_where_the_shards_end_changes_no_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "CHUNK_CHARACTERS", 1000)
    found = prepared(tmp_path / "short", ROWS, workers=1, **SETTINGS).report()
    monkeypatch.setattr(workers, "CHUNK_RECORDS", 10**6)
    monkeypatch.setattr(workers, "CHUNK_CHARACTERS", 10**9)
    whole = prepared(tmp_path / "long", ROWS, workers=1, **SETTINGS).report()
    assert found | {"folder": "", "source": ""} == whole | {"folder": "", "source": ""}


def counted(monkeypatch: pytest.MonkeyPatch, stop_after: int | None = None) -> list[int]:
    """Counts the shards that are made; an interrupt comes instead of one more than `stop_after`."""
    made: list[int] = []
    make = shard_work.ShardMaker.make

    def counting(self: shard_work.ShardMaker, records: Sequence[Record]) -> Shard:
        if len(made) == stop_after:
            raise KeyboardInterrupt
        made.append(len(records))
        return make(self, records)

    monkeypatch.setattr(shard_work.ShardMaker, "make", counting)
    return made


def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> Path:
    """The work folder that an interrupt left."""
    with monkeypatch.context() as patch:
        counted(patch, stop_after=after)
        with pytest.raises(KeyboardInterrupt):
            prepared(tmp_path, ROWS, workers=1, **SETTINGS)
    (left,) = (tmp_path / "data").iterdir()
    return left


def test_what_was_finished_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, bytes]
) -> None:
    interrupted(tmp_path, monkeypatch, after=4)
    made = counted(monkeypatch)
    found = prepared(tmp_path, ROWS, workers=1, **SETTINGS)
    assert len(made) == 11 - 4
    assert files_of(found.folder) == expected
    assert os.listdir(tmp_path / "data") == [found.digest]


@pytest.mark.parametrize("damage", ["short", "flipped", "empty", "part"])
def test_a_damaged_shard_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, bytes], damage: str
) -> None:
    left = interrupted(tmp_path, monkeypatch, after=4)
    shard = shard_path(left, 2)
    content = bytearray(shard.read_bytes())
    if damage == "short":
        content = content[: len(content) // 2]
    elif damage == "empty":
        content = bytearray()
    else:
        content[len(content) // 3] ^= 0xFF
    shard.write_bytes(content)
    if damage == "part":
        shard.rename(shard.with_suffix(".part"))
    assert read_shard(shard) is None
    made = counted(monkeypatch)
    assert files_of(prepared(tmp_path, ROWS, workers=1, **SETTINGS).folder) == expected
    assert len(made) == 11 - 3


PREPARE = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from pipeline_samples import TOKENIZER
from trueup.data import prepare, workers
from trueup.recipe.models import DataSection
workers.CHUNK_RECORDS = 50
section = DataSection(source={source!r}, max_length=128, overlong="split-sentence")
found = prepare(section, TOKENIZER, Path({home!r}), workers={workers})
print("hit" if found.cache_hit else "made", found.digest)
"""  # without `if __name__ == "__main__"`: a person's script need not have it


def script(tmp_path: Path, workers: int) -> list[str]:
    source = str(write(tmp_path / "in.jsonl", ROWS))
    home = str(tmp_path / "data")
    tests = str(Path(__file__).parent)
    return [sys.executable, "-c", PREPARE.format(tests=tests, source=source, home=home, workers=workers)]


def wait_for(path: Path, process: subprocess.Popen[str], count: int) -> None:
    deadline = time.monotonic() + 120
    while len(list(path.glob(".*.work/*.shard"))) < count:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_killed_prepare_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, bytes]
) -> None:
    process = subprocess.Popen(script(tmp_path, workers=1), stdout=subprocess.PIPE, text=True)
    wait_for(tmp_path / "data", process, 2)
    process.kill()
    process.communicate()
    finished = len(list((tmp_path / "data").glob(".*.work/*.shard")))
    made = counted(monkeypatch)
    found = prepared(tmp_path, ROWS, workers=1, **SETTINGS)
    assert len(made) == 11 - finished < 11
    assert files_of(found.folder) == expected


def test_two_processes_do_the_work_once(tmp_path: Path, expected: dict[str, bytes]) -> None:
    command = script(tmp_path, workers=1)
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = sorted(process.communicate()[0].split()[0] for process in both)
    assert outputs == ["hit", "made"]
    (folder,) = (tmp_path / "data").iterdir()
    assert files_of(folder) == expected


def test_worker_processes_end_with_who_started_them(tmp_path: Path) -> None:
    process = subprocess.Popen(script(tmp_path, workers=2), stdout=subprocess.PIPE, text=True)
    wait_for(tmp_path / "data", process, 1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("this system does not list a process's children")
    workers_started = children.read_text().split()
    process.kill()
    process.communicate()
    assert len(workers_started) == 2
    deadline = time.monotonic() + 30
    while any(_alive(pid) for pid in workers_started):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.05)


def _alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class _Failing:
    """Pickles into a worker that fails there."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return (_fail, (self.error,))


def _fail(error: Exception | None) -> None:
    if error is None:
        os.kill(os.getpid(), signal.SIGKILL)
        return
    raise error


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (InputError("of the input"), InputError, "^of the input$"),
        (StorageError("of the disk"), StorageError, "^of the disk$"),
        (ValueError("odd"), TrueupError, "worker process of prepare failed: ValueError: odd"),
        (None, TrueupError, "ended .exit code -9.; .*Out of memory"),
    ],
)
def test_what_fails_in_a_worker_is_raised(error: Exception | None, kind: type[Exception], said: str) -> None:
    import pickle

    with workers._worker() as process, pytest.raises(kind, match=said) as raised:
        workers._ask(process, pickle.dumps((_Failing(error), None)))
    assert type(raised.value) is kind


def test_an_error_of_the_input_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="2 empty_answer"):
        prepared(tmp_path, [{"instruction": "Q", "output": ""}] * 2, workers=2)
    assert list((tmp_path / "data").iterdir()) == []


def test_old_leftovers_of_others_are_removed(tmp_path: Path) -> None:
    home = tmp_path / "data"
    old, new, busy, part = (home / f".{name}" for name in ("a.work", "b.work", "c.work", "d.part-123"))
    for place in (old, new, busy, part):
        place.mkdir(parents=True)
        (place / "00000000.shard").write_bytes(b"x")
        (place / "lock").touch()
    past = time.time() - work_folder.LEFTOVER_AGE_S - 60
    with work_folder.work_folder(home / "c"):
        for place in (old, busy, part):
            for path in (*place.iterdir(), place):
                os.utime(path, (past, past))
        found = prepared(tmp_path, ROWS[:60])
        assert {path.name for path in home.iterdir()} == {found.digest, ".b.work", ".c.work"}


MEMORY = """
import resource, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from pipeline_samples import TOKENIZER
from trueup.data import lengths, prepare, workers
from trueup.recipe.models import DataSection
workers.CHUNK_RECORDS = 64
lengths.PLANNED_EXAMPLES = 1000
for source in sys.argv[1:]:
    section = DataSection(source=source, max_length=16, overlong="truncate", loss_on="all")
    prepare(section, TOKENIZER, Path({home!r}), workers=1)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Of a file of 100 MB more neither its text nor its tokens (some 500 MB as lists) stay. What is left for
    the bound is the allocator's slack, which grows at first and then no more."""
    sources = []
    for count in (2000, 12_000):  # the first one also loads what is loaded once
        path = tmp_path / f"{count}.jsonl"
        with path.open("w") as file:
            for n in range(count):
                file.write(json.dumps({"text": f"{n} {count} " + "word " * 2000}) + "\n")
        sources.append(str(path))
    program = MEMORY.format(tests=str(Path(__file__).parent), home=str(tmp_path / "data"))
    done = subprocess.run(
        [sys.executable, "-c", program, *sources], capture_output=True, text=True, check=True
    )
    small, large = map(int, done.stdout.split())
    assert large - small < 60e6, f"{(large - small) / 1e6} MB more"


@pytest.mark.parametrize("count", [1, 2])
def test_few_records_are_in_memory_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    alive: list[int] = []
    read = workers.chunks

    def watched(records: Iterator[Record]) -> Iterator[list[Record]]:
        for chunk in read(records):
            alive.append(sum(type(one) is Record for one in gc.get_objects()))
            yield chunk

    before = sum(type(one) is Record for one in gc.get_objects())
    monkeypatch.setattr(workers, "chunks", watched)
    prepared(tmp_path, [row(n, words=5) for n in range(1500)], workers=count)
    assert len(alive) == 30
    assert max(alive) - before <= 50 * (2 if count == 1 else 2 * count + 2) + SAMPLE_RECORDS


def test_a_tokenizer_that_cannot_be_sent_is_used_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(TOKENIZER), "__reduce_ex__", lambda *_: (_ for _ in ()).throw(TypeError("no")))
    made = counted(monkeypatch)
    section = DataSection(source=str(write(tmp_path / "in.jsonl", ROWS[:60])))
    prepare(section, TOKENIZER, tmp_path / "data", workers=2)
    assert made == [50, 10]


@pytest.mark.parametrize(
    ("cpus", "gigabytes", "count"),
    [(None, None, 64), (2.5, None, 3), (None, 2, 3), (None, 1, 1), (None, 0.3, 1), (1, 2, 1)],
)
def test_workers_are_as_many_as_processors_and_memory_allow(
    monkeypatch: pytest.MonkeyPatch, cpus: float | None, gigabytes: float | None, count: int
) -> None:
    memory = None if gigabytes is None else int(gigabytes * 2**30)
    monkeypatch.setattr(workers, "allowed_cpus", lambda: frozenset(range(64)))
    monkeypatch.setattr(workers, "cgroup_limits", lambda: CgroupLimits(cpus, memory))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**40))
    assert workers.default_workers() == count
