"""Imports of Parquet files that Stepwell did not write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from stepwell.buffers import End, Episode, SequenceReplayBuffer
from stepwell.buffers.bridges import ImportReport, export_episodes, import_episodes
from stepwell.buffers.exchange.formats import parquet
from stepwell.buffers.exchange.formats.pictures import encoded_rows
from stepwell.buffers.spec.space_json import space_of
from support.exchanged_stores import episodes_of, imported, refused, tagged_store
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
    replay, report = imported("parquet", folder, options=options)
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


@pytest.mark.parametrize("episode", [[7, 7, 7, 9, 9, 8], None])
def test_rows_that_their_next_observations_contradict_are_refused(
    episode: list[int] | None, tmp_path: Path
) -> None:
    following = [[1.0, 3.0], [1.0, 4.0], [1.0, 5.0], [2.0, 9.0], [2.0, 4.0], [3.0, 3.0]]
    table = columns(next_observation=following, episode=episode)
    with pytest.raises(ValueError, match=r"'next_observation'.*step 0 of episode 1\b"):
        read(tmp_path, table)
    shown = [[1.0, 2.0], [1.0, float("nan")], *table["observation"][2:]]
    following = [shown[1], [1.0, 4.0], [1.0, 5.0], [2.0, 3.0], [2.0, 4.0], [3.0, 3.0]]
    read(tmp_path, columns(observation=shown, next_observation=following, episode=episode))


def test_the_rows_of_an_export_stay_in_order(tmp_path: Path) -> None:
    export_episodes(tagged_store(), "parquet", tmp_path / "out")
    (file,) = (tmp_path / "out" / "data").iterdir()
    table = pq.read_table(file)
    labels = table["episode"].to_pylist()
    at = next(row for row, label in enumerate(labels) if labels[row : row + 3] == [label] * 3)
    before, after = range(at), range(at + 3, len(table))
    for rows in ([at + 1, at, at + 2], [at, at + 2]):
        order = [*before, *rows, *after]
        pq.write_table(table.take(order), file)
        refused("parquet", tmp_path / "out", r"\bstep \d after \d in episode \d")


@pytest.mark.parametrize("at_once", [1, 2, 3, 4, 1024])
def test_without_an_episode_column_episodes_begin_after_ends(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_BATCH_ROWS", at_once)
    episodes, report = read(tmp_path, columns(episode=None))
    assert [episode.action.tolist() for episode in episodes] == [[10, 11, 12, 0], [20, 21], [30]]
    assert has_note(report.notes, "no column 'episode'.*terminated and truncated")


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
    for option in ("truncated", "episode", "next_observation"):
        with pytest.raises(ValueError, match=rf"'nowhere'.*option {option}\b"):
            read(tmp_path, columns(episode=None), **{option: "nowhere"})


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
        ({"terminated": [True] * 6}, r"episode 0\b.*terminated.*step 0\b.*option episode"),
        ({"episode": [7, 7, 7, 9, 9, 7]}, r"episode 7\b.*'episode'"),
    ],
)
def test_invalid_columns_are_refused(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=match):
        read(tmp_path, columns(**change))


def test_missing_damaged_and_different_files_are_refused(tmp_path: Path) -> None:
    refused("parquet", tmp_path, r"\*\.parquet.*none")
    with pytest.raises(ValueError, match=rf"{tmp_path.name}.*row.*none"):
        read(tmp_path, pa.table(columns()).slice(0, 0))
    pq.write_table(pa.table(columns(episode=None)), tmp_path / "b.parquet")
    pq.write_table(pa.table(columns()), tmp_path / "a.parquet")
    refused("parquet", tmp_path, r"b\.parquet.*a\.parquet.*, episode, got ")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no table")
    refused("parquet", tmp_path, r"a\.parquet.*Parquet file")


# The order of files


def counted(steps: int, length: int) -> dict[str, Any]:
    """Episodes of equal lengths, one after the other; an observation is the number of its row."""
    row = np.arange(steps)
    return {
        "observation": row.astype(np.float32),
        "action": row % 3,
        "reward": row * 0.5,
        "terminated": row % length == length - 1,
        "truncated": np.zeros(steps, bool),
        "episode": row // length,
    }


def parts(folder: Path, names: Sequence[str], table: Mapping[str, Any]) -> Path:
    """The rows of a table in files of equal lengths, in the order of the names."""
    whole = pa.table(dict(table))
    rows = len(whole) // len(names)
    for place, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(whole.slice(place * rows, rows), folder / name)
    return folder


def episodes_in(folder: Path, **options: object) -> list[Episode]:
    return episodes_of(imported("parquet", folder, options=options)[0])


def assert_whole(episodes: Sequence[Episode], count: int, steps: int) -> None:
    assert [episode.steps for episode in episodes] == [steps] * count
    for number, episode in enumerate(episodes):
        first = number * steps
        assert episode.observation[:-1].tolist() == list(range(first, first + steps))


@pytest.mark.parametrize("column", ["episode", "none"])
@pytest.mark.parametrize(
    "name",
    [
        "part-{}.parquet",
        "part.{}.parquet",
        "{}.parquet",
        "part-{:05d}-8f3c0a1b-22dd-4c1e-9d5f-cafe01234567-c000.snappy.parquet",
        "data/train-{:05d}-of-00024.parquet",
        "data/train-{}-of-24-{:x}a.parquet",
        "run2_{}_0.parquet",
    ],
)
def test_numbers_in_names_are_the_order_of_files(name: str, column: str, tmp_path: Path) -> None:
    table = counted(240, 24)
    if column == "none":
        del table["episode"]
    names = [name.format(place, place * 7919) for place in range(24)]
    assert_whole(episodes_in(parts(tmp_path, names, table)), 10, 24)


def test_what_pyarrow_writes_in_many_files_is_read_in_its_order(tmp_path: Path) -> None:
    dataset = pytest.importorskip("pyarrow.dataset")
    limits = {"max_rows_per_file": 10, "max_rows_per_group": 10}
    dataset.write_dataset(pa.table(counted(240, 24)), tmp_path, format="parquet", **limits)
    assert (tmp_path / "part-23.parquet").exists()
    assert_whole(episodes_in(tmp_path), 10, 24)
    # pyarrow itself reads them in the order of their names as texts
    again = dataset.dataset(tmp_path).to_table()["observation"].to_numpy()
    assert again[10:30].tolist() == [*range(10, 20), *range(100, 110)]


@pytest.mark.parametrize("column", ["episode", "none"])
@pytest.mark.parametrize(
    "names",
    [
        ["part-00000-8f3c.parquet", "part-00001-02ab.parquet"],
        ["b.parquet", "c.parquet"],
        ["train-00000-of-00002.parquet", "validation-00000-of-00002.parquet"],
        ["train-00000-of-00003.parquet", "train-00002-of-00003.parquet"],
        ["a/part-0.parquet", "b/part-0.parquet"],
        ["0/part-0.parquet", "1/part-0.parquet"],
        ["part-1.parquet", "part-01.parquet"],
        ["part-0.parquet", "part-2.parquet"],  # one is missing
    ],
)
def test_an_episode_goes_on_only_in_a_file_whose_name_says_so(
    names: list[str], column: str, tmp_path: Path
) -> None:
    table = counted(12, 12)
    if column == "none":
        del table["episode"]
    parts(tmp_path, names, table)
    with pytest.raises(ValueError, match=r"episode [01]\b") as refusal:
        episodes_in(tmp_path)
    assert all(Path(name).name in str(refusal.value) for name in names)


def test_folders_that_name_an_episode_are_its_label(tmp_path: Path) -> None:
    table = counted(60, 5)
    table["terminated"] = np.zeros(60, bool)
    table["truncated"] = table.pop("episode") >= 0
    table["truncated"] = np.zeros(60, bool)
    names = [f"episode={place}/part-0.parquet" for place in range(12)]
    episodes = episodes_in(parts(tmp_path, names, table))
    assert [episode.observation[0] for episode in episodes] == [5 * n for n in range(12)]
    named = parts(tmp_path / "more", [name.replace("episode", "run") for name in names], table)
    with pytest.raises(ValueError, match=r"run=0.*option episode"):
        episodes_in(named)
    assert len(episodes_in(named, episode="run")) == 12


def test_files_that_pyarrow_ignores_are_not_read(tmp_path: Path) -> None:
    names = ["part-0.parquet", "_temporary/part-1.parquet", ".cache/part-1.parquet"]
    parts(tmp_path, names, counted(12, 4))
    assert_whole(episodes_in(tmp_path), 1, 4)
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(ValueError, match=r"Delta"):
        episodes_in(tmp_path)


# Columns of other types


def test_a_struct_is_a_dict(tmp_path: Path) -> None:
    states = [{"arm": {"x": [1.0, n]}, "on": n % 2 == 0} for n in range(6)]
    actions = [{"left": n, "right": [n, n]} for n in range(6)]
    infos = [{"lives": 3} for _ in range(6)]
    table = columns(observation=states, action=actions, info=infos)
    (first, *_), _ = read(tmp_path, table)
    assert first.observation["arm"]["x"].tolist() == [[1, 0], [1, 1], [1, 2], [1, 2]]
    assert first.observation["on"].tolist() == [True, False, True, True]
    assert first.action["right"].tolist() == [[0, 0], [1, 1], [2, 2], [0, 0]]
    assert first.fields["info/lives"].tolist() == [3, 3, 3, 3]
    frames = encoded_rows(np.zeros((6, 16, 16, 3), np.uint8), "hwc")
    seen = [{"eye": {"bytes": file, "path": None}, "k": n} for n, file in enumerate(frames)]
    (first, *_), _ = read(tmp_path, columns(observation=seen))
    assert first.observation["eye"].shape == (4, 16, 16, 3)
    assert first.observation["k"].tolist() == [0, 1, 2, 2]


def test_the_null_of_a_column_is_counted_in_all_rows_of_its_file(tmp_path: Path) -> None:
    n = 12
    flat = pa.array(np.arange(6.0 * n))
    tensor = pa.fixed_shape_tensor(pa.float64(), (2, 3))
    gaps = [place in (4, 7) for place in range(n)]
    lists = pa.FixedSizeListArray.from_arrays(flat, 6, mask=pa.array(gaps))
    holed = [None if place == 27 else float(place) for place in range(6 * n)]
    inner = pa.FixedSizeListArray.from_arrays(pa.array(holed, pa.float64()), 6)
    plain = pa.FixedSizeListArray.from_arrays(flat, 6)
    struct = [None if place in (4, 7) else {"state": [1.0, 2.0]} for place in range(n)]
    for observation, reward, named, first, count in (
        (pa.ExtensionArray.from_storage(tensor, lists), 1.0, "observation", 4, 2),
        (pa.ExtensionArray.from_storage(tensor, inner), 1.0, "observation", 4, 1),
        (inner, 1.0, "observation", 4, 1),
        (pa.array(struct), 1.0, "observation/state", 4, 2),
        (plain, None, "reward", 0, 1),
        (pa.array([1.5, None] * 6).dictionary_encode(), 1.0, "observation", 1, 6),
    ):
        table = {**counted(n, n), "observation": observation, "reward": [reward, *[0.1] * (n - 1)]}
        pattern = rf"a\.parquet.*'{named}'.*\b{count} of {n}\b.*row {first}\b"
        with pytest.raises(ValueError, match=pattern):
            read(tmp_path, table)


def test_a_type_that_pyarrow_does_not_know_is_noted(tmp_path: Path) -> None:
    named = {"ARROW:extension:name": "ray.data.arrow_tensor", "ARROW:extension:metadata": "[2, 1]"}
    table = pa.table(columns())
    field = table.schema.field("observation").with_metadata(named)
    table = table.set_column(0, field, table.column("observation"))
    _, report = read(tmp_path, table)
    assert has_note(report.notes, r"observation.*ray\.data\.arrow_tensor")


def test_arrows_own_types_keep_their_meaning(tmp_path: Path) -> None:
    if hasattr(pa, "bool8"):  # since pyarrow 18
        flags = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, 2, 1, 0, 0], pa.int8()))
        table = columns(observation=flags, terminated=flags, episode=list(range(6)))
        (first, second, *_), _ = read(tmp_path, table)
        assert first.observation.dtype == np.bool_
        assert first.observation.tolist() == [True, True]
        assert (first.end, second.end) == (End.TERMINATED, End.NONE)
    for values in (
        pa.array([1, 2, 3, 4, 5, 6]).dictionary_encode(),
        pa.array([1, 2, 3, 4, 5, 6], pa.large_list(pa.int64()).value_type),
    ):
        (first, *_), _ = read(tmp_path, columns(observation=values))
        assert first.observation.dtype == np.int64
    for values, named in (
        (pa.array([1] * 6, pa.decimal128(5, 2)), "decimal128"),
        (pa.array([1] * 6, pa.timestamp("s")), "timestamp"),
        (pa.array([[{"a": 1}]] * 6), "struct"),
    ):
        with pytest.raises(ValueError, match=rf"'observation'.*{named}"):
            read(tmp_path, columns(observation=values))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.table(columns())
    for name, values in (("action", pa.array([0] * 6)), ("observation/x", pa.array([0] * 6))):
        twice = pa.table(columns(observation=[{"x": n} for n in range(6)]))
        with pytest.raises(ValueError, match=rf"a\.parquet.*'{name}'"):
            read(tmp_path, twice.append_column(name, values))
    assert read(tmp_path, table)[1].episodes == 3


def classed(action: list[int], **changes: Any) -> Any:
    """A table with the metadata that HuggingFace's `datasets` writes for a ClassLabel."""
    label = {"names": ["left", "stay", "right", "jump"], "_type": "ClassLabel"}
    features = {"action": label, "observation": {"feature": {}, "length": 2, "_type": "List"}}
    text = json.dumps({"info": {"features": features}})
    return pa.table(columns(action=action, **changes)).replace_schema_metadata(
        {"huggingface": text}
    )


def test_a_class_label_keeps_its_classes(tmp_path: Path) -> None:
    pq.write_table(classed([0, 1, 1, 0, 0, 1]), tmp_path / "a.parquet")
    replay, _ = imported("parquet", tmp_path)
    session = replay.sessions[0]
    assert space_of(replay.sessions, "action") == spaces.Discrete(4)
    assert space_of(replay.sessions, "observation").shape == (2,)
    assert session["classes"] == {"action": ["left", "stay", "right", "jump"]}
    for value in (-1, 4):
        pq.write_table(classed([0, 1, value, 0, 0, 1]), tmp_path / "a.parquet")
        refused("parquet", tmp_path, rf"'action'.*4 classes.*{value}\b")


HUGE = {"type": "Box", "dtype": "float64", "shape": [1 << 26], "low": 0, "high": 1}


@pytest.mark.parametrize(
    ("key", "text", "is_read"),
    [
        ("huggingface", "[", False),
        ("huggingface", "[1]", False),
        ("stepwell", "{", False),
        ("huggingface", '{"info": [1]}', True),
        ("huggingface", '{"info": {"features": {"action": {"_type": "ClassLabel"}}}}', True),
        ("stepwell", '{"spaces": 3}', True),
        ("stepwell", json.dumps({"spaces": {"observation": HUGE, "action": HUGE}}), True),
        ("stepwell", '{"spaces": {"observation": {"type": "Box"}, "action": {}}}', True),
    ],
)
def test_forged_metadata_of_a_schema_change_no_row(
    key: str, text: str, is_read: bool, tmp_path: Path
) -> None:
    table = pa.table(columns()).replace_schema_metadata({key: text})
    pq.write_table(table, tmp_path / "a.parquet")
    replay = SequenceReplayBuffer()
    if is_read:
        import_episodes("parquet", tmp_path, replay)
        assert not any("spaces" in session for session in replay.sessions)
    else:
        with pytest.raises(ValueError, match=rf"a\.parquet.*'{key}'"):
            import_episodes("parquet", tmp_path, replay)
