"""Stores that are archived in tests, and what is compared of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import stepwell as sw
from stepwell.buffers.provenance.archive_file import ArchiveFile, SectionWriter
from stepwell.buffers.provenance.archived_store import ArchivedStore, is_kept
from stepwell.collectors import RandomPolicy
from support.envs.scrambled import ScrambledEnv

Section: TypeAlias = "tuple[str, int]"


class WithExtras:
    """A random policy that returns extras.

    Args:
        seed: Its seed.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, observation: Any, is_first: np.ndarray) -> tuple[Any, dict[str, Any]]:
        count = len(is_first)
        extras = {
            "log_prob": self.rng.normal(size=count).astype(np.float32),
            "state": self.rng.integers(-9, 9, (count, 3)),
        }
        return self.rng.integers(0, 6, count), extras


def record(
    folder: Path | None,
    runs: Sequence[Sequence[int]],
    *,
    actions: str = "discrete",
    envs: int = 2,
    has_extras: bool = False,
    has_info: bool = False,
    capacity: int | None = None,
    length: int = 7,
) -> sw.SequenceReplayBuffer:
    """A closed store (or one in RAM) of several runs, each of several calls of `collect`."""
    make = partial(ScrambledEnv, actions, length)
    replay = sw.SequenceReplayBuffer(folder, capacity=capacity)
    for run, calls in enumerate(runs):
        if folder is not None and run:
            replay = sw.SequenceReplayBuffer(folder, capacity=capacity)
        vector = SyncVectorEnv([make] * envs, autoreset_mode=AutoresetMode.SAME_STEP)
        policy = WithExtras(run) if has_extras else RandomPolicy()
        info = {"level": -1} if has_info else None
        with sw.Collector(vector, policy, replay, seed=run, info=info) as collector:
            for steps in calls:
                collector.collect(steps=steps)
        if folder is not None:
            replay.close()
    if folder is None:
        return replay
    return sw.SequenceReplayBuffer.open(folder, read_only=True)


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of a store.

    But for its lock, which names the last writer, and its ledger, which may hold the same actions
    in other records.
    """
    names = {path.name for path in folder.iterdir()} - {"LOCK", "ledger.bin"}
    return {name: (folder / name).read_bytes() for name in sorted(names)}


def contents_of(replay: sw.SequenceReplayBuffer) -> list[Any]:
    """All that readers see of a replay's episodes."""
    return [
        (
            episode.id,
            episode.stream,
            episode.first_row,
            episode.end,
            dict(episode.metadata),
            {name: (rows.dtype, rows.tobytes()) for name, rows in episode.fields.items()},
        )
        for episode in replay.iter_episodes()
    ]


def repacked(source: Path, target: Path, change: Callable[[dict[Section, bytes]], None]) -> None:
    """Write an archive again with other contents, and with the right checksums.

    Args:
        source: The archive.
        target: The new file.
        change: Changes the contents of the sections, by kind and number.
    """
    with ArchiveFile(source) as file:
        sections = {section: file.read(*section) for section in file.sections}
    change(sections)
    with target.open("wb") as new:
        writer = SectionWriter(new)
        for (kind, number), contents in sections.items():
            writer.add(kind, contents, number)
        writer.finish()


def opened(path: Path) -> ArchivedStore:
    """The contents of an archive, all of which were read."""
    with ArchivedStore(ArchiveFile(path)) as archived:
        storage = archived.actions()
        for position in range(len(storage.index)):
            storage.payload(position)
        for field in archived.spec.fields:
            if is_kept(field):
                archived.rows(field.name, 0, int(archived.table.rows.sum()))
        return archived
