"""A process that writes as fast as it can, and one that checks every row that it has stored."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from stepwell.buffers import DiskStorage, End, Episode, NotEnoughData, SequenceReplayBuffer
from stepwell.buffers.storage.disk.files import Files
from stepwell.buffers.storage.disk.folder import StoreFolder
from stepwell.buffers.testing import SPEC, Recording, rows_of
from support.crash.disk_faults import NoSyncFiles

_PATIENCE_SECONDS = 100.0


def write_fast(path: Path, calls: int, capacity: int | None) -> int:
    """Add as fast as it goes; returns how many chunks were evicted."""
    rng, recording = np.random.default_rng(0), Recording()
    with DiskStorage.create(
        path, SPEC, capacity=capacity, segment_bytes=1 << 16, files=NoSyncFiles()
    ) as storage:
        for _ in range(calls):
            ends = np.where(rng.random(3) < 0.1, End.TERMINATED, End.NONE).tolist()
            storage.add(
                [
                    recording.chunk(stream, int(rng.integers(1, 25)), End(end))
                    for stream, end in enumerate(ends)
                ]
            )
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
            numbers = np.ascontiguousarray(batch.observation[:, :, 0, :4]).view("<u4")[..., 0]
            assert (np.diff(numbers.astype(int), axis=1) == 1).all()
            assert (batch.is_first == (numbers == 0)).all()
            drawn += batch.reward.size
    return states, rows, drawn


def assert_right(episode: Episode) -> None:
    """Every row is what it must be, but for pixels of noise, which follow from its chunk."""
    number = np.arange(episode.first_row, episode.first_row + episode.rows)
    for name, true in rows_of(episode.id, episode.first_row, episode.rows).items():
        is_same = episode.fields[name] == true
        if name == "observation":
            is_same[number % 7 == 0, 1:] = True
        assert is_same.all(), (episode.id, name)
    assert episode.first_row or episode.metadata == {"seed": episode.id}
