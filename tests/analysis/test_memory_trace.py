"""A trace of memory: its peak, its owners, and what a caching allocator makes of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trueup.analysis.allocator import AllocatorFigures
from trueup.analysis.memory_summary import Alternative, KvFacts, mean_waste, suggestions, summary_of
from trueup.analysis.memory_trace import (
    BEFORE,
    allocator_at_peak,
    holders,
    kind_of,
    layers_together,
    live_bytes,
    module_of,
    operator_of,
    over_time,
    peak_of,
)
from trueup.schema.memory_trace import Held, HeldKind, MemoryTrace


def held(size: int, born: int, died: int | None, module: str = "m", kind: HeldKind = "activations") -> Held:
    return Held(size, kind, module, "aten.add", born, died)


def traced(*storages: Held, marks: tuple[tuple[int, str], ...] = ()) -> MemoryTrace:
    events = [one.born for one in storages] + [one.died for one in storages if one.died is not None]
    return MemoryTrace(storages, max(events, default=-1) + 1, len(storages), marks)


CHAIN = traced(
    Held(100, "weights", "w", "", 0, None),
    held(40, 1, 4, "layers.0.mlp"),
    held(70, 2, 3, "layers.1.mlp"),
    held(50, 5, None, "head"),
    marks=((1, "prompt"), (5, "next token")),
)


@st.composite
def traces(draw: st.DrawFn) -> MemoryTrace:
    """Storages that come and go in any order, one event at a time."""
    sizes = draw(st.lists(st.integers(1, 5_000_000), max_size=20))
    events = draw(st.permutations([*range(len(sizes))] * 2))
    places: dict[int, list[int]] = {}
    for event, index in enumerate(events):
        places.setdefault(index, []).append(event)
    stays = draw(st.sets(st.sampled_from(range(len(sizes))))) if sizes else set()
    return MemoryTrace(
        tuple(
            held(size, places[n][0], None if n in stays else places[n][1], f"layers.{n % 3}.mlp")
            for n, size in enumerate(sizes)
        ),
        len(events),
        len(sizes),
    )


def test_the_peak_is_where_most_is_held_and_names_its_part() -> None:
    peak = peak_of(CHAIN)
    assert (peak.event, peak.size_bytes, peak.part) == (2, 210, "prompt")
    assert live_bytes(CHAIN) == [100, 140, 210, 140, 100, 150]


def test_who_held_memory_at_the_peak_comes_first() -> None:
    found = {one.name: one for one in holders(CHAIN, module_of)}
    assert list(found) == ["w", "layers.1.mlp", "layers.0.mlp", "head"]
    assert (found["head"].at_peak_bytes, found["head"].own_peak_bytes, found["head"].at_end_bytes) == (
        0,
        50,
        50,
    )


def test_layers_can_be_taken_together() -> None:
    assert holders(CHAIN, layers_together)[0].name == "layers.*.mlp"
    assert holders(CHAIN, layers_together)[0].at_peak_bytes == 110


def test_what_was_there_before_has_no_operator() -> None:
    assert {one.name for one in holders(CHAIN, operator_of)} == {BEFORE, "aten.add"}


def test_an_empty_trace_has_an_empty_peak() -> None:
    empty = traced()
    assert (peak_of(empty).size_bytes, peak_of(empty).held, live_bytes(empty)) == (0, (), [])
    assert allocator_at_peak(empty) == AllocatorFigures()
    assert over_time(empty, module_of, 3) == {}


@given(traces())
def test_the_owners_at_the_peak_add_up_to_it(trace: MemoryTrace) -> None:
    peak = peak_of(trace).size_bytes
    assert peak == max(live_bytes(trace), default=0)
    for owner in (module_of, operator_of, kind_of, layers_together):
        found = holders(trace, owner)
        assert sum(one.at_peak_bytes for one in found) == peak
        assert all(one.own_peak_bytes >= max(one.at_peak_bytes, one.at_end_bytes) for one in found)


@given(traces(), st.integers(1, 4))
def test_what_is_drawn_adds_up_to_what_was_held(trace: MemoryTrace, most: int) -> None:
    series = over_time(trace, module_of, most)
    assert [sum(values) for values in zip(*series.values(), strict=True)] == (live_bytes(trace) or [])


@given(traces())
def test_the_modelled_allocator_holds_at_least_the_tensors(trace: MemoryTrace) -> None:
    found = allocator_at_peak(trace)
    assert found.requested == peak_of(trace).size_bytes
    assert found.requested <= found.allocated <= found.reserved


def test_only_what_lowers_the_peak_is_suggested_and_the_most_first() -> None:
    peak = peak_of(CHAIN)
    found = suggestions(
        peak,
        [Alternative("a", 200), Alternative("b", 150), Alternative("worse", 300), Alternative("same", 210)],
    )
    assert [(one.what, one.saves_bytes) for one in found] == [("b", 60), ("a", 10)]


def test_bf16_keys_and_values_save_half_of_the_pool() -> None:
    peak = peak_of(traced(held(1000, 0, None, kind="kv_pool"), held(10, 1, None)))
    (found,) = suggestions(peak, [], KvFacts(bytes_per_token=8, number_bytes=4, block_size=1, sequences=2))
    assert (found.what, found.saves_bytes, found.peak_bytes) == ("bf16 keys and values", 500, 510)


def test_a_pool_that_is_bf16_already_is_left_alone() -> None:
    peak = peak_of(traced(held(1000, 0, None, kind="kv_pool")))
    assert suggestions(peak, [], KvFacts(8, 2, 1, 2)) == ()


def test_a_block_wastes_half_of_itself_less_half_a_token_on_average() -> None:
    by_hand = [16 * 10 * -(-length // 16) - 10 * length for length in range(1, 161)]
    assert mean_waste(16, 10) == sum(by_hand) / len(by_hand) == 75.0
    peak = peak_of(traced(held(1000, 0, None, kind="kv_pool")))
    (found,) = suggestions(peak, [], KvFacts(bytes_per_token=10, number_bytes=2, block_size=16, sequences=3))
    assert (found.what, found.saves_bytes) == ("blocks of 4 tokens", 3 * (75 - 15))


def test_the_allocators_figures_are_estimates_that_say_so() -> None:
    found = summary_of(CHAIN, rss_before_bytes=7).allocator
    assert {one.kind for one in found.values()} == {"estimated"}
    assert found["internal_bytes"].value == found["allocated_bytes"].value - found["requested_bytes"].value
    assert found["external_bytes"].value == found["reserved_bytes"].value - found["allocated_bytes"].value
