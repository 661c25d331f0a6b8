"""What a store holds, in numbers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepwell.buffers import Chunk, Digest, End, SequenceReplayBuffer, Spec
from stepwell.buffers.storage.chunk_codec import ChunkDecoder
from stepwell.buffers.storage.disk.storage import DiskStorage
from stepwell.collectors.report import format_bytes

__all__ = ["StoreFacts", "digest_of", "disk_bytes_of", "facts_of", "size_in_words"]


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What a store holds.

    Args:
        path: Its folder.
        spec: The fields of every row.
        sessions: Facts about the runs that wrote it, the oldest first.
        capacity: Steps it keeps at most.
        capacity_bytes: Bytes it keeps at most.
        steps: Env steps stored now.
        total_steps: Env steps ever stored.
        terminated: Episodes that ended like that.
        truncated: Episodes that ended like that, and not terminated.
        cut: Episodes of which the end was not recorded.
        beheaded: Episodes whose beginning was evicted, or lost.
        lost_chunks: Chunks that a repair took out.
        returns: [E] of the episodes that are there from beginning to end, by their ids.
        lengths: [E] env steps of the same.
        raw_bytes: Bytes of the stored rows uncompressed, each frame counted once.
        stored_bytes: Bytes of the same rows as they are stored.
        disk_bytes: Bytes that the folder's files take.
    """

    path: str
    spec: Spec
    sessions: Sequence[Mapping[str, object]]
    capacity: int | None
    capacity_bytes: int | None
    steps: int
    total_steps: int
    terminated: int
    truncated: int
    cut: int
    beheaded: int
    lost_chunks: int
    returns: np.ndarray
    lengths: np.ndarray
    raw_bytes: int
    stored_bytes: int
    disk_bytes: int

    @property
    def episodes(self) -> int:
        """Episodes of which rows are stored."""
        return self.terminated + self.truncated + self.cut

    @property
    def compression(self) -> float:
        """How many times smaller than its rows uncompressed the store is on disk."""
        return self.raw_bytes / self.disk_bytes if self.disk_bytes else 0.0

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "path": self.path,
            "spec": self.spec.to_json(),
            "sessions": [dict(session) for session in self.sessions],
            "capacity": self.capacity,
            "capacity_bytes": self.capacity_bytes,
            "steps": self.steps,
            "total_steps": self.total_steps,
            "episodes": self.episodes,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "cut": self.cut,
            "beheaded": self.beheaded,
            "lost_chunks": self.lost_chunks,
            "returns": spread_of(self.returns),
            "lengths": spread_of(self.lengths),
            "raw_bytes": self.raw_bytes,
            "stored_bytes": self.stored_bytes,
            "disk_bytes": self.disk_bytes,
            "compression": self.compression,
        }


def facts_of(path: Path) -> StoreFacts:
    """Read what a store holds; of its rows only the rewards are decoded.

    Raises:
        StoreNotFound: There is no store in the folder.
    """
    with DiskStorage.open(path, read_only=True) as storage:
        records = storage.table.records
        tails = np.sort(records[records["is_tail"] == 1], order="episode")
        ends = tails["end"]
        is_terminated = (ends & End.TERMINATED) != 0
        is_truncated = ((ends & End.TRUNCATED) != 0) & ~is_terminated
        is_whole = (is_terminated | is_truncated) & (tails["head"] == 0)
        whole = tails[is_whole]
        returns = _returns(storage)
        return StoreFacts(
            path=str(path),
            spec=storage.spec,
            sessions=tuple(storage.sessions),
            capacity=storage.capacity,
            capacity_bytes=storage.capacity_bytes,
            steps=storage.table.steps,
            total_steps=storage.table.total_steps,
            terminated=int(is_terminated.sum()),
            truncated=int(is_truncated.sum()),
            cut=int((~is_terminated & ~is_truncated).sum()),
            beheaded=int((tails["head"] > 0).sum()),
            lost_chunks=storage.lost_chunks,
            returns=np.array(
                [returns[episode] for episode in whole["episode"].tolist()], np.float64
            ),
            lengths=whole["first_row"] + whole["rows"] - 1,
            raw_bytes=storage.table.rows * storage.spec.row_bytes,
            stored_bytes=int(records["nbytes"].sum()),
            disk_bytes=disk_bytes_of(path),
        )


def disk_bytes_of(folder: Path) -> int:
    """Bytes that the files of a store take."""
    return sum(
        os.lstat(os.path.join(where, name)).st_size
        for where, _, names in os.walk(folder)
        for name in names
    )


def size_in_words(disk_bytes: int, raw_bytes: int, stored_bytes: int | None = None) -> list[str]:
    """The size of a store, in parts of a sentence.

    Args:
        disk_bytes: What its files take.
        raw_bytes: What its rows would take uncompressed, each frame counted once.
        stored_bytes: What its rows take in the files; None where that is not known.

    Example:
        >>> size_in_words(2_500_000, 352_800_000, 2_400_000)
        ['2.5 MB on disk', 'rows 2.4 MB of it', 'raw 352.8 MB', '141x smaller']
        >>> size_in_words(91_757, 16_900, 13_500)[-1]
        '5.43x larger: files take room in advance'
    """
    parts = [f"{format_bytes(disk_bytes)} on disk"]
    if stored_bytes is not None:
        parts.append(f"rows {format_bytes(stored_bytes)} of it")
    parts.append(f"raw {format_bytes(raw_bytes)}")
    if 0 < raw_bytes < disk_bytes:
        parts.append(f"{_times(disk_bytes / raw_bytes)} larger: files take room in advance")
    elif disk_bytes and raw_bytes / disk_bytes >= 1.05:
        parts.append(f"{_times(raw_bytes / disk_bytes)} smaller")
    return parts


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.3g}x"


def digest_of(path: Path) -> str:
    """Fingerprint of all rows, equal to the one that `collect` reports for a store's first run."""
    digest = Digest()
    with SequenceReplayBuffer.open(path, read_only=True) as replay:
        for episode in replay.iter_episodes():
            digest.update(
                Chunk(episode.id, episode.stream, episode.first_row, episode.end, episode.fields)
            )
    return digest.hexdigest()


def spread_of(numbers: np.ndarray) -> dict[str, float] | None:
    """Mean, standard deviation, least and greatest; None of nothing."""
    if not len(numbers):
        return None
    return {
        "mean": float(numbers.mean()),
        "std": float(numbers.std()),
        "min": float(numbers.min()),
        "max": float(numbers.max()),
    }


def _returns(storage: DiskStorage) -> dict[int, float]:
    """Sum of the stored rewards, by episode."""
    reader = ChunkDecoder(storage.spec)
    place = [field.name for field in storage.spec.fields].index("reward")
    totals: dict[int, float] = {}
    for position in range(storage.table.base, storage.table.base + len(storage.table)):
        record = storage.table.record(position)
        if not record.rows:  # its one row is in the next chunk again
            continue
        buffer, origin = storage.payload(position)
        rewards = np.empty(record.rows, np.float64)
        reader.read(buffer, origin, record.stored_rows, place, 0, rewards)
        totals[record.episode] = totals.get(record.episode, 0.0) + float(rewards.sum())
    return totals
