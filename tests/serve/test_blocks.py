"""The pool's blocks: shared, counted, given back, found again; a state machine over all of it."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle as Values
from hypothesis.stateful import RuleBasedStateMachine, consumes, invariant, precondition, rule

from trueup.serve.blocks import NULL_BLOCK, BlockManager, BlockTable

USABLE, SIZE = 12, 2


def opened(manager: BlockManager, tokens: list[int]) -> BlockTable:
    """A table whose tokens are all computed."""
    table = manager.open(tokens)
    assert table is not None
    manager.seal(table, tokens, len(tokens))
    return table


def test_a_prompt_seen_before_shares_its_full_blocks() -> None:
    manager = BlockManager(10, 2)
    first = opened(manager, [1, 2, 3, 4, 5])
    second = opened(manager, [1, 2, 3, 4, 6])
    assert second.blocks[:2] == first.blocks[:2]
    assert second.blocks[2] != first.blocks[2]
    assert second.cached_tokens == 4
    assert manager.used == 4


def test_one_token_is_always_left_to_compute() -> None:
    manager = BlockManager(10, 2)
    opened(manager, [1, 2, 3, 4])
    assert opened(manager, [1, 2, 3, 4]).cached_tokens == 2


def test_equal_tokens_after_another_prefix_are_not_the_same() -> None:
    manager = BlockManager(10, 2)
    opened(manager, [1, 1, 5, 6, 0])
    assert manager.cached([2, 2, 5, 6, 0]) == []
    assert manager.cached([5, 6, 0]) == []


def test_a_block_is_not_found_before_its_tokens_are_computed() -> None:
    manager = BlockManager(10, 2)
    table = manager.open([1, 2, 3, 4, 5])
    assert table is not None
    manager.seal(table, [1, 2, 3, 4, 5], 3)
    assert len(manager.cached([1, 2, 3, 4, 5])) == 1


def test_released_blocks_are_all_free_and_still_found() -> None:
    manager = BlockManager(10, 2)
    table = opened(manager, [1, 2, 3, 4, 5])
    blocks = list(table.blocks)
    manager.release(table)
    assert (manager.used, manager.free) == (0, 9)
    assert opened(manager, [1, 2, 3, 4, 9]).blocks[:2] == blocks[:2]


def test_the_least_recently_used_prefix_goes_first() -> None:
    manager = BlockManager(7, 2)
    for tokens in ([1, 1, 1, 1], [2, 2, 2, 2]):
        manager.release(opened(manager, tokens))
    manager.release(opened(manager, [1, 1, 1, 1, 1]))  # used again; takes one of the two never cached
    held = manager.open([9] * 8)  # two are uncached and go first, then two of the four cached
    assert held is not None
    assert len(manager.cached([1, 1, 1, 1, 0])) == 2
    assert manager.cached([2, 2, 2, 2, 0]) == []


def test_the_end_of_a_prefix_is_given_away_before_its_beginning() -> None:
    manager = BlockManager(4, 2)
    manager.release(opened(manager, [1, 1, 2, 2, 3, 3]))
    manager.open([9])
    assert len(manager.cached([1, 1, 2, 2, 3, 3, 4])) == 2


def test_without_the_cache_nothing_is_found() -> None:
    manager = BlockManager(10, 2, prefix_cache=False)
    manager.release(opened(manager, [1, 2, 3, 4, 5]))
    assert manager.cached([1, 2, 3, 4, 5]) == []


def test_a_table_that_would_leave_too_few_free_takes_nothing() -> None:
    manager = BlockManager(5, 2)
    assert manager.open([1] * 6, spare=2) is None
    assert manager.free == 4


def test_cached_blocks_that_nobody_holds_count_as_taken_when_shared() -> None:
    manager = BlockManager(4, 2)
    manager.release(opened(manager, [1, 2, 3, 4, 5, 6]))
    assert manager.open([1, 2, 3, 4, 5, 6, 7, 8]) is None  # shares three, needs a fourth of three
    assert manager.open([1, 2, 3, 4, 5, 6]) is not None


def test_two_who_compute_the_same_at_once_keep_a_block_each_and_one_is_cached() -> None:
    manager = BlockManager(10, 2)
    tables = [manager.open([1, 2, 3]) for _ in range(2)]
    for table in tables:
        assert table is not None
        manager.seal(table, [1, 2, 3], 3)
    blocks = {table.blocks[0] for table in tables if table is not None}
    assert len(blocks) == 2
    assert manager.cached([1, 2, 3])[0] in blocks
    for table in tables:
        assert table is not None
        manager.release(table)
    assert manager.used == 0


@dataclass(eq=False)
class Held:
    table: BlockTable
    tokens: list[int]
    computed: int


class Pool(RuleBasedStateMachine):
    """Requests open, compute, grow and go in any order. The model: what each block's slots hold."""

    held = Values("held")

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(USABLE + 1, SIZE)
        self.content: dict[int, tuple[int, ...]] = {}  # block -> all tokens up to its end, once computed
        self.tables: list[Held] = []

    @rule(target=held, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9), spare=st.integers(0, 2))
    def open(self, tokens: list[int], spare: int) -> Held | object:
        free = self.manager.free
        found = self.manager.cached(tokens)
        for at, block in enumerate(found):
            assert self.content[block] == tuple(tokens[: (at + 1) * SIZE])
        table = self.manager.open(tokens, spare)
        if table is None:
            assert self.manager.free == free
            return Held(BlockTable([]), [], 0)
        assert table.blocks[: len(found)] == found
        assert self.manager.free >= spare
        for block in table.blocks[len(found) :]:
            self.content.pop(block, None)
        held = Held(table, list(tokens), table.cached_tokens)
        self.tables.append(held)
        return held

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.tables))
        upto = data.draw(st.integers(held.computed, len(held.tokens)))
        for at in range(upto // SIZE):
            prefix = tuple(held.tokens[: (at + 1) * SIZE])
            assert self.content.setdefault(held.table.blocks[at], prefix) == prefix
        held.computed = upto
        self.manager.seal(held.table, held.tokens, upto)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), token=st.integers(0, 1))
    def say(self, data: st.DataObject, token: int) -> None:
        held = data.draw(st.sampled_from(self.tables))
        if len(held.tokens) == len(held.table.blocks) * SIZE:
            free = self.manager.free
            grown = self.manager.grow(held.table)
            assert grown == (free > 0)
            if not grown:
                return
            self.content.pop(held.table.blocks[-1], None)
        held.tokens.append(token)

    @rule(held=consumes(held))
    def release(self, held: Held) -> None:
        self.manager.release(held.table)
        if held in self.tables:
            self.tables.remove(held)

    @invariant()
    def blocks_are_conserved(self) -> None:
        holders = {block for held in self.tables for block in held.table.blocks}
        assert self.manager.used == len(holders)
        assert self.manager.used + self.manager.free == USABLE
        assert NULL_BLOCK not in holders

    @invariant()
    def only_full_and_equal_blocks_are_shared(self) -> None:
        seen: dict[int, tuple[int, ...]] = {}
        for held in self.tables:
            for at, block in enumerate(held.table.blocks):
                prefix = tuple(held.tokens[: (at + 1) * SIZE])
                assert seen.setdefault(block, prefix) == prefix
                assert held.table.blocks.count(block) == 1

    def teardown(self) -> None:
        for held in self.tables:
            self.manager.release(held.table)
        assert self.manager.used == 0


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


def test_the_pool_cannot_give_more_than_it_has() -> None:
    manager = BlockManager(3, 2)
    table = manager.open([1, 2, 3, 4])
    assert table is not None
    assert not manager.grow(table)
    assert len(table.blocks) == 2
