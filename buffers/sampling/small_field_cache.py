"""Small fields of all rows, decoded once and kept as one array per field."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepwell.buffers.errors import StoreCorrupt
from stepwell.buffers.spec import Field
from stepwell.buffers.storage.chunk_index import ChunkInfo
from stepwell.buffers.storage.field_locator import DamagedChunk, FieldLocator
from stepwell.buffers.storage.protocol import Storage

__all__ = ["SmallFieldCache"]

# A gather from one array takes microseconds for a whole batch; chunk by chunk it would take that
# for each row. Larger rows cost so much to copy that the difference does not matter.
_SMALL_ROW_BYTES = 64
_MAX_BYTES = 1 << 30
_NONE = np.zeros(0, np.int64)


class SmallFieldCache:
    """The rows of small fields, decoded when their chunk is first used.

    Rows are numbered by *slots*, which count all stored rows, so that a chunk has consecutive ones.
    Of integers as many bytes are kept as the stored chunks keep: an Atari row takes two or three.

    Args:
        storage: The storage of the chunks.
        places: Locates their fields.
    """

    def __init__(self, storage: Storage, places: FieldLocator) -> None:
        self._storage = storage
        self._places = places
        self._fields: Sequence[tuple[int, Field]] = [
            (place, field)
            for place, field in enumerate(storage.spec.fields)
            if field.row_bytes <= _SMALL_ROW_BYTES
        ]
        self._dtypes = {field.name: field.numpy_dtype for _, field in self._fields}
        self._row_bytes = sum(field.row_bytes for _, field in self._fields)
        self._generation, self._base = places.generation, places.base
        self._slots, self._is_known = np.zeros(0, np.int64), np.zeros(0, np.bool_)
        self._columns: dict[str, np.ndarray] = {}
        self._chunks = self._next_slot = self._origin = self._size = 0
        self._is_too_large = False

    @property
    def names(self) -> list[str]:
        """The cached fields: none if they would take more than 1 GiB."""
        return [] if self._is_too_large else [field.name for _, field in self._fields]

    @property
    def nbytes(self) -> int:
        """Bytes of RAM taken."""
        return sum(column.nbytes for column in self._columns.values())

    def follow(self) -> None:
        """Update for chunks that were added, evicted or moved to other positions."""
        index, places = self._storage.index, self._places
        if places.generation != self._generation or places.base < self._base:
            self._forget()
        gone = places.base - self._base
        if gone:
            self._slots, self._is_known = self._slots[gone:].copy(), self._is_known[gone:].copy()
            self._base = places.base
            self._chunks -= gone
        new = index.records["stored_rows"][max(0, self._chunks) :]
        if not len(new):
            return
        if len(index) > len(self._slots):
            more = 2 * len(index) - len(self._slots)
            self._slots = np.pad(self._slots, (0, more))
            self._is_known = np.pad(self._is_known, (0, more))
        if self._chunks < 0:  # more was evicted than was ever read
            self._chunks = 0
        stops = self._next_slot + np.cumsum(new)
        self._slots[self._chunks : len(index)] = stops - new
        self._chunks, self._next_slot = len(index), int(stops[-1])
        self._make_room()

    def unknown(self, indices: np.ndarray) -> np.ndarray:
        """The chunks that were not decoded yet, without repeats."""
        is_known = self._is_known[indices]
        return (
            _NONE if np.count_nonzero(is_known) == len(is_known) else np.unique(indices[~is_known])
        )

    def decode(self, index: int, record: ChunkInfo) -> None:
        """Decode a chunk.

        Raises:
            DamagedChunk: Its bytes are damaged.
        """
        buffer, offsets, kinds = self._places.find(index + self._base, record)
        if not self._is_too_large:
            begin = int(self._slots[index]) - self._origin
            for place, field in self._fields:
                coding = self._places.codings[kinds[place]]
                column = self._column(field, coding.dtype)
                rows = column[begin : begin + record.stored_rows]
                try:
                    self._places.reader.copy_rows(
                        buffer, coding, offsets[place], record.stored_rows, 0, rows
                    )
                except StoreCorrupt as error:
                    raise DamagedChunk(index + self._base, error, record) from error
        self._is_known[index] = True

    def slots(self, indices: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Indices in the columns of rows of chunks."""
        found: np.ndarray = self._slots[indices] + (rows - self._origin)
        return found

    def take(self, name: str, slots: np.ndarray, out: np.ndarray) -> None:
        """Copy rows of a field.

        Args:
            name: The field.
            slots: [n] indices in the column.
            out: [n, ...] output, of any dtype that holds the values.
        """
        column = self._columns[name]
        if column.dtype == out.dtype:
            column.take(slots, axis=0, out=out, mode="clip")  # clip: no copy of `out` is made
        else:
            out[...] = column.take(slots, axis=0)

    def rows(self, name: str, slots: np.ndarray) -> np.ndarray:
        """Rows of a field, [n, ...], in its own dtype."""
        rows = self._columns[name].take(slots, axis=0)
        dtype = self._dtypes[name]
        return rows if rows.dtype == dtype else rows.astype(dtype)

    def _column(self, field: Field, dtype: np.dtype[np.generic]) -> np.ndarray:
        """The column of a field, wide enough for values of a dtype."""
        column = self._columns.get(field.name)
        if column is None:
            column = np.zeros((self._size, *field.shape), dtype)
        elif not np.can_cast(dtype, column.dtype, "safe"):
            column = column.astype(np.result_type(dtype, column.dtype))
        else:
            return column
        self._columns[field.name] = column
        return column

    def _make_room(self) -> None:
        """Extend the columns to the newest slot."""
        if self._next_slot - self._origin <= self._size:
            return
        first = int(self._slots[0])
        live = self._next_slot - first
        self._size = max(1024, 2 * live)
        self._is_too_large = self._size * self._row_bytes > _MAX_BYTES
        kept = {} if self._is_too_large else self._columns
        self._columns = {}
        for name, column in kept.items():
            moved = np.zeros((self._size, *column.shape[1:]), column.dtype)
            old = column[first - self._origin :][: self._size]
            moved[: len(old)] = old
            self._columns[name] = moved
        self._origin = first

    def _forget(self) -> None:
        self._generation, self._base = self._places.generation, self._places.base
        self._slots, self._is_known = np.zeros(0, np.int64), np.zeros(0, np.bool_)
        self._columns = {}
        self._chunks = self._next_slot = self._origin = self._size = 0
        self._is_too_large = False
