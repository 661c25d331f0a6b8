"""Wrong arguments of public classes are refused in one sentence, before anything changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from stepwell.buffers import (
    DiskStorage,
    EpisodeBuffer,
    EpisodeWriter,
    NotEnoughData,
    SequenceReplayBuffer,
    Spec,
    Transitions,
    copy_episodes,
    repair,
    verify,
)
from stepwell.buffers.testing import check_format

SPEC = Spec.from_spaces(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2))
NUMBER: Any = 5
TRANSITION: dict[str, Any] = {
    "observation": np.zeros((2, 4), np.float32),
    "action": np.zeros(2, np.int64),
    "reward": np.zeros(2),
    "next_observation": np.ones((2, 4), np.float32),
    "terminated": np.zeros(2, np.bool_),
    "truncated": np.zeros(2, np.bool_),
}
COLUMNS: dict[str, Any] = {
    "observation": np.zeros((4, 4), np.float32),
    "action": np.zeros(3, np.int64),
    "reward": np.zeros(3),
}


@pytest.mark.parametrize("name", ["num_envs", "chunk_rows", "capacity"])
@pytest.mark.parametrize("value", [0, 1.5, "2", True])
def test_numbers_of_an_episode_buffer_are_whole(name: str, value: Any) -> None:
    arguments: dict[str, Any] = {"num_envs": 2, name: value}
    with pytest.raises(ValueError, match=rf"(?s){name}.*{value!r}"):
        EpisodeBuffer(SPEC, **arguments)


def test_an_episode_buffer_needs_a_spec() -> None:
    with pytest.raises(TypeError, match=r"spec.*NoneType"):
        EpisodeBuffer(None, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("env_ids", [[0, 0], [0, 2], [-1, 0], [0.0, 1.0], [[0, 1]], "0", True])
def test_env_ids_are_different_indices(env_ids: Any) -> None:
    buffer = EpisodeBuffer(SPEC, 2)
    with pytest.raises(ValueError, match=r"(?s)env_ids.*0 to 1"):
        buffer.add(**TRANSITION, env_ids=env_ids)
    assert buffer.take(everything=True) == []


@pytest.mark.parametrize("metadata", [{0: {"a": {1}}}, {0: 5}, [{"a": 1}]])
def test_metadata_of_a_transition_are_json(metadata: Any) -> None:
    buffer = EpisodeBuffer(SPEC, 2)
    with pytest.raises(TypeError, match="metadata"):
        buffer.add(**TRANSITION, metadata=metadata)
    assert buffer.take(everything=True) == []


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"terminated": "yes"}, "terminated"),
        ({"terminated": np.array([False, False, True])}, "terminated"),
        ({"truncated": 1}, "truncated"),
        ({"stream": -1}, "stream"),
        ({"stream": "a"}, "stream"),
        ({"metadata": {"a": {1}}}, "metadata"),
        ({"metadata": {"a": float("nan")}}, "metadata"),
        ({"columns": [1, 2]}, "list"),
    ],
)
def test_arguments_of_an_episode_of_arrays(changed: dict[str, Any], name: str) -> None:
    replay = SequenceReplayBuffer()
    writer = EpisodeWriter(replay)
    with pytest.raises(TypeError, match=name):
        writer.add_arrays(**{"columns": COLUMNS, "terminated": True, **changed})
    writer.flush()
    assert not replay.is_bound


def test_a_writer_needs_a_replay() -> None:
    with pytest.raises(TypeError, match=r"replay.*str"):
        EpisodeWriter("runs/x")  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", ["a", -1, 1.5])
def test_the_seed_of_a_replay(seed: Any) -> None:
    with pytest.raises(ValueError, match=rf"(?s)seed.*{seed!r}"):
        SequenceReplayBuffer(seed=seed)


def test_the_capacity_of_a_replay_is_a_number() -> None:
    with pytest.raises(ValueError, match=r"capacity.*'10'"):
        SequenceReplayBuffer(capacity="10")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("codecs", "error"), [({"observation": "zip"}, ValueError), (["zip"], TypeError)]
)
def test_the_codecs_of_a_replay(codecs: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"(?s)codec.*'zip'"):
        SequenceReplayBuffer(codecs=codecs)


def test_the_path_of_a_replay(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"path.*\b5$"):
        SequenceReplayBuffer(5)  # type: ignore[arg-type]
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"notes\.txt\b.*\bfile\b"):
        SequenceReplayBuffer(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    "call",
    [
        lambda path: copy_episodes(NUMBER, SequenceReplayBuffer()),
        lambda path: copy_episodes([SequenceReplayBuffer(), NUMBER], SequenceReplayBuffer()),
        lambda path: copy_episodes(SequenceReplayBuffer(), NUMBER),
        lambda path: check_format(NUMBER, path),
    ],
    ids=["source", "one source", "target", "format"],
)
def test_a_number_is_no_replay_and_no_format(
    call: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=r"^(source|target|format): .*\bint$"):
        call(tmp_path)


@pytest.mark.parametrize("call", [repair, verify, DiskStorage.open])
def test_a_number_is_no_folder(call: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match=r"^path: .*\b5$"):
        call(5)


def test_chunks_need_a_spec() -> None:
    with pytest.raises(NotEnoughData, match="bind"):
        SequenceReplayBuffer().add([])


@pytest.mark.parametrize("call", ["sample", "count", "loader", "epoch"])
def test_a_request_is_a_request(call: str) -> None:
    replay = SequenceReplayBuffer(seed=0)
    EpisodeWriter(replay).add_arrays(COLUMNS, terminated=True)
    replay.bind(SPEC, {})
    method: Callable[..., object] = getattr(replay, call)
    with pytest.raises(TypeError, match=r"request.*int"):
        method(5)


@pytest.mark.parametrize("gamma", [2, -0.1, "a"])
def test_gamma_is_a_share(gamma: Any) -> None:
    replay = SequenceReplayBuffer(seed=0)
    writer = EpisodeWriter(replay)
    writer.add_arrays(COLUMNS, terminated=True)
    writer.flush()
    with pytest.raises(ValueError, match=rf"(?s)gamma.*{gamma!r}"):
        replay.sample(Transitions(2, gamma=gamma))
