"""Imports of data sets that Minari wrote, and their notes."""

from __future__ import annotations

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

from stepwell.buffers import End, Episode, SequenceReplayBuffer
from stepwell.buffers.bridges import ImportReport, import_episodes
from support.envs.fakes import CounterEnv, DictEnv, InfoEnv
from support.envs.recorded_envs import ListedEnv
from support.exchanged_stores import episodes_of
from support.notes import assert_notes, has_note

minari = pytest.importorskip("minari", reason="needs minari")
pytest.importorskip("h5py", reason="needs h5py")
pytest.importorskip("pyarrow", reason="needs pyarrow")
pytest.importorskip("jax", reason="needs jax")

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
    replay = SequenceReplayBuffer()
    report = import_episodes("minari", "tests/foreign-v0", replay, options=options)
    return report, episodes_of(replay)


def collected(env: Any, data_format: str, episodes: int = 4) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collector = minari.DataCollector(
            env, record_infos=False, data_format=data_format, jpeg_encoding=False
        )
        for number in range(episodes):
            collector.reset(seed=number, options={"level": number})
            over = False
            while not over:
                _, _, terminated, truncated, _ = collector.step(env.action_space.sample())
                over = terminated or truncated
        collector.reset()
        collector.step(env.action_space.sample())  # this one is cut
        first = collector._tmp_dir
        collector.create_dataset("tests/foreign-v0")
        first.cleanup()  # avoids Minari's warning about a leftover folder
        last = collector._tmp_dir
        collector.close()
        Path(last.name).mkdir()
        last.cleanup()


@each_format
def test_recordings_of_minaris_collector_equal_what_the_env_did(data_format: str) -> None:
    env = ListedEnv(CounterEnv([3, 1, 4], ends="truncated"))
    collected(env, data_format)
    report, episodes = read()
    assert_notes(report.notes, "stream 0")
    assert (report.source_episodes, report.source_steps) == (len(episodes), report.steps)
    assert [episode.end for episode in episodes] == [End.TRUNCATED] * 5
    for number, (episode, listed) in enumerate(zip(episodes, env.episodes, strict=False)):
        assert np.array_equal(episode.observation, np.array(listed.observations))
        assert episode.action.tolist() == [*np.array(listed.actions).tolist(), 0]
        assert episode.reward.tolist() == [0, *listed.rewards]
        if number < 4:
            assert episode.metadata["seed"] == number
            assert episode.metadata["options"] == {"level": number}


@each_format
def test_nested_spaces_are_read_as_nested_fields(data_format: str) -> None:
    plain: Any = DictEnv([2, 3])
    collected(plain, data_format, episodes=2)
    _, episodes = read()
    plain = DictEnv([2, 3])
    for number, episode in enumerate(episodes[:2]):
        plain.reset(seed=number)
        for row in range(episode.rows):
            shown, value = episode.observation, plain.observation()
            assert np.array_equal(shown["image"][row], value["image"])
            assert shown["pair"][0][row] == value["pair"][0]
            assert np.array_equal(shown["pair"][1][row], value["pair"][1])
            assert np.array_equal(shown["many"][row], value["many"])
            assert np.array_equal(shown["bits"][row], value["bits"])
            plain.t += 1
        total = np.asarray(episode.action["button"], np.float64)
        for part in (*episode.action["stick"], episode.action["dial"]):
            total = total + part.sum(axis=1)
        assert np.allclose(total[:-1], episode.reward[1:])


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
def test_jpeg_images_in_a_nested_space_are_noted_as_lossy(data_format: str) -> None:
    image = spaces.Box(0, 255, (40, 40, 3), np.uint8)
    space = spaces.Dict({"deep": spaces.Tuple([THREE, image])})
    pictures = np.random.default_rng(0).integers(0, 256, (4, 40, 40, 3)).astype(np.uint8)
    tree = {"deep": (np.zeros(4, np.int64), pictures)}
    written([buffer(observations=tree)], space, THREE, jpeg_encoding=True, data_format=data_format)
    report, _ = read()
    assert report.notes[0].startswith("LOSSY")


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_images_of_minari_versions_without_jpeg_are_exact(data_format: str, root: Path) -> None:
    image = spaces.Box(0, 255, (40, 40), np.uint8)
    pictures = np.random.default_rng(0).integers(0, 256, (4, 40, 40)).astype(np.uint8)
    written([buffer(observations=pictures)], image, THREE, data_format=data_format)
    file = root / "tests/foreign-v0/data/metadata.json"
    metadata = json.loads(file.read_text())
    del metadata["jpeg_encoding"]
    file.write_text(json.dumps({**metadata, "minari_version": "0.5.1"}))
    report, (episode,) = read()
    assert_notes(report.notes, "stream 0")
    assert np.array_equal(episode.observation, pictures)


@each_format
def test_ends_come_from_the_last_step(data_format: str) -> None:
    yes, no = np.array([False, False, True]), np.zeros(3, np.bool_)
    kinds = [(yes, no), (no, yes), (yes, yes), (no, no)]
    some = [buffer(terminations=one, truncations=other) for one, other in kinds]
    written(some, BOX, THREE, data_format=data_format)
    _, episodes = read()
    both = End.TERMINATED | End.TRUNCATED
    assert [e.end for e in episodes] == [End.TERMINATED, End.TRUNCATED, both, End.NONE]


def test_an_end_within_an_episode_is_refused() -> None:
    written([buffer(), buffer(truncations=np.array([True, False, False]))], BOX, THREE)
    with pytest.raises(ValueError, match=r"episode 1\b.*truncations.*\b3 steps.*step 0"):
        read()


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
def test_dtypes_that_differ_from_the_space_are_kept_and_noted(data_format: str) -> None:
    written(
        [buffer(rewards=np.arange(3, dtype=np.float32) / 3, actions=np.arange(3, dtype=np.int32))],
        BOX,
        spaces.Box(0, 3, (), np.float32) if data_format == "hdf5" else THREE,
        data_format=data_format,
    )
    report, (episode,) = read()
    assert episode.reward.tolist() == [0, *(np.arange(3, dtype=np.float32) / 3).tolist()]
    if data_format == "hdf5":  # the others store the dtype of the space
        assert has_note(report.notes, "action.*int32")
        assert episode.action.dtype == np.int32


@each_format
def test_texts_become_arrays_that_decode_gives_back(data_format: str) -> None:
    said = ["", "ab", "b", "abc"]
    written(
        [buffer(observations={"place": np.arange(4), "mission": said})],
        spaces.Dict({"mission": spaces.Text(3, min_length=0), "place": spaces.Discrete(9)}),
        THREE,
        data_format=data_format,
    )
    replay = SequenceReplayBuffer()
    import_episodes("minari", "tests/foreign-v0", replay)
    (episode,) = episodes_of(replay)
    assert replay.decode("observation/mission", episode.observation["mission"]) == said
    assert episode.observation["place"].tolist() == [0, 1, 2, 3]


def test_texts_that_the_space_does_not_have_are_refused() -> None:
    written([buffer(observations=["a", "b", "c", "four"])], spaces.Text(3), THREE)
    with pytest.raises(ValueError, match=r"foreign-v0.*observations.*3 characters"):
        read()


def test_columns_of_different_lengths_are_refused() -> None:
    written([buffer(observations=np.zeros((3, 2), np.float32))], BOX, THREE)
    with pytest.raises(
        ValueError, match=r"episode 0\b.*observation.*float32 \(4, 2\).*float32 \(3, 2\)"
    ):
        read()


def test_a_folder_without_minaris_metadata_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "some" / "data"
    folder.mkdir(parents=True)
    (folder / "metadata.json").write_text("{}")
    with pytest.raises(ValueError, match=r"metadata\.json.*env_spec.*JSON"):
        import_episodes("minari", folder.parent, SequenceReplayBuffer())


def test_infos_that_change_with_each_step_are_read() -> None:
    env = InfoEnv(4)
    rows: list[dict[str, Any]] = [env.reset()[1]]
    rows += [env.step(np.int64(0))[4] for _ in range(4)]
    written([buffer(4, infos={"t": [0, *[row["t"] for row in rows[1:]]]})], BOX, spaces.Discrete(4))
    _, (episode,) = read()
    assert episode.fields["info/t"].tolist() == [0, 1, 2, 3, 4]


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
