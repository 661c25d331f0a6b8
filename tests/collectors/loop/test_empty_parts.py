"""Leaves without a number, and Dicts and Tuples without a part, are stored beside others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import stepwell as sw
from stepwell.buffers import bridges

ENDS_AFTER = 5


class Empty(gymnasium.Env[Any, Any]):
    """Parts without a number come first, and in the action, too."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "a": spaces.Box(0, 1, (0,)),
                "b": spaces.Box(0, 255, (3, 0), np.uint8),
                "c": spaces.Dict({}),
                "d": spaces.Tuple(()),
                "image": spaces.Box(0, 255, (8, 8), np.uint8),
            }
        )
        self.action_space = spaces.Dict(
            {"go": spaces.Discrete(3), "none": spaces.Box(-1, 1, (0,)), "x": spaces.Dict({})}
        )
        self._t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """The first observation."""
        super().reset(seed=seed)
        self._t = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The reward is the action."""
        assert self.action_space.contains(action)
        self._t += 1
        return self._observation(), float(action["go"]), self._t == ENDS_AFTER, False, {}

    def _observation(self) -> Any:
        return {
            "a": np.zeros(0, np.float32),
            "b": np.zeros((3, 0), np.uint8),
            "c": {},
            "d": (),
            "image": np.full((8, 8), self._t, np.uint8),
        }


class Blind(Empty):
    """Nothing but an array without a number is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 1, (0,))

    def _observation(self) -> Any:
        return np.zeros(0, np.float32)


class Blank(Empty):
    """Nothing is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({})

    def _observation(self) -> Any:
        return {}


KINDS = [Empty, Blind, Blank]
VECTORS: dict[str, Callable[[Any], Any]] = {
    "in this process": lambda kind: sw.make_vec(kind, 2, num_workers=0),
    "in workers": lambda kind: sw.make_vec(kind, 2, num_workers=2),
    "single": lambda kind: kind(),
}


def check(episodes: list[Any], kind: type[Empty]) -> None:
    """Compare episodes with what the env gives."""
    assert episodes
    for episode in episodes:
        assert episode.steps <= ENDS_AFTER
        np.testing.assert_array_equal(episode.reward[1:], episode.action["go"][:-1])
        assert episode.action["none"].shape == (episode.steps + 1, 0)
        if kind is Empty:
            seen = episode.observation
            assert seen["a"].shape == (episode.steps + 1, 0)
            assert seen["b"].shape == (episode.steps + 1, 3, 0)
            assert (seen["c"], seen["d"]) == ({}, ())
            np.testing.assert_array_equal(seen["image"][:, 0, 0], np.arange(episode.steps + 1))
        elif kind is Blind:
            assert episode.observation.shape == (episode.steps + 1, 0)
        else:
            assert episode.observation == {}


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("kind", KINDS)
def test_they_are_collected_and_drawn(kind: type[Empty], vector: str, tmp_path: Path) -> None:
    replay = sw.SequenceReplayBuffer(tmp_path / "store", seed=0)
    with sw.Collector(VECTORS[vector](kind), "random", replay, seed=0) as collector:
        collector.collect(steps=24)
    assert replay.steps >= 24
    check(list(replay.iter_episodes()), kind)
    batch = replay.sample_sequences(4, length=3)
    assert replay.sample_sequences(4, length=3, out=batch).reward.shape == (4, 3)
    assert replay.sample_transitions(4, n_step=2).reward.shape == (4,)
    assert len(replay.sample_episodes(2).reward) == 2
    if kind is Empty:
        assert batch.observation["b"].shape == (4, 3, 3, 0)
        back = sw.SequenceReplayBuffer()
        for name in ("npz", "dreamerv3"):
            bridges.export_episodes(replay, name, tmp_path / name)
        bridges.import_episodes("npz", tmp_path / "npz", back)
        check([episode for episode in back.iter_episodes() if episode.steps], Empty)
    replay.close()


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_recorded_written_rolled_out_and_played_again(kind: type[Empty]) -> None:
    recorded, written = sw.SequenceReplayBuffer(), sw.SequenceReplayBuffer()
    env = sw.record(kind(), recorded)
    observation, _ = env.reset(seed=0)
    with written.writer(kind()) as writer:
        for _ in range(12):
            action = env.action_space.sample()
            after, reward, terminated, truncated, _ = env.step(action)
            writer.add(observation, action, reward, after, terminated, truncated)
            observation = env.reset()[0] if terminated else after
    env.close()
    for replay in (recorded, written):
        assert replay.steps == 12
    check(list(recorded.iter_episodes()), kind)
    with sw.Collector(sw.make_vec(kind, 2, num_workers=0), "random", seed=0) as collector:
        assert collector.rollout(steps=6).reward.shape == (6, 2)
    played = sw.SequenceReplayBuffer()
    with sw.Collector(sw.make_vec(kind, 2, num_workers=0), "random", played, seed=0) as collector:
        collector.collect(steps=12)
    assert all(proof.is_equal for proof in sw.resimulate(played, env=kind))


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_actions_that_gymnasium_cannot_divide_are_refused_before_a_step(kind: Any) -> None:
    envs = kind([Empty, Empty])
    with pytest.raises(ValueError, match=r"empty Dict or Tuple.*make_vec"):
        sw.Collector(envs, "random", sw.SequenceReplayBuffer())
    envs.close()
