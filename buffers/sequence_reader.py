"""Draws windows out of a storage. The one place where rows become a Batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.random import Generator

from stepwell.buffers.batch import Batch
from stepwell.buffers.episode import End, Episode
from stepwell.buffers.episode_filter import EpisodeFilter, Where, check_where
from stepwell.buffers.errors import NotEnoughData
from stepwell.buffers.piece_table import PieceTable, Record
from stepwell.buffers.row_copier import DamagedPiece, RowCopier
from stepwell.buffers.spec import unflatten
from stepwell.buffers.storage import Storage
from stepwell.buffers.thread_share import ThreadShare

__all__ = ["SequenceReader"]

# Rewards are stored exactly as the env gave them; learners compute in float32.
_BATCH_DTYPES = {"reward": np.dtype(np.float32)}
_MAX_FILTERS = 8  # conditions whose verdicts are remembered


class SequenceReader:
    """Draws windows of rows from a storage.

    Args:
        storage: Where the pieces are.
        threads: Threads that copy and decompress; see `ThreadShare`.
    """

    def __init__(self, storage: Storage, threads: int | None) -> None:
        self._storage = storage
        self._spec = storage.spec
        self._filters: dict[object, EpisodeFilter] = {}
        self._generation = storage.generation
        self._fields = storage.spec.fields
        self._copier = RowCopier(storage)
        self._share = ThreadShare(threads)
        self._longest_stack = max(field.stack for field in self._fields)

    def draw(
        self, batch_size: int, length: int, stack: bool, where: Where | None, rng: Generator
    ) -> Batch:
        """Draw windows uniformly; see `SequenceReplayBuffer.sample_sequences`."""
        if stack and self._longest_stack == 1:
            raise ValueError(
                "stack=True: expected an env that stacks frames, got one that does not; "
                "leave it out"
            )
        while True:
            try:
                return self._draw(batch_size, length, stack, self._chosen(where), rng)
            except DamagedPiece as damaged:
                self._leave_out(damaged)

    def episodes(self, where: Where | None) -> Iterator[Episode]:
        """The episodes stored now, in the order in which they began."""
        chosen = self._chosen(where)
        table = self._table
        records = table.records
        is_wanted = records["is_tail"] == 1
        if chosen is not None:
            is_wanted &= chosen.verdicts(table.base, len(records))
        tails = np.flatnonzero(is_wanted)
        in_order = tails[np.argsort(records["episode"][tails], kind="stable")]
        positions = (in_order + table.base).tolist()
        generation = self._storage.generation
        return (episode for position in positions for episode in self._whole(position, generation))

    def close(self) -> None:
        """End the threads."""
        self._share.close()

    @property
    def _table(self) -> PieceTable:
        """The index as it is now: `refresh` makes a new one."""
        return self._storage.table

    def _draw(
        self,
        batch_size: int,
        length: int,
        stack: bool,
        chosen: EpisodeFilter | None,
        rng: Generator,
    ) -> Batch:
        self._copier.follow()
        table, context = self._table, self._longest_stack - 1 if stack else 0
        if table.count_windows(length, context, chosen) == 0:
            raise NotEnoughData(self._shortage(length, chosen))
        empty = table.stores_without_windows(length, context, chosen)
        if empty:
            raise NotEnoughData(
                f"store {empty[0]} of those that are drawn from by weights has no "
                f"{_episode_of(chosen)} of {length} rows: expected one in each; give it weight 0, "
                f"or ask for a shorter length"
            )
        positions, starts = table.draw_windows(batch_size, length, rng, context, chosen)
        records = table.records[positions - table.base]
        leaves, ids = self._rows(positions, starts, records, length, stack)
        return Batch(
            observation=unflatten(self._spec.observation, leaves),
            action=unflatten(self._spec.action, leaves),
            reward=leaves["reward"],
            **_flags(records, starts, length),
            info=_under("info/", leaves),
            extras=_under("extra/", leaves),
            ids=ids,
        )

    def _chosen(self, where: Where | None) -> EpisodeFilter | None:
        """The verdicts on all episodes stored now; remembered for the next draw."""
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
        while True:
            try:
                return self._filters[key].update(self._table, self._copier.metadata)
            except DamagedPiece as damaged:
                self._leave_out(damaged)

    def _leave_out(self, damaged: DamagedPiece) -> None:
        """Go on without a damaged piece, where the user said so."""
        if not self._storage.skips_corrupt:
            raise damaged
        self._storage.lose(damaged.position)

    def _rows(
        self,
        positions: np.ndarray,
        starts: np.ndarray,
        records: np.ndarray,
        length: int,
        stack: bool,
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The windows' fields [B, T, ...] and the ids of their first rows [B]."""
        extra = [field.stack - 1 if stack else 0 for field in self._fields]
        outs = [
            np.empty(
                (len(starts), length + more, *field.shape),
                _BATCH_DTYPES.get(field.name, field.numpy_dtype),
            )
            for field, more in zip(self._fields, extra, strict=True)
        ]
        plain = [(place, out) for place, out in enumerate(outs) if not extra[place]]
        stacked = [(place, out) for place, out in enumerate(outs) if extra[place]]
        ids = np.empty(len(starts), np.int64)
        windows = list(zip(positions.tolist(), starts.tolist(), records.tolist(), strict=True))

        def copy(some: range) -> None:
            for b in some:
                position, start, values = windows[b]
                record = Record._make(values)
                targets = [(place, out[b]) for place, out in plain]
                _, first = self._copier.copy(position, record, start, start + length, targets)
                ids[b] = first.row_id + start - first.first_row
                for place, out in stacked:
                    self._copy_stacked(position, record, start, place, out[b])

        self._share.run(copy, len(starts), sum(out.nbytes for out in outs))
        for place, out in stacked:
            stacks = sliding_window_view(out, self._fields[place].stack, axis=1)
            outs[place] = np.moveaxis(stacks, -1, 2)
        return {field.name: out for field, out in zip(self._fields, outs, strict=True)}, ids

    def _copy_stacked(
        self, position: int, record: Record, start: int, place: int, out: np.ndarray
    ) -> None:
        """Copy a window of single frames with the k - 1 before it, padded as the env padded."""
        field = self._fields[place]
        missing = max(0, field.stack - 1 - start)
        begin = start - (field.stack - 1 - missing)
        stop = begin + len(out) - missing
        self._copier.copy(position, record, begin, stop, [(place, out[missing:])])
        out[:missing] = out[missing] if field.stack_padding == "repeat" else 0

    def _whole(self, position: int, generation: int) -> Iterator[Episode]:
        """The episode whose last piece stands at a position; its parts where a piece is damaged."""
        try:
            yield self._episode(position, generation)
        except DamagedPiece as damaged:
            before = self._table.record(damaged.position).previous
            self._leave_out(damaged)
            if before >= 0:
                yield from self._whole(before, generation)
            if damaged.position != position:
                yield from self._whole(position, generation)

    def _episode(self, position: int, generation: int) -> Episode:
        """The episode whose last piece stands at a position."""
        self._copier.follow()
        if position < self._table.base or self._storage.generation != generation:
            raise NotEnoughData(
                "an episode was evicted while the episodes were read: expected a replay that "
                "nobody writes into or refreshes meanwhile; iterate anew"
            )
        record = self._table.record(position)
        begin, stop = record.head, record.first_row + record.rows
        fields = {f.name: np.empty((stop - begin, *f.shape), f.numpy_dtype) for f in self._fields}
        targets = list(enumerate(fields.values()))
        first, _ = self._copier.copy(position, record, begin, stop, targets)
        metadata = self._copier.metadata(first)
        end = End(record.end) & ~End.PENDING
        return Episode(self._spec, record.episode, record.stream, begin, end, fields, metadata)

    def _shortage(self, length: int, chosen: EpisodeFilter | None) -> str:
        table = self._table
        is_tail = table.records["is_tail"] == 1
        if chosen is not None:
            is_tail &= chosen.verdicts(table.base, len(table))
        tails = table.records[is_tail]
        rows = tails["first_row"] + tails["rows"] - tails["head"]
        longest = int(rows.max()) if len(rows) else 0
        return (
            f"no stored {_episode_of(chosen)} has {length} rows: expected at least one, the "
            f"longest of {len(tails)} has {longest}; collect more, or ask for a shorter length"
        )


def _episode_of(chosen: EpisodeFilter | None) -> str:
    return "episode" if chosen is None else f"episode with {chosen}"


def _flags(records: np.ndarray, starts: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """Flags [B, T]: only the first and the last row of a window can have any."""
    at_end = starts + length == records["first_row"] + records["rows"]
    is_last = at_end & (records["is_tail"] == 1)
    terminated = is_last & ((records["end"] & int(End.TERMINATED)) != 0)
    truncated = is_last & ((records["end"] & int(End.TRUNCATED)) != 0)
    marks = {
        "is_first": (0, starts == 0),
        "is_last": (-1, is_last),
        "terminated": (-1, terminated),
        "truncated": (-1, truncated),
        "cut": (-1, is_last & ~terminated & ~truncated),
    }
    flags = np.zeros((len(marks), len(starts), length), np.bool_)
    for rows, (column, values) in zip(flags, marks.values(), strict=True):
        rows[:, column] = values
    return dict(zip(marks, flags, strict=True))


def _under(prefix: str, leaves: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The fields of one kind, by their own names."""
    return {
        name.removeprefix(prefix): rows for name, rows in leaves.items() if name.startswith(prefix)
    }
