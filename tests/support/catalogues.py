"""A small catalogue of one's own, in a folder."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np

import stepwell as sw
from stepwell.collectors import Dataset, add_dataset
from stepwell.collectors.catalogue.index import write_entry


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


def forge(index: Path, entry: Dataset, *, reward: float = 0, **facts: object) -> Path:
    """Let the archive have another reward in an episode or other facts, and the index that."""
    archive = index.parent / entry.archive
    replay, liar = sw.SequenceReplayBuffer(), sw.SequenceReplayBuffer()
    original = archive.with_suffix(".original")
    if not original.exists():
        archive.rename(original)
    sw.restore(original, replay, lanes=1)
    liar.bind(replay.spec, {**replay.sessions[0], **facts})
    writer = sw.buffers.EpisodeWriter(liar)
    for one in replay.iter_episodes():
        fields = {name: np.array(rows) for name, rows in one.fields.items()}
        fields["reward"][-2] += reward if one.id == 2 else 0
        writer.add_episode(replace(one, fields=fields))
    writer.flush()
    archive.unlink(missing_ok=True)
    sw.archive(liar, archive, is_proved=False)
    changed = replace(
        entry,
        sha256=hashlib.sha256(archive.read_bytes()).hexdigest(),
        digest=liar.digest(),
        archive_bytes=archive.stat().st_size,
        versions={**entry.versions, "numpy": "1.0"},
    )
    write_entry(index, changed)
    return index
