"""Numbers in leaves, found by where a mass falls in their running sum."""

from __future__ import annotations

import numpy as np

__all__ = ["SumTree"]

_WIDTH = 16  # children of a node
_SHIFT = np.array(4, np.int64)  # as an array: a plain number costs a ufunc twice the time
_LARGEST_TOP = 2_048  # nodes of the uppermost level: summed up as a whole, once a change
_SMALLEST = 64
_LARGEST_ROOM = 4_096  # masses that are looked for at once
_KEPT_ROOMS = 8
# Times a row of children, the sums of the children before each: a small matrix product
# is several times as fast as a running sum.
_BEFORE = np.triu(np.ones((_WIDTH, _WIDTH)), 1)


class SumTree:
    """Leaves of masses >= 0 and the sums above them: 16 children a node, a level at a time.

    A node is summed anew from its children whenever one of them changes, so that rounding errors do
    not add up. The memory in which a batch is worked on is kept: one thread at a time.

    Args:
        capacity: Number of leaves, all 0 at first; rounded up to a power of two, 64 at least.

    Example:
        >>> tree = SumTree(100)
        >>> tree.set(np.array([3, 7]), np.array([1.0, 2.0]))
        >>> tree.capacity, tree.total
        (128, 3.0)
        >>> tree.find(np.array([0.5, 1.5, 2.5])).tolist()
        [3, 7, 7]
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = max(_SMALLEST, 1 << (capacity - 1).bit_length())
        self._levels: list[np.ndarray] = [np.zeros(self._capacity)]  # the leaves first
        while len(self._levels[-1]) > _LARGEST_TOP:
            self._levels.append(np.zeros(len(self._levels[-1]) // _WIDTH))
        self._rows = [level.reshape(-1, _WIDTH) for level in self._levels]
        self._ends = np.zeros(len(self._levels[-1]) + 1)
        self._inner_ends = self._ends[1:-1]  # without the last, what lies beyond falls before it
        self._is_summed = True
        self._rooms: dict[int, _Room] = {}

    @property
    def capacity(self) -> int:
        """Number of leaves, a power of two."""
        return self._capacity

    @property
    def leaves(self) -> np.ndarray:
        """[capacity] float64: all masses; to be read only."""
        return self._levels[0]

    @property
    def total(self) -> float:
        """Sum of all masses."""
        if not self._is_summed:
            np.add.accumulate(self._levels[-1], 0, None, self._ends[1:])
            self._is_summed = True
        return float(self._ends[-1])

    def set(self, indices: np.ndarray, masses: np.ndarray) -> None:
        """Give leaves their masses; of a leaf that is named twice the last one counts.

        Args:
            indices: [B] int64, each below the capacity.
            masses: [B] float64, finite and >= 0.
        """
        self._levels[0][indices] = masses
        room = self._room(len(indices))
        nodes = room.nodes
        for rows, above in zip(self._rows, self._levels[1:], strict=False):
            if len(indices) >= len(above):
                np.add.reduce(rows, 1, out=above)
                continue
            np.right_shift(indices, _SHIFT, nodes)
            rows.take(nodes, 0, room.children, "clip")
            above[nodes] = np.add.reduce(room.children, 1, out=room.sums)
            indices = nodes
        self._is_summed = False

    def set_range(self, start: int, masses: np.ndarray) -> None:
        """Give neighbouring leaves their masses.

        Args:
            start: The first of them.
            masses: [n] float64, finite and >= 0, where start + n is the capacity at most.
        """
        if not len(masses):
            return
        stop = start + len(masses)
        self._levels[0][start:stop] = masses
        for rows, above in zip(self._rows, self._levels[1:], strict=False):
            start, stop = start // _WIDTH, (stop - 1) // _WIDTH + 1
            np.add.reduce(rows[start:stop], 1, out=above[start:stop])
        self._is_summed = False

    def find(self, masses: np.ndarray) -> np.ndarray:
        """The leaves on which masses fall, where the leaves lie side by side.

        Args:
            masses: [B] float64, 0 <= mass < total.

        Returns:
            [B] int64, each a leaf of a mass above 0, whatever the rounding; the total must be above
            0.
        """
        if len(masses) > _LARGEST_ROOM:
            parts = range(0, len(masses), _LARGEST_ROOM)
            return np.concatenate([self.find(masses[at : at + _LARGEST_ROOM]) for at in parts])
        assert self.total > 0
        found = self._descend(masses)
        reached = self._levels[0].take(found, None, None, "clip")
        if len(found) and reached.item(reached.argmin()) <= 0:
            self._correct(found)
        return found

    def grow(self, capacity: int) -> None:
        """Add leaves of mass 0 behind the others, which stay where they are.

        Args:
            capacity: As for a new tree, and not below the present one.
        """
        larger = SumTree(capacity)
        assert larger.capacity >= self.capacity
        larger.set_range(0, self.leaves)
        self.__dict__.update(larger.__dict__)

    def _descend(self, masses: np.ndarray) -> np.ndarray:
        """Level by level; rounding may lead to a leaf of mass 0."""
        found = self._inner_ends.searchsorted(masses, "right")
        if len(self._levels) == 1:
            return found
        room = self._room(len(masses))
        rest = np.subtract(masses, self._ends.take(found, None, room.sums, "clip"), room.rest)
        for rows in self._rows[-2::-1]:
            np.dot(rows.take(found, 0, room.children, "clip"), _BEFORE, room.before)
            np.greater(room.upto, room.rest_column, room.is_beyond_inner)
            child = room.is_beyond.argmax(1, room.nodes)
            np.left_shift(found, _SHIFT, found)
            np.add(found, child, found)
            if rows is not self._rows[0]:
                np.add(child, room.corners, child)
                np.subtract(rest, room.before.take(child, None, room.sums, "clip"), rest)
        return found

    def _correct(self, found: np.ndarray) -> None:
        """Put in place of each leaf of mass 0 the nearest one before it that has some."""
        some = np.flatnonzero(self.leaves)
        is_wrong = self.leaves.take(found, None, None, "clip") <= 0
        found[is_wrong] = some[some.searchsorted(found[is_wrong]) - 1]

    def _room(self, count: int) -> _Room:
        """Memory to work on a batch of this size."""
        room = self._rooms.get(count)
        if room is None:
            room = _Room(count)
            if count <= _LARGEST_ROOM:
                if len(self._rooms) >= _KEPT_ROOMS:
                    self._rooms.pop(next(iter(self._rooms)))
                self._rooms[count] = room
        return room


class _Room:
    """Memory in which a batch of masses or leaves is worked on."""

    def __init__(self, count: int) -> None:
        self.nodes = np.empty(count, np.int64)
        self.sums = np.empty(count)
        self.rest = np.empty(count)
        self.rest_column = self.rest[:, None]
        self.children = np.empty((count, _WIDTH))
        self.before = np.empty((count, _WIDTH))
        self.upto = self.before[:, 1:]
        self.is_beyond = np.ones((count, _WIDTH), np.bool_)  # the last child takes what is left
        self.is_beyond_inner = self.is_beyond[:, :-1]
        self.corners = np.arange(count, dtype=np.int64) * _WIDTH
