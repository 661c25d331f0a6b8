"""Copies rows of an episode out of the pieces that they lie in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepwell.buffers.piece_format import Buffer, PieceReader, Place
from stepwell.buffers.piece_table import Record
from stepwell.buffers.storage import Storage

__all__ = ["RowCopier"]

# Pieces whose fields are remembered: about half a kilobyte each.
_MAX_KNOWN = 1 << 15


class RowCopier:
    """Copies rows out of a storage.

    Args:
        storage: Where the pieces are.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._table = storage.table
        self._pieces = PieceReader(storage.spec)
        self._known: dict[int, tuple[Buffer, list[Place]]] = {}
        self._oldest = 0

    def forget_evicted(self) -> None:
        """Let go of memory that the storage has given up."""
        if self._table.base != self._oldest:
            self._known = {}
            self._oldest = self._table.base

    def metadata(self, position: int) -> dict[str, object]:
        """The metadata that came with a piece."""
        return dict(self._pieces.metadata(*self._storage.payload(position)))

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
        """
        while True:
            first_row = record.first_row
            buffer, places = self._known.get(position) or self._look_up(position, record)
            if begin >= first_row:
                for place, out in targets:
                    self._pieces.copy(buffer, places[place], begin - first_row, out[: stop - begin])
                return position, record
            for place, out in targets:
                self._pieces.copy(buffer, places[place], 0, out[first_row - begin : stop - begin])
            stop, position = first_row, record.previous
            record = self._table.record(position)

    def _look_up(self, position: int, record: Record) -> tuple[Buffer, list[Place]]:
        """Find a piece's fields, and remember it for the next time."""
        if len(self._known) >= _MAX_KNOWN:
            self._known = {}
        buffer, origin = self._storage.payload(position)
        found = (buffer, self._pieces.places(buffer, origin, record.stored_rows))
        self._known[position] = found
        return found
