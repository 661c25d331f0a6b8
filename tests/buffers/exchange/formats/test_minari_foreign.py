"""Imports of data sets that Minari wrote, and their notes."""

from __future__ import annotations

import importlib.util
import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from stepwell.buffers import Chunk, End, Episode, SequenceReplayBuffer
from stepwell.buffers.bridges import ImportReport, as_sheeprl_replay, export_episodes
from support.exchanged_stores import episodes_of, imported
from support.notes import assert_notes, has_note

minari = pytest.importorskip("minari", reason="needs minari")
pytest.importorskip("h5py", reason="needs h5py")
pytest.importorskip("pyarrow", reason="needs pyarrow")
if importlib.util.find_spec("jax") is None:  # not imported: all tests behind this one would have it
    pytest.skip("needs jax", allow_module_level=True)

each_format = pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    return tmp_path / "root"


def written(
    buffers: Sequence[Any], observation: spaces.Space[Any], action: spaces.Space[Any], **more: Any
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            "tests/foreign-v0",
            list(buffers),
            observation_space=observation,
            action_space=action,
            **{"jpeg_encoding": False, **more},
        )


def buffer(steps: int = 3, **columns: Any) -> Any:
    """An episode for Minari, whose rows hold their numbers."""
    found = {
        "observations": np.arange(2 * steps + 2, dtype=np.float32).reshape(-1, 2),
        "actions": np.arange(steps),
        "rewards": np.arange(steps) / 4,
        "terminations": np.arange(steps) == steps - 1,
        "truncations": np.zeros(steps, np.bool_),
        "infos": {},
    }
    return minari.data_collector.EpisodeBuffer(**{**found, **columns})


BOX, THREE = spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(3)


def read(**options: object) -> tuple[ImportReport, list[Episode]]:
    replay, report = imported("minari", "tests/foreign-v0", options=options)
    return report, episodes_of(replay)


@each_format
def test_episodes_that_minari_wrote_are_read(data_format: str) -> None:
    yes, no = np.array([False, False, True]), np.zeros(3, np.bool_)
    kinds = [(yes, no), (no, yes), (yes, yes), (no, no)]
    some = [
        buffer(terminations=one, truncations=other, seed=number, options={"level": number})
        for number, (one, other) in enumerate(kinds)
    ]
    written(some, BOX, THREE, data_format=data_format)
    report, episodes = read()
    assert_notes(report.notes, "stream 0")
    assert (report.source_episodes, report.source_steps) == (len(episodes), report.steps) == (4, 12)
    both = End.TERMINATED | End.TRUNCATED
    assert [one.end for one in episodes] == [End.TERMINATED, End.TRUNCATED, both, End.NONE]
    for number, episode in enumerate(episodes):
        assert episode.observation.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert episode.action.tolist() == [0, 1, 2, 0]
        assert episode.reward.tolist() == [0, 0, 0.25, 0.5]
        assert episode.metadata["seed"] == number
        assert episode.metadata["options"] == {"level": number}


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_jpeg_images_are_read_and_noted_as_lossy(data_format: str) -> None:
    image = spaces.Box(0, 255, (40, 40), np.uint8)
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (4, 40, 40)).astype(np.uint8)
    for is_lossy in (True, False):
        written(
            [buffer(observations=pictures)],
            image,
            THREE,
            jpeg_encoding=is_lossy,
            data_format=data_format,
        )
        report, (episode,) = read()
        assert has_note(report.notes, "^LOSSY.*JPEG") == is_lossy
        assert np.array_equal(episode.observation, pictures) != is_lossy
        assert episode.observation.shape == pictures.shape
        minari.delete_dataset("tests/foreign-v0")


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_infos_that_all_episodes_have_become_fields(data_format: str) -> None:
    def infos(size: int, **more: Any) -> dict[str, Any]:
        return {
            "plain": [1, 2, 3, 4],
            "array": [np.full((2, 2), n, np.float32) for n in range(4)],
            "sized": [np.full(size, n, np.int16) for n in range(4)],
            "words": ["a", "b", "c", "d"],
            **more,
        }

    some = [buffer(infos=infos(3, late=[1, 2, 3, 4])), buffer(infos=infos(5))]
    written(some, BOX, THREE, data_format=data_format)
    report, episodes = read()
    (left_out,) = (note for note in report.notes if "infos" in note)
    names = re.findall(r"\b(plain|array|sized|words|late)\b", left_out)
    assert sorted(names) == ["late", "sized", "words"]
    for episode in episodes:
        assert episode.fields["info/plain"].tolist() == [1, 2, 3, 4]
        assert episode.fields["info/array"].shape == (4, 2, 2)
        assert episode.fields["info/array"][:, 0, 0].tolist() == [0, 1, 2, 3]
        assert [n for n in episode.spec.names if n.startswith("info")] == [
            "info/array",
            "info/plain",
        ] or data_format == "arrow"
    report, episodes = read(infos=False)
    assert episodes[0].spec.names == ["observation", "action", "reward"]


def test_infos_without_a_row_for_the_reset_come_with_the_next_observation() -> None:
    written([buffer(infos={"a": {"x": [5, 6, 7]}})], BOX, THREE)
    report, (episode,) = read()
    assert has_note(report.notes, r"\ba/x\b")
    assert episode.fields["info/a/x"].tolist() == [0, 5, 6, 7]


@each_format
def test_texts_become_arrays_that_decode_gives_back(data_format: str) -> None:
    said = ["", "ab", "b", "abc"]
    written(
        [buffer(observations={"place": np.arange(4), "mission": said})],
        spaces.Dict({"mission": spaces.Text(3, min_length=0), "place": spaces.Discrete(9)}),
        THREE,
        data_format=data_format,
    )
    replay, _ = imported("minari", "tests/foreign-v0")
    (episode,) = episodes_of(replay)
    assert replay.decode("observation/mission", episode.observation["mission"]) == said
    assert episode.observation["place"].tolist() == [0, 1, 2, 3]
    minari.delete_dataset("tests/foreign-v0")
    written([buffer(observations=["a", "b", "c", "four"])], spaces.Text(3), THREE)
    with pytest.raises(ValueError, match=r"foreign-v0.*observations.*3 characters"):
        read()


def test_spaces_come_from_env_spec_when_not_recorded(root: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            "tests/foreign-v0",
            [buffer(observations=np.zeros((4, 4), np.float32))],
            env=gym.make("CartPole-v1"),
        )
    file = root / "tests/foreign-v0/data/metadata.json"
    metadata = json.loads(file.read_text())
    file.write_text(
        json.dumps({key: value for key, value in metadata.items() if "_space" not in key})
    )
    _, (episode,) = read()
    assert episode.spec["observation"].shape == (4,)


# --- what a data set declares


def metadata_of(root: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / f"tests/{name}-v0/data/metadata.json").read_text())
    return found


def again(replay: SequenceReplayBuffer, **options: object) -> Any:
    export_episodes(replay, "minari", "tests/again-v0", options=options)
    return minari.load_dataset("tests/again-v0")


def foreign() -> SequenceReplayBuffer:
    return imported("minari", "tests/foreign-v0")[0]


@each_format
def test_what_a_data_set_declares_comes_back_from_import_and_export(
    data_format: str, root: Path
) -> None:
    action = spaces.Discrete(6, start=-1)
    about = {
        "author": {"one", "two"},
        "author_email": {"one@home"},
        "algorithm_name": "PPO",
        "code_permalink": "https://there",
        "description": "some",
        "requirements": ["numpy>=1"],
        "ref_min_score": -2.5,
        "ref_max_score": 200.0,
        "num_episodes_average_score": 7,
        "env": gym.make("CartPole-v1", max_episode_steps=7),
        "eval_env": "CartPole-v0",
    }
    shown = spaces.Box(np.array([-3, -2]), np.array([1, 2]), (2,), np.float32)
    written([buffer()], shown, action, data_format=data_format, **about)
    replay = foreign()
    data = again(replay, data_format="hdf5" if data_format == "hdf5" else "arrow")
    assert (data.spec.observation_space, data.spec.action_space) == (shown, action)
    was, now = metadata_of(root, "foreign"), metadata_of(root, "again")
    own = {"dataset_id", "dataset_size", "data_format", "minari_version"}
    assert {k: v for k, v in now.items() if k not in own} == {
        k: v for k, v in was.items() if k not in own
    }
    assert data.recover_environment().spec.max_episode_steps == 7
    assert data.recover_environment(eval_env=True).spec.id == "CartPole-v0"
    minari.delete_dataset("tests/again-v0")
    assert again(replay, author="me").storage.metadata["author"] == {"me"}  # in its place
    assert as_sheeprl_replay(replay).sample(1, sequence_length=2)["actions"].shape[-1] == 6


def test_declared_facts_of_another_type_are_left_out_and_noted(root: Path) -> None:
    written([buffer()], BOX, THREE, env=None)
    file = root / "tests/foreign-v0/data/metadata.json"
    wrong = {
        "author": 5,
        "ref_max_score": "high",
        "ref_min_score": float("nan"),
        "env_spec": '{"id": 7}',
        "eval_env_spec": "CartPole-v1",
        "description": ["x"],
        "mine": "x" * 100_000,
    }
    file.write_text(json.dumps({**json.loads(file.read_text()), **wrong}))
    replay, report = imported("minari", "tests/foreign-v0")
    (note,) = (note for note in report.notes if "metadata" in note)
    assert all(name in note for name in wrong)
    metadata = again(replay).storage.metadata
    assert not any(name in metadata for name in wrong)


def test_a_text_that_hdf5_cannot_hold_is_refused() -> None:
    space = spaces.Text(3, charset="a\0")
    written([buffer(observations=["a", "a\0", "a", "a"])], space, THREE, data_format="arrow")
    with pytest.raises(ValueError, match=r"observations.*HDF5.*data_format=arrow"):
        again(foreign())
    assert again(foreign(), data_format="arrow")[0].observations == ["a", "a\0", "a", "a"]


@each_format
def test_a_data_set_of_whole_rewards_can_be_extended_by_such(data_format: str) -> None:
    written([buffer(rewards=np.arange(3))] * 2, BOX, THREE, data_format=data_format)
    theirs = minari.load_dataset("tests/foreign-v0")
    ours = again(foreign(), data_format="hdf5" if data_format == "hdf5" else "arrow")
    ours.storage.update_from_storage(theirs.storage)
    ours = minari.load_dataset("tests/again-v0")
    assert [episode.rewards.tolist() for episode in ours] == [[0, 1, 2]] * 4
    assert {episode.rewards.dtype for episode in ours} == {np.dtype(np.int64)}


def test_rewards_of_other_values_than_the_declared_dtype_are_kept_or_refused() -> None:
    mixed = [buffer(rewards=np.arange(3)), buffer(rewards=np.arange(3) / 2)]
    written(mixed, BOX, THREE)
    replay = foreign()
    assert [e.rewards.tolist() for e in again(replay)] == [[0, 1, 2], [0, 0.5, 1]]
    other = SequenceReplayBuffer()
    other.bind(replay.spec, {"recipe": {}, "reward_dtype": "int64"})
    other.add([Chunk(0, 0, 0, e.end, e.fields) for e in list(replay.iter_episodes())[1:]])
    with pytest.raises(ValueError, match=r"reward.*int64.*data_format=hdf5"):
        export_episodes(other, "minari", "tests/more-v0", options={"data_format": "arrow"})


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@each_format
def test_rewards_that_float64_rounds_are_reported(data_format: str, dtype: Any) -> None:
    rewards = np.array([2**53 + 1, 3, np.iinfo(dtype).max], dtype)
    written([buffer(rewards=rewards)], BOX, THREE, data_format=data_format)
    report, (episode,) = read()
    assert has_note(report.notes, r"^rewards rounded to float64: 2, by 1 ")
    assert episode.reward.tolist() == [0.0, *rewards.astype(np.float64).tolist()]


def test_rewards_of_several_numbers_are_refused_in_one_sentence() -> None:
    written([buffer(rewards=np.zeros((3, 2)))], BOX, THREE)
    with pytest.raises(ValueError, match=r"episode 0: rewards.*one number a step.*\(3, 2\).*info"):
        read()


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
@pytest.mark.parametrize("name", ["rewards", "terminations", "truncations"])
def test_a_missing_reward_or_flag_is_refused(data_format: str, name: str, root: Path) -> None:
    written([buffer()], BOX, THREE, data_format=data_format)
    dataset = pytest.importorskip("pyarrow.dataset", reason="needs pyarrow")
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
    folder = root / "tests/foreign-v0/data/0"
    (file,) = folder.glob(f"*.{data_format}")
    table = dataset.dataset(file, format=data_format).to_table()
    values = table.column(name).to_pylist()
    values[1] = None
    place = table.schema.get_field_index(name)
    nulled = table.set_column(place, name, pa.array(values))
    file.unlink()
    dataset.write_dataset(
        nulled, folder, format=data_format, existing_data_behavior="overwrite_or_ignore"
    )
    with pytest.raises(ValueError, match=rf"{name}.*nulls"):
        read()
