"""Prioritized replay: ids drawn in proportion to priorities.

Schaul, Quan, Antonoglou and Silver, "Prioritized Experience Replay", ICLR 2016, sec. 3.3.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

import numpy as np

from ..base import native, untrusted_json
from ..base.errors import NotEnoughData
from ..spec.spec import as_array
from ..storage.chunk_index import ChunkIndex
from ..storage.item_counts import Windows, first_start
from .draws import Drawn, ItemKinds

# As arrays: a plain number costs a ufunc twice the time.
_EPSILON = np.array(1e-6)  # added to each value, so that everything is drawn sometimes
_SHIFT = np.array(4, np.int64)
LARGEST_MASS = 1e280
"""Far enough from infinity for any sum."""
_SCANNED = 4_096  # leaves that are searched at once for a live one
_PART = 1 << 16  # ids that enter or leave at once
_MOST_ROOM_AN_ITEM = 64  # that a state may ask for
_LARGEST_GAP = 1_024  # ids between two ranges that enter or leave at once


class Priorities:
    """Priorities of items with ids, and draws in proportion to them."""

    # Ids only ever grow, and those that can be drawn lie near each other: the leaf of an id is the
    # id modulo a capacity that grows when they no longer fit. One thread at a time.

    def __init__(
        self,
        alpha: float,  # items are drawn in proportion to priority ** alpha; 0 draws uniformly
        # priority of new items, as in `update`; None for the largest that an item has then
        new: float | None = None,
    ) -> None:
        self._alpha = float(alpha)
        self._power = np.array(self._alpha)
        self._new_mass = None if new is None else (abs(float(new)) + float(_EPSILON)) ** alpha
        self._limit = LARGEST_MASS ** (1 / max(1.0, alpha))
        self._steps: np.ndarray | None = None
        self._gone = 0  # ids below never come back
        self._low: int = 0  # the live ids lie from here up to _high: they fit into the tree
        self._high: int = 0
        self._use(1)

    def __len__(self) -> int:
        return self._count

    @property
    def room(self) -> int:
        """Number of ids that fit without a larger tree; set while there are none."""
        return self._tree.capacity

    @room.setter
    def room(self, room: int) -> None:
        assert not self._count
        self._use(room)

    def enter(self, first_ids: np.ndarray, counts: np.ndarray) -> None:
        """Add ranges of ids, as first ids and counts [n] int64, with the priority of new ones."""
        # Ids that were added before keep their priority; ids that were removed for good stay
        # removed.
        firsts, stops = _joined(np.maximum(first_ids, self._gone), first_ids + counts)
        if not len(firsts):
            return
        mass = self.new_mass(self._tree.largest if self._new_mass is None else 0.0)
        self._make_room(int(firsts[0]), int(stops[-1]))
        for start, masses, is_within in self._parts(firsts, stops):
            is_new = (masses == 0) & is_within
            self._tree.set_range(start, np.where(is_new, mass, masses))
            self._count += int(np.count_nonzero(is_new))

    def new_mass(self, largest: float) -> float:
        """The mass of new items beside items of which this is the largest one; 0 for no items."""
        return (largest or 1.0) if self._new_mass is None else self._new_mass

    def leave(self, first_ids: np.ndarray, counts: np.ndarray) -> None:
        """Remove ranges of ids, as first ids and counts [n] int64."""
        stops = np.minimum(first_ids + counts, self._high)
        for start, masses, is_within in self._parts(
            *_joined(np.maximum(first_ids, self._low), stops)
        ):
            self._count -= int(np.count_nonzero((masses > 0) & is_within))
            self._tree.set_range(start, np.where(is_within, 0.0, masses))

    def leave_before(self, id: int) -> None:
        """Remove all ids below this one for good."""
        self.leave(np.array([self._low]), np.array([int(id) - self._low]))
        self._gone = max(self._gone, int(id))
        self._low = max(self._low, self._gone)
        self._high = max(self._high, self._low)

    def clear(self) -> None:
        """Remove all ids for good."""
        self.leave_before(self._high)

    def draw(self, batch_size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw ids in proportion to priorities, one from each of equal parts of the total."""
        # Returns ids [B] int64, and for each the probability [B] float64 of being drawn by one
        # draw.
        if self._count == 0:
            raise NotEnoughData("priorities: expected at least one item, got 0; collect more")
        if self._steps is None or len(self._steps) != batch_size:
            self._steps = np.arange(batch_size, dtype=np.float64)
        points = rng.random(batch_size)
        np.add(points, self._steps, points)
        np.multiply(points, self._tree.total / batch_size, points)
        return self._tree.draw(points, self._low)

    def weights(
        self,
        probabilities: np.ndarray,  # [B] float64, from `draw`
        beta: float,  # correction for the priorities, from 0 on: 0 for none, 1 for full
    ) -> np.ndarray:
        """Importance weights ``(count * probability) ** -beta`` over the largest: [B] float32."""
        # They are above 0 and at most 1: the count cancels out when they are divided by the
        # largest.
        lowest = probabilities.item(probabilities.argmin())
        weights: np.ndarray = np.power(lowest / probabilities, beta)
        return weights.astype(np.float32)

    def update(
        self,
        ids: np.ndarray,  # [B] int64; for a repeated id the last value is used
        values: np.ndarray,  # [B] float32 or float64, finite: TD errors, say
    ) -> int:
        """Give items the priorities ``abs(value) + 1e-6``; returns how many ids are not present."""
        ids, masses = self._checked(ids, values)
        if not len(ids):
            return 0
        return self._tree.update(ids, masses, self._low, self._high)

    def summary(self) -> tuple[float, float]:
        """Mean and largest mass; 0 without items."""
        return self._tree.total / max(1, self._count), self._tree.largest

    def state(self) -> dict[str, Any]:
        """The state for `restore`: numbers, and the live ids and their masses."""
        leaves = np.arange(self._low, self._high, dtype=np.int64) & self._tree.mask
        masses = self._tree.leaves[leaves]
        live = np.flatnonzero(masses)
        return {
            "gone": self._gone,
            "low": self._low,
            "high": self._high,
            "capacity": self._tree.capacity,
            "ids": live + self._low,
            "masses": masses[live],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`; the present contents are discarded."""
        self._use(state["capacity"])
        self._gone = state["gone"]
        self._low, self._high = state["low"], state["high"]
        self._count = len(state["ids"])
        if self._count:
            self._tree.set(state["ids"] & self._tree.mask, state["masses"])

    def _use(self, capacity: int) -> None:
        """Begin with an empty tree."""
        self._tree = SumTree(capacity)
        self._low = self._high = 0
        self._count = 0

    def _checked(self, ids: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids and masses."""
        ids, values = np.asarray(ids), as_array(values)
        if values.shape != ids.shape or values.dtype.kind != "f":
            raise ValueError(
                f"priorities: expected one number for each of the {len(ids)} ids, as float32 or "
                f"float64, got {values.dtype} {values.shape}; pass an array [B]"
            )
        masses = np.abs(values, dtype=np.float64)
        masses += _EPSILON
        worst = masses.argmax() if len(masses) else 0  # argmax treats nan as the largest
        if len(masses) and not masses.item(worst) < self._limit:
            raise ValueError(
                f"priorities: expected finite numbers, below {self._limit:.0e} where alpha is "
                f"{self._alpha:g}, got {values[worst]}; check how they are computed"
            )
        return ids, np.power(masses, self._power, masses)

    def _make_room(self, first: int, stop: int) -> None:
        """Extend the range of live ids to these, in a larger tree if needed."""
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
        """Begin the range of live ids at the first live one."""
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
        held, done = np.concatenate([*parts, np.empty(0)]), 0
        for start, masses in self._stretches(self._low, self._high):
            self._tree.set_range(start, held[done : done + len(masses)])
            done += len(masses)

    def _parts(
        self, firsts: np.ndarray, stops: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield the leaves of ranges of ids, and of ids between two that are near each other."""
        # firsts, stops: [n] int64, as from `_joined`; a stop is the id after its range. Each part
        # is its first leaf, a view of consecutive masses, and for each whether its id is in a
        # range.
        (gaps,) = (firsts[1:] - stops[:-1] > _LARGEST_GAP).nonzero()
        borders = [0, *(gaps + 1).tolist(), len(firsts)] if len(firsts) else []
        for begin, end in itertools.pairwise(borders):
            last = int(stops[end - 1])
            for first in range(int(firsts[begin]), last, _PART):
                stop = min(first + _PART, last)
                is_within = _is_within(firsts[begin:end], stops[begin:end], first, stop)
                for start, masses in self._stretches(first, stop):
                    yield start, masses, is_within[: len(masses)]
                    is_within = is_within[len(masses) :]

    def _stretches(self, first: int, stop: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the leaves of a range of ids, as first leaves and views of consecutive masses."""
        capacity = self._tree.capacity
        while first < stop:
            start = first & (capacity - 1)
            masses = self._tree.leaves[start : start + stop - first]
            yield start, masses
            first += len(masses)


def _joined(firsts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ranges of ids in ascending order, without empty ones; those that touch become one."""
    is_some = stops > firsts
    firsts, stops = firsts[is_some], stops[is_some]
    if len(firsts) < 2:
        return firsts, stops
    order = firsts.argsort(kind="stable")
    firsts, stops = firsts[order], np.maximum.accumulate(stops[order])
    is_apart = np.ones(len(order) + 1, np.bool_)
    np.greater(firsts[1:], stops[:-1], is_apart[1:-1])
    return firsts[is_apart[:-1]], stops[is_apart[1:]]


def _is_within(firsts: np.ndarray, stops: np.ndarray, first: int, stop: int) -> np.ndarray:
    """Tell for each id from ``first`` to ``stop - 1`` if it is in one of the joined ranges."""
    begin, end = stops.searchsorted(first, "right"), firsts.searchsorted(stop, "left")
    changes = np.zeros(stop - first + 1, np.int8)
    changes[np.maximum(firsts[begin:end], first) - first] = 1
    changes[np.minimum(stops[begin:end], stop) - first] = -1
    is_within: np.ndarray = np.add.accumulate(changes[:-1], 0, np.int8).view(np.bool_)
    return is_within


_WIDTH = 16  # children of a node
_LARGEST_TOP = 2_048  # nodes of the uppermost level: summed up as a whole, once a change
_SMALLEST = 64
_LARGEST_ROOM = 4_096  # masses that are looked for at once
_KEPT_ROOMS = 8
_MANY = 128  # from here on, a call a child takes less time than a row of children a node


class SumTree:
    """Leaves of masses >= 0, the sums above them, 16 children a node, and the largest of them."""

    # A node is summed from its children whenever one of them changes, so that rounding errors do
    # not add up. The memory in which a batch is worked on is kept: one thread at a time.
    # `draw` and `update` take ids: the leaf of an id is the id modulo the capacity. They are what
    # the compiled core does too, in the same order of additions, so with the same results.

    def __init__(
        self,
        capacity: int,  # leaves, all 0 at first; rounded up to a power of two, 64 at least
    ) -> None:
        self._capacity = max(_SMALLEST, 1 << (capacity - 1).bit_length())
        self.mask = np.array(self._capacity - 1, np.int64)
        sizes = [self._capacity]  # the leaves first
        while sizes[-1] > _LARGEST_TOP:
            sizes.append(sizes[-1] // _WIDTH)
        self._memory = np.zeros(sum(sizes) + sizes[-1] + 1)
        *self._levels, self._ends = np.split(self._memory, np.cumsum(sizes))
        self._rows = [level.reshape(-1, _WIDTH) for level in self._levels]
        self._inner_ends = self._ends[
            1:-1
        ]  # without the last: larger masses are assigned to the last child
        self._is_summed = True
        # Place k of a level has the largest of places k, k + size, ... of the one below.
        self._maxima = [self._levels[0], *(np.zeros(len(level)) for level in self._levels[1:])]
        self._holder = 0  # a leaf of the largest mass
        self._largest = 0.0
        self._fresh: list[np.ndarray] = []  # leaves that changed since that was found
        self._stale: list[np.ndarray] = []  # and before, since the levels above were computed
        self._changes = 0
        self._rooms: dict[int, _Room] = {}

    @property
    def capacity(self) -> int:
        """Number of leaves, a power of two."""
        return self._capacity

    @property
    def leaves(self) -> np.ndarray:
        """[capacity] float64: all masses; must not be changed."""
        return self._levels[0]

    @property
    def total(self) -> float:
        """Sum of all masses."""
        if not self._is_summed:
            np.add.accumulate(self._levels[-1], 0, None, self._ends[1:])
            self._is_summed = True
        return float(self._ends[-1])

    @property
    def largest(self) -> float:
        """The largest mass; found when it is asked for, as few masses change it."""
        fresh, leaves = self._fresh, self._levels[0]
        if fresh and self._changes < self._capacity:
            places = np.concatenate(fresh)
            self._stale.append(places)
            masses = leaves.take(places)
            at = masses.argmax()
            if masses.item(at) >= self._largest:
                self._largest, self._holder = masses.item(at), places.item(at)
        self._fresh = []
        if self._changes >= self._capacity or leaves.item(self._holder) != self._largest:
            self._find_largest()
        return self._largest

    def draw(
        self,
        points: np.ndarray,  # [B] float64, as for `find`; overwritten
        low: int,  # the lowest id: the others are below low + capacity
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw ids [B] int64 by points of the running sum, with shares [B] of the total."""
        total = self.total
        if native.core is not None:
            ids = np.empty(len(points), np.int64)
            native.core.tree_draw(self._memory, self._capacity, low, points, ids)
            return ids, points
        leaves = self.find(points)
        self.leaves.take(leaves, None, points, "clip")
        np.divide(points, total, points)
        # An id is its leaf, counted from the leaf of the lowest one.
        ids = np.subtract(leaves, low, leaves)
        np.bitwise_and(ids, self.mask, ids)
        return np.add(ids, low, ids), points

    def update(
        self,
        ids: np.ndarray,  # [B] int64, B >= 1; for a repeated id the last mass is used
        # [B] float64, finite and > 0; 0 afterwards for each id that was ignored
        masses: np.ndarray,
        low: int,  # the lowest id that may have a mass
        stop: int,  # the id after the highest one, low + capacity at most
    ) -> int:
        """Change the masses of ids that have one; returns how many had none, and were ignored."""
        if native.core is not None:
            self._note(ids & self.mask)
            self._is_summed = True
            return native.core.tree_set(self._memory, self._capacity, low, stop, ids, masses)
        ages = (ids - low).view(np.uint64)  # an id below becomes a huge age
        leaves = ids & self.mask
        held = self.leaves.take(leaves, None, None, "clip")
        if ages.item(ages.argmax()) < stop - low and held.item(held.argmin()) > 0:
            self.set(leaves, masses)
            return 0
        is_live = (ages < stop - low) & (held > 0)
        masses[~is_live] = 0
        self.set(leaves[is_live], masses[is_live])
        return len(ids) - int(np.count_nonzero(is_live))

    def set(
        self,
        indices: np.ndarray,  # [B] int64, each below the capacity
        masses: np.ndarray,  # [B] float64, finite and >= 0
    ) -> None:
        """Set the masses of leaves; for a repeated leaf the last mass is used."""
        self._note(indices)
        self._is_summed = False
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

    def set_range(self, start: int, masses: np.ndarray) -> None:
        """Set the masses of consecutive leaves: [n] float64, finite and >= 0."""
        if not len(masses):
            return
        stop = start + len(masses)
        self._note(np.arange(start, stop))
        self._levels[0][start:stop] = masses
        for rows, above in zip(self._rows, self._levels[1:], strict=False):
            start, stop = start // _WIDTH, (stop - 1) // _WIDTH + 1
            np.add.reduce(rows[start:stop], 1, out=above[start:stop])
        self._is_summed = False

    def find(self, masses: np.ndarray) -> np.ndarray:
        """Find the leaves [B] int64 of points [B], 0 <= mass < total, in the running sum."""
        # Each has a mass above 0, whatever the rounding; the total must be above 0.
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
        """Append leaves of mass 0; the capacity is not below the current one."""
        larger = SumTree(capacity)
        assert larger.capacity >= self.capacity
        larger.set_range(0, self.leaves)
        self.__dict__.update(larger.__dict__)

    def _note(self, changed: np.ndarray) -> None:
        """Remember leaves whose masses change; of many, only that they are many."""
        self._changes += len(changed)
        if self._changes < self._capacity:
            if len(changed):
                self._fresh.append(changed)
        else:
            self._fresh, self._stale = [], []

    def _find_largest(self) -> None:
        """Compute the maxima above all leaves that have changed, and descend to the largest."""
        places = np.concatenate(self._stale) if self._stale else None
        for below, maxima in itertools.pairwise(self._maxima):
            rows = below.reshape(_WIDTH, -1)
            if places is None or len(places) >= len(maxima):
                np.maximum.reduce(rows, 0, out=maxima)
                places = None
            else:
                places = places & (len(maxima) - 1)
                maxima[places] = np.maximum.reduce(rows.take(places, 1), 0)
        self._stale, self._changes = [], 0
        holder = int(self._maxima[-1].argmax())
        for below in self._maxima[-2::-1]:
            rows = below.reshape(_WIDTH, -1)
            holder += int(rows[:, holder].argmax()) * rows.shape[1]
        self._holder, self._largest = holder, self._levels[0].item(holder)

    def _descend(self, masses: np.ndarray) -> np.ndarray:
        """Descend level by level; rounding may lead to a leaf of mass 0."""
        found = self._inner_ends.searchsorted(masses, "right")
        if len(self._levels) == 1:
            return found
        room = self._room(len(masses))
        rest = np.subtract(masses, self._ends.take(found, None, room.sums, "clip"), room.rest)
        for rows in self._rows[-2::-1]:
            rows.take(found, 0, room.children, "clip")
            child = room.find()
            np.left_shift(found, _SHIFT, found)
            np.add(found, child, found)
            if rows is not self._rows[0]:
                np.subtract(rest, room.before(child), rest)
        return found

    def _correct(self, found: np.ndarray) -> None:
        """Replace each leaf of mass 0 by the nearest one before it with a mass."""
        some = np.flatnonzero(self.leaves)
        is_wrong = self.leaves.take(found, None, None, "clip") <= 0
        found[is_wrong] = some[some.searchsorted(found[is_wrong]) - 1]

    def _room(self, count: int) -> _Room:
        """Memory to work on a batch of this size."""
        room = self._rooms.get(count)
        if room is None:
            room = _Room(count) if count < _MANY else _WideRoom(count)
            if count <= _LARGEST_ROOM:
                if len(self._rooms) >= _KEPT_ROOMS:
                    self._rooms.pop(next(iter(self._rooms)))
                self._rooms[count] = room
        return room


class _Room:
    """Memory in which a batch of masses or leaves is worked on."""

    # Children are summed from left to right, as the compiled core does.

    def __init__(self, count: int) -> None:
        self.nodes = np.empty(count, np.int64)
        self.sums = np.empty(count)
        self.rest = np.empty(count)
        self.children = np.empty((count, _WIDTH))
        self._inner_children = self.children[:, :-1]
        self._before = np.zeros((count, _WIDTH))
        self._upto = self._before[:, 1:]
        self._is_beyond = np.ones((count, _WIDTH), np.bool_)  # the last child takes the rest
        self._is_beyond_inner = self._is_beyond[:, :-1]
        self._rest_column = self.rest[:, None]
        self._corners = np.arange(count, dtype=np.int64) * _WIDTH

    def find(self) -> np.ndarray:
        """Find the child of each node that contains `rest`, a point of its running sum."""
        np.add.accumulate(self._inner_children, 1, None, self._upto)
        np.greater(self._upto, self._rest_column, self._is_beyond_inner)
        return self._is_beyond.argmax(1, self.nodes)

    def before(self, child: np.ndarray) -> np.ndarray:
        """The sums of the children before the found ones, which are overwritten."""
        np.add(child, self._corners, child)
        return self._before.take(child, None, self.sums, "clip")


class _WideRoom(_Room):
    """The same for many nodes, side by side: `_Room` takes long to begin with each of them."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._turned = np.empty((_WIDTH, count))
        self._before = np.zeros((_WIDTH, count))
        self._upto = self._before[1:]
        self._additions = list(zip(self._before, self._turned, self._upto, strict=False))
        self._is_within = np.empty((_WIDTH - 1, count), np.bool_)
        self._width = np.array(count, np.int64)
        self._corners = np.arange(count, dtype=np.int64)

    def find(self) -> np.ndarray:
        np.copyto(self._turned, self.children.T)
        for before, masses, upto in self._additions:
            np.add(before, masses, upto)
        np.less_equal(self._upto, self.rest, self._is_within)
        return np.add.reduce(self._is_within, 0, np.int64, out=self.nodes)

    def before(self, child: np.ndarray) -> np.ndarray:
        return super().before(np.multiply(child, self._width, child))


class PriorityIndex:
    """Priorities of the items of one kind, by their first rows."""

    # Rows are numbered without gaps, because ids have some, where chunks were lost.

    def __init__(self, alpha: float, new: float | None = None) -> None:
        self.alpha = alpha
        self.new = None if new is None else float(new)
        self._priorities = Priorities(alpha, new)
        self._kind: Windows | None = None
        self._base = self._losses = self._next_number = 0
        self._gap: int | None = None
        self._generation = 0
        self._use(np.empty((5, 64), np.int64), 0)

    def draw(
        self,
        chunk_index: ChunkIndex,
        generation: int,  # of the storage, which determines the meaning of positions
        kinds: ItemKinds,
        count: int,
        rng: np.random.Generator,
    ) -> tuple[Drawn, np.ndarray]:
        """Draw items in proportion to priorities; for each the probability [B] of one draw, too."""
        self._check(kinds)
        self._follow(chunk_index, generation)
        if not len(self._priorities):
            raise NotEnoughData(
                f"priorities: expected at least one item of {kinds.rows} rows, got none; collect "
                f"more, or request a shorter length"
            )
        numbers, probabilities = self._priorities.draw(count, rng)
        index = self._stops.searchsorted(numbers, "right")
        rows = self._shifts.take(index, None, None, "clip")
        return Drawn(index, np.add(rows, numbers, rows)), probabilities

    def weights(self, probabilities: np.ndarray, beta: float) -> np.ndarray:
        """Importance weights [B] float32; see `Priorities.weights`."""
        return self._priorities.weights(probabilities, beta)

    def update(
        self, index: ChunkIndex, generation: int, ids: np.ndarray, values: np.ndarray
    ) -> int:
        """Give items new priorities by the ids of their rows; returns how many were ignored."""
        if self._kind is None:
            raise ValueError(
                'expected a replay that was drawn from with draw="priorities", got priorities '
                "before that; draw first"
            )
        self._follow(index, generation)
        return self._priorities.update(self._numbers_of(_checked_ids(ids)), values)

    def summary(self) -> tuple[float, float]:
        """Mean and largest ``p ** alpha`` of the items when priorities were last used."""
        return self._priorities.summary()

    def state(self, index: ChunkIndex, generation: int) -> dict[str, Any] | None:
        """JSON-able values and arrays: the priorities of all items, by the ids of their rows."""
        if self._kind is None:
            return None
        self._follow(index, generation)
        ids, masses = self._held()
        return {
            "family": self._kind.to_json(),
            "alpha": self.alpha,
            "new": self.new,
            "largest": float(masses.max(initial=0)) or 1.0,  # read by earlier versions
            "ids": ids,
            "masses": masses,
            # Where the items lie in the tree, which decides which point draws which of them.
            "first": int(self._numbers[0]) if len(self._numbers) else self._next_number,
            "room": self._priorities.room,
        }

    def restore(self, index: ChunkIndex, generation: int, state: Mapping[str, Any] | None) -> None:
        """Continue with the priorities of `state`; items stored since then are new."""
        # An invalid state changes nothing.
        if state is None:
            self._kind = None
            self._forget(index, generation)
            return
        kind = Windows.from_json(untrusted_json.member(state, "family"))
        alpha, _ = (_positive(untrusted_json.member(state, n), n) for n in ("alpha", "largest"))
        ids, masses = (untrusted_json.member(state, name) for name in ("ids", "masses"))
        if not _is_column(ids, np.int64) or not _is_column(masses, np.float64, len(ids)):
            raise ValueError(
                "priorities: expected int64 ids [n] and float64 masses [n], got others"
            )
        if len(masses) and not 0 < masses.min() <= masses.max() <= LARGEST_MASS:
            raise ValueError(f"priorities: expected masses from 0 to {LARGEST_MASS}, got others")
        if alpha != self.alpha:
            raise ValueError(
                f"priority_alpha: expected {alpha:g}, with which the priorities were kept, got "
                f"{self.alpha:g}; make the replay with that"
            )
        # Earlier versions, which have no other, do not tell it.
        if state.get("new", self.new) != self.new:
            raise ValueError(
                f"new_priority: expected {state['new']!r}, with which the priorities were kept, "
                f"got {self.new!r}; make the replay with that"
            )
        # Earlier versions do not tell these. Of a tree that was far larger once, less will do.
        first = untrusted_json.whole(state.get("first", 0), "first", 0, 1 << 53)
        room = untrusted_json.whole(state.get("room", 1), "room", 1)
        self._kind = kind
        self._forget(index, generation)
        self._next_number = first
        self._priorities.room = min(room, _MOST_ROOM_AN_ITEM * max(1 << 10, len(ids)))
        self._take_up(index)
        self._put(ids, masses)

    def _held(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids and masses of all items."""
        state = self._priorities.state()
        index = self._numbers.searchsorted(state["ids"], side="right") - 1
        ids = self._row_ids[index] + (state["ids"] - self._numbers[index])
        return ids, state["masses"]

    def _put(self, ids: np.ndarray, masses: np.ndarray) -> None:
        """Set the masses of these items, and for the others that of new ones."""
        state = self._priorities.state()
        live, numbers = state["ids"], self._numbers_of(ids)
        at = np.searchsorted(live, numbers)
        is_live = at < len(live)
        is_live[is_live] = live[at[is_live]] == numbers[is_live]
        there = masses[is_live]
        values = np.full(len(live), self._priorities.new_mass(float(there.max(initial=0))))
        values[at[is_live]] = there
        self._priorities.restore({**state, "masses": values})

    def _numbers_of(self, ids: np.ndarray) -> np.ndarray:
        """The numbers of rows, -1 for rows that are not stored."""
        if self._gap is not None:
            numbers_of: np.ndarray = ids - self._gap
            return numbers_of
        if not len(self._row_ids):
            return np.full(len(ids), -1)
        index = np.maximum(self._row_ids.searchsorted(ids, side="right") - 1, 0)
        place = ids - self._row_ids[index]
        numbers: np.ndarray = self._numbers[index] + place
        strange = (place < 0) | (place >= self._rows[index])
        if strange.any():
            numbers[strange] = -1
        return numbers

    def _check(self, kinds: ItemKinds) -> None:
        if self._kind is None:
            self._kind = kinds.every
        if self._kind != kinds.every:
            raise ValueError(
                f'draw="priorities": expected {_named(self._kind)}, for which priorities are '
                f"kept, got {_named(kinds.every)}; use another replay for those"
            )

    def _follow(self, index: ChunkIndex, generation: int) -> None:
        """Update for chunks that were added, evicted or lost."""
        if generation != self._generation or index.losses != self._losses:
            held = self._held()
            self._forget(index, generation)
            self._take_up(index)
            self._put(*held)
        elif index.base != self._base or len(index) != len(self._numbers):
            self._take_up(index)

    def _take_up(self, index: ChunkIndex) -> None:
        known, total = len(self._numbers), len(index)
        gone = index.base - self._base
        kept = max(0, known - gone)
        columns = self._columns
        if gone or total > columns.shape[1]:
            columns = np.empty((5, 2 * total), np.int64)
            columns[:, :kept] = self._columns[:, known - kept : known]
        self._base = index.base
        self._use(columns, total)
        if kept < total:
            self._describe(index.records[kept:], *columns[:, kept:total])
        # If nothing was ever lost, which is common, ids and numbers differ by a constant.
        checked = 0 if gone else kept
        if not checked:
            self._gap = int(self._row_ids[0] - self._numbers[0]) if total else None
        gaps = self._row_ids[checked:] - self._numbers[checked:]
        if self._gap is not None and np.count_nonzero(gaps != self._gap):
            self._gap = None
        if gone:
            first = int(self._numbers[0]) if total else self._next_number
            self._priorities.leave_before(first)
            self._priorities.leave(*self._without_context(index))
        self._priorities.enter(*self._new_ranges(index, kept))
        if self._kind is not None and self._kind.length == 1:
            # Only then can an item begin with a pending row: it was stored again, with another id.
            before = index.records["previous"][kept:] - index.base
            before = before[before >= 0]
            twice = before[index.records["rows"][before] < self._rows[before]]
            self._priorities.leave(self._stops[twice] - 1, np.ones(len(twice), np.int64))

    def _describe(
        self,
        new: np.ndarray,
        numbers: np.ndarray,
        stops: np.ndarray,
        row_ids: np.ndarray,
        rows: np.ndarray,
        shifts: np.ndarray,
    ) -> None:
        """Write the columns of new chunks."""
        row_ids[:], rows[:] = new["row_id"], new["stored_rows"]
        np.add.accumulate(rows, 0, None, stops)
        np.add(stops, self._next_number, stops)
        np.subtract(stops, rows, numbers)
        np.subtract(new[self._row_name], numbers, shifts)
        self._next_number = int(stops[-1])

    def _new_ranges(self, chunk_index: ChunkIndex, known: int) -> tuple[np.ndarray, np.ndarray]:
        """First numbers and counts of the rows in new chunks that items can begin with."""
        assert self._kind is not None
        length, records = self._kind.length, chunk_index.records[known:]
        row = records[self._row_name]
        first = np.maximum(first_start(records, self._kind), row - length + 1)
        last = row + records["rows"] - length
        index = np.arange(known, known + len(records))
        return self._ranges(chunk_index, index, first, last)

    def _without_context(self, chunk_index: ChunkIndex) -> tuple[np.ndarray, np.ndarray]:
        """First numbers and counts of rows without the stored rows that they need before them."""
        assert self._kind is not None
        records = chunk_index.records
        row = records[self._row_name]
        head = records["stream_head" if self._kind.is_across else "head"]
        last = np.minimum(row + records["rows"], head + self._kind.context) - 1
        index = np.flatnonzero((row < first_start(records, self._kind)) & (records["rows"] > 0))
        return self._ranges(chunk_index, index, row[index], last[index])

    def _ranges(
        self,
        chunk_index: ChunkIndex,
        index: np.ndarray,  # [n] indices of chunks
        first: np.ndarray,  # [n] counted in the episode or stream
        last: np.ndarray,  # [n] there is none if it is below the first one
    ) -> tuple[np.ndarray, np.ndarray]:
        """First numbers and counts of rows ``first .. last`` in chunks and those before them."""
        # Some counts are not above 0.
        previous = chunk_index.records["stream_previous"]
        numbers, counts = [], []
        while True:
            shift = self._shifts.take(index)
            row = self._numbers.take(index) + shift
            begin = np.maximum(first, row)
            numbers.append(begin - shift)
            counts.append(last - begin + 1)  # not above 0 where none of the rows lie in the chunk
            last = np.minimum(last, row - 1)
            (earlier,) = (first <= last).nonzero()
            if not len(earlier):
                return np.concatenate(numbers), np.concatenate(counts)
            first, last = first[earlier], last[earlier]
            index = previous[index[earlier]] - chunk_index.base

    @property
    def _row_name(self) -> str:
        return "stream_row" if self._kind is not None and self._kind.is_across else "first_row"

    def _forget(self, index: ChunkIndex, generation: int) -> None:
        self._priorities = Priorities(self.alpha, self.new)
        self._generation, self._losses = generation, index.losses
        self._base, self._next_number, self._gap = index.base, 0, None
        self._use(self._columns, 0)

    def _use(self, columns: np.ndarray, count: int) -> None:
        """Keep what is known of the chunks in this memory, which has room for more of them."""
        self._columns = columns
        # Of each chunk: the number of its first row and of the row after it, its first row's id,
        # its stored rows, and what a number lacks to the row in its episode or stream.
        self._numbers, self._stops, self._row_ids, self._rows, self._shifts = columns[:, :count]


def _positive(value: object, name: str) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= LARGEST_MASS
    ):
        raise ValueError(f"{name} of the priorities: expected a number >= 0, got {value!r}")
    return float(value)


def _is_column(
    value: object, dtype: type[np.generic], length: int | None = None
) -> TypeGuard[np.ndarray]:
    """True for an array of one axis."""
    if not isinstance(value, np.ndarray) or value.dtype != dtype or value.ndim != 1:
        return False
    return length in (None, len(value))


def _checked_ids(ids: np.ndarray) -> np.ndarray:
    found = np.asarray(ids)
    if found.ndim != 1 or found.dtype != np.int64:
        raise ValueError(
            f"ids: expected the int64 ids [B] of a batch, got {found.dtype} {found.shape}; pass "
            f"batch.ids"
        )
    return found


def _named(kind: Windows) -> str:
    where = " across episodes" if kind.is_across else ""
    before = f" after {kind.context} more" if kind.context else ""
    return f"items of {kind.length} rows{where}{before}"
