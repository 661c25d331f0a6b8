"""Rows that contain their place, so that a reader can check each row on its own."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from stepwell.buffers import (
    Batch,
    Chunk,
    DiskStorage,
    End,
    Episode,
    Field,
    NotEnoughData,
    SequenceReplayBuffer,
    Spec,
)
from stepwell.buffers.storage.disk.files import Files
from stepwell.buffers.storage.disk.folder import StoreFolder
from support.crash.disk_faults import NoSyncFiles

NUMBERED = Spec(
    (
        Field("observation", "uint8", (8, 16), "zstd"),
        Field("action", "int64", (), "narrow"),
        Field("reward", "float64", (), "raw"),
    ),
    observation="observation",
    action="action",
)

STREAMS = 3
_PATIENCE_SECONDS = 100.0


def numbered(episodes: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Values of rows [n] of episodes [n]."""
    frames = np.empty((len(rows), 8, 16), np.uint8)
    label = np.stack([episodes, rows], axis=1).astype("<i8")
    frames[:, 0] = label.view(np.uint8).reshape(-1, 16)
    mixed = (label @ np.array([2_654_435_761, 40_503]))[:, None] * np.arange(1, 113)
    frames[:, 1:] = (mixed >> 7).astype(np.uint8).reshape(-1, 7, 16)
    return {
        "observation": frames,
        "action": episodes * 1_000 + rows + 1,
        "reward": episodes + rows / 64,
    }


def numbered_chunk(
    episode: int, first: int, count: int, end: End = End.NONE, stream: int = 0
) -> Chunk:
    rows = np.arange(first, first + count)
    fields = numbered(np.full(count, episode), rows)
    return Chunk(episode, stream, first, end, fields, {"seed": episode} if first == 0 else {})


def place_of(frame: np.ndarray) -> tuple[int, int]:
    """Episode and place of a row, read from its observation."""
    episode, row = np.ascontiguousarray(frame[0]).view("<i8").tolist()
    return episode, row


def assert_numbered_batch(batch: Batch) -> None:
    """Every row is what it must be, and every window is a run of one episode's rows."""
    for b in range(len(batch.reward)):
        episode, first = place_of(batch.observation[b, 0])
        rows = np.arange(first, first + len(batch.reward[b]))
        true = numbered(np.full(len(rows), episode), rows)
        assert (batch.observation[b] == true["observation"]).all(), (episode, first)
        assert (batch.action[b] == true["action"]).all(), (episode, first)
        assert (batch.reward[b] == true["reward"].astype(np.float32)).all(), (episode, first)
        assert batch.is_first[b].tolist() == (rows == 0).tolist(), (episode, first)
        assert not batch.is_last[b, :-1].any(), (episode, first)


def assert_numbered_episode(episode: Episode) -> None:
    """Every row is what it must be."""
    rows = np.arange(episode.first_row, episode.first_row + episode.rows)
    for name, true in numbered(np.full(len(rows), episode.id), rows).items():
        assert (episode.fields[name] == true).all(), (episode.id, name)
    if episode.first_row == 0:
        assert episode.metadata == {"seed": episode.id}


def write_fast(path: Path, calls: int, capacity: int | None, pause: float = 0.0) -> int:
    """Add as fast as it goes; returns how many chunks were evicted."""
    rng = np.random.default_rng(0)
    following, open_ones = 0, dict[int, tuple[int, int]]()
    with DiskStorage.create(
        path, NUMBERED, capacity=capacity, segment_bytes=1 << 16, files=NoSyncFiles()
    ) as storage:
        for _ in range(calls):
            chunks: list[Chunk] = []
            for stream in range(STREAMS):
                if stream not in open_ones:
                    open_ones[stream] = following, 0
                    following += 1
                (episode, first), count = open_ones[stream], int(rng.integers(1, 25))
                end = End.TERMINATED if rng.random() < 0.1 else End.NONE
                chunks.append(numbered_chunk(episode, first, count, end, stream))
                open_ones[stream] = episode, first + count
                if end.is_final:
                    del open_ones[stream]
            storage.add(chunks)
            time.sleep(pause)
        return storage.index.base


def follow(path: Path) -> tuple[int, int, int]:
    """Check every row of every state of a store until its writer closes it.

    Returns:
        How many states were seen, how many rows checked, and how many of them drawn.
    """
    states = rows = drawn = 0
    folder = StoreFolder(path, Files())
    give_up = time.monotonic() + _PATIENCE_SECONDS  # for where the writer fails
    while not folder.is_store and time.monotonic() < give_up:
        time.sleep(0.001)
    with SequenceReplayBuffer.open(path, read_only=True, seed=0) as replay:
        is_going_on = True
        while is_going_on and time.monotonic() < give_up:
            is_going_on = folder.is_being_written  # read first, so that its last rows are seen
            states += replay.refresh()
            for episode in replay.iter_episodes():
                assert_numbered_episode(episode)
                rows += episode.rows
            try:
                batch = replay.sample_sequences(16, length=7)
            except NotEnoughData:
                continue
            assert_numbered_batch(batch)
            drawn += batch.reward.size
    return states, rows, drawn
