"""Joins rows that an env showed again with those of an archive, as the chunks of a store."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import IO

import numpy as np

from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.provenance.archived_store import ArchivedChunks, ArchivedStore
from stepwell.buffers.storage.chunk_codec import ChunkDecoder, ChunkEncoder, Part
from stepwell.buffers.storage.protocol import Storage

__all__ = ["RestoredRows"]


class RestoredRows:
    """The chunks of an archive, complete as far as their rows were played again.

    Args:
        archived: The archive.
        file: An empty file, in which they are kept meanwhile.
    """

    def __init__(self, archived: ArchivedStore, file: IO[bytes]) -> None:
        self._archived, self._file = archived, file
        table = archived.table
        self._encoder = ChunkEncoder(archived.spec)
        self._begins = table.begins
        order = np.argsort(table.episode_of, kind="stable")
        starts = np.searchsorted(table.episode_of[order], np.arange(len(table.episode) + 1))
        self._chunks_of = [
            order[start:stop]
            for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
        ]
        self._open: dict[int, _OpenEpisode] = {}
        self._offsets = np.full(len(table), -1, np.int64)
        self._sizes = np.zeros(len(table), np.int64)
        self._heads = np.zeros(len(table), np.int64)
        self._end = 0

    def add(self, episode: int, rows: Mapping[str, np.ndarray]) -> None:
        """Add the next rows of an episode.

        Args:
            episode: Its index in the table.
            rows: Arrays ``[rows, ...]`` of all fields that are played again.
        """
        fingerprints = self._archived.fingerprints
        fields = [field.name for field in self._archived.played]
        for place, name in enumerate(fields):
            fingerprints.update(place, episode, rows[name])
        state = self._open.get(episode)
        if state is None:
            first = int(self._archived.table.first_row[self._chunks_of[episode][0]])
            state = self._open[episode] = _OpenEpisode(fields, first)
        state.add(rows)
        chunks = self._chunks_of[episode]
        while state.chunks < len(chunks) and self._write(int(chunks[state.chunks]), state):
            state.chunks += 1
        if state.chunks == len(chunks):
            del self._open[episode]

    def forget(self, episode: int) -> None:
        """Forget an episode whose rows were not complete."""
        self._open.pop(episode, None)

    def parts(self, chunk: int) -> list[Part]:
        """The bytes of a chunk: its head, and the rest."""
        self._file.seek(int(self._offsets[chunk]))
        data = memoryview(self._file.read(int(self._sizes[chunk])))
        head = int(self._heads[chunk])
        return [data[:head], data[head:]]

    def storage(self, episodes: Collection[int]) -> Storage:
        """A storage of these episodes, by their indices; it keeps the actions of all others."""
        is_chosen = np.zeros(len(self._archived.table.episode), np.bool_)
        is_chosen[list(episodes)] = True
        is_here = is_chosen[self._archived.table.episode_of]
        others = self._archived.action_chunks(np.flatnonzero(~is_here))
        return ArchivedChunks(
            *(self._archived, self._archived.spec, np.flatnonzero(is_here)),
            lambda number: b"".join(self.parts(number)),
            [*self._archived.ledger, *others],
        )

    def chunks(self, numbers: Sequence[int]) -> Iterator[Chunk]:
        """Chunks by their numbers, decoded."""
        table, spec = self._archived.table, self._archived.spec
        decoder = ChunkDecoder(spec)
        for number in numbers:
            data, rows = b"".join(self.parts(number)), int(table.rows[number])
            fields: dict[str, np.ndarray] = {}
            for place, field in enumerate(spec.fields):
                fields[field.name] = np.empty((rows, *field.shape), field.numpy_dtype)
                decoder.read(data, 0, rows, place, 0, fields[field.name])
            episode, first_row = int(table.episode_of[number]), int(table.first_row[number])
            is_first = number == self._chunks_of[episode][0]
            yield Chunk(
                *(int(table.episode[episode]), int(table.stream[episode]), first_row),
                *(End(int(table.end[number])), fields, table.metadata[episode]),
                starts_late=first_row > 0 and bool(is_first),
            )

    def _write(self, number: int, state: _OpenEpisode) -> bool:
        """Write a chunk if all of its rows are there."""
        table, archived = self._archived.table, self._archived
        first_row, rows = int(table.first_row[number]), int(table.rows[number])
        if state.stop < first_row + rows:
            return False
        state.drop_before(first_row)
        played = state.first(rows)
        begin = int(self._begins[number])
        fields = {
            field.name: played[field.name]
            if field.name in played
            else archived.rows(field.name, begin, begin + rows)
            for field in archived.spec.fields
        }
        metadata = table.metadata[int(table.episode_of[number])]
        parts = self._encoder.encode(Chunk(0, 0, 0, End.NONE, fields, metadata))
        self._file.seek(self._end)
        self._offsets[number], self._heads[number] = self._end, len(parts[0])
        self._sizes[number] = sum(map(len, parts))
        self._file.writelines(parts)
        self._end += int(self._sizes[number])
        return True


class _OpenEpisode:
    """Rows of an episode that are not in a chunk yet.

    Args:
        names: Names of the fields.
        first_row: Its first row.
    """

    def __init__(self, names: Sequence[str], first_row: int) -> None:
        self._parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
        self._begin = self.stop = first_row
        self.chunks = 0  # that are written

    def add(self, rows: Mapping[str, np.ndarray]) -> None:
        """Add the next rows."""
        count = 0
        for name, parts in self._parts.items():
            parts.append(rows[name])
            count = len(rows[name])
        self.stop += count

    def drop_before(self, row: int) -> None:
        """Drop the rows before one."""
        for name, parts in self._parts.items():
            joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
            self._parts[name] = [joined[row - self._begin :]]
        self._begin = row

    def first(self, count: int) -> dict[str, np.ndarray]:
        """The first rows, which are in one part."""
        return {name: parts[0][:count] for name, parts in self._parts.items()}
