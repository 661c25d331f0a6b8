"""Tables and RLDS steps of a Collector's recordings equal what the envs logged.

Envs with episodes of 1 to 6 steps that are terminated, truncated, both, or cut by the end of the
recording; frames with and without stacks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import pytest

from stepwell.buffers import SequenceReplayBuffer
from stepwell.buffers.bridges import export_episodes
from stepwell.buffers.bridges.formats.rlds import dataset_info, decode_feature, read_features
from stepwell.buffers.bridges.formats.tfrecord import decoded, read_records
from stepwell.buffers.bridges.rlds_steps import rlds_episodes
from stepwell.buffers.given_files import GivenFiles
from support.envs.recorded_envs import Listed, frames, recorded, traces

pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")

Steps: TypeAlias = "list[tuple[Any, Any, float, bool, bool]]"
"""Observation, action, reward, terminated and truncated of each step."""

ENVS = {
    "traces": (traces, False),
    "frames": (frames, False),
    "stacks": (lambda: frames(3), True),
    "frames of stacks": (lambda: frames(3), False),
}


def plain(value: Any) -> Any:
    return np.asarray(value).tolist()


def steps_of(listed: Listed, newest: bool) -> Steps:
    """The steps of an episode; with ``newest`` only the newest frame of each stack."""
    observations = [one[-1] if newest else one for one in listed.observations]
    return [
        (plain(observation), plain(action), reward, terminated, truncated)
        for observation, action, reward, terminated, truncated in zip(
            observations[:-1],
            listed.actions,
            listed.rewards,
            listed.terminated,
            listed.truncated,
            strict=True,
        )
    ]


def final(listed: Listed, newest: bool) -> Any:
    last = listed.observations[-1]
    return plain(last[-1] if newest else last)


@pytest.fixture(params=ENVS)
def case(request: pytest.FixtureRequest) -> tuple[SequenceReplayBuffer, list[Listed], bool, bool]:
    """A replay, its episodes, the option `stack`, and whether only newest frames are written."""
    name: str = request.param
    make, stack = ENVS[name]
    makers: Sequence[Callable[[], gym.Env[Any, Any]]] = make()
    replay, listed = recorded(makers)
    assert len(listed) > 8
    assert any(one.is_cut for one in listed)
    if name == "traces":
        ends = {(*one.terminated[-1:], *one.truncated[-1:]) for one in listed}
        assert len(ends) >= 4
    return replay, listed, stack, name == "frames of stacks"


def grouped(rows: list[dict[str, Any]], key: str) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    for number, group in itertools.groupby(rows, key=lambda row: int(row[key])):
        yield number, list(group)


def rows_of(files: Iterator[Path]) -> list[dict[str, Any]]:
    return [row for file in sorted(files) for row in pq.ParquetFile(file).read().to_pylist()]


def test_parquet_tables_equal_what_the_envs_did(
    case: tuple[SequenceReplayBuffer, list[Listed], bool, bool], tmp_path: Path
) -> None:
    replay, listed, stack, newest = case
    options = {"stack": stack, "next_observation": True}
    export_episodes(replay, "parquet", tmp_path / "out", options=options)
    steps = dict(grouped(rows_of((tmp_path / "out" / "data").glob("*")), "episode"))
    ends = rows_of(tmp_path.glob("out/episodes.parquet"))
    names = ("observation", "action", "reward", "terminated", "truncated")
    for number, (episode, end) in enumerate(zip(listed, ends, strict=True)):
        found = steps.get(number, [])
        assert [tuple(row[name] for name in names) for row in found] == steps_of(episode, newest)
        assert [row["step"] for row in found] == list(range(episode.steps))
        frame = plain(np.asarray(episode.observations[-1])[-1]) if stack else final(episode, newest)
        assert end["final/observation"] == frame
        after = [row["next_observation"] for row in found]
        shown = [one[-1] if newest else one for one in episode.observations]
        assert after == [plain(one) for one in shown[1:]]
        assert end["return"] == pytest.approx(sum(episode.rewards))
        assert end["cut"] == episode.is_cut


def test_lerobot_frames_equal_what_the_envs_did(
    case: tuple[SequenceReplayBuffer, list[Listed], bool, bool], tmp_path: Path
) -> None:
    replay, listed, stack, newest = case
    export_episodes(replay, "lerobot", tmp_path / "out")
    newest = newest or stack
    frame_rows = rows_of((tmp_path / "out" / "data").glob("*/*"))
    episodes = dict(grouped(frame_rows, "episode_index"))
    names = ("observation.state", "action", "next.reward", "next.terminated", "next.truncated")
    with_steps = [one for one in listed if one.steps]
    assert len(episodes) == len(with_steps)
    for number, episode in enumerate(with_steps):
        found = [tuple(row[name] for name in names) for row in episodes[number]]
        assert found == steps_of(episode, newest)
        assert [row["next.done"] for row in episodes[number]] == [
            terminated or truncated
            for terminated, truncated in zip(episode.terminated, episode.truncated, strict=True)
        ]


def assert_steps(steps: list[dict[str, Any]], episode: Listed, newest: bool) -> None:
    """Assert that RLDS steps equal those of an episode."""
    observations = [one[-1] if newest else one for one in episode.observations]
    assert [plain(step["observation"]) for step in steps] == [plain(one) for one in observations]
    assert [plain(step["action"]) for step in steps[:-1]] == [plain(a) for a in episode.actions]
    assert [float(step["reward"]) for step in steps] == [*episode.rewards, 0.0]
    count = len(steps)
    assert [bool(step["is_first"]) for step in steps] == [True, *[False] * (count - 1)]
    assert [bool(step["is_last"]) for step in steps] == [*[False] * (count - 1), True]
    is_terminal = any(episode.terminated)
    assert [bool(step["is_terminal"]) for step in steps] == [*[False] * (count - 1), is_terminal]
    assert [float(step["discount"]) for step in steps] == [
        *(1.0 - flag for flag in episode.terminated),
        0.0,
    ]


def test_live_rlds_steps_equal_what_the_envs_did(
    case: tuple[SequenceReplayBuffer, list[Listed], bool, bool],
) -> None:
    replay, listed, stack, newest = case
    for episode, expected in zip(rlds_episodes(replay, stack=stack), listed, strict=True):
        for _ in range(2):
            assert_steps(list(episode["steps"]), expected, newest)


def test_rlds_files_equal_what_the_envs_did(
    case: tuple[SequenceReplayBuffer, list[Listed], bool, bool], tmp_path: Path
) -> None:
    replay, listed, stack, newest = case
    export_episodes(replay, "rlds", tmp_path / "out", options={"stack": stack})
    features, unknown = read_features(dataset_info(GivenFiles(tmp_path / "out"))["features"])
    assert unknown == ["episode_metadata/metadata"]
    (file,) = (tmp_path / "out").glob("*.tfrecord*")
    for record, expected in zip(read_records(file), listed, strict=True):
        lists = decoded(record)
        count = len(lists["steps/is_last"])
        columns = {
            name.removeprefix("steps/"): decode_feature(feature, lists[name], count)
            for name, feature in features.items()
            if name.startswith("steps/")
        }
        steps = [{name: rows[place] for name, rows in columns.items()} for place in range(count)]
        assert_steps(steps, expected, newest)
