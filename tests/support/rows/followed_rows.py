"""A process that writes as fast as it can, and one that checks every row that it has stored."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from stepwell.buffers import DiskStorage, Episode, NotEnoughData, SequenceReplayBuffer
from stepwell.buffers.storage.disk.files import Files
from stepwell.buffers.storage.disk.folder import StoreFolder
from support.crash.disk_faults import NoSyncFiles
from support.rows.labelled_rows import SPEC, Player, labels_of, rows_of

_PATIENCE_SECONDS = 100.0


def write_fast(path: Path, chunks: int, capacity: int | None) -> int:
    """Add as fast as it goes; returns how many chunks were evicted."""
    with DiskStorage.create(
        path, SPEC, capacity=capacity, segment_bytes=1 << 16, files=NoSyncFiles()
    ) as storage:
        Player(storage, 0).play(chunks)
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
                assert_right(episode)
                rows += episode.rows
            try:
                batch = replay.sample_sequences(16, length=7)
            except NotEnoughData:
                continue
            labels_of(batch.observation)  # which are consecutive
            assert (batch.is_first == (batch.observation[..., 2] == 0)).all()
            drawn += batch.reward.size
    return states, rows, drawn


def assert_right(episode: Episode) -> None:
    """Every row is what it must be."""
    stop = episode.first_row + episode.rows
    for name, rows in rows_of(0, episode.id, episode.first_row, stop).items():
        assert np.array_equal(episode.fields[name], rows), (episode.id, name)
    assert episode.metadata == {"store": 0, "number": episode.id}
