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
from stepwell.buffers.exchange.formats.rlds import rlds_episodes
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
        assert [row["is_first"] for row in found] == [step == 0 for step in range(episode.steps)]
        assert {row["stream"] for row in found} <= {end["stream"]}
        columns = {*names, "episode", "stream", "step", "is_first", "next_observation"}
        assert all(row.keys() == columns for row in found)
        frame = plain(np.asarray(episode.observations[-1])[-1]) if stack else final(episode, newest)
        assert end["final/observation"] == frame
        after = [row["next_observation"] for row in found]
        shown = [one[-1] if newest else one for one in episode.observations]
        assert after == [plain(one) for one in shown[1:]]
        assert end["return"] == pytest.approx(sum(episode.rewards))
        assert end["cut"] == episode.is_cut


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
