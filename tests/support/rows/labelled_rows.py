"""Rows that contain their store, episode and place, and storages full of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from stepwell.buffers import Chunk, End, Episode, Field, Spec, Storage

SPEC = Spec(
    (
        Field("observation", "int64", (3,), "narrow"),
        Field("action", "int64", (), "narrow"),
        Field("reward", "float64", (), "narrow"),
        Field("info/picture", "uint8", (8, 8), "zstd"),
    ),
    observation="observation",
    action="action",
)
ENDS = (End.NONE, End.PENDING, End.TERMINATED, End.TRUNCATED, End.TERMINATED | End.TRUNCATED)


class Label(NamedTuple):
    """The store, episode and place that a row contains."""

    store: int
    episode: int
    row: int


def rows_of(store: int, episode: int, first: int, stop: int) -> dict[str, np.ndarray]:
    """Rows of an episode."""
    row = np.arange(first, stop)
    label = np.stack([np.full_like(row, store), np.full_like(row, episode), row], 1)
    pictures = np.full((len(row), 8, 8), episode % 251, np.uint8)
    pictures[:, 0, 0] = row % 256
    return {
        "observation": label,
        "action": row * 31 + episode,
        "reward": np.where(row > 0, row % 7 - 3.0, 0.0),
        "info/picture": pictures,
    }


def whole(store: int, episode: int, rows: int, end: End = End.TERMINATED, stream: int = 0) -> Chunk:
    """A whole episode in one chunk."""
    metadata = {"store": store, "number": episode}
    return Chunk(episode, stream, 0, end, rows_of(store, episode, 0, rows), metadata)


class Player:
    """Adds chunks as a collector does: each stream plays one episode after the other."""

    # `store` is the one in the label of each row; the seed is for lengths and ends.

    def __init__(self, storage: Storage, store: int, seed: int = 0, streams: int = 3) -> None:
        self._storage = storage
        self._store = store
        self._rng = np.random.default_rng([seed, store])
        self._streams = streams
        self._next_episode = 0
        self._open: dict[int, tuple[int, int, bool]] = {}

    def play(self, chunks: int) -> None:
        """Add so many chunks."""
        for _ in range(chunks):
            stream = int(self._rng.integers(self._streams))
            episode, rows, pending = self._open.pop(stream, (self._next_episode, 0, False))
            self._next_episode += not rows
            stop = rows + int(self._rng.integers(1, 12))
            end = ENDS[self._rng.integers(len(ENDS))]
            fields = rows_of(self._store, episode, rows - pending, stop)
            metadata = {"store": self._store, "number": episode}
            self._storage.add([Chunk(episode, stream, rows - pending, end, fields, metadata)])
            if not end.is_final:
                self._open[stream] = (episode, stop, bool(end & End.PENDING))


def labels_of(observation: np.ndarray) -> list[Label]:
    """Read the first rows of windows [B, T, 3], and check that all rows of each are consecutive."""
    first = observation[:, 0]
    assert (observation[:, :, :2] == first[:, None, :2]).all()
    assert (np.diff(observation[:, :, 2], axis=1) == 1).all()
    return [Label(*label) for label in first.tolist()]


def contents_of(episode: Episode) -> tuple[int, int, End, dict[str, bytes], Mapping[str, object]]:
    """All that is to be the same in a copy of an episode, whatever its id."""
    rows = {name: rows.tobytes() for name, rows in episode.fields.items()}
    return episode.stream, episode.first_row, episode.end, rows, dict(episode.metadata)
