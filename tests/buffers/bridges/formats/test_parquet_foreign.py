"""Imports of Parquet files that Stepwell did not write."""

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
from support.notes import assert_notes, has_note

pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")


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
    assert_notes(
        report.notes,
        "stream 0",
        r"\b1 terminated.*no final observation",
        r"\b2 .*not terminated.*no final observation.*cut",
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
    assert_notes(report.notes, "stream 0")


@pytest.mark.parametrize("at_once", [1, 2, 3, 4, 1024])
def test_without_an_episode_column_episodes_begin_after_ends(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_BATCH_ROWS", at_once)
    episodes, report = read(tmp_path, columns(episode=None))
    assert [episode.action.tolist() for episode in episodes] == [[10, 11, 12, 0], [20, 21], [30]]
    assert has_note(report.notes, "no column 'episode'.*terminated and truncated")


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
    assert has_note(report.notes, "no column 'truncated'")
    assert has_note(report.notes, "not read.*comment")


@pytest.mark.parametrize("missing", ["observation", "action", "reward", "terminated"])
def test_a_missing_column_is_named_with_the_option_that_names_another(
    missing: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"a\.parquet.*'{missing}'.*option {missing}"):
        read(tmp_path, columns(**{missing: None}))


def test_pictures_are_decoded_and_lossy_ones_are_noted(tmp_path: Path) -> None:
    import cv2

    pixels = np.random.default_rng(0).integers(0, 256, (6, 16, 17, 3), np.uint8)
    png = [{"bytes": file, "path": None} for file in encoded_rows(pixels, "hwc")]
    (first, *_), report = read(tmp_path, columns(observation=png))
    assert np.array_equal(first.observation[:3], pixels[:3])
    assert not has_note(report.notes, "JPEG")
    jpeg = [cv2.imencode(".jpg", one)[1].tobytes() for one in pixels]
    (first, *_), report = read(tmp_path, columns(observation=jpeg))
    assert first.observation.shape == (4, 16, 17, 3)
    assert has_note(report.notes, "JPEG")


def test_nested_lists_and_tensors_are_arrays(tmp_path: Path) -> None:
    cube = np.arange(6 * 2 * 3, dtype=np.int16).reshape(6, 2, 3)
    (first, *_), _ = read(tmp_path, columns(observation=cube.tolist()))
    assert first.observation.tolist() == [*cube[:3].tolist(), cube[2].tolist()]
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(cube)
    (first, *_), _ = read(tmp_path, columns(observation=tensors))
    assert first.observation.dtype == np.int16
    assert first.observation.tolist() == [*cube[:3].tolist(), cube[2].tolist()]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"observation": [[1.0], [1.0, 2.0]] * 3}, r"'observation'.*lists of 1 and of 2"),
        ({"observation": ["a"] * 6}, r"'observation'.*string"),
        ({"observation": [b"ab"] * 6}, r"'observation'.*picture 0\b.*PNG.*got 2\b"),
        ({"action": [1, 2, None, 4, 5, 6]}, r"'action'.*\b1 of 6"),
        ({"reward": [2**60] * 6}, r"rewards.*float64.*2\*\*53"),
        ({"terminated": [0, 2, 0, 0, 0, 0]}, r"a\.parquet.*'terminated'.*int64.*\(6,\)"),
        ({"terminated": [True] * 6}, r"terminated.*step 0 of episode 0.*option episode"),
        ({"episode": [7, 7, 7, 9, 9, 7]}, r"episode 7\b.*'episode'"),
    ],
)
def test_invalid_columns_are_refused(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=match):
        read(tmp_path, columns(**change))


def test_missing_damaged_and_different_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere.*Parquet"):
        import_episodes("parquet", tmp_path / "nowhere", SequenceReplayBuffer())
    with pytest.raises(ValueError, match=r"\*\.parquet.*none"):
        import_episodes("parquet", tmp_path, SequenceReplayBuffer())
    with pytest.raises(ValueError, match=rf"{tmp_path.name}.*row.*none"):
        read(tmp_path, pa.table(columns()).slice(0, 0))
    pq.write_table(pa.table(columns(episode=None)), tmp_path / "b.parquet")
    pq.write_table(pa.table(columns()), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"b\.parquet.*a\.parquet.*, episode, got "):
        import_episodes("parquet", tmp_path, SequenceReplayBuffer())
    other = columns(observation=[[1.0]] * 6, episode=[1, 1, 1, 2, 2, 3])
    pq.write_table(pa.table(other), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"'observation'.*\(2,\).*\(1,\)"):
        import_episodes("parquet", tmp_path, SequenceReplayBuffer())
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no table")
    with pytest.raises(ValueError, match=r"a\.parquet.*Parquet file"):
        import_episodes("parquet", tmp_path, SequenceReplayBuffer())
