"""Export to and import from LeRobot data sets."""

from __future__ import annotations

import json
import re
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import Chunk, End, Field, SequenceReplayBuffer
from stepwell.buffers.bridges import ImportReport, export_episodes, import_episodes
from stepwell.buffers.exchange.formats.file_columns import FileColumn
from stepwell.buffers.exchange.formats.lerobot import combined_stats, episode_stats
from stepwell.buffers.exchange.formats.parquet_columns import column_of
from stepwell.buffers.testing import check_format
from support.exchanged_stores import (
    DISCRETE,
    PICTURES,
    REWARD,
    episodes_of,
    noisy_store,
    store_of,
    tagged_store,
)
from support.notes import has_note

pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")

STATE = Field("observation", "int32", (3,), "narrow")


def rows_of(folder: Path, pattern: str = "data/*/*.parquet") -> list[dict[str, Any]]:
    files = sorted(folder.glob(pattern))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def test_metadata_describes_episodes_and_features(tmp_path: Path) -> None:
    replay = tagged_store(PICTURES[0])
    options = {"fps": 5, "task": "walk to the door"}
    export_episodes(replay, "lerobot", tmp_path / "out", options=options)
    info = json.loads((tmp_path / "out" / "meta" / "info.json").read_text("utf-8"))
    assert (info["codebase_version"], info["fps"]) == ("v3.0", 5)
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (6, 21, 1)
    assert info["splits"] == {"train": "0:6"}
    assert (
        list(info["features"])
        == pq.read_schema(
            tmp_path / "out" / info["data_path"].format(chunk_index=0, file_index=0)
        ).names
    )
    assert info["features"]["observation.image"] == {
        "dtype": "image",
        "shape": [16, 17, 1],
        "names": ["height", "width", "channels"],
    }
    assert info["features"]["next.done"] == {"dtype": "bool", "shape": [1], "names": None}
    episodes = rows_of(tmp_path / "out", "meta/episodes/*/*.parquet")
    first = 0
    for number, episode in enumerate(episodes):
        assert episode["episode_index"] == number
        assert episode["length"] == number + 1
        assert episode["tasks"] == ["walk to the door"]
        assert (episode["dataset_from_index"], episode["dataset_to_index"]) == (
            first,
            first + number + 1,
        )
        assert episode["stats/next.reward/min"] == [number + 1 / 4]
        first += number + 1
    (task,) = rows_of(tmp_path / "out", "meta/tasks.parquet")
    assert task == {"task_index": 0, "task": "walk to the door"}


def showing(
    fields: list[Field], names: dict[str, str], rows: dict[str, np.ndarray] | None = None
) -> SequenceReplayBuffer:
    """An episode of 3 steps; rows are zeros where they are not given."""
    return store_of([*fields, DISCRETE, REWARD], rows, count=4, observation=names)


def test_episodes_without_a_step_are_left_out(tmp_path: Path) -> None:
    replay, nothing = tagged_store(STATE, episodes=2), tagged_store(STATE, episodes=0)
    single = {name: rows[:1] for name, rows in episodes_of(replay)[0].fields.items()}
    replay.add([Chunk(7, 0, 0, End.PENDING, single, {})])
    nothing.add([Chunk(0, 0, 0, End.NONE, single, {})])
    exported, *_ = check_format("lerobot", tmp_path / "out", replay)
    assert has_note(exported.notes, r"\b1\b.*without a step")
    with pytest.raises(ValueError, match=r"LeRobot.*env step.*none"):
        export_episodes(nothing, "lerobot", tmp_path / "nothing")


def test_a_full_file_is_followed_by_a_new_one(tmp_path: Path) -> None:
    check_format("lerobot", tmp_path / "out", noisy_store(), export_options={"file_mb": 1})
    files = sorted((tmp_path / "out" / "data" / "chunk-000").iterdir())
    assert [file.name for file in files] == [f"file-{n:03d}.parquet" for n in range(4)]
    for episode in rows_of(tmp_path / "out", "meta/episodes/*/*.parquet"):
        table = pq.ParquetFile(files[episode["data/file_index"]]).read(["episode_index"])
        assert episode["episode_index"] in table.column("episode_index").to_pylist()
    groups = [pq.ParquetFile(file).num_row_groups for file in files]
    assert sum(groups) == 20


@pytest.mark.parametrize("lengths", [[1], [1, 1], [5], [2, 7, 30]])
def test_statistics_are_those_of_all_rows(lengths: list[int]) -> None:
    rng = np.random.default_rng(sum(lengths))
    parts = [rng.normal(size=(length, 2, 3)).astype(np.float32) for length in lengths]
    column = FileColumn("x", "float32", (2, 3))
    found = reduce(combined_stats, (episode_stats(column, part) for part in parts))
    rows = np.concatenate(parts).astype(np.float64)
    for name, expected in (
        ("mean", rows.mean(0)),
        ("std", rows.std(0)),
        ("min", rows.min(0)),
        ("max", rows.max(0)),
        ("q01", np.min([np.quantile(part, 0.01, axis=0) for part in parts], axis=0)),
        ("q90", np.max([np.quantile(part, 0.90, axis=0) for part in parts], axis=0)),
        ("count", [len(rows)]),
    ):
        assert np.allclose(found[name], expected, atol=1e-6), name


@pytest.mark.parametrize("picture", PICTURES, ids=lambda field: str(field.shape))
def test_statistics_of_pictures_are_of_channels_from_0_to_1(picture: Field) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (9, *picture.shape), np.uint8)
    column = column_of("x", picture, "png")
    found = episode_stats(column, rows)
    channels = {"hw": rows[..., None], "hwc": rows, "chw": np.moveaxis(rows, 1, -1)}
    pixels = channels[column.axes or "hw"]
    flat = pixels.reshape(-1, pixels.shape[-1]) / 255
    assert found["mean"].shape == (pixels.shape[-1], 1, 1)
    assert np.allclose(found["mean"].ravel(), flat.mean(0))
    assert np.allclose(found["max"].ravel(), flat.max(0))
    assert np.allclose(found["q10"].ravel(), np.quantile(flat, 0.1, axis=0))


def foreign(folder: Path, **changes: Any) -> dict[str, Any]:
    """A data set as LeRobot records it: two episodes of 3 and 2 frames, with videos."""
    table = {
        "observation.state": [[1.0, 2.0], [1.0, 3.0], [1.0, 4.0], [2.0, 2.0], [2.0, 3.0]],
        "action": [[10.0], [11.0], [12.0], [20.0], [21.0]],
        "next.reward": [0.25, 0.5, 1.0, 2.0, 3.0],
        "next.done": [False, False, True, False, True],
        "episode_index": [0, 0, 0, 1, 1],
        "index": [0, 1, 2, 3, 4],
        "task_index": [0, 0, 0, 1, 1],
        **changes,
    }
    table = {name: values for name, values in table.items() if values is not None}
    (folder / "meta" / "episodes" / "chunk-000").mkdir(parents=True, exist_ok=True)
    (folder / "data" / "chunk-000").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), folder / "data" / "chunk-000" / "file-000.parquet")
    index = {"episode_index": [0, 1], "tasks": [["push"], ["pull"]]}
    pq.write_table(pa.table(index), folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    features: dict[str, Any] = {name: {"dtype": "float32", "shape": [1]} for name in table}
    features["observation.images.top"] = {"dtype": "video", "shape": [48, 64, 3]}
    info = {"codebase_version": "v3.0", "fps": 30, "features": features, "total_episodes": 2}
    (folder / "meta" / "info.json").write_text(json.dumps(info), "utf-8")
    return info


def read(folder: Path, **options: object) -> tuple[SequenceReplayBuffer, ImportReport]:
    replay = SequenceReplayBuffer()
    return replay, import_episodes("lerobot", folder, replay, options=options)


def test_a_foreign_data_set_is_read_by_lerobots_conventions(tmp_path: Path) -> None:
    foreign(tmp_path)
    replay, report = read(tmp_path)
    first, second = episodes_of(replay)
    assert [first.end, second.end] == [End.TERMINATED, End.TERMINATED]
    assert first.observation["state"].tolist() == [[1, 2], [1, 3], [1, 4], [1, 4]]
    assert first.action.tolist() == [[10], [11], [12], [0]]
    assert first.reward.tolist() == [0, 0.25, 0.5, 1.0]
    assert [first.metadata, second.metadata] == [{"tasks": ["push"]}, {"tasks": ["pull"]}]
    assert re.search(r"videos.*observation\.images\.top", report.notes[0])
    assert re.search(r"next\.done.*terminated", report.notes[1])


@pytest.mark.parametrize("done", ["truncated", "nothing"])
def test_option_done_sets_the_meaning_of_next_done(done: str, tmp_path: Path) -> None:
    foreign(tmp_path)
    replay, report = read(tmp_path, done=done)
    first, second = episodes_of(replay)
    assert [first.end, second.end] == [End.NONE, End.NONE]
    assert first.observation["state"].tolist() == [[1, 2], [1, 3], [1, 4]]
    assert first.action.tolist() == [[10], [11], [12]]
    assert first.reward.tolist() == [0, 0.25, 0.5]
    assert re.search(rf"next\.done.*{done}", report.notes[1])


def test_demonstrations_without_rewards_and_ends_are_cut_episodes(tmp_path: Path) -> None:
    foreign(tmp_path, **{"next.reward": None, "next.done": None})
    replay, report = read(tmp_path)
    assert [episode.end for episode in episodes_of(replay)] == [End.NONE, End.NONE]
    assert episodes_of(replay)[0].action.tolist() == [[10], [11], [12]]
    assert has_note(report.notes, r"'next\.reward'.*\b0\b")
    assert has_note(report.notes, r"no column 'next\.terminated'")


def test_frames_in_another_order_and_missing_ones_are_refused(tmp_path: Path) -> None:
    foreign(tmp_path, frame_index=[0, 1, 2, 0, 1])
    read(tmp_path)
    for index in ([0, 2, 1, 0, 1], [0, 1, 2, 0, 2]):
        foreign(tmp_path, frame_index=index)
        with pytest.raises(ValueError, match=r"frame_index 2 after 0 in episode [01]\b"):
            read(tmp_path)


def test_invalid_data_sets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere.*LeRobot"):
        read(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"info\.json.*LeRobot"):
        read(tmp_path)
    info = foreign(tmp_path)
    for version in ("v1.6", "v4.0", "2.1", "None"):
        changed = json.dumps({**info, "codebase_version": version})
        (tmp_path / "meta" / "info.json").write_text(changed, "utf-8")
        with pytest.raises(ValueError, match=rf"v2\.0, v2\.1 or v3\.0, got {version}\b"):
            read(tmp_path)
    only_video = {n: f for n, f in info["features"].items() if n != "observation.state"}
    info = {**info, "codebase_version": "v3.1", "features": only_video}
    (tmp_path / "meta" / "info.json").write_text(json.dumps(info), "utf-8")
    with pytest.raises(ValueError, match=r"observation\..*observation\.images\.top.*videos"):
        read(tmp_path)


# Versions 2.0 and 2.1


def data_set(folder: Path, version: str, episodes: int = 12, **changes: Any) -> dict[str, Any]:
    """A data set of two-dimensional states and single actions, as LeRobot wrote it before 3.0."""
    features = {
        "observation.state": {"dtype": "float32", "shape": [2], "names": ["x", "y"]},
        "action": {"dtype": "float32", "shape": [1], "names": ["push"]},
        **{
            name: {"dtype": dtype, "shape": [1], "names": None}
            for name, dtype in {"next.reward": "float32", "next.done": "bool", **NUMBERS}.items()
        },
    }
    info = {
        "codebase_version": version,
        "robot_type": "arm",
        "total_episodes": episodes,
        "fps": 30,
        "chunks_size": 5,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "features": features,
        **changes,
    }
    (folder / "meta").mkdir(parents=True)
    (folder / "meta" / "info.json").write_text(json.dumps(info), "utf-8")
    lines = [{"episode_index": n, "tasks": [f"task {n}"], "length": n + 2} for n in range(episodes)]
    put_lines(folder / "meta" / "episodes.jsonl", lines)
    first = 0
    for number in range(episodes):
        steps = np.arange(number + 2)
        table = {
            "observation.state": np.stack([steps + first, steps], 1).astype(np.float32).tolist(),
            "action": steps.astype(np.float32),
            "next.reward": np.ones(len(steps), np.float32),
            "next.done": steps == steps[-1],
            "frame_index": steps,
            "episode_index": np.full(len(steps), number),
            "index": steps + first,
            "task_index": np.full(len(steps), number),
        }
        file = folder / f"data/chunk-{number // 5:03d}/episode_{number:06d}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(table), file)
        first += len(steps)
    return info


NUMBERS = dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64")


def put_lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


@pytest.mark.parametrize("version", ["v2.0", "v2.1"])
def test_versions_before_3_are_read(version: str, tmp_path: Path) -> None:
    data_set(tmp_path, version)
    replay, report = read(tmp_path)
    episodes = episodes_of(replay)
    assert [episode.steps for episode in episodes] == list(range(2, 14))
    first = 0
    for number, episode in enumerate(episodes):
        steps = number + 2
        assert episode.end is End.TERMINATED
        assert episode.metadata == {"tasks": [f"task {number}"]}
        assert episode.observation[:steps, 0].tolist() == list(range(first, first + steps))
        assert episode.action[:steps].tolist() == [[step] for step in range(steps)]
        first += steps
    facts = replay.sessions[0]["lerobot"]
    assert facts == {
        "version": version,
        "fps": 30,
        "robot_type": "arm",
        "names": {"observation.state": ["x", "y"], "action": ["push"]},
    }
    assert not has_note(report.notes, "episodes: ")


def test_a_data_set_of_which_some_episodes_were_fetched_is_read(tmp_path: Path) -> None:
    data_set(tmp_path, "v2.1")
    for number in (0, 3, 4, 11):
        next(tmp_path.glob(f"data/*/episode_{number:06d}.parquet")).unlink()
    replay, report = read(tmp_path)
    tasks = [episode.metadata["tasks"] for episode in episodes_of(replay)]
    assert tasks == [[f"task {number}"] for number in (1, 2, 5, 6, 7, 8, 9, 10)]
    assert has_note(report.notes, r"\b12 episodes.*\b8\b")


def test_an_episode_of_another_length_than_its_metadata_is_refused(tmp_path: Path) -> None:
    data_set(tmp_path, "v2.0", 3)
    put_lines(tmp_path / "meta" / "episodes.jsonl", [{"episode_index": 2, "length": 9}])
    with pytest.raises(ValueError, match=r"\b9 frames of episode 2\b.*\b4\b"):
        read(tmp_path)
    (tmp_path / "meta" / "episodes.jsonl").write_text('{"episode_index": 0}\n[1]\n', "utf-8")
    with pytest.raises(ValueError, match=r"episodes\.jsonl: line 2\b"):
        read(tmp_path)
    (tmp_path / "meta" / "episodes.jsonl").unlink()
    assert read(tmp_path)[1].episodes == 3


@pytest.mark.parametrize(
    "template",
    [
        "data/{episode_index.__class__}.parquet",
        "data/{episode_index!r}.parquet",
        "data/{episode_index:999999999d}.parquet",
        "data/{0}.parquet",
        "data/{}.parquet",
        "data/{episode_index:{chunk_index}}.parquet",
        "data/{episode_index}{episode_index}.parquet",
        "data/{episode_index",
        7,
        ["data"],
    ],
)
def test_templates_of_paths_are_names_and_numbers_alone(template: Any, tmp_path: Path) -> None:
    data_set(tmp_path, "v2.1", 2, data_path=template)
    with pytest.raises(ValueError, match=r"info\.json.*data_path.*episode_index"):
        read(tmp_path)


@pytest.mark.parametrize(
    "template",
    ["../mine/data/chunk-{episode_chunk}/episode_{episode_index}.parquet", "/{episode_index}", "*"],
)
def test_templates_of_paths_lead_nowhere_else(template: str, tmp_path: Path) -> None:
    data_set(tmp_path / "mine", "v2.1", 2)
    data_set(tmp_path / "given", "v2.1", 2, data_path=template)
    with pytest.raises(ValueError, match=r"given: expected files named .*none"):
        read(tmp_path / "given")


# What a data set declares


def gym_store(*names: str) -> SequenceReplayBuffer:
    import gymnasium as gym

    import stepwell as sw

    replay = SequenceReplayBuffer(seed=0)
    for name in names:
        with sw.Collector(
            gym.make_vec(name, num_envs=2), sw.RandomPolicy(), replay, seed=0
        ) as collector:
            collector.collect(episodes=3)
    return replay


@pytest.mark.parametrize("format_", ["lerobot", "parquet", "rlds"])
@pytest.mark.parametrize("name", ["Pendulum-v1", "CartPole-v1", "FrozenLake-v1", "Blackjack-v1"])
def test_an_export_of_an_env_comes_back_with_its_shapes_and_spaces(
    format_: str, name: str, tmp_path: Path
) -> None:
    if format_ == "rlds":
        pytest.importorskip("google_crc32c", reason="needs google-crc32c")
    replay, back = gym_store(name), SequenceReplayBuffer()
    export_episodes(replay, format_, tmp_path / "out")
    import_episodes(format_, tmp_path / "out", back)
    for field in replay.spec.fields:
        if field.kind in ("observation", "action"):
            assert (back.spec[field.name].dtype, back.spec[field.name].shape) == (
                field.dtype,
                field.shape,
            )
    assert back.spec.observation == replay.spec.observation  # a tuple of Blackjack's, too
    assert back.sessions[0]["spaces"] == replay.sessions[0]["spaces"]


def test_a_changed_table_of_names_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_episodes(tagged_store(STATE), "lerobot", out)
    (file,) = out.glob("data/*/*.parquet")
    table = pq.read_table(file)
    for fields, match in (
        ({"action": {"field": "observation", "shape": []}}, "'action'.*'observation'"),
        ({"action": {"field": "info/x", "shape": []}}, "'action'.*'info/x'"),
        ({"action": {"field": "action", "shape": [-1]}}, "out.*fields"),
        ({"action": 3}, "out.*fields"),
        ([], "out.*fields"),
    ):
        forged = {"stepwell": json.dumps({"fields": fields})}
        pq.write_table(table.replace_schema_metadata(forged), file)
        with pytest.raises(ValueError, match=match):
            read(out)


def test_a_shape_that_differs_from_the_rows_is_noted(tmp_path: Path) -> None:
    foreign(tmp_path)  # of which every feature has the shape [1]
    replay, report = read(tmp_path)
    assert replay.spec["observation/state"].shape == (2,)
    assert has_note(report.notes, r"observation\.state.*\[1\].*\[2\]")


def test_float64_that_lerobot_rounds_is_noted(tmp_path: Path) -> None:
    fields = [Field("observation", "float64", (2,), "raw")]
    for value, is_rounded in ((0.5, False), (0.1, True)):
        rows = {"observation": np.full((4, 2), value)}
        replay = showing(fields, {"x": "observation"}, rows)
        report = export_episodes(replay, "lerobot", tmp_path / str(value))
        assert has_note(report.notes, r"observation\.state.*float32.*LeRobot") is is_rounded
        back, _ = read(tmp_path / str(value))  # the file has them exactly
        assert episodes_of(back)[0].fields["observation"][0].tolist() == [value, value]
