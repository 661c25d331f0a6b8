"""Reads stored episodes one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepwell.buffers.episode import End, Episode
from stepwell.buffers.errors import NotEnoughData
from stepwell.buffers.free_memory import check_free_memory
from stepwell.buffers.storage.episode_filter import EpisodeFilter
from stepwell.buffers.storage.field_locator import DamagedChunk, RowCopier
from stepwell.buffers.storage.protocol import Storage

__all__ = ["EpisodeReader"]


class EpisodeReader:
    """Reads whole episodes out of a storage.

    Args:
        storage: Where the chunks are.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._spec = storage.spec
        self.copier = RowCopier(storage)

    def episodes(self, chosen: EpisodeFilter | None) -> Iterator[Episode]:
        """The episodes stored now, in the order in which they began."""
        table = self._storage.table
        records = table.records
        is_wanted = records["is_tail"] == 1
        if chosen is not None:
            is_wanted &= chosen.verdicts(table.base, len(records))
        tails = np.flatnonzero(is_wanted)
        in_order = tails[np.argsort(records["episode"][tails], kind="stable")]
        positions = (in_order + table.base).tolist()
        generation = self._storage.generation
        return (episode for position in positions for episode in self._whole(position, generation))

    def leave_out(self, damaged: DamagedChunk) -> None:
        """Go on without a damaged chunk, where the user said so."""
        if not self._storage.skips_corrupt:
            raise damaged
        with self._storage.lock:
            if damaged.position >= self._storage.table.base:  # else it is evicted by now
                self._storage.lose(damaged.position)

    def _whole(self, position: int, generation: int) -> Iterator[Episode]:
        """The episode whose last chunk stands at a position; its parts where a chunk is damaged."""
        try:
            with self._storage.lock:
                found = self._episode(position, generation)
            yield found
        except DamagedChunk as damaged:
            before = self._storage.table.record(damaged.position).previous
            self.leave_out(damaged)
            if before >= 0:
                yield from self._whole(before, generation)
            if damaged.position != position:
                yield from self._whole(position, generation)

    def _episode(self, position: int, generation: int) -> Episode:
        """The episode whose last chunk stands at a position."""
        self.copier.follow()
        table = self._storage.table
        if position < table.base or self._storage.generation != generation:
            raise NotEnoughData(
                "an episode was evicted while the episodes were read: expected a replay that "
                "nobody writes into or refreshes meanwhile; iterate anew"
            )
        record = table.record(position)
        begin, stop = record.head, record.first_row + record.rows
        spec = self._spec
        check_free_memory((stop - begin) * spec.row_bytes, f"episode {record.episode}")
        fields = {f.name: np.empty((stop - begin, *f.shape), f.numpy_dtype) for f in spec.fields}
        targets = list(enumerate(fields.values()))
        first, _ = self.copier.copy(position, record, begin, stop, targets)
        metadata = self.copier.metadata(first)
        end = End(record.end) & ~End.PENDING
        return Episode(spec, record.episode, record.stream, begin, end, fields, metadata)
