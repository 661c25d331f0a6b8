"""Which items priorities are kept for, as chunks come and go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

import numpy as np

from stepwell.buffers import json_values
from stepwell.buffers.errors import NotEnoughData
from stepwell.buffers.sampling.draws import Drawn, ItemKinds
from stepwell.buffers.sampling.priorities import LARGEST_MASS, Priorities
from stepwell.buffers.storage.chunk_index import ChunkIndex
from stepwell.buffers.storage.item_counts import Windows, first_start

__all__ = ["PriorityIndex"]


class PriorityIndex:
    """Priorities of the items of one family, by the rows that they begin with.

    Rows are numbered without gaps, because ids have some, where chunks were lost.

    Args:
        alpha: Items are drawn in proportion to ``priority ** alpha``.
    """

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha
        self._priorities = Priorities(alpha)
        self._family: Windows | None = None
        self._base = self._losses = self._next_number = 0
        self._gap: int | None = None
        self._numbers = self._row_ids = self._rows = np.zeros(0, np.int64)
        self._generation = 0

    def draw(
        self,
        table: ChunkIndex,
        generation: int,
        kinds: ItemKinds,
        count: int,
        rng: np.random.Generator,
    ) -> tuple[Drawn, np.ndarray]:
        """Draw items in proportion to their priorities.

        Args:
            table: The index of what is stored.
            generation: Of the storage: positions of another one mean nothing.
            kinds: What is drawn.
            count: How many.
            rng: Source of randomness.

        Returns:
            The items, and for each the probability [B] of being drawn by one draw.

        Raises:
            NotEnoughData: There is no such item.
            ValueError: Priorities are kept for other items.
        """
        self._check(kinds)
        self._follow(table, generation)
        if not len(self._priorities):
            raise NotEnoughData(
                f"nothing of {kinds.rows} rows is stored: expected at least one, got none; collect "
                f"more, or ask for a shorter length"
            )
        numbers, probabilities = self._priorities.draw(count, rng)
        index = self._numbers.searchsorted(numbers, side="right") - 1
        rows = table.records[self._row_name][index] + (numbers - self._numbers[index])
        return Drawn(index, rows), probabilities

    def weights(self, probabilities: np.ndarray, beta: float) -> np.ndarray:
        """Importance weights [B] float32; see `Priorities.weights`."""
        return self._priorities.weights(probabilities, beta)

    def update(
        self, table: ChunkIndex, generation: int, ids: np.ndarray, values: np.ndarray
    ) -> int:
        """Give items new priorities by the ids of their rows; returns how many were ignored.

        Raises:
            ValueError: Nothing was drawn by priorities yet, or the arrays are not of this form.
        """
        if self._family is None:
            raise ValueError(
                'expected a replay that was drawn from with draw="priorities", got priorities '
                "before that; draw first"
            )
        self._follow(table, generation)
        return self._priorities.update(self._numbers_of(_checked_ids(ids)), values)

    def state(self, table: ChunkIndex, generation: int) -> dict[str, Any] | None:
        """JSON-able values and arrays: the priorities of all items, by the ids of their rows."""
        if self._family is None:
            return None
        self._follow(table, generation)
        ids, masses, largest = self._held()
        return {
            "family": self._family.to_json(),
            "alpha": self.alpha,
            "largest": largest,
            "ids": ids,
            "masses": masses,
        }

    def restore(self, table: ChunkIndex, generation: int, state: Mapping[str, Any] | None) -> None:
        """Go on with the priorities of `state`; what was stored since has the largest one.

        Nothing changes where the state is refused.

        Raises:
            ValueError: They were kept with another alpha, or it is no such state.
        """
        if state is None:
            self._family = None
            self._forget(table, generation)
            return
        family = Windows.from_json(json_values.member(state, "family"))
        alpha, largest = (_positive(json_values.member(state, n), n) for n in ("alpha", "largest"))
        ids, masses = (json_values.member(state, name) for name in ("ids", "masses"))
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
        self._family = family
        self._forget(table, generation)
        self._take_up(table)
        self._put(ids, masses, largest)

    def _held(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Ids and masses of all items, and the largest mass ever given."""
        state = self._priorities.state()
        index = self._numbers.searchsorted(state["ids"], side="right") - 1
        ids = self._row_ids[index] + (state["ids"] - self._numbers[index])
        return ids, state["masses"], state["largest"]

    def _put(self, ids: np.ndarray, masses: np.ndarray, largest: float) -> None:
        """Give items exactly these masses, and the largest one to the others."""
        state = self._priorities.state()
        live, numbers = state["ids"], self._numbers_of(ids)
        at = np.searchsorted(live, numbers)
        is_live = at < len(live)
        is_live[is_live] = live[at[is_live]] == numbers[is_live]
        values = np.full(len(live), largest, np.float64)
        values[at[is_live]] = masses[is_live]
        self._priorities.restore({**state, "masses": values, "largest": largest})

    def _numbers_of(self, ids: np.ndarray) -> np.ndarray:
        """The numbers of rows, -1 where one is not there."""
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
        if self._family is None:
            self._family = kinds.every
        if self._family != kinds.every:
            raise ValueError(
                f'draw="priorities": expected {_named(self._family)}, for which priorities are '
                f"kept, got {_named(kinds.every)}; use another replay for those"
            )

    def _follow(self, table: ChunkIndex, generation: int) -> None:
        """Take up what was added, evicted and lost."""
        if generation != self._generation or table.losses != self._losses:
            held = self._held()
            self._forget(table, generation)
            self._take_up(table)
            self._put(*held)
        elif table.base != self._base or len(table) != len(self._numbers):
            self._take_up(table)

    def _take_up(self, table: ChunkIndex) -> None:
        gone = table.base - self._base
        if gone:
            self._numbers = self._numbers[gone:].copy()
            self._row_ids, self._rows = self._row_ids[gone:].copy(), self._rows[gone:].copy()
            self._base = table.base
        known, new = len(self._numbers), table.records[len(self._numbers) :]
        stops = self._next_number + np.cumsum(new["stored_rows"])
        self._numbers = np.concatenate([self._numbers, stops - new["stored_rows"]])
        self._row_ids = np.concatenate([self._row_ids, new["row_id"]])
        self._rows = np.concatenate([self._rows, new["stored_rows"]])
        self._next_number = int(stops[-1]) if len(new) else self._next_number
        gaps = self._row_ids - self._numbers
        # Mostly nothing was ever lost: then ids and numbers differ by one and the same.
        self._gap = int(gaps[0]) if len(gaps) and (gaps == gaps[0]).all() else None
        if gone:
            first = int(self._numbers[0]) if len(self._numbers) else self._next_number
            self._priorities.leave_before(first)
            self._priorities.leave(*self._without_context(table))
        self._priorities.enter(*self._new_ranges(table, known))
        if self._family is not None and self._family.length == 1:
            # Only so can an item begin with a pending row: it has come again, with another id.
            twice = np.flatnonzero(table.records["rows"] < self._rows)
            last = self._numbers[twice] + self._rows[twice] - 1
            self._priorities.leave(last, np.ones(len(twice), np.int64))

    def _new_ranges(self, table: ChunkIndex, known: int) -> tuple[np.ndarray, np.ndarray]:
        """First numbers and counts of the rows with which items begin that came with new chunks."""
        assert self._family is not None
        length, records = self._family.length, table.records[known:]
        row = records[self._row_name]
        first = np.maximum(first_start(records, self._family), row - length + 1)
        last = row + records["rows"] - length
        found: list[tuple[int, int]] = []
        for index in np.flatnonzero(last >= first).tolist():
            found += self._ranges(table, known + index, int(first[index]), int(last[index]))
        return _columns(found)

    def _without_context(self, table: ChunkIndex) -> tuple[np.ndarray, np.ndarray]:
        """First numbers and counts of rows of which what must come before is not stored."""
        assert self._family is not None
        found: list[tuple[int, int]] = []
        records, context = table.records, self._family.context
        row = records[self._row_name]
        head = records["stream_head" if self._family.is_across else "head"]
        short = np.flatnonzero((row < first_start(records, self._family)) & (records["rows"] > 0))
        for index in short.tolist():
            last = min(int(row[index] + records["rows"][index]), int(head[index]) + context) - 1
            found += self._ranges(table, index, int(row[index]), last)
        return _columns(found)

    def _ranges(
        self, table: ChunkIndex, index: int, first: int, last: int
    ) -> Iterator[tuple[int, int]]:
        """Numbers and counts of the rows ``first .. last``, of which the last is in no later chunk.

        Args:
            table: The index of what is stored.
            index: Index of a chunk.
            first: First row, counted in the episode or stream.
            last: Last row.
        """
        while True:
            record = table.records[index]
            row = int(record[self._row_name])
            begin = max(first, row)
            if last >= begin:
                yield int(self._numbers[index]) + begin - row, last - begin + 1
            if first >= row:
                return
            last, index = min(last, row - 1), int(record["stream_previous"]) - table.base

    @property
    def _row_name(self) -> str:
        return "stream_row" if self._family is not None and self._family.is_across else "first_row"

    def _forget(self, table: ChunkIndex, generation: int) -> None:
        self._priorities = Priorities(self.alpha)
        self._generation, self._losses = generation, table.losses
        self._base, self._next_number, self._gap = table.base, 0, None
        self._numbers = self._row_ids = self._rows = np.zeros(0, np.int64)


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
    """It is an array of one axis."""
    if not isinstance(value, np.ndarray) or value.dtype != dtype or value.ndim != 1:
        return False
    return length in (None, len(value))


def _checked_ids(ids: np.ndarray) -> np.ndarray:
    found = np.asarray(ids)
    if found.ndim != 1 or found.dtype != np.int64:
        raise ValueError(
            f"ids: expected the int64 ids [B] of a batch, got {found.dtype} {found.shape}; hand "
            f"over batch.ids"
        )
    return found


def _columns(ranges: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(ranges, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _named(family: Windows) -> str:
    where = " across episodes" if family.is_across else ""
    before = f" after {family.context} more" if family.context else ""
    return f"items of {family.length} rows{where}{before}"
