"""The KV pool's blocks: who holds which, and which of them still have a prefix that somebody may ask for.

Full blocks are cached under (what stands before them, their tokens), compared whole: unlike a digest's, a
match cannot be a collision. What stands before is the number of the cached block there, 0 at the start of a
prompt; numbers are never used twice. Position and prefix are thereby in the key; model, weights and the
pool's number format are one for a manager. A cached block that nobody holds stays until room is needed, the
least recently used first, the end of a prompt before its beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

NULL_BLOCK = 0  # takes the writes of padding; nobody's

_Key = tuple[int, tuple[int, ...]]  # (number of the cached block before, tokens)


@dataclass(eq=False)
class BlockTable:
    """One request's blocks in order. The first `sealed` are full and cached, `link` the number of the last
    of these. `cached_tokens` were there when it was opened."""

    blocks: list[int]
    sealed: int = 0
    link: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True)
class _Cached:
    key: _Key
    number: int


@dataclass
class BlockManager:
    """`blocks` include the null block. Every other is free (nobody holds it; maybe cached) or referenced."""

    blocks: int
    block_size: int
    prefix_cache: bool = True
    _references: list[int] = field(init=False)
    _free: OrderedDict[int, None] = field(init=False)  # the next to be given first
    _by_key: dict[_Key, int] = field(init=False, default_factory=dict)
    _cached: dict[int, _Cached] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._references = [0] * self.blocks
        self._free = OrderedDict.fromkeys(range(NULL_BLOCK + 1, self.blocks))
        self._numbers = count(1)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that somebody holds; cached ones that nobody does are free."""
        return self.blocks - 1 - len(self._free)

    def cached(self, tokens: Sequence[int]) -> list[int]:
        """The blocks of the longest cached prefix that leaves at least one token to compute."""
        found: list[int] = []
        link = 0
        size = self.block_size
        if self.prefix_cache:
            for start in range(0, len(tokens) - size, size):
                block = self._by_key.get((link, tuple(tokens[start : start + size])))
                if block is None:
                    break
                found.append(block)
                link = self._cached[block].number
        return found

    def open(self, tokens: Sequence[int], spare: int = 0) -> BlockTable | None:
        """Blocks for all `tokens`, cached ones shared; None, and nothing taken, where fewer than `spare`
        would be left free."""
        shared = self.cached(tokens)
        new = -(-len(tokens) // self.block_size) - len(shared)
        taken = new + sum(self._references[block] == 0 for block in shared)
        if len(self._free) - taken < spare:
            return None
        for block in shared:
            self._free.pop(block, None)
            self._references[block] += 1
        table = BlockTable(shared + [self._take() for _ in range(new)], sealed=len(shared))
        table.link = self._cached[shared[-1]].number if shared else 0
        table.cached_tokens = len(shared) * self.block_size
        return table

    def grow(self, table: BlockTable) -> bool:
        """One block more; False where none is free."""
        if not self._free:
            return False
        table.blocks.append(self._take())
        return True

    def seal(self, table: BlockTable, tokens: Sequence[int], computed: int) -> None:
        """Caches the full blocks of the first `computed` tokens: their keys and values are in the pool."""
        if not self.prefix_cache:
            return
        size = self.block_size
        while (table.sealed + 1) * size <= computed:
            start = table.sealed * size
            key = (table.link, tuple(tokens[start : start + size]))
            known = self._by_key.get(key)
            if known is None:
                known = self._by_key[key] = table.blocks[table.sealed]
                self._cached[known] = _Cached(key, next(self._numbers))
            table.link = self._cached[known].number
            table.sealed += 1

    def release(self, table: BlockTable) -> None:
        """Gives back all of a table's blocks and empties it."""
        for block in reversed(table.blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
                if block not in self._cached:
                    self._free.move_to_end(block, last=False)
        table.blocks.clear()

    def _take(self) -> int:
        block, _ = self._free.popitem(last=False)
        cached = self._cached.pop(block, None)
        if cached is not None:
            del self._by_key[cached.key]
        self._references[block] = 1
        return block
