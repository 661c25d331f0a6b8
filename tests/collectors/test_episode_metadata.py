"""What users note about episodes reaches every chunk, whatever the autoreset mode."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import stepwell as sw
from stepwell.collectors.episode_metadata import EpisodeMetadata, info_of


class LevelEnv(gymnasium.Env[Any, Any]):
    """Tells its level in the info of each reset; a level has as many steps as its number."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, first: int) -> None:
        self._level = first
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._level, self._steps = self._level + 1, 0
        return self._seen(), {"level": self._level, "maze": {"door": self._level * 10}}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._seen(), 1.0, self._steps == self._level, False, {}

    def _seen(self) -> np.ndarray:
        return np.array([self._level], np.float32)


MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)


@pytest.mark.parametrize("mode", MODES)
def test_a_function_sees_the_info_of_each_reset(mode: AutoresetMode) -> None:
    envs = SyncVectorEnv(
        [lambda: LevelEnv(2), lambda: LevelEnv(30)],
        autoreset_mode=mode,
    )
    replay = sw.SequenceReplayBuffer(seed=0)

    def metadata(env: int, info: Any) -> dict[str, object]:
        return {"env": env, "level": info["level"], "door": info["maze"]["door"]}

    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0, metadata=metadata) as collector:
        for _ in range(12):  # many small chunks
            collector.collect(steps=10)
    episodes = list(replay.iter_episodes())
    assert len(episodes) > 8
    for episode in episodes:
        level = int(episode.observation[0, 0])
        assert episode.metadata["level"] == level
        assert episode.metadata["door"] == 10 * level
        assert episode.metadata["env"] == episode.stream
        assert episode.terminated[-1] == (episode.steps == level)
    batch = replay.sample_sequences(50, 3, where={"level": 4})
    assert (batch.observation == 4).all()
    batch = replay.sample_sequences(50, 3, where=lambda facts: facts["env"] == 1)
    assert (batch.observation > 30).all()


def test_facts_for_all_episodes_stand_beside_the_seed() -> None:
    replay = sw.SequenceReplayBuffer()
    envs = gymnasium.make_vec("CartPole-v1", 2)
    facts = {"task": "balance", "tags": ["a", 1, None]}
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0, metadata=facts) as collector:
        collector.collect(episodes=4)
    episodes = list(replay.iter_episodes())
    assert all(episode.metadata.items() >= facts.items() for episode in episodes)
    assert sum("seed" in episode.metadata for episode in episodes) == 2


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"seed": 1}, ValueError, r"keys other than seed and stream_episode, .*, got 'seed'"),
        ({"x": np.zeros(2)}, TypeError, r"^metadata: expected plain JSON values, got {'x'"),
        ({"x": float("nan")}, TypeError, r"^metadata: expected plain JSON values"),
        ("task", TypeError, r"^metadata: expected a mapping of facts, or a function .*got 'task'"),
    ],
)
def test_facts_that_cannot_be_kept_are_refused_at_once(
    metadata: Any, error: type[Exception], message: str
) -> None:
    envs = gymnasium.make_vec("CartPole-v1", 1)
    with pytest.raises(error, match=message):
        sw.Collector(envs, sw.RandomPolicy(), metadata=metadata)
    envs.close()


def test_a_function_must_return_a_mapping() -> None:
    facts = EpisodeMetadata(lambda env, info: 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^metadata: expected a mapping of facts, got 3"):
        facts.of(0, {}, 0)


def test_the_info_of_one_env_has_what_that_env_gave() -> None:
    info: dict[str, Any] = {
        "lives": np.array([3, 5]),
        "_lives": np.array([True, False]),
        "name": np.array(["a", None], object),
        "_name": np.array([True, False]),
        "episode": {"r": np.array([0.0, 2.5]), "_r": np.array([False, True])},
        "_episode": np.array([False, True]),
        "seeds": [7, 8],
    }
    assert info_of(info, 0) == {"lives": 3, "name": "a", "seeds": 7}
    assert info_of(info, 1) == {"episode": {"r": 2.5}, "seeds": 8}
