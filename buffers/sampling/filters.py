"""Conditions on episodes, with the verdicts that were found."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stepwell.buffers.storage.episode_filter import EpisodeFilter, Where, check_where
from stepwell.buffers.storage.protocol import Storage

__all__ = ["Filters"]

_MAX_FILTERS = 8  # conditions whose verdicts are remembered


class Filters:
    """BatchRequest about each episode once, for each of the last few conditions.

    Args:
        storage: Where the episodes are.
        metadata: Gives the metadata of the chunk at a position.
    """

    def __init__(self, storage: Storage, metadata: Callable[[int], Mapping[str, object]]) -> None:
        self._storage = storage
        self._metadata = metadata
        self._filters: dict[object, EpisodeFilter] = {}
        self._generation = storage.generation

    def chosen(self, where: Where | None) -> EpisodeFilter | None:
        """The verdicts on all episodes stored now.

        Raises:
            TypeError: It is no condition.
            DamagedChunk: The metadata of an episode is not what was written.
        """
        if where is None:
            return None
        if self._generation != self._storage.generation:
            self._filters, self._generation = {}, self._storage.generation
        check_where(where)
        key = repr(sorted(where.items())) if isinstance(where, Mapping) else where
        if key not in self._filters:
            if len(self._filters) >= _MAX_FILTERS:
                self._filters.pop(next(iter(self._filters)))
            self._filters[key] = EpisodeFilter(where)
        table = self._storage.table
        return self._filters[key].update(table.records, table.base, self._metadata)
