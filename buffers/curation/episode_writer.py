"""Puts whole episodes into a replay, a few large chunks at a time."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import replace

from stepwell.buffers.digest import Digest
from stepwell.buffers.episode import Chunk
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.storage.disk.files import Files
from stepwell.buffers.storage.disk.folder import StoreFolder

__all__ = ["EpisodeWriter", "check_new"]

# A chunk is at most so large, and so is what is held in memory until it is written.
_CHUNK_ROWS = 4096
_CHUNK_BYTES = 32 << 20
_CHUNKS_A_FLUSH = 4096


class EpisodeWriter:
    """Gives episodes new ids, and writes their chunks when enough of them wait.

    Args:
        target: A replay that is bound.
        on_flush: Called after every write.
    """

    def __init__(self, target: SequenceReplayBuffer, on_flush: Callable[[], None]) -> None:
        self._target = target
        self._on_flush = on_flush
        self._row_bytes = max(1, target.spec.row_bytes)
        # What is written is read from the target itself: an interrupt cannot come in between.
        self._before = target.storage.table.counters
        self._next_id = self._before.next_episode
        self._waiting: list[Chunk] = []
        self._waiting_rows = 0
        self._digest = Digest()
        self._put_rows = 0
        self._ends = array("q")
        """Rows put by the end of each episode."""
        self.max_rows = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // self._row_bytes))
        """Rows of the largest chunk that `put` likes to be given."""

    @property
    def rows(self) -> int:
        """Rows written."""
        return self._target.storage.table.counters.next_row_id - self._before.next_row_id

    @property
    def steps(self) -> int:
        """Env steps written; the row of a reset is none."""
        return self._target.storage.table.counters.total_steps - self._before.total_steps

    @property
    def episodes(self) -> int:
        """Episodes of which all is written."""
        return bisect_right(self._ends, self.rows)

    @property
    def raw_bytes(self) -> int:
        """Bytes of the rows written, uncompressed."""
        return self.rows * self._row_bytes

    @property
    def digest(self) -> str:
        """Fingerprint of the rows written, 16 hexadecimal digits."""
        return self._digest.hexdigest()

    def put(self, chunks: Iterable[Chunk]) -> None:
        """Take up one episode: all its chunks, the oldest first."""
        for chunk in chunks:
            if self._is_full():
                self.flush()
            self._waiting.append(replace(chunk, episode=self._next_id))
            self._waiting_rows += chunk.rows
            self._put_rows += chunk.rows
        self._ends.append(self._put_rows)
        self._next_id += 1
        if self._is_full():
            self.flush()

    def flush(self) -> None:
        """Write what waits, and tell."""
        self._target.add(self._waiting)
        for chunk in self._waiting:
            self._digest.update(chunk)
        self._waiting, self._waiting_rows = [], 0
        self._on_flush()

    def _is_full(self) -> bool:
        rows = self._waiting_rows
        return (
            rows * self._row_bytes >= _CHUNK_BYTES
            or rows >= _CHUNK_ROWS
            or len(self._waiting) >= _CHUNKS_A_FLUSH
        )


def check_new(target: SequenceReplayBuffer) -> None:
    """Refuse a target that is in use.

    Raises:
        ValueError: It holds something, or lies in a folder that does.
    """
    if target.is_bound:
        where = "in RAM" if target.path is None else str(target.path)
        raise ValueError(
            f"the target {where} is in use already ({target.steps:,} steps), expected a new "
            f"replay: give SequenceReplayBuffer(), or one in a new folder"
        )
    if target.path is not None:
        StoreFolder(target.path, Files()).check_unused()
