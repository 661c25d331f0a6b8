"""Stores that are archived in tests, and what is compared of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import stepwell as sw
from stepwell.buffers.curation.stored_episode import stored_episodes
from stepwell.buffers.provenance.archive_file import (
    _pack,  # pyright: ignore[reportPrivateUsage]
    _unpack,  # pyright: ignore[reportPrivateUsage]
    opened,
)
from stepwell.collectors import RandomPolicy
from support.envs.scrambled import ScrambledEnv


class WithExtras:
    """A random policy that returns extras."""

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
    reseed_steps: int | None = 50_000,
) -> sw.SequenceReplayBuffer:
    """A closed store (or one in RAM) of several runs, each of several calls of `collect`.

    With ``reseed_steps=1`` each episode has a seed; else most go on with that of the first one.
    """
    make = partial(ScrambledEnv, actions, length)
    replay = sw.SequenceReplayBuffer(folder, capacity=capacity)
    for run, calls in enumerate(runs):
        if folder is not None and run:
            replay = sw.SequenceReplayBuffer(folder, capacity=capacity)
        vector = SyncVectorEnv([make] * envs, autoreset_mode=AutoresetMode.SAME_STEP)
        policy = WithExtras(run) if has_extras else RandomPolicy()
        info = {"level": -1} if has_info else None
        with sw.Collector(
            vector, policy, replay, seed=run, info=info, reseed_steps=reseed_steps
        ) as collector:
            for steps in calls:
                collector.collect(steps=steps)
        if folder is not None:
            replay.close()
    if folder is None:
        return replay
    return sw.SequenceReplayBuffer.open(folder, read_only=True)


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


def repacked(source: Path, target: Path, change: Callable[[Path], None]) -> None:
    """Write an archive again with a changed folder of its store, and with the right digest."""
    with TemporaryDirectory() as name:
        _unpack(source, Path(name))
        change(Path(name))
        with target.open("w+b") as new:
            _pack(Path(name), new)


def read_all(path: Path) -> None:
    """Open an archive, and read all that is in it."""
    with opened(path) as archived:
        for episode in stored_episodes(archived.storage):
            archived.checksums(episode)
            list(episode.chunks(1 << 10))
