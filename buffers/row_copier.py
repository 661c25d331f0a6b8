"""Copies rows of an episode out of the pieces that they lie in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stepwell.buffers.errors import NotEnoughData, StoreCorrupt
from stepwell.buffers.piece_format import Buffer, Coding, PieceReader
from stepwell.buffers.piece_table import Record
from stepwell.buffers.storage import Storage

__all__ = ["DamagedPiece", "RowCopier"]

# Before Python 3.13 each file that is mapped holds a file descriptor.
_MAX_SEGMENTS = 512


class DamagedPiece(StoreCorrupt):
    """A piece is not what was written.

    Args:
        position: Its position.
        error: What the storage said.
    """

    def __init__(self, position: int, error: StoreCorrupt) -> None:
        super().__init__(str(error))
        self.position = position


class RowCopier:
    """Copies rows out of a storage, from several threads at once between two calls of `follow`.

    Of each piece that was touched it remembers where its fields lie: ten bytes a field.

    Args:
        storage: Where the pieces are.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._pieces = PieceReader(storage.spec)
        self._codings: list[Coding] = []
        self._generation = self._base = 0
        self._buffers: dict[int, Buffer] = {}
        self._is_known: np.ndarray
        self._offsets: np.ndarray
        self._kinds: np.ndarray
        self._forget()

    def follow(self) -> None:
        """Take up what the storage has added, evicted, or given other positions."""
        generation, table = self._storage.generation, self._storage.table
        if generation != self._generation or table.base < self._base:
            self._forget()
        gone = table.base - self._base
        if gone:
            self._buffers = {}
            self._is_known = self._is_known[gone:].copy()
            self._offsets, self._kinds = self._offsets[gone:].copy(), self._kinds[gone:].copy()
            self._base = table.base
        if len(table) > len(self._is_known):
            self._grow(2 * len(table))

    def metadata(self, position: int) -> Mapping[str, object]:
        """The metadata of a piece's episode.

        Raises:
            DamagedPiece: The bytes are not what was written.
        """
        try:
            return self._storage.metadata(position)
        except StoreCorrupt as error:
            raise DamagedPiece(position, error) from error

    def copy(
        self,
        position: int,
        record: Record,
        begin: int,
        stop: int,
        targets: Sequence[tuple[int, np.ndarray]],
    ) -> tuple[int, Record]:
        """Copy rows ``begin .. stop`` of an episode, of which the last is in the given piece.

        Args:
            position: Position of that piece.
            record: Its record.
            begin: First row, counted in the episode.
            stop: Row after the last.
            targets: Fields by their place in the Spec, each with memory for the rows.

        Returns:
            Position and record of the piece that holds the first row.

        Raises:
            DamagedPiece: A piece's bytes are not what was written.
        """
        while True:
            first_row = record.first_row
            if stop > first_row:  # not where the piece's only row was superseded
                start = max(begin - first_row, 0)
                rows = slice(first_row + start - begin, stop - begin)
                self._copy(position, record, start, rows, targets)
            if begin >= first_row:
                return position, record
            stop, position = first_row, record.previous
            record = self._storage.table.record(position)

    def _copy(
        self,
        position: int,
        record: Record,
        start: int,
        rows: slice,
        targets: Sequence[tuple[int, np.ndarray]],
    ) -> None:
        """Copy rows of one piece, from its row ``start`` on."""
        index = position - self._base
        if index < 0:
            raise NotEnoughData(
                "rows were evicted while they were read: expected a replay that nobody writes into "
                "meanwhile; begin anew"
            )
        buffer = self._buffers.get(record.segment)
        if buffer is None or not self._is_known[index]:
            buffer = self._look_up(position, record)
        offsets, kinds = self._offsets[index].tolist(), self._kinds[index].tolist()
        for place, out in targets:
            coding = self._codings[kinds[place]]
            self._pieces.copy_rows(
                buffer, coding, offsets[place], record.stored_rows, start, out[rows]
            )

    def _look_up(self, position: int, record: Record) -> Buffer:
        """Find a piece's memory and its fields, and remember them."""
        try:
            buffer, origin = self._storage.payload(position)
        except StoreCorrupt as error:
            raise DamagedPiece(position, error) from error
        places = self._pieces.places(buffer, origin, record.stored_rows)
        index = position - self._base
        self._offsets[index] = [place.offset for place in places]
        self._kinds[index] = [self._kind(place.coding) for place in places]
        self._is_known[index] = True  # last, for other threads
        if len(self._buffers) >= _MAX_SEGMENTS:
            self._buffers = {}
        self._buffers[record.segment] = buffer
        return buffer

    def _kind(self, coding: Coding) -> int:
        """The number of a coding; two threads may give it two, which does no harm."""
        if coding not in self._codings:
            self._codings.append(coding)
        return self._codings.index(coding)

    def _forget(self) -> None:
        self._generation, self._base = self._storage.generation, self._storage.table.base
        self._buffers = {}
        self._is_known = np.zeros(0, np.bool_)
        fields = len(self._storage.spec.fields)
        self._offsets, self._kinds = (
            np.zeros((0, fields), np.int64),
            np.zeros((0, fields), np.int16),
        )

    def _grow(self, pieces: int) -> None:
        """Make room for more pieces."""
        more = pieces - len(self._is_known)
        self._is_known = np.pad(self._is_known, (0, more))
        self._offsets = np.pad(self._offsets, ((0, more), (0, 0)))
        self._kinds = np.pad(self._kinds, ((0, more), (0, 0)))
