"""A process that makes shards for another: `python -m trueup.data.shard_worker`, started by workers.py.

It reads pickles from its standard input: a section and a tokenizer, then a path and records for each shard;
and answers each on its standard output with None, or with the error that ended the work. It ends when its
input does, so that it does not outlive who started it. An interrupt is for that process to act on."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from typing import BinaryIO

from trueup.schema import TrueupError


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not end up between the replies
    try:
        _serve(sys.stdin.buffer, replies)
    except (EOFError, BrokenPipeError):
        return


def _serve(requests: BinaryIO, replies: BinaryIO) -> None:
    from .shard_work import ShardMaker
    from .shards import write_shard
    from .work_folder import storage_errors

    maker: ShardMaker | None = None

    def begin() -> None:
        nonlocal maker
        maker = ShardMaker(*pickle.load(requests))

    def work() -> None:
        path, records = pickle.load(requests)
        assert maker is not None
        shard = maker.make(records)
        with storage_errors(path.parent.parent):
            write_shard(path, shard)

    _answer(begin, replies)
    while maker is not None:
        _answer(work, replies)


def _answer(step: Callable[[], None], replies: BinaryIO) -> None:
    reply: Exception | None = None
    try:
        step()
    except EOFError:
        raise
    except TrueupError as error:
        reply = error
    except Exception as error:
        reply = TrueupError(f"a worker process of prepare failed: {type(error).__name__}: {error}")
    pickle.dump(reply, replies)
    replies.flush()


if __name__ == "__main__":
    main()
