"""Export to and import from npz files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from stepwell.buffers import End, SequenceReplayBuffer
from stepwell.buffers.bridges import export_episodes, import_episodes
from support.exchanged_stores import IMAGE, episodes_of, imported, refused, tagged_store
from support.notes import assert_notes


def test_each_file_is_an_episode(tmp_path: Path) -> None:
    replay = tagged_store()
    export_episodes(replay, "npz", tmp_path / "out")
    for number, episode in enumerate(episodes_of(replay)):
        with np.load(tmp_path / "out" / f"{number:06d}.npz") as arrays:
            found = {name: arrays[name] for name in arrays.files}
        assert sorted(found) == "actions observations rewards terminations truncations".split()
        steps = number + 1
        assert found["observations"].shape == (steps + 1, 6, 5, 3)
        assert [one.ravel()[:3].tolist() for one in found["observations"]] == [
            [number % 2, number, row] for row in range(steps + 1)
        ]
        assert found["actions"].tolist() == [row % 4 for row in range(steps)]
        assert found["rewards"].tolist() == [number + (row + 1) / 4 for row in range(steps)]
        assert found["rewards"].dtype == np.float64
        last = [False] * (steps - 1)
        assert found["terminations"].tolist() == [*last, bool(episode.end & End.TERMINATED)]
        assert found["truncations"].tolist() == [*last, bool(episode.end & End.TRUNCATED)]


def test_a_foreign_folder_is_read(tmp_path: Path) -> None:
    for name, steps in (("b", 2), ("a", 3)):
        np.savez(
            tmp_path / f"{name}.npz",
            **{
                "observations/x": np.arange(steps + 1),
                "observations/inner/y": np.ones((steps + 1, 2), np.float32),
                "actions": np.arange(steps),
                "rewards": np.ones(steps, np.float32) / 3,
                "terminations": np.arange(steps) == 2,
                "truncations": np.arange(steps) == 1 if steps == 2 else np.zeros(steps, bool),
                "infos/lives": np.arange(steps + 1),
            },
        )
    replay, report = imported("npz", tmp_path)
    assert_notes(report.notes, "stream 0")
    first, second = episodes_of(replay)
    assert [first.end, second.end] == [End.TERMINATED, End.TRUNCATED]
    assert first.observation["x"].tolist() == [0, 1, 2, 3]
    assert first.observation["inner"]["y"].shape == (4, 2)
    assert first.action.tolist() == [0, 1, 2, 0]
    assert first.reward.tolist() == [0, *[float(np.float32(1) / 3)] * 3]
    assert second.fields["info/lives"].tolist() == [0, 1, 2]


def save(file: Path, columns: dict[str, np.ndarray]) -> None:
    np.savez(file, **cast("dict[str, Any]", columns))


def arrays(steps: int = 2) -> dict[str, np.ndarray]:
    return {
        "observations": np.zeros((steps + 1, 2)),
        "actions": np.zeros(steps, np.int64),
        "rewards": np.zeros(steps),
        "terminations": np.zeros(steps, np.bool_),
        "truncations": np.zeros(steps, np.bool_),
    }


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"rewards": np.zeros((2, 1))}, r"a\.npz.*rewards.*\[T\].*\(2, 1\)"),
        ({"actions": np.array(["a", "b"])}, r"a\.npz.*'action'.*<U1"),
        ({"speed": np.zeros(2)}, r"a\.npz.*observation, action.*'speed'.*info/speed"),
        ({"observations/x": np.zeros(3)}, r"a\.npz.*'observation'.*'observation/.*both"),
    ],
)
def test_invalid_arrays_are_refused(
    change: dict[str, np.ndarray], match: str, tmp_path: Path
) -> None:
    save(tmp_path / "a.npz", arrays())
    save(tmp_path / "a.npz", {**arrays(), **change})
    replay = SequenceReplayBuffer()
    with pytest.raises(ValueError, match=match):
        import_episodes("npz", tmp_path, replay)
    assert not replay.is_bound


def test_missing_arrays_and_other_files_are_refused(tmp_path: Path) -> None:
    refused("npz", tmp_path, r"\*\.npz.*none")
    (tmp_path / "a.npz").write_bytes(b"PK no zip")
    refused("npz", tmp_path, r"a\.npz.*npz file")
    few = arrays()
    del few["truncations"]
    save(tmp_path / "a.npz", few)
    refused("npz", tmp_path, r"a\.npz.*observations, actions.*add 'truncations'")


def test_a_folder_changed_since_its_export_is_refused(tmp_path: Path) -> None:
    replay = tagged_store(IMAGE)
    export_episodes(replay, "npz", tmp_path / "out")
    file = tmp_path / "out" / "000002.npz"
    with np.load(file) as found:
        kept = {name: found[name][:-1] for name in found.files}
    save(file, kept)
    with pytest.raises(
        ValueError, match=r"episode 2\b.*'observation'.*\(4, 6, 5, 3\).*\(3, 6, 5, 3\)"
    ):
        imported("npz", tmp_path / "out")
    (tmp_path / "out" / "000005.npz").rename(tmp_path / "last.npz")
    refused("npz", tmp_path / "out", r"\b6\b.*\*\.npz.*got 5")
    (tmp_path / "last.npz").rename(tmp_path / "out" / "000005.npz")
    (tmp_path / "out" / "stepwell" / "000002.npz").unlink()
    refused("npz", tmp_path / "out", r"000002\.npz.*episode 2\b.*none")
