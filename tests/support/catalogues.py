"""A small catalogue of one's own, in a folder."""

from __future__ import annotations

from pathlib import Path

import stepwell as sw
from stepwell.collectors import Dataset, add_dataset


def small_catalogue(folder: Path, name: str = "pole/random") -> tuple[Path, Dataset]:
    """The index of a catalogue with some episodes of CartPole, and its entry."""
    folder.mkdir(parents=True, exist_ok=True)
    replay = sw.SequenceReplayBuffer()
    envs = sw.make_vec("CartPole-v1", 2, num_workers=0)
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=3) as collector:
        collector.collect(steps=150)
    index, archive = folder / "index.toml", folder / "pole.swa"
    if not archive.exists():
        sw.archive(replay, archive, lanes=1)
    entry = add_dataset(index, name, archive, replay, policy="random", license="mit")
    return index, entry
