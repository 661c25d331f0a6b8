"""Counts the items that can be drawn from each chunk, by kind of item."""

from __future__ import annotations

import copy
from typing import NamedTuple, Protocol

import numpy as np

from ..base import native, untrusted_json
from ..rows.episode import End
from .episode_filter import EpisodeFilter


class Shares(NamedTuple):
    """The shares of joined stores in the draws."""

    # [stores + 1] index of each store's first record, and the number of records
    borders: np.ndarray
    weights: np.ndarray  # [stores] relative share of the draws from each store


class ItemKind(Protocol):
    """A kind of item, each of which belongs to one chunk of its episode."""

    def counts(self, records: np.ndarray) -> np.ndarray:
        """[n] int64: the number of items that belong to each of some records."""
        ...

    def lowest(self, records: np.ndarray) -> np.ndarray:
        """[n]: the number of the first item of each record; it begins at row number * `spacing`."""
        ...

    @property
    def spacing(self) -> int:
        """Rows from the beginning of an item to that of the next one."""
        ...


class Windows(NamedTuple):
    """Runs of ``length`` rows that begin at every ``stride``-th row."""

    # A window belongs to the chunk that holds its *last* row. So the number of a chunk's windows
    # does not change while its episode grows, and running counts are only continued.

    length: int  # rows
    context: int = 0  # rows before it that must still be stored, or lie before the reset
    stride: int = 1  # distance between first rows, from row 0 on
    # the rows are those of the stream, whatever their episodes, not of one episode
    is_across: bool = False
    # a pending last row does not count, as the next chunk contains it again
    is_settled: bool = False

    @classmethod
    def from_json(cls, data: object) -> Windows:
        """The windows that `to_json` described; the data is checked."""
        length, context, stride, *flags = untrusted_json.items(data, "a kind of item", 5)
        if not all(isinstance(flag, bool) for flag in flags):
            raise ValueError(f"a kind of item: expected True or False twice, got {flags}")
        return cls(
            untrusted_json.whole(length, "length of a kind of item", 1),
            untrusted_json.whole(context, "context of a kind of item"),
            untrusted_json.whole(stride, "stride of a kind of item", 1),
            *map(bool, flags),
        )

    def to_json(self) -> list[object]:
        """Plain data; `from_json` reads it."""
        return [*map(int, self[:3]), *map(bool, self[3:])]

    def counts(self, records: np.ndarray) -> np.ndarray:
        """The number of windows that end in each of some records."""
        stop = self._row(records) + records["rows"]
        if self.is_settled:
            is_pending = (records["is_tail"] == 1) & (records["end"] & End.PENDING != 0)
            stop = stop - is_pending
        found: np.ndarray = (stop - self.length) // self.stride - self.lowest(records) + 1
        counts: np.ndarray = np.maximum(0, found)
        return counts

    def lowest(self, records: np.ndarray) -> np.ndarray:
        """The number of the first window, counted from row 0, that ends in each record."""
        least = _first_start(records, self.context, self.is_across)
        lowest: np.ndarray = np.maximum(least, self._row(records) - self.length + 1)
        return lowest if self.stride == 1 else -(-lowest // self.stride)

    @property
    def spacing(self) -> int:
        """Rows from the beginning of a window to that of the next one."""
        return self.stride

    def _row(self, records: np.ndarray) -> np.ndarray:
        rows: np.ndarray = records["stream_row" if self.is_across else "first_row"]
        return rows


class EpisodeTails(NamedTuple):
    """Items that begin with one of the last rows of an episode that the env ended."""

    reach: int  # number of such rows
    skip: int  # rows after them
    context: int = 0  # rows before that must still be stored, or lie before the reset

    def counts(self, records: np.ndarray) -> np.ndarray:
        """The number of items in each of some records: only in the last one of an episode."""
        is_final = records["end"] & (End.TERMINATED | End.TRUNCATED) != 0
        is_last = is_final & (records["is_tail"] == 1)
        found: np.ndarray = (self._stop(records) - self.lowest(records)) * is_last
        counts: np.ndarray = np.maximum(0, found)
        return counts

    def lowest(self, records: np.ndarray) -> np.ndarray:
        """The first row that an item can begin with."""
        least = _first_start(records, self.context, is_across=False)
        lowest: np.ndarray = np.maximum(least, self._stop(records) - self.reach)
        return lowest

    @property
    def spacing(self) -> int:
        """Every row can begin one."""
        return 1

    def _stop(self, records: np.ndarray) -> np.ndarray:
        stop: np.ndarray = records["first_row"] + records["rows"] - self.skip
        return stop


class WholeEpisodes(NamedTuple):
    """Episodes with a least number of rows; each belongs to its last chunk."""

    length: int  # rows
    context: int = 0  # rows before the first that must still be stored, or lie before the reset

    def counts(self, records: np.ndarray) -> np.ndarray:
        """1 for each record in which a long enough episode ends, else 0."""
        stop = records["first_row"] + records["rows"]
        is_long = stop - self.lowest(records) >= self.length
        found: np.ndarray = (is_long & (records["is_tail"] == 1)).astype(np.int64)
        return found

    def lowest(self, records: np.ndarray) -> np.ndarray:
        """The first row that an item in the episode can begin with."""
        return _first_start(records, self.context, is_across=False)

    @property
    def spacing(self) -> int:
        """An episode has one beginning."""
        return 1


def first_start(records: np.ndarray, windows: Windows) -> np.ndarray:
    """The first row [n] of each record's episode, or stream, that a window can begin with."""
    return _first_start(records, windows.context, windows.is_across)


def _first_start(records: np.ndarray, context: int, is_across: bool) -> np.ndarray:
    """The first row of each record's episode, or stream, that an item can begin with."""
    head: np.ndarray = records["stream_head" if is_across else "head"]
    if not context:
        return head
    starts_late = records["stream_starts_late"] if is_across else head > 0
    first: np.ndarray = head + context * starts_late
    return first


# For so many numbers a guess and a few steps are faster than a binary search, whose branches
# processors cannot predict.
_MANY = 96
_MOST_STEPS = 4


class ItemCounts:
    """Running count of the items of one kind."""

    def __init__(
        self,
        kind: ItemKind,
        chosen: EpisodeFilter | None,  # episodes that the items may belong to; None for all
    ) -> None:
        self._kind = kind
        self._chosen = chosen
        self._running = np.zeros(64, np.int64)
        # Item i of all is the one with the number i + _shift[record] of its episode or stream.
        self._shift = np.zeros(64, np.int64)
        self.known = 0  # records that are counted
        # _guide[i] is the record of the item with the number i << _bits.
        self._guide, self._guided, self._bits = np.zeros(0, np.int64), 0, 0

    def copied(self) -> ItemCounts:
        """A copy that is updated on its own."""
        other = copy.copy(self)
        other._running, other._shift = self._running.copy(), self._shift.copy()
        return other

    @property
    def total(self) -> int:
        """Number of items."""
        return int(self._running[self.known - 1]) if self.known else 0

    def before(self, index: int) -> int:
        """Items of the records before an index."""
        return int(self._running[index - 1]) if index else 0

    def forget_from(self, index: int) -> None:
        """Count the chunks from an index on again."""
        self.known = min(self.known, index)
        self._guided = min(self._guided, -(-self.total >> self._bits))

    def update(self, records: np.ndarray, base: int) -> None:
        """Count the items of new chunks; `records` are all live ones, from position `base` on."""
        new = records[self.known :]
        if not len(new):
            return
        if len(records) > len(self._running):
            more = 2 * len(records) - len(self._running)
            self._running, self._shift = (
                np.pad(each, (0, more)) for each in (self._running, self._shift)
            )
        counts = self._kind.counts(new)
        if self._chosen is not None:
            counts = counts * self._chosen.verdicts(base + self.known, len(new))
        running = self.total + np.cumsum(counts)
        self._running[self.known : len(records)] = running
        self._shift[self.known : len(records)] = self._kind.lowest(new) - (running - counts)
        self.known = len(records)

    def limits(self, shares: Shares | None) -> tuple[np.ndarray, np.ndarray]:
        """Number of each store's first item [stores], and of the one after its last."""
        borders = [0, self.known] if shares is None else shares.borders.tolist()
        limits = np.array([self.before(border) for border in borders])
        return limits[:-1], limits[1:]

    def drawn(self, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Locate items by numbers [n] float64 from 0 to below 1, each a share of the total."""
        if native.core is None:
            return self.locate((shares * self.total).astype(np.int64))
        found = np.empty((2, len(shares)), np.int64)
        native.core.draw_items(self._running, self._shift, self.known, shares, found)
        index, first = found
        spacing = self._kind.spacing
        return index, first if spacing == 1 else first * spacing

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find items by their numbers, in the order of chunks: records [n] and first rows [n]."""
        index = self._records_of(numbers)
        first = numbers + self._shift.take(index)
        spacing = self._kind.spacing
        return index, first if spacing == 1 else first * spacing

    def _records_of(self, numbers: np.ndarray) -> np.ndarray:
        """Indices of the records that items belong to."""
        if len(numbers) >= _MANY:
            running, index = self._running, self._follow_guide().take(numbers >> self._bits)
            for _ in range(_MOST_STEPS):
                is_later = running.take(index) <= numbers
                if not np.count_nonzero(is_later):
                    return index
                index += is_later
        return self._running[: self.known].searchsorted(numbers, side="right")

    def _follow_guide(self) -> np.ndarray:
        """Extend the guide to all items; one in twice as many places as there are records."""
        total = self.total
        places = total >> self._bits
        if places > 4 * self.known or (self._bits and places < self.known):
            self._bits, self._guided = max(0, (total // (2 * self.known)).bit_length() - 1), 0
        stop = ((total - 1) >> self._bits) + 1
        if stop > self._guided:
            if stop > len(self._guide):
                self._guide = np.pad(self._guide, (0, 2 * stop - len(self._guide)))
            new = np.arange(self._guided, stop) << self._bits
            found = self._running[: self.known].searchsorted(new, side="right")
            self._guide[self._guided : stop] = found
            self._guided = stop
        return self._guide

    def number_of(self, index: int, row: int) -> int:
        """The number of items of earlier records, or of this one before a row."""
        before, stop = self.before(index), self.before(index + 1)
        number = -(-row // self._kind.spacing) - int(self._shift[index])
        return min(max(number, before), stop)
