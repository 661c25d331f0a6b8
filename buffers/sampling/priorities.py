"""Prioritized replay: ids drawn in proportion to priorities.

Schaul, Quan, Antonoglou and Silver, "Prioritized Experience Replay", ICLR 2016, sec. 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from stepwell.buffers.errors import NotEnoughData
from stepwell.buffers.sampling.sum_tree import SumTree

__all__ = ["LARGEST_MASS", "Priorities"]

_EPSILON = 1e-6  # added to each value, so that everything is drawn sometimes
LARGEST_MASS = 1e280
"""Far enough from infinity for any sum."""
_LARGEST_ALPHA = 20.0  # _EPSILON to this power is far enough from 0
_SCANNED = 4_096  # leaves that are looked through at once for a live one


class Priorities:
    """Priorities of items that are named by ids, and draws in proportion to them.

    Ids only ever grow, and those that can be drawn lie near each other: the leaf of an id is the id
    modulo a capacity that grows when they no longer fit. One thread at a time.

    Args:
        alpha: Items are drawn in proportion to ``priority ** alpha``; 0 draws uniformly.

    Raises:
        ValueError: alpha is not a number from 0 to 20.

    Example:
        >>> priorities = Priorities(alpha=1.0)
        >>> priorities.enter(np.array([10]), np.array([4]))  # 10, 11, 12 and 13
        >>> priorities.update(np.array([10, 11, 99]), np.array([6.0, 0.0, 5.0]))
        1
        >>> ids, probabilities = priorities.draw(4, np.random.default_rng(0))
        >>> ids.tolist(), probabilities.round(3).tolist()
        ([10, 10, 10, 12], [0.75, 0.75, 0.75, 0.125])
        >>> priorities.weights(probabilities, beta=0.5).round(2)
        array([0.41, 0.41, 0.41, 1.  ], dtype=float32)
    """

    def __init__(self, alpha: float) -> None:
        if not 0 <= alpha <= _LARGEST_ALPHA:
            raise ValueError(
                f"alpha: expected a number from 0 to {_LARGEST_ALPHA:g}, got {alpha}; "
                f"0 draws uniformly, 1 in proportion to the priorities"
            )
        self._alpha = float(alpha)
        self._limit = LARGEST_MASS ** (1 / max(1.0, alpha))
        self._steps: np.ndarray | None = None
        self._largest = 1.0  # mass of a new item
        self._gone = 0  # ids below never come back
        self._low: int = 0  # the live ids lie from here up to _high: they fit into the tree
        self._high: int = 0
        self._use(1)

    @property
    def alpha(self) -> float:
        """The power to which priorities are raised."""
        return self._alpha

    @property
    def count(self) -> int:
        """Number of items that can be drawn."""
        return self._count

    def __len__(self) -> int:
        return self._count

    def enter(self, first_ids: np.ndarray, counts: np.ndarray) -> None:
        """Let ranges of ids be drawn, each id with the largest priority ever given, 1 at first.

        What can be drawn already keeps its priority, and what is gone for good stays so.

        Args:
            first_ids: [n] int64: first id of each range.
            counts: [n] int64: number of ids in it.
        """
        for first, stop in _joined(first_ids, counts):
            first = max(first, self._gone)
            if first >= stop:
                continue
            self._make_room(first, stop)
            for start, masses in self._stretches(first, stop):
                is_new = masses == 0
                self._tree.set_range(start, np.where(is_new, self._largest, masses))
                self._count += int(np.count_nonzero(is_new))

    def leave(self, first_ids: np.ndarray, counts: np.ndarray) -> None:
        """Let ranges of ids be drawn no longer.

        Args:
            first_ids: [n] int64: first id of each range.
            counts: [n] int64: number of ids in it.
        """
        for first, stop in _joined(first_ids, counts):
            self._leave(first, stop)

    def leave_before(self, id: int) -> None:
        """All ids below this one are gone for good.

        Args:
            id: The first that may still be drawn.
        """
        self._leave(self._low, int(id))
        self._gone = max(self._gone, int(id))
        self._low = max(self._low, self._gone)
        self._high = max(self._high, self._low)

    def clear(self) -> None:
        """What can be drawn is gone for good; the largest priority is remembered."""
        self.leave_before(self._high)

    def draw(self, batch_size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw ids in proportion to their priorities, one from each of equal parts of the total.

        Args:
            batch_size: Number of draws, B >= 1.
            rng: Source of randomness.

        Returns:
            The ids [B] int64, and for each the probability [B] float64 of being drawn by one draw.

        Raises:
            NotEnoughData: Nothing can be drawn.
        """
        if self._count == 0:
            raise NotEnoughData(
                "priorities: expected something that can be drawn, got nothing; collect more"
            )
        if self._steps is None or len(self._steps) != batch_size:
            self._steps = np.arange(batch_size, dtype=np.float64)
        total = self._tree.total
        masses = rng.random(batch_size)
        np.add(masses, self._steps, masses)
        np.multiply(masses, total / batch_size, masses)
        leaves = self._tree.find(masses)
        self._tree.leaves.take(leaves, None, masses, "clip")
        np.divide(masses, total, masses)
        # An id is its leaf, counted from the leaf of the lowest one.
        ids = np.subtract(leaves, self._low, leaves)
        np.bitwise_and(ids, self._mask, ids)
        return np.add(ids, self._low, ids), masses

    def weights(self, probabilities: np.ndarray, beta: float) -> np.ndarray:
        """Importance weights ``(count * probability) ** -beta``, divided by the largest of them.

        Args:
            probabilities: [B] float64, as `draw` gave them.
            beta: How far they make up for the priorities: 0 not at all, 1 in full.

        Returns:
            [B] float32, above 0 and at most 1. The count cancels out.

        Raises:
            ValueError: beta is not a finite number >= 0.
        """
        if not 0 <= beta < math.inf:
            raise ValueError(
                f"beta: expected a finite number >= 0, got {beta}; "
                f"1 makes up for the priorities in full"
            )
        lowest = probabilities.item(probabilities.argmin())
        weights: np.ndarray = np.power(lowest / probabilities, beta)
        return weights.astype(np.float32)

    def update(self, ids: np.ndarray, values: np.ndarray) -> int:
        """Give items the priorities ``abs(value) + 1e-6``.

        Args:
            ids: [B] int64; of an id that is named twice the last one counts.
            values: [B] float32 or float64, finite: TD errors, say.

        Returns:
            How many of the ids cannot be drawn, any longer or at all: those are ignored.

        Raises:
            ValueError: The arrays are not of these forms, or a value is not finite.
        """
        ids, masses = self._checked(ids, values)
        if not len(ids):
            return 0
        ages = (ids - self._low).view(np.uint64)  # an id below becomes a huge age
        leaves = ids & self._mask
        held = self._tree.leaves.take(leaves, None, None, "clip")
        ignored = 0
        if ages.item(ages.argmax()) >= self._high - self._low or held.item(held.argmin()) <= 0:
            is_live = (ages < self._high - self._low) & (held > 0)
            leaves, masses = leaves[is_live], masses[is_live]
            ignored = len(ids) - len(leaves)
        if len(leaves):
            self._largest = max(self._largest, masses.item(masses.argmax()))
            self._tree.set(leaves, masses)
        return ignored

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on exactly: numbers, and the live ids and their masses."""
        leaves = np.arange(self._low, self._high, dtype=np.int64) & self._mask
        masses = self._tree.leaves[leaves]
        live = np.flatnonzero(masses)
        return {
            "alpha": self._alpha,
            "largest": self._largest,
            "gone": self._gone,
            "low": self._low,
            "high": self._high,
            "capacity": self._tree.capacity,
            "ids": live + self._low,
            "masses": masses[live],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`; what was there is forgotten.

        Raises:
            ValueError: The state belongs to another alpha.
        """
        if state["alpha"] != self._alpha:
            raise ValueError(
                f"alpha: expected {state['alpha']:g}, with which these priorities were stored, "
                f"got {self._alpha:g}; make the replay with priority_alpha={state['alpha']:g}"
            )
        self._use(state["capacity"])
        self._largest, self._gone = state["largest"], state["gone"]
        self._low, self._high = state["low"], state["high"]
        self._count = len(state["ids"])
        if self._count:
            self._tree.set(state["ids"] & self._mask, state["masses"])

    def _use(self, capacity: int) -> None:
        """Begin with an empty tree."""
        self._tree = SumTree(capacity)
        self._mask = np.array(self._tree.capacity - 1, np.int64)
        self._low = self._high = 0
        self._count = 0

    def _checked(self, ids: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids and masses."""
        ids, values = np.asarray(ids), np.asarray(values)
        if ids.ndim != 1 or ids.dtype != np.int64:
            raise ValueError(
                f"ids: expected the int64 ids [B] of a batch, got {ids.dtype} {ids.shape}; "
                f"hand over batch.ids"
            )
        if values.shape != ids.shape or values.dtype.kind != "f":
            raise ValueError(
                f"priorities: expected one number for each of the {len(ids)} ids, as float32 or "
                f"float64, got {values.dtype} {values.shape}; hand over an array [B]"
            )
        masses = np.abs(values, dtype=np.float64)
        masses += _EPSILON
        worst = masses.argmax() if len(masses) else 0  # to argmax, not a number is the largest
        if len(masses) and not masses.item(worst) < self._limit:
            raise ValueError(
                f"priorities: expected finite numbers, below {self._limit:.0e} where alpha is "
                f"{self._alpha:g}, got {values[worst]}; look at where they come from"
            )
        return ids, np.power(masses, self._alpha, masses)

    def _leave(self, first: int, stop: int) -> None:
        for start, masses in self._stretches(max(first, self._low), min(stop, self._high)):
            self._count -= int(np.count_nonzero(masses))
            self._tree.set_range(start, np.zeros(len(masses)))

    def _make_room(self, first: int, stop: int) -> None:
        """Stretch the range of live ids over these, in a larger tree where needed."""
        if self._count == 0:
            self._low = self._high = first
        low, high = min(self._low, first), max(self._high, stop)
        if high - low > self._tree.capacity:
            self._raise_low()
            low = min(self._low, first)
        if high - low > self._tree.capacity:
            self._grow(high - low)
        self._low, self._high = low, high

    def _raise_low(self) -> None:
        """Leave the ids out of the range that come before the first live one."""
        for _, masses in self._stretches(self._low, self._high):
            for at in range(0, len(masses), _SCANNED):
                live = np.flatnonzero(masses[at : at + _SCANNED])
                if len(live):
                    self._low += at + int(live[0])
                    return
            self._low += len(masses)

    def _grow(self, capacity: int) -> None:
        """Move the live ids to their leaves in a larger tree."""
        parts = [masses.copy() for _, masses in self._stretches(self._low, self._high)]
        self._tree.set_range(0, np.zeros(self._tree.capacity))
        self._tree.grow(capacity)
        self._mask = np.array(self._tree.capacity - 1, np.int64)
        held, done = np.concatenate([*parts, np.empty(0)]), 0
        for start, masses in self._stretches(self._low, self._high):
            self._tree.set_range(start, held[done : done + len(masses)])
            done += len(masses)

    def _stretches(self, first: int, stop: int) -> Iterator[tuple[int, np.ndarray]]:
        """The neighbouring leaves of a range of ids: the first of them, and a view on them all."""
        capacity = self._tree.capacity
        while first < stop:
            start = first & (capacity - 1)
            masses = self._tree.leaves[start : start + stop - first]
            yield start, masses
            first += len(masses)


def _joined(first_ids: np.ndarray, counts: np.ndarray) -> list[tuple[int, int]]:
    """Ranges (first, stop), those that follow on one another made one."""
    stops = first_ids + counts
    breaks = np.flatnonzero(first_ids[1:] != stops[:-1]).tolist()
    starts = [0, *(at + 1 for at in breaks)]
    ends = [*breaks, len(stops) - 1]
    if not len(stops):
        return []
    return list(zip(first_ids[starts].tolist(), stops[ends].tolist(), strict=True))
