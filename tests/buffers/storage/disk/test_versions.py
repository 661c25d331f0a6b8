"""Stores of every released format version can be read."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from stepwell.buffers import Chunk, End, Field, SequenceReplayBuffer, Spec, verify
from stepwell.buffers.storage.disk.storage import DiskStorage

STORES = Path(__file__).parents[3] / "stores"
DIGEST = "7c4ed72a98a55b3a"
SPEC = Spec(
    (
        Field("observation/screen", "uint8", (9, 8), "zstd", stack=2, stack_padding="repeat"),
        Field("observation/place", "float32", (2,), "raw"),
        Field("action", "int64", (), "narrow"),
        Field("reward", "float64", (), "narrow"),
        Field("info/lives", "int16", (), "narrow"),
    ),
    observation={"screen": "observation/screen", "place": "observation/place"},
    action="action",
)


def rows(episode: int, first: int, stop: int) -> dict[str, np.ndarray]:
    t = np.arange(first, stop)
    screen = (t[:, None] * 7 + np.arange(72) * (episode + 1)) % 256
    return {
        "observation/screen": screen.astype(np.uint8).reshape(-1, 9, 8),
        "observation/place": np.stack([t / 2, np.full(len(t), -0.0)], 1).astype(np.float32),
        "action": t * 100 + episode,
        "reward": t / 4 + episode,
        "info/lives": (3 - t % 3).astype(np.int16),
    }


def write(path: Path) -> None:
    """Write such a store; kept to document the contents of those in tests/stores."""
    storage = DiskStorage.create(path, SPEC, segment_bytes=6_000, provenance={"made": "by hand"})
    with SequenceReplayBuffer(seed=1) as replay:
        replay._use(storage)
        replay.bind(SPEC, {"recipe": {"game": "none"}, "seed": "5"})
        for episode in range(6):
            stream, facts = episode % 2, {"task": "odd" if episode % 2 else "even"}
            end = End.TRUNCATED if episode == 3 else End.TERMINATED
            replay.add([Chunk(episode, stream, 0, End.PENDING, rows(episode, 0, 8), facts)])
            replay.add([Chunk(episode, stream, 7, End.NONE, rows(episode, 7, 14), facts)])
            if episode != 4:  # episode 4 is cut
                replay.add([Chunk(episode, stream, 14, end, rows(episode, 14, 20), facts)])
        replay.save_checkpoint({"updates": 12, "weights": np.arange(3.0)})
        # As a killed writer leaves it: nothing sealed, nothing truncated.
        shutil.copytree(path, path.with_name(f"{path.name}-killed"))


@pytest.mark.parametrize("version", sorted(path.name for path in STORES.iterdir()))
def test_a_store_of_each_version_is_read_verified_and_continued(
    tmp_path: Path, version: str
) -> None:
    path = Path(shutil.copytree(STORES / version, tmp_path / "a"))
    assert verify(path).is_whole
    with SequenceReplayBuffer.open(path, read_only=True) as replay:
        assert replay.digest() == DIGEST
        assert replay.spec == SPEC
        assert replay.sessions[0]["recipe"] == {"game": "none"}
        episodes = list(replay.iter_episodes())
        assert [episode.rows for episode in episodes] == [20, 20, 20, 20, 14, 20]
        for episode in episodes:
            expected = rows(episode.id, 0, episode.rows)
            for name, values in expected.items():
                assert episode.fields[name].tobytes() == values.tobytes()
        assert [bool(e.cut[-1]) for e in episodes] == [e.id == 4 for e in episodes]
        assert episodes[3].truncated[-1]
        assert len(list(replay.iter_episodes(where={"task": "odd"}))) == 3
        learner = replay.load_checkpoint()
        assert (learner["updates"], learner["weights"].tolist()) == (12, [0, 1, 2])
    with SequenceReplayBuffer(path) as replay:
        replay.add([Chunk(6, 0, 0, End.TERMINATED, rows(6, 0, 5), {})])
        assert replay.episodes == 7
    assert verify(path).is_whole
