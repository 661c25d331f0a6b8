"""Priorities agree with a dictionary, their tree with a list of masses, also with gaps in ids."""

from __future__ import annotations

import math
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stepwell.buffers import End
from stepwell.buffers.base.errors import NotEnoughData
from stepwell.buffers.sampling.draws import ItemKinds
from stepwell.buffers.sampling.priorities import Priorities, PriorityIndex, SumTree
from stepwell.buffers.storage.chunk_index import ChunkIndex
from stepwell.buffers.storage.item_counts import Windows
from stepwell.buffers.testing import chunk_of
from support.chi_square import assert_shares

EPSILON = 1e-6


def some(alpha: float, values: list[float], first: int = 0) -> Priorities:
    """Items with these priorities, whose ids begin at ``first``."""
    priorities = Priorities(alpha)
    ids = np.arange(first, first + len(values))
    priorities.enter(np.array([first]), np.array([len(values)]))
    assert priorities.update(ids, np.array(values)) == 0
    return priorities


def enter(priorities: Priorities, *ranges: tuple[int, int]) -> None:
    """Enter ranges of ids, each given as (first id, count)."""
    firsts, counts = np.array(ranges, np.int64).reshape(-1, 2).T
    priorities.enter(firsts, counts)


def leave(priorities: Priorities, *ranges: tuple[int, int]) -> None:
    firsts, counts = np.array(ranges, np.int64).reshape(-1, 2).T
    priorities.leave(firsts, counts)


def masses(priorities: Priorities) -> dict[int, float]:
    """The mass of each live id in `state`."""
    state = priorities.state()
    return dict(zip(state["ids"].tolist(), state["masses"].tolist(), strict=True))


def drawn(priorities: Priorities, seed: int = 0, size: int = 4_000) -> set[int]:
    ids, _ = priorities.draw(size, np.random.default_rng(seed))
    return set(ids.tolist())


# --- draws ----------------------------------------------------------------------------------------


@pytest.mark.proof
@pytest.mark.parametrize(("alpha", "first"), [(0.0, 0), (0.6, 1_000_003), (1.0, 61), (2.0, 0)])
def test_ids_are_drawn_in_proportion_to_priority_to_the_power_of_alpha(
    alpha: float, first: int
) -> None:
    values = [0.1 * (1 + number % 7) for number in range(64)]
    priorities = some(alpha, values, first)
    expected = np.array([(value + EPSILON) ** alpha for value in values])
    expected /= expected.sum()
    rng, counts = np.random.default_rng(5), Counter[int]()
    for _ in range(4_000):  # single draws: those of one batch are not independent
        ids, probabilities = priorities.draw(1, rng)
        counts.update((ids - first).tolist())
        np.testing.assert_allclose(probabilities, expected[ids - first], rtol=1e-12)
    assert_shares(counts, dict(enumerate(expected)))


def test_a_batch_holds_one_draw_from_each_of_equal_parts_of_the_total() -> None:
    priorities = some(1.0, [1.0] * 100)
    rng, counts = np.random.default_rng(0), Counter[int]()
    for _ in range(500):
        ids, _ = priorities.draw(20, rng)
        assert (ids // 5).tolist() == list(range(20))
        counts.update(ids.tolist())
    assert_shares(counts, dict.fromkeys(range(100), 1.0))


def test_drawn_arrays_belong_to_the_caller() -> None:
    priorities = some(0.6, [1.0, 2.0, 3.0])
    ids, probabilities = priorities.draw(2, np.random.default_rng(0))
    before = ids.tolist(), probabilities.tolist()
    priorities.draw(2, np.random.default_rng(1))
    priorities.update(ids, np.array([7.0, 8.0]))
    assert (ids.tolist(), probabilities.tolist()) == before
    assert [array.dtype for array in (ids, probabilities)] == [np.int64, np.float64]


def test_drawing_without_items_is_refused() -> None:
    priorities = Priorities(0.6)
    with pytest.raises(NotEnoughData, match=r"^priorities: .*\b0\b"):
        priorities.draw(4, np.random.default_rng(0))
    enter(priorities, (0, 5))
    leave(priorities, (0, 5))
    with pytest.raises(NotEnoughData, match=r"^priorities: .*\b0\b"):
        priorities.draw(4, np.random.default_rng(0))


@given(
    values=st.lists(st.floats(0, 1e3), min_size=1, max_size=50),
    alpha=st.floats(0, 2),
    beta=st.floats(0, 1),
)
def test_weights_are_those_of_the_paper(values: list[float], alpha: float, beta: float) -> None:
    priorities = some(alpha, values)
    _, probabilities = priorities.draw(16, np.random.default_rng(0))
    plain = (len(values) * probabilities) ** -beta
    weights = priorities.weights(probabilities, beta)
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights, plain / plain.max(), rtol=1e-6)


# --- priorities -----------------------------------------------------------------------------------


def test_an_item_of_priority_0_is_drawn_rarely() -> None:
    priorities = some(0.5, [0.0, 1.0])
    assert masses(priorities)[0] == EPSILON**0.5
    assert drawn(priorities) == {0, 1}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_priorities_may_have_any_float_dtype(dtype: type[np.floating]) -> None:
    priorities = some(1.0, [1.0])
    values = np.array([-0.1], dtype)
    priorities.update(np.array([0]), values)
    assert masses(priorities)[0] == 0 - float(values[0]) + EPSILON
    assert values[0] == dtype(-0.1)


@pytest.mark.parametrize(
    ("ids", "values", "message"),
    [
        ([0, 1], [1.0], r"^priorities: .*\b2 ids.*float64 \(1,\)"),
        ([0, 1], [[1.0, 2.0]], r"^priorities: .*float64 \(1, 2\).*\[B\]"),
        ([0, 1], [1, 2], r"^priorities: .*\bfloat64\b.*\bint64\b"),
        ([0, 1], [1.0, math.nan], r"^priorities: .*finite.*\bnan\b"),
        ([0, 1], [-math.inf, 1.0], r"^priorities: .*finite.*-inf\b"),
        ([0, 1], [1.0, 1e300], r"^priorities: .*\b1e\+140\b.*alpha.*\b2\b.*\b1e\+300\b"),
    ],
)
def test_invalid_priorities_are_refused_and_change_nothing(
    ids: list[int], values: list[float], message: str
) -> None:
    priorities = some(2.0, [3.0, 4.0])
    before = masses(priorities)
    with pytest.raises(ValueError, match=message):
        priorities.update(np.array(ids), np.array(values))
    enter(priorities, (2, 1))
    assert masses(priorities) == before | {2: (4 + EPSILON) ** 2}


# --- entering and leaving -------------------------------------------------------------------------


def test_leaves_are_reused_when_items_leave_one_by_one() -> None:
    priorities = Priorities(1.0)
    for id in range(1_000):
        enter(priorities, (id, 1))
        if id >= 60:
            leave(priorities, (id - 60, 1))
    assert priorities.state()["capacity"] == 64
    assert drawn(priorities) == set(range(940, 1_000))


def test_the_capacity_covers_only_the_lowest_to_the_highest_live_id() -> None:
    priorities = Priorities(1.0)
    enter(priorities, (0, 20_000))
    leave(priorities, (0, 15_000))
    enter(priorities, (20_000, 20_000))
    assert priorities.state()["capacity"] == 32_768
    assert list(masses(priorities)) == list(range(15_000, 40_000))
    leave(priorities, (0, 40_000))
    enter(priorities, (1 << 50, 32_768))
    assert priorities.state()["capacity"] == 32_768
    assert list(masses(priorities)) == list(range(1 << 50, (1 << 50) + 32_768))


@pytest.mark.proof
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 3, 900, 1_024, 1_025, 70_000]),
            st.sampled_from([-2, 0, 1, 5, 64, 1_500, 70_000]),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    ),
    st.permutations(range(8)),
)
def test_many_ranges_at_once_enter_and_leave_as_one_after_the_other(
    ranges: list[tuple[int, int, bool]], order: list[int]
) -> None:
    """Near and far from each other, adjacent and overlapping, long and empty, in any order."""
    placed, stop = [], 40
    for gap, count, is_overlapping in ranges:
        first = stop - min(gap, 30) if is_overlapping else stop + gap
        placed.append((first, count))
        stop = max(stop, first + count)
    shuffled = [placed[place] for place in order if place < len(placed)]
    at_once, one_by_one = Priorities(1.0), Priorities(1.0)
    for change in (enter, leave):
        for priorities in (at_once, one_by_one):
            enter(priorities, (30, 20))
            priorities.update(np.array([30, 44, 49]), np.array([3.0, 4.0, 0.5]))
        change(at_once, *shuffled)
        for each in shuffled:
            change(one_by_one, each)
        assert masses(at_once) == masses(one_by_one)
        assert len(at_once) == len(one_by_one) == len(masses(at_once))
        assert at_once.state()["capacity"] == one_by_one.state()["capacity"]
        if len(at_once):
            rngs = (np.random.default_rng(0) for _ in range(2))
            both = [
                each.draw(64, rng) for each, rng in zip((at_once, one_by_one), rngs, strict=True)
            ]
            for a, b in zip(*both, strict=True):
                np.testing.assert_array_equal(a, b)


# --- many updates, and states ---------------------------------------------------------------------


class AgainstADictionary(RuleBasedStateMachine):
    """All operations, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.priorities = Priorities(0.5)
        self.model: dict[int, float] = {}
        self.gone = 0
        self.newest = 0
        self.rng = np.random.default_rng(0)

    @property
    def largest(self) -> float:
        return max(self.model.values(), default=1.0)

    @rule(gap=st.integers(0, 70), counts=st.lists(st.integers(0, 70), max_size=4))
    def enter_new(self, gap: int, counts: list[int]) -> None:
        ranges, largest = [], self.largest
        for count in counts:
            ranges.append((self.newest, count))
            self.model |= dict.fromkeys(range(self.newest, self.newest + count), largest)
            self.newest += count + gap
        enter(self.priorities, *ranges)

    @rule(back=st.integers(0, 300), count=st.integers(0, 100))
    def enter_again(self, back: int, count: int) -> None:
        first, largest = max(0, self.newest - back), self.largest
        enter(self.priorities, (first, count))
        for id in range(max(first, self.gone), first + count):
            self.model.setdefault(id, largest)
        self.newest = max(self.newest, first + count)

    @rule(back=st.integers(0, 300), count=st.integers(0, 100))
    def leave(self, back: int, count: int) -> None:
        first = self.newest - back
        leave(self.priorities, (first, count), (first - 30, 20))
        for id in (*range(first, first + count), *range(first - 30, first - 10)):
            self.model.pop(id, None)

    @rule(back=st.integers(-20, 300))
    def evict(self, back: int) -> None:
        id = self.newest - back
        self.priorities.leave_before(id)
        self.gone = max(self.gone, id)
        self.newest = max(self.newest, self.gone)
        self.model = {live: mass for live, mass in self.model.items() if live >= id}

    @rule()
    def clear(self) -> None:
        self.priorities.clear()
        self.model = {}
        state = self.priorities.state()
        assert state["gone"] <= self.newest
        self.gone = state["gone"]

    @rule(backs=st.lists(st.integers(-10, 400), max_size=9), data=st.data())
    def update(self, backs: list[int], data: st.DataObject) -> None:
        value = st.floats(-1e3, 1e3)
        values = data.draw(st.lists(value, min_size=len(backs), max_size=len(backs)))
        ids = [self.newest - back for back in backs]
        ignored = self.priorities.update(np.array(ids, np.int64), np.array(values))
        assert ignored == sum(id not in self.model for id in ids)
        for id, each in zip(ids, values, strict=True):
            if id in self.model:
                self.model[id] = (abs(each) + EPSILON) ** 0.5

    @rule()
    def restore_a_state(self) -> None:
        state = self.priorities.state()
        self.priorities = Priorities(0.5)
        self.priorities.restore(state)

    @precondition(lambda self: self.model)
    @rule(size=st.sampled_from([1, 7, 64]))
    def draw(self, size: int) -> None:
        ids, probabilities = self.priorities.draw(size, self.rng)
        total = sum(self.model.values())
        expected = [self.model[id] / total for id in ids.tolist()]
        np.testing.assert_allclose(probabilities, expected, rtol=1e-9)

    @invariant()
    def the_same_items_have_the_same_priorities(self) -> None:
        assert len(self.priorities) == len(self.model)
        assert masses(self.priorities) == pytest.approx(self.model, rel=1e-12)


def test_priorities_agree_with_a_dictionary_after_any_calls() -> None:
    run_state_machine_as_test(AgainstADictionary)


# One level, two and three.
CAPACITIES = (1, 64, 100, 2_048, 4_096, 40_000)


def expected_leaves(leaves: np.ndarray, masses: np.ndarray) -> list[int]:
    """The first leaf with a running sum above the mass."""
    return list(np.cumsum(leaves).searchsorted(masses, "right").tolist())


@given(
    capacity=st.sampled_from(CAPACITIES),
    changes=st.lists(
        st.tuples(
            st.booleans(), st.lists(st.tuples(st.integers(0), st.integers(0, 5)), max_size=30)
        ),
        max_size=12,
    ),
    parts=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=10),
    asked=st.booleans(),
)
def test_leaves_sums_and_search_agree_with_a_plain_list_after_any_changes(
    capacity: int,
    changes: list[tuple[bool, list[tuple[int, int]]]],
    parts: list[float],
    asked: bool,
) -> None:
    tree = SumTree(capacity)
    model = [0.0] * tree.capacity
    for is_range, entries in changes:
        if is_range:
            start = entries[0][0] % tree.capacity if entries else 0
            masses = [float(mass) for _, mass in entries][: tree.capacity - start]
            tree.set_range(start, np.array(masses))
            model[start : start + len(masses)] = masses
        else:
            indices = [index % tree.capacity for index, _ in entries]
            tree.set(np.array(indices, np.int64), np.array([float(mass) for _, mass in entries]))
            for index, (_, mass) in zip(indices, entries, strict=True):
                model[index] = float(mass)
        assert tree.total == sum(model)
        if asked:
            assert tree.largest == max(model)
    assert tree.largest == max(model)
    assert tree.leaves.tolist() == model
    if tree.total:
        tried = np.array(parts) * tree.total
        tried[tried >= tree.total] = 0
        assert tree.find(tried).tolist() == expected_leaves(np.array(model), tried)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_rounding_never_finds_a_leaf_of_mass_0(capacity: int) -> None:
    rng = np.random.default_rng(3)
    for seed in range(20):
        tree = SumTree(capacity)
        masses = 10.0 ** rng.uniform(-12, 12, tree.capacity)
        masses[rng.random(tree.capacity) < 0.9] = 0
        masses[rng.integers(tree.capacity)] = 1.0
        tree.set_range(0, masses)
        # The borders between the leaves, and their nearest neighbours on both sides.
        borders = np.cumsum(masses)[:: max(1, tree.capacity // 500)]
        tried = np.concatenate([np.nextafter(borders, side) for side in (0, borders, np.inf)])
        tried = tried[tried < tree.total]
        tried = np.append(tried, np.nextafter(tree.total, 0))
        found = tree.find(tried)
        assert (tree.leaves[found] > 0).all(), seed
        ends, some = np.cumsum(masses), 1e-9 * tree.total
        assert (tried <= ends[found] + some).all()
        assert (tried >= ends[found] - masses[found] - some).all()


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_mass_at_or_above_the_total_finds_the_last_leaf_with_mass(capacity: int) -> None:
    tree = SumTree(capacity)
    last = tree.capacity - 1
    for leaf in (9, last):
        tree.set(np.array([2, leaf]), np.array([0.1, 0.2]))
        assert tree.find(np.array([tree.total, 2 * tree.total])).tolist() == [leaf, leaf]


def test_sums_are_exact_after_a_hundred_thousand_changes() -> None:
    rng = np.random.default_rng(0)
    tree = SumTree(40_000)
    for _ in range(1_000):
        tree.set(rng.integers(0, 40_000, 100), 10.0 ** rng.uniform(-9, 9, 100))
    fresh = SumTree(40_000)
    fresh.set_range(0, tree.leaves)
    assert tree.total == fresh.total
    tree.set_range(0, np.zeros(tree.capacity))
    assert tree.total == 0


GAP = 1 << 32  # between the ids, as `repair` leaves it
KINDS = ItemKinds(2, Windows(2), None, None, None)


def with_a_gap() -> ChunkIndex:
    """Rows 0 to 4, and five rows of another episode with far larger ids."""
    index = ChunkIndex()
    for episode in range(2):
        chunk = chunk_of(episode, 0, 5, End.TERMINATED)
        index.check([chunk])
        index.append(chunk, segment=episode, offset=0, nbytes=8)
        index.next_row_id += GAP
    return index


def drawn_ids(index: PriorityIndex, chunk_index: ChunkIndex) -> set[int]:
    chosen, _ = index.draw(chunk_index, 0, KINDS, 400, np.random.default_rng(0))
    at = chunk_index.at(chosen.chunk)
    return set((at["row_id"] + chosen.start - at["first_row"]).tolist())


def test_items_on_both_sides_of_a_gap_are_drawn_and_updated() -> None:
    chunk_index, index = with_a_gap(), PriorityIndex(1.0)
    second = 5 + GAP
    assert drawn_ids(index, chunk_index) == {0, 1, 2, 3, *range(second, second + 4)}
    ids = np.array([0, 1, 2, 3, second, second + 1, second + 2])
    assert index.update(chunk_index, 0, ids, np.zeros(7)) == 0
    assert drawn_ids(index, chunk_index) == {second + 3}


@pytest.mark.parametrize("unknown", [-1, 4, 9, 4 + GAP, 1 << 40])
def test_an_id_within_a_gap_is_ignored_and_changes_nothing(unknown: int) -> None:
    chunk_index, index = with_a_gap(), PriorityIndex(1.0)
    everything = drawn_ids(index, chunk_index)
    assert index.update(chunk_index, 0, np.array([unknown]), np.array([1e9])) == 1
    assert drawn_ids(index, chunk_index) == everything


def test_priorities_are_restored_by_their_ids() -> None:
    chunk_index, index = with_a_gap(), PriorityIndex(1.0)
    drawn_ids(index, chunk_index)
    index.update(chunk_index, 0, np.array([2, 5 + GAP]), np.array([1e6, 1e6]))
    restored = PriorityIndex(1.0)
    restored.restore(chunk_index, 0, index.state(chunk_index, 0))
    chunk_index.drop_segment()
    assert drawn_ids(restored, chunk_index) == {5 + GAP}
    assert restored.update(chunk_index, 0, np.array([2]), np.array([1.0])) == 1
