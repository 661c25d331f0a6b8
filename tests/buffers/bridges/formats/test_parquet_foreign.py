"""Parquet files of somebody else's: what is read, what cannot be told, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import End, Episode, SequenceReplayBuffer
from stepwell.buffers.bridges import ImportReport, import_episodes
from stepwell.buffers.bridges.formats import parquet
from stepwell.buffers.bridges.formats.png import encoded_rows
from support.exchanged_stores import episodes_of

pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")

STREAMS = "streams and metadata are not recorded: all episodes are of stream 0"


def columns(**changes: Any) -> dict[str, Any]:
    """Three episodes of 3, 2 and 1 steps: terminated, truncated, neither."""
    found = {
        "observation": [[1.0, 2.0], [1.0, 3.0], [1.0, 4.0], [2.0, 2.0], [2.0, 3.0], [3.0, 2.0]],
        "action": [10, 11, 12, 20, 21, 30],
        "reward": [0.25, 0.5, 1.0, 2.0, 3.0, 4.0],
        "terminated": [False, False, True, False, False, False],
        "truncated": [False, False, False, False, True, False],
        "episode": [7, 7, 7, 9, 9, 8],
        **changes,
    }
    return {name: values for name, values in found.items() if values is not None}


def read(folder: Path, table: Any, **options: object) -> tuple[list[Episode], ImportReport]:
    """Write a table, and import it."""
    pq.write_table(pa.table(table), folder / "a.parquet")
    replay = SequenceReplayBuffer()
    report = import_episodes("parquet", folder, replay, options=options)
    return episodes_of(replay), report


def test_missing_final_observations_are_not_invented(tmp_path: Path) -> None:
    (first, second, third), report = read(tmp_path, columns())
    assert first.end is End.TERMINATED
    assert first.observation.tolist() == [[1, 2], [1, 3], [1, 4], [1, 4]]
    assert first.action.tolist() == [10, 11, 12, 0]
    assert first.reward.tolist() == [0, 0.25, 0.5, 1.0]
    assert second.end is End.NONE
    assert second.observation.tolist() == [[2, 2], [2, 3]]
    assert second.action.tolist() == [20, 21]
    assert second.reward.tolist() == [0, 2.0]
    assert third.end is End.NONE
    assert (third.rows, third.action.tolist(), third.reward.tolist()) == (1, [30], [0])
    assert report.notes == (
        STREAMS,
        "1 terminated episodes have no final observation: the last one is there twice, which no "
        "learner bootstraps from",
        "2 episodes that were not terminated have no final observation: they end with a cut at "
        "their last one, without the reward that came after it",
    )


def test_final_observations_come_from_next_observation(tmp_path: Path) -> None:
    following = [[1.0, 3.0], [1.0, 4.0], [1.0, 5.0], [2.0, 3.0], [2.0, 4.0], [3.0, 3.0]]
    episodes, report = read(tmp_path, columns(next_observation=following))
    assert [episode.end for episode in episodes] == [End.TERMINATED, End.TRUNCATED, End.NONE]
    assert [episode.observation[-1].tolist() for episode in episodes] == [[1, 5], [2, 4], [3, 3]]
    assert [episode.reward.tolist() for episode in episodes] == [
        [0, 0.25, 0.5, 1.0],
        [0, 2.0, 3.0],
        [0, 4.0],
    ]
    assert report.notes == (STREAMS,)


@pytest.mark.parametrize("at_once", [1, 2, 3, 4, 1024])
def test_without_an_episode_column_episodes_begin_after_ends(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_BATCH_ROWS", at_once)
    episodes, report = read(tmp_path, columns(episode=None))
    assert [episode.action.tolist() for episode in episodes] == [[10, 11, 12, 0], [20, 21], [30]]
    assert "no column 'episode': episodes begin behind terminated and truncated" in report.notes


def test_episodes_go_on_from_one_file_to_the_next(tmp_path: Path) -> None:
    whole = pa.table(columns())
    for number, (start, stop) in enumerate([(0, 2), (2, 2), (2, 4), (4, 6)]):
        pq.write_table(whole.slice(start, stop - start), tmp_path / f"{number}.parquet")
    replay = SequenceReplayBuffer()
    import_episodes("parquet", tmp_path, replay)
    assert [episode.action.tolist() for episode in episodes_of(replay)] == [
        [10, 11, 12, 0],
        [20, 21],
        [30],
    ]


def test_options_name_the_columns(tmp_path: Path) -> None:
    names = {
        "observation": "obs.state",
        "action": "act",
        "reward": "rew",
        "terminated": "dones",
        "episode": "traj",
    }
    table = {names.get(name, name): values for name, values in columns(truncated=None).items()}
    table["obs.flag"] = [1, 0, 1, 0, 1, 0]
    table["info/lives"] = [3, 2, 1, 3, 2, 3]
    table["comment"] = ["x"] * 6
    episodes, report = read(
        tmp_path,
        table,
        observation="obs",
        action="act",
        reward="rew",
        terminated="dones",
        episode="traj",
    )
    assert episodes[0].observation["state"].tolist() == [[1, 2], [1, 3], [1, 4], [1, 4]]
    assert episodes[0].observation["flag"].tolist() == [1, 0, 1, 1]
    assert episodes[0].fields["info/lives"].tolist() == [3, 2, 1, 1]
    assert any(note.startswith("no column 'truncated'") for note in report.notes)
    assert "not read: columns comment" in report.notes


@pytest.mark.parametrize("missing", ["observation", "action", "reward", "terminated"])
def test_a_missing_column_is_named_with_the_option_that_names_another(
    missing: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"expected a column '{missing}', got .* option {missing}"):
        read(tmp_path, columns(**{missing: None}))


def test_pictures_are_decoded_and_lossy_ones_are_noted(tmp_path: Path) -> None:
    import cv2

    pixels = np.random.default_rng(0).integers(0, 256, (6, 16, 17, 3), np.uint8)
    png = [{"bytes": file, "path": None} for file in encoded_rows(pixels, "hwc")]
    (first, *_), report = read(tmp_path, columns(observation=png))
    assert np.array_equal(first.observation[:3], pixels[:3])
    assert not [note for note in report.notes if "JPEG" in note]
    jpeg = [cv2.imencode(".jpg", one)[1].tobytes() for one in pixels]
    (first, *_), report = read(tmp_path, columns(observation=jpeg))
    assert first.observation.shape == (4, 16, 17, 3)
    assert any("JPEG" in note for note in report.notes)


def test_nested_lists_and_tensors_are_arrays(tmp_path: Path) -> None:
    cube = np.arange(6 * 2 * 3, dtype=np.int16).reshape(6, 2, 3)
    (first, *_), _ = read(tmp_path, columns(observation=cube.tolist()))
    assert first.observation.tolist() == [*cube[:3].tolist(), cube[2].tolist()]
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(cube)
    (first, *_), _ = read(tmp_path, columns(observation=tensors))
    assert first.observation.dtype == np.int16
    assert first.observation.tolist() == [*cube[:3].tolist(), cube[2].tolist()]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"observation": [[1.0], [1.0, 2.0]] * 3}, "expected rows of one shape, got lists of 1"),
        ({"observation": ["a"] * 6}, "expected numbers, lists of numbers or pictures, got string"),
        ({"observation": [b"ab"] * 6}, "picture 0: expected a PNG or JPEG file, got 2"),
        ({"action": [1, 2, None, 4, 5, 6]}, "expected a value in each row, got none in 1 of 6"),
        ({"reward": [2**60] * 6}, "got integers beyond 2\\*\\*53"),
        ({"terminated": [0, 2, 0, 0, 0, 0]}, "expected column 'terminated' to hold true and false"),
        ({"terminated": [True] * 6}, "terminated to be set in the last step of an episode alone"),
        ({"episode": [7, 7, 7, 9, 9, 7]}, "got rows of episode 7 in two places; sort them"),
    ],
)
def test_invalid_columns_are_refused(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path, columns(**change))


def test_missing_damaged_and_different_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected Parquet files"):
        import_episodes("parquet", tmp_path / "nowhere", SequenceReplayBuffer())
    with pytest.raises(ValueError, match=r"expected files named \*.parquet, got none"):
        import_episodes("parquet", tmp_path, SequenceReplayBuffer())
    with pytest.raises(ValueError, match="expected at least one row, got none"):
        read(tmp_path, pa.table(columns()).slice(0, 0))
    pq.write_table(pa.table(columns(episode=None)), tmp_path / "b.parquet")
    pq.write_table(pa.table(columns()), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"b.parquet: expected the columns of a.parquet, got othe"):
        import_episodes("parquet", tmp_path, SequenceReplayBuffer())
    other = columns(observation=[[1.0]] * 6, episode=[1, 1, 1, 2, 2, 3])
    pq.write_table(pa.table(other), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match="expected the same columns everywhere, got others"):
        import_episodes("parquet", tmp_path, SequenceReplayBuffer())
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no table")
    with pytest.raises(ValueError, match="expected a Parquet file, got another or a damaged one"):
        import_episodes("parquet", tmp_path, SequenceReplayBuffer())
