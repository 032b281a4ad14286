"""Shards made by as many processes as there are processors to use, or in this one where there is little to
do.

Worker processes are started as programs of their own and not through multiprocessing: a person's script that
calls `prepare` needs no `if __name__ == "__main__"` then, and no thread is copied half-way. What they make
does not depend on how many they are."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import psutil

from trueup.device.host import allowed_cpus, cgroup_limits
from trueup.recipe.models import DataSection
from trueup.schema import TrueupError

from .records import Record
from .shard_work import ShardMaker
from .shards import read_shard, shard_path, write_shard
from .vocabulary import Tokenizer
from .work_folder import storage_errors

CHUNK_RECORDS = 512
CHUNK_CHARACTERS = 2 * 2**20  # ends a stretch earlier where records are long, so that memory is bounded
ALONE_CHUNKS = 8  # up to so many are done before worker processes would have started
WORKER_BYTES = 512 * 2**20  # memory a worker may need, with its libraries
_STOP_S = 5.0


class _Shards(Protocol):
    def make(self, path: Path, records: Sequence[Record]) -> None: ...


def chunks(records: Iterator[Record]) -> Iterator[list[Record]]:
    """Stretches of the records that depend on nothing but them."""
    chunk: list[Record] = []
    characters = 0
    for record in records:
        chunk.append(record)
        characters += sum(len(turn.content) for turn in record.turns)
        if len(chunk) >= CHUNK_RECORDS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def make_shards(
    records: Iterator[Record], work: Path, section: DataSection, tokenizer: Tokenizer, workers: int | None
) -> int:
    """Put the shards of all records into `work`, leaving alone what is there and whole; returns their number.

    `workers` is for tests; None: what the machine has, and none where the data is small."""
    stretches = enumerate(chunks(records))
    head = list(islice(stretches, ALONE_CHUNKS + 1)) if workers is None else []
    count = workers if workers is not None else 1 if len(head) <= ALONE_CHUNKS else default_workers()
    made = 0
    with contextlib.ExitStack() as stack:
        pool: _Shards | None = None
        for index, chunk in chain(head, stretches):
            made = index + 1
            path = shard_path(work, index)
            done = read_shard(path)
            if done is not None:
                continue
            if pool is None:
                pool = stack.enter_context(_pool(section, tokenizer, count))
            pool.make(path, chunk)
    return made


def default_workers() -> int:
    """One for each processor this process may use, as far as the memory it may use goes; at least one."""
    limits = cgroup_limits()
    processors = len(allowed_cpus())
    if limits.cpus is not None:
        processors = min(processors, math.ceil(limits.cpus))
    memory = [psutil.virtual_memory().available, limits.memory_bytes]
    with contextlib.suppress(ImportError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        memory.append(None if limit == resource.RLIM_INFINITY else limit)
    room = min(size for size in memory if size is not None)
    return max(1, min(processors, room // WORKER_BYTES - 1))  # one share is this process's own


@contextlib.contextmanager
def _pool(section: DataSection, tokenizer: Tokenizer, count: int) -> Iterator[_Shards]:
    setup = _pickled(section, tokenizer) if count > 1 else None
    if setup is None:
        yield _Here(ShardMaker(section, tokenizer))
        return
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_worker()) for _ in range(count)]
        threads = stack.enter_context(ThreadPoolExecutor(count))
        pool = _Pool(threads, processes)
        for started in [threads.submit(_ask, process, setup) for process in processes]:
            started.result()
        yield pool
        pool.wait(0)


class _Here:
    def __init__(self, maker: ShardMaker) -> None:
        self._maker = maker

    def make(self, path: Path, records: Sequence[Record]) -> None:
        shard = self._maker.make(records)
        with storage_errors(path.parent.parent):
            write_shard(path, shard)


class _Pool:
    """One thread waits for each worker process; at most two stretches a worker are in memory."""

    def __init__(self, threads: ThreadPoolExecutor, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._threads = threads
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for process in processes:
            self._idle.put(process)
        self._most = 2 * len(processes)
        self._pending: deque[Future[None]] = deque()

    def make(self, path: Path, records: Sequence[Record]) -> None:
        self._pending.append(self._threads.submit(self._one, path, records))
        self.wait(self._most - 1)

    def wait(self, left: int) -> None:
        """Wait until no more than `left` are under way; raises what the earliest failed with."""
        try:
            while len(self._pending) > left:
                self._pending.popleft().result()
        except BaseException:
            for future in self._pending:
                future.cancel()
            raise

    def _one(self, path: Path, records: Sequence[Record]) -> None:
        process = self._idle.get()
        try:
            _ask(process, pickle.dumps((path, list(records))))
        finally:
            self._idle.put(process)


def _pickled(section: DataSection, tokenizer: Tokenizer) -> bytes | None:
    """None for a tokenizer that cannot be given to another process: the work is then done in this one."""
    if getattr(type(tokenizer), "__module__", "") == "__main__":
        return None
    try:
        return pickle.dumps((section, tokenizer))
    except Exception:  # pickling runs the tokenizer's own code, which may raise anything
        return None


@contextlib.contextmanager
def _worker() -> Iterator[subprocess.Popen[bytes]]:
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "TOKENIZERS_PARALLELISM": "false",  # the processes are the parallelism
    }
    command = [sys.executable, "-m", f"{__package__}.shard_worker"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)
    try:
        yield process
        process.stdin.close()  # type: ignore[union-attr]
        process.wait(_STOP_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]


def _ask(process: subprocess.Popen[bytes], request: bytes) -> None:
    """Raises what the worker answers; TrueupError when it is gone."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(request)
        process.stdin.flush()
        reply: Any = pickle.load(process.stdout)
    except (OSError, EOFError, ValueError) as error:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
        raise TrueupError(
            f"a worker process of prepare ended (exit code {process.returncode}); its messages are above. "
            "Out of memory is the usual cause: free some and run again, what was finished is kept"
        ) from error
    if reply is not None:
        raise reply
