"""Copies rows of an episode out of the pieces that they lie in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stepwell.buffers.errors import StoreCorrupt
from stepwell.buffers.piece_format import Buffer, PieceReader, Place
from stepwell.buffers.piece_table import Record
from stepwell.buffers.storage import Storage

__all__ = ["DamagedPiece", "RowCopier"]

# Pieces whose fields are remembered: about half a kilobyte each.
_MAX_KNOWN = 1 << 15
# Files among them: before Python 3.13 each one that is mapped holds a file descriptor.
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
    """Copies rows out of a storage.

    Args:
        storage: Where the pieces are.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._pieces = PieceReader(storage.spec)
        self._known: dict[tuple[int, int], tuple[Buffer, list[Place]]] = {}
        self._segments: set[int] = set()
        self._extent = (0, 0)

    def forget_evicted(self) -> None:
        """Let go of memory that the storage has given up, and of positions that were given anew."""
        extent = (self._storage.generation, self._storage.table.base)
        if extent != self._extent:
            self._forget()
            self._extent = extent

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
            buffer, places = self._known.get((record.segment, position)) or self._look_up(
                position, record
            )
            if begin >= first_row:
                for place, out in targets:
                    self._pieces.copy(buffer, places[place], begin - first_row, out[: stop - begin])
                return position, record
            if stop > first_row:  # not where the piece's only row was superseded
                rows = slice(first_row - begin, stop - begin)
                for place, out in targets:
                    self._pieces.copy(buffer, places[place], 0, out[rows])
            stop, position = first_row, record.previous
            record = self._storage.table.record(position)

    def _look_up(self, position: int, record: Record) -> tuple[Buffer, list[Place]]:
        """Find a piece's fields, and remember it for the next time."""
        self._segments.add(record.segment)
        if len(self._known) >= _MAX_KNOWN or len(self._segments) > _MAX_SEGMENTS:
            self._forget()
        try:
            buffer, origin = self._storage.payload(position)
        except StoreCorrupt as error:
            raise DamagedPiece(position, error) from error
        found = (buffer, self._pieces.places(buffer, origin, record.stored_rows))
        self._known[record.segment, position] = found
        return found

    def _forget(self) -> None:
        self._known, self._segments = {}, set()
