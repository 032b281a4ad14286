"""torch's caching allocator, modelled: what it would reserve from a device for a sequence of tensors.

Sizes and rules are those of CUDACachingAllocator.cpp at its default settings, on one stream: requests are
rounded up to 512 B; those up to 1 MiB come from segments of 2 MiB, those below 10 MiB from segments of
20 MiB, larger ones from segments of their own size rounded up to 2 MiB; the smallest free block that is large
enough is taken, and split where enough of it is left; free neighbours are joined; no segment is given back.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

ROUND_BYTES = 512
SMALL_BYTES = 1 << 20  # the largest request of the small pool
SMALL_SEGMENT_BYTES = 2 << 20
LARGE_SEGMENT_BYTES = 20 << 20
OWN_SEGMENT_FROM_BYTES = 10 << 20
OWN_SEGMENT_ROUND_BYTES = 2 << 20


def rounded(size_bytes: int) -> int:
    """What one request takes of a block."""
    return max(ROUND_BYTES, -(-size_bytes // ROUND_BYTES) * ROUND_BYTES)


def segment_bytes(block_bytes: int) -> int:
    """The segment that is asked of the device where no free block is large enough."""
    if block_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if block_bytes < OWN_SEGMENT_FROM_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-block_bytes // OWN_SEGMENT_ROUND_BYTES) * OWN_SEGMENT_ROUND_BYTES


def reserved_at_most(groups: Iterable[tuple[int, int]]) -> int:
    """Bytes reserved for `count` tensors of `size` bytes each, group by group, none of them ever freed: each
    group has segments of its own, so what groups could share of one is counted in both. Grows with every
    size and count: a tensor of 12 MiB takes a segment of 12, and is counted as one of 9, which takes 20."""
    total = 0
    for tensors, size_bytes in groups:
        block = rounded(size_bytes)
        segment = segment_bytes(block)
        taken = -(-tensors // (segment // block)) * segment
        if block >= OWN_SEGMENT_FROM_BYTES:
            taken = max(taken, -(-tensors // 2) * LARGE_SEGMENT_BYTES)
        total += taken
    return total


@dataclass(frozen=True)
class AllocatorFigures:
    """Bytes at one moment. `unreleasable`: free parts of segments of which another part is in use, which no
    emptying of the cache gives back."""

    requested: int = 0
    allocated: int = 0
    reserved: int = 0
    unreleasable: int = 0

    @property
    def internal(self) -> int:
        """Lost to rounding inside blocks."""
        return self.allocated - self.requested

    @property
    def external(self) -> int:
        """Reserved, and in no block that is in use."""
        return self.reserved - self.allocated


@dataclass(eq=False)
class _Block:
    """A part of a segment. `address` orders blocks of one size, as the allocator's sets do."""

    address: int
    size: int
    pool: list[tuple[int, int, _Block]]
    free: bool = True
    before: _Block | None = None
    after: _Block | None = None

    @property
    def split(self) -> bool:
        return self.before is not None or self.after is not None

    @property
    def key(self) -> tuple[int, int, _Block]:
        return self.size, self.address, self

    def __lt__(self, other: _Block) -> bool:
        return self.address < other.address


@dataclass
class ModelledAllocator:
    """Feed it what comes and goes, in order."""

    _small: list[tuple[int, int, _Block]] = field(default_factory=list)
    _large: list[tuple[int, int, _Block]] = field(default_factory=list)
    _used: dict[int, tuple[_Block, int]] = field(default_factory=dict)
    _handles: count[int] = field(default_factory=count)
    _end: int = 0  # of the last segment: segments lie one after the other
    _requested: int = 0
    _allocated: int = 0
    _unreleasable: int = 0

    @property
    def now(self) -> AllocatorFigures:
        return AllocatorFigures(self._requested, self._allocated, self._end, self._unreleasable)

    def allocate(self, size_bytes: int) -> int:
        """A handle for `free`."""
        need = rounded(size_bytes)
        block = self._found(need) or self._new_segment(need)
        self._split(block, need)
        block.free = False
        handle = next(self._handles)
        self._used[handle] = block, size_bytes
        self._requested += size_bytes
        self._allocated += block.size
        return handle

    def free(self, handle: int) -> None:
        block, size_bytes = self._used.pop(handle)
        self._requested -= size_bytes
        self._allocated -= block.size
        block.free = True
        for near in (block.before, block.after):
            if near is not None and near.free:
                self._take(near)
                _join(block, near)
        self._keep(block)

    def _found(self, need: int) -> _Block | None:
        """The smallest free block that is large enough, taken from its pool."""
        pool = self._pool(need)
        place = bisect_left(pool, (need,))
        if place == len(pool):
            return None
        block = pool[place][2]
        self._take(block)
        return block

    def _new_segment(self, need: int) -> _Block:
        size = segment_bytes(need)
        block = _Block(self._end, size, self._pool(need))
        self._end += size
        return block

    def _split(self, block: _Block, need: int) -> None:
        left = block.size - need
        if left < ROUND_BYTES or (block.pool is self._large and left <= SMALL_BYTES):
            return
        rest = _Block(block.address + need, left, block.pool, before=block, after=block.after)
        if rest.after is not None:
            rest.after.before = rest
        block.size, block.after = need, rest
        self._keep(rest)

    def _pool(self, need: int) -> list[tuple[int, int, _Block]]:
        return self._small if need <= SMALL_BYTES else self._large

    def _keep(self, block: _Block) -> None:
        insort(block.pool, block.key)
        self._unreleasable += block.size if block.split else 0

    def _take(self, block: _Block) -> None:
        del block.pool[bisect_left(block.pool, block.key)]
        self._unreleasable -= block.size if block.split else 0


def _join(block: _Block, near: _Block) -> None:
    """`near`, free and beside it, becomes part of `block`."""
    if near is block.before:
        block.address, block.before = near.address, near.before
        if block.before is not None:
            block.before.after = block
    else:
        block.after = near.after
        if block.after is not None:
            block.after.before = block
    block.size += near.size
