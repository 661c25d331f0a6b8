"""The index of a storage: one record for each stored piece, and the windows that can be drawn.

Only the newest pieces change, so everything here is kept up to date at a cost that follows the new
pieces, whatever the number of stored rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from stepwell.buffers.episode import End, Piece
from stepwell.buffers.storage.chunk_info import PIECE, Record, behead_streams, link, records_at
from stepwell.buffers.storage.episode_filter import EpisodeFilter
from stepwell.buffers.storage.item_counts import Family, ItemCounts, Shares

__all__ = ["Counters", "PieceTable"]


_MAX_COUNTS = 16  # kinds of item whose counts are kept up to date
_CountKey: TypeAlias = "tuple[Family, EpisodeFilter | None]"


class Counters(NamedTuple):
    """Numbers that only ever grow: they outlive the pieces that raised them.

    Args:
        next_row_id: Id that the next stored row gets.
        next_episode: Lowest episode id from which on none was used.
        total_steps: Env steps ever stored.
    """

    next_row_id: int = 0
    next_episode: int = 0
    total_steps: int = 0


class PieceTable:
    """Records of stored pieces, oldest first, addressed by *position*.

    A position counts all pieces ever stored, so that it stays valid when older pieces are evicted.
    """

    def __init__(self) -> None:
        self._records: np.ndarray = np.empty(64, PIECE)
        self._length = 0
        self._base = 0
        self._open: dict[int, _Open] = {}
        self._newest: dict[int, int] = {}
        self._counts: dict[_CountKey, ItemCounts] = {}
        self.shares: Shares | None = None
        self.losses = 0  # calls of `lose`
        self._oldest_new_episode = 0
        self.next_row_id = 0
        self.next_episode = 0
        self.steps = 0
        self.episodes = 0
        self.total_steps = 0

    @classmethod
    def restore(cls, stored: np.ndarray, counters: Counters, base: int) -> PieceTable:
        """The table of pieces that an earlier process stored, all at once.

        Episodes that were not ended by their env stay as they are: no piece continues them.

        Args:
            stored: Records [pieces], dtype `PIECE`; of every piece its episode, stream, first row,
                end, row id, stored rows, segment, offset and length. The rest is found here.
            counters: What the next piece would have got.
            base: Position of the first piece.
        """
        table = cls()
        records = stored.copy()
        link(records, base)
        table._records = _with_room(records, 64)
        table._length, table._base = len(records), base
        table._find_newest()
        table._count()
        table.next_row_id, table.next_episode, table.total_steps = counters
        table._oldest_new_episode = counters.next_episode
        return table

    @property
    def counters(self) -> Counters:
        """The numbers that only ever grow."""
        return Counters(self.next_row_id, self.next_episode, self.total_steps)

    @property
    def records(self) -> np.ndarray:
        """The live records [pieces], dtype `PIECE`; a view that must not be changed."""
        return self._records[: self._length]

    def at(self, index: np.ndarray) -> np.ndarray:
        """The records [n], dtype `PIECE`, at some indices [n]; a copy."""
        return records_at(self._records, index)

    @property
    def base(self) -> int:
        """Position of the oldest live record."""
        return self._base

    @property
    def rows(self) -> int:
        """Rows that are stored and count."""
        return int(self.records["rows"].sum())

    def __len__(self) -> int:
        return self._length

    def record(self, position: int) -> Record:
        """The record at a position."""
        return Record._make(self._records[position - self._base].tolist())

    def check(self, pieces: Sequence[Piece]) -> list[int]:
        """Refuse pieces that could not be appended, one after the other.

        Returns:
            The env steps that each piece adds to `total_steps`.

        Raises:
            ValueError: A piece has no rows, does not continue its episode, or uses an old id again.
        """
        newest = dict(self._open)
        fresh: set[int] = set()
        steps: list[int] = []
        for piece in pieces:
            before = newest.pop(piece.stream, None)
            if before is None or before.episode != piece.episode:
                self._check_first(piece, fresh)
                fresh.add(piece.episode)
                before = None
            elif piece.first_row != before.next_row:
                raise ValueError(_misplaced(piece, before.next_row))
            if piece.rows < 1:
                raise ValueError(f"piece of episode {piece.episode} has no rows, expected some")
            if not piece.end.is_final:
                newest[piece.stream] = _open_after(piece, 0)
            steps.append(_new_steps(piece, before))
        return steps

    def append(self, piece: Piece, segment: int, offset: int, nbytes: int) -> int:
        """Take up a stored piece, which `check` has let through, and return its position."""
        position = self._base + self._length
        newest = self._open.pop(piece.stream, None)
        before = newest if newest and newest.episode == piece.episode else None
        head, previous = piece.first_row, -1
        if before and before.position >= self._base and not self._is_lost(before.position):
            previous = before.position
            head = self._continue(previous)
        else:
            self.episodes += 1
        if self._length == len(self._records):
            self._records = _with_room(self._records, self._length)
        self._records[self._length] = (
            *(piece.episode, piece.stream, piece.first_row, piece.rows, int(piece.end)),
            *(1, previous, head, self.next_row_id, piece.rows, segment, offset, nbytes),
            *self._join_stream(piece, previous, position),
        )
        self._length += 1
        if not piece.end.is_final:
            self._open[piece.stream] = _open_after(piece, position)
        self.steps += piece.rows - (piece.first_row == 0)
        self.total_steps += _new_steps(piece, before)
        self.next_row_id += piece.rows
        self.next_episode = max(self.next_episode, piece.episode + 1)
        return position

    @property
    def oldest_segment_stop(self) -> int:
        """Id of the row behind the last one of the oldest segment, or of the next row to come."""
        records = self.records
        if not len(records):
            return self.next_row_id
        count = int(np.searchsorted(records["segment"], records["segment"][0], side="right"))
        return int(records["row_id"][count]) if count < len(records) else self.next_row_id

    def drop_segment(self) -> int:
        """Forget the pieces of the oldest segment and return its number."""
        records = self.records
        segment = int(records["segment"][0])
        count = int(np.searchsorted(records["segment"], segment, side="right"))
        dropped, kept = records[:count], records[count:].copy()
        self.steps -= int(_steps_of(dropped).sum())
        self.episodes -= int(dropped["is_tail"].sum())
        continued = dropped[(dropped["is_tail"] == 0) & (dropped["end"] & End.LOST == 0)]
        for episode, head in set(continued[["episode", "head"]].tolist()):
            rest = np.flatnonzero((kept["episode"] == episode) & (kept["head"] == head))
            if len(rest):  # none where the episode's later pieces were dropped with these
                kept["head"][rest] = kept["first_row"][rest[0]]
                kept["previous"][rest[0]] = -1
        self._base += count
        behead_streams(kept, self._base)
        self._records = _with_room(kept, max(64, len(kept)))
        self._length = len(kept)
        self._counts.clear()
        return segment

    def lose(self, positions: Iterable[int]) -> None:
        """Mark pieces whose bytes are damaged: their rows do not count any more.

        What comes before one in its episode is ended by a cut; what comes after it stays, as the
        rows of an episode of which the first ones are gone.
        """
        records = self._records[: self._length]
        for position in positions:
            records["end"][position - self._base] |= End.LOST
        link(records, self._base)
        self._find_newest()
        self._count()
        self._counts.clear()
        self.losses += 1

    def items(self, family: Family, chosen: EpisodeFilter | None = None) -> ItemCounts:
        """The counts of a family's items, up to date.

        Args:
            family: Kind of item; hashable.
            chosen: Episodes that the items may belong to, brought up to date; None for all.
        """
        key = (family, chosen)
        if key not in self._counts:
            if len(self._counts) >= _MAX_COUNTS:
                self._counts.pop(next(iter(self._counts)))
            self._counts[key] = ItemCounts(family, chosen)
        counts = self._counts[key]
        counts.update(self.records, self._base)
        return counts

    def _check_first(self, piece: Piece, fresh: set[int]) -> None:
        """Refuse a first piece that does not begin an episode of its own."""
        if piece.first_row != 0 and not piece.is_beheaded:
            raise ValueError(_misplaced(piece, 0))
        number = piece.episode
        is_old = number < self._oldest_new_episode or number in fresh
        if is_old or (number < self.next_episode and (self.records["episode"] == number).any()):
            raise ValueError(
                f"episode {number} is stored already, expected an id that was never used: "
                f"ids from {self.next_episode} on are free"
            )

    def _is_lost(self, position: int) -> bool:
        return bool(self._records["end"][position - self._base] & End.LOST)

    def _continue(self, position: int) -> int:
        """Make room for the next piece of an episode and return the episode's first stored row."""
        record = self._records[position - self._base]
        record["is_tail"] = 0
        if int(record["end"]) & End.PENDING:
            # The pending last row does not count any more: the piece that follows has it again.
            record["rows"] -= 1
            # The reset's row is no step, so a piece of that row alone held none.
            self.steps -= bool(record["rows"] or record["first_row"])
        for counts in self._counts.values():  # whether it is the last piece counts, too
            counts.forget_from(position - self._base)
        return int(record["head"])

    def _join_stream(
        self, piece: Piece, previous: int, position: int
    ) -> tuple[int, int, int, int, int]:
        """Link a piece to the one before in its stream, where no row is missing in between."""
        before = self._newest.get(piece.stream, -1)
        self._newest[piece.stream] = position
        is_joined = before >= self._base and not self._is_lost(before)
        if not is_joined or (before != previous and piece.first_row != 0):
            return -1, -1, 0, 0, int(piece.first_row > 0)
        record = self._records[before - self._base]
        record["stream_next"] = position
        row = int(record["stream_row"] + record["rows"])
        return before, -1, row, int(record["stream_head"]), int(record["is_stream_beheaded"])

    def _find_newest(self) -> None:
        """Find the newest piece of each stream."""
        streams = self.records["stream"].tolist()
        self._newest = {stream: self._base + place for place, stream in enumerate(streams)}

    def _count(self) -> None:
        """Count steps and episodes from the records."""
        self.steps = int(_steps_of(self.records).sum())
        self.episodes = int(self.records["is_tail"].sum())


def _with_room(records: np.ndarray, more: int) -> np.ndarray:
    """The records, and room for more: `np.concatenate` takes 0.1 ms to compare the dtypes."""
    roomy = np.empty(len(records) + more, PIECE)
    roomy[: len(records)] = records
    return roomy


class _Open(NamedTuple):
    """The newest episode of a stream, while its environment has not ended it."""

    episode: int
    position: int
    next_row: int
    is_pending: bool


def _open_after(piece: Piece, position: int) -> _Open:
    is_pending = bool(piece.end & End.PENDING)
    return _Open(piece.episode, position, piece.first_row + piece.rows - is_pending, is_pending)


def _new_steps(piece: Piece, before: _Open | None) -> int:
    """Env steps of a piece: neither the reset's row nor a superseding row is a new one."""
    return piece.rows - (piece.first_row == 0 or (before is not None and before.is_pending))


def _steps_of(records: np.ndarray) -> np.ndarray:
    """Env steps [pieces] that count: the reset's row is none."""
    steps: np.ndarray = np.maximum(0, records["rows"] - (records["first_row"] == 0))
    return steps


def _misplaced(piece: Piece, expected: int) -> str:
    return (
        f"piece of episode {piece.episode} begins with row {piece.first_row}, "
        f"expected row {expected}: pieces must be added in order"
    )
