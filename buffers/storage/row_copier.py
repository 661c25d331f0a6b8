"""Copies consecutive rows of an episode out of the chunks that they lie in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stepwell.buffers.errors import StoreCorrupt
from stepwell.buffers.storage.chunk_info import ChunkInfo
from stepwell.buffers.storage.field_locator import DamagedChunk, FieldLocator
from stepwell.buffers.storage.protocol import Storage

__all__ = ["RowCopier"]


class RowCopier:
    """Copies rows out of a storage.

    Args:
        storage: Where the chunks are.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._places = FieldLocator(storage)

    def follow(self) -> None:
        """Take up what the storage has added, evicted, or given other positions."""
        self._places.follow()

    def metadata(self, position: int) -> Mapping[str, object]:
        """The metadata of a chunk's episode.

        Raises:
            DamagedChunk: The bytes are not what was written.
        """
        try:
            return self._storage.metadata(position)
        except StoreCorrupt as error:
            raise DamagedChunk(position, error) from error

    def copy(
        self,
        position: int,
        record: ChunkInfo,
        begin: int,
        stop: int,
        targets: Sequence[tuple[int, np.ndarray]],
    ) -> tuple[int, ChunkInfo]:
        """Copy rows ``begin .. stop`` of an episode, of which the last is in the given chunk.

        Args:
            position: Position of that chunk.
            record: Its record.
            begin: First row, counted in the episode.
            stop: Row after the last.
            targets: Fields by their place in the Spec, each with memory for the rows.

        Returns:
            Position and record of the chunk that holds the first row.

        Raises:
            DamagedChunk: A chunk's bytes are not what was written.
        """
        while True:
            first_row = record.first_row
            if stop > first_row:  # not where the chunk's only row was superseded
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
        record: ChunkInfo,
        start: int,
        rows: slice,
        targets: Sequence[tuple[int, np.ndarray]],
    ) -> None:
        """Copy rows of one chunk, from its row ``start`` on."""
        buffer, offsets, kinds = self._places.find(position, record)
        for place, out in targets:
            coding = self._places.codings[kinds[place]]
            try:
                self._places.reader.copy_rows(
                    buffer, coding, offsets[place], record.stored_rows, start, out[rows]
                )
            except StoreCorrupt as error:
                raise DamagedChunk(position, error, record) from error
