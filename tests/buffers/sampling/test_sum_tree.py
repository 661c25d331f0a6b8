"""The sum tree against a plain list of masses."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from stepwell.buffers.sampling.sum_tree import SumTree

# One level, two and three.
CAPACITIES = (1, 64, 100, 2_048, 4_096, 40_000)


def filled(capacity: int, seed: int = 0, empty: float = 0.5) -> SumTree:
    """Whole numbers as masses, so that sums are exact; a share of the leaves has none."""
    rng = np.random.default_rng(seed)
    tree = SumTree(capacity)
    masses = rng.integers(1, 10, tree.capacity).astype(float)
    tree.set_range(0, np.where(rng.random(tree.capacity) < empty, 0, masses))
    return tree


def expected_leaves(leaves: np.ndarray, masses: np.ndarray) -> list[int]:
    """The first leaf at whose end the running sum is above the mass."""
    return list(np.cumsum(leaves).searchsorted(masses, "right").tolist())


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_each_mass_falls_on_the_leaf_in_whose_stretch_it_lies(capacity: int) -> None:
    tree = filled(capacity)
    tree.set(np.array([0]), np.array([3.0]))
    masses = np.arange(0, tree.total, 0.5)
    assert tree.find(masses).tolist() == expected_leaves(tree.leaves, masses)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_many_masses_at_once_are_found_as_one_at_a_time(capacity: int) -> None:
    tree = filled(capacity)
    masses = np.random.default_rng(1).random(9_001) * tree.total
    assert tree.find(masses).tolist() == expected_leaves(tree.leaves, masses)
    assert tree.find(masses[:1]).tolist() == expected_leaves(tree.leaves, masses[:1])
    assert tree.find(masses[:0]).tolist() == []


@given(
    capacity=st.sampled_from(CAPACITIES),
    changes=st.lists(
        st.tuples(
            st.booleans(), st.lists(st.tuples(st.integers(0), st.integers(0, 5)), max_size=30)
        ),
        max_size=12,
    ),
    parts=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=10),
)
def test_any_changes_leave_the_leaves_the_total_and_the_places_of_a_plain_list(
    capacity: int, changes: list[tuple[bool, list[tuple[int, int]]]], parts: list[float]
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
    assert tree.leaves.tolist() == model
    if tree.total:
        tried = np.array(parts) * tree.total
        tried[tried >= tree.total] = 0
        assert tree.find(tried).tolist() == expected_leaves(np.array(model), tried)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_of_a_leaf_that_is_named_twice_the_last_mass_counts(capacity: int) -> None:
    tree = SumTree(capacity)
    indices = np.array([5, 7, 5, 5])
    tree.set(indices, np.array([1.0, 2.0, 3.0, 4.0]))
    assert (tree.leaves[5], tree.leaves[7], tree.total) == (4.0, 2.0, 6.0)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_no_leaf_of_mass_0_is_found_however_the_sums_are_rounded(capacity: int) -> None:
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
def test_a_mass_that_rounding_took_to_the_total_or_beyond_falls_on_the_last_leaf_with_mass(
    capacity: int,
) -> None:
    tree = SumTree(capacity)
    last = tree.capacity - 1
    for leaf in (9, last):
        tree.set(np.array([2, leaf]), np.array([0.1, 0.2]))
        assert tree.find(np.array([tree.total, 2 * tree.total])).tolist() == [leaf, leaf]


def test_sums_are_as_exact_after_a_hundred_thousand_changes_as_after_one() -> None:
    rng = np.random.default_rng(0)
    tree = SumTree(40_000)
    for _ in range(1_000):
        tree.set(rng.integers(0, 40_000, 100), 10.0 ** rng.uniform(-9, 9, 100))
    anew = SumTree(40_000)
    anew.set_range(0, tree.leaves)
    assert tree.total == anew.total
    tree.set_range(0, np.zeros(tree.capacity))
    assert tree.total == 0


@pytest.mark.parametrize("before", CAPACITIES)
def test_growing_keeps_every_leaf_where_it_is(before: int) -> None:
    tree = filled(before)
    leaves, total = tree.leaves.copy(), tree.total
    tree.grow(5 * tree.capacity)
    assert tree.capacity == 8 * len(leaves)
    assert tree.leaves[: len(leaves)].tolist() == leaves.tolist()
    assert not tree.leaves[len(leaves) :].any()
    assert tree.total == total
    masses = np.arange(total)
    assert tree.find(masses).tolist() == expected_leaves(leaves, masses)
    tree.set(np.array([tree.capacity - 1]), np.array([2.0]))
    assert tree.find(np.array([total + 1])).tolist() == [tree.capacity - 1]


def test_what_is_found_is_not_overwritten_by_the_next_search() -> None:
    tree = filled(4_096)
    first = tree.find(np.array([1.0, 2.0]))
    kept = first.tolist()
    tree.find(np.array([500.0, 600.0]))
    tree.set(np.array([9, 10]), np.array([1.0, 1.0]))
    assert first.tolist() == kept
