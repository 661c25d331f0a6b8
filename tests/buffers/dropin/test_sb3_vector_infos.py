"""Facts in the infos of a gymnasium vector env reach a replay buffer of Stable-Baselines3."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from stepwell.buffers.dropin.sb3 import ReplayBuffer
from stepwell.wrappers.gymnasium_0_29 import SameStepVectorEnv

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

STEPS = 40
SAME_STEP = AutoresetMode.SAME_STEP


class Short(gym.Env[Any, Any]):
    """Ends after 3 steps; observations tell the episode and the step, or are constant."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, is_constant: bool, reward: float, size: int, end: str) -> None:
        self.observation_space = gym.spaces.Box(-1e3, 1e3, (size,), np.float32)
        self._is_constant, self._reward, self._size = is_constant, reward, size
        self._end = end
        self._episode, self._step = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._episode, self._step = self._episode + 1, 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self._step += 1
        ends = (self._step == 3 and self._end == end for end in ("terminated", "truncated"))
        return self._observation(), self._reward, *ends, {}

    def _observation(self) -> Any:
        tag = (0, 0) if self._is_constant else (self._episode, self._step)
        return np.resize(np.array(tag, np.float32), self._size)


def played(
    mode: AutoresetMode | None,
    *,
    is_constant: bool = False,
    reward: float = 0.0,
    size: int = 2,
    end: str = "terminated",
) -> list[list[list[float]]]:
    """Observations of the episodes that a buffer stored, of a loop as CleanRL's."""
    make: Any = [lambda: Short(is_constant, reward, size, end)] * 2
    envs: Any = (
        SameStepVectorEnv(make) if mode is None else SyncVectorEnv(make, autoreset_mode=mode)
    )
    buffer = ReplayBuffer(
        500,
        envs.single_observation_space,
        envs.single_action_space,
        "cpu",
        n_envs=2,
        handle_timeout_termination=False,
    )
    observation, _ = envs.reset(seed=0)
    for _ in range(STEPS):
        action = np.zeros(2, np.int64)
        following, rewards, terminated, truncated, infos = envs.step(action)
        final = infos.get("final_observation" if mode is None else "final_obs")
        given = following.copy()
        for env in np.flatnonzero(truncated):
            given[env] = final[env]
        buffer.add(observation, given, action, rewards, terminated, infos)
        if mode is AutoresetMode.DISABLED and terminated.any():
            following, _ = envs.reset(options={"reset_mask": terminated})
        observation = following
    buffer.flush()
    for episode in buffer.replay.iter_episodes():
        flags = episode.terminated[-1], episode.truncated[-1]
        is_over = episode.steps == 3
        assert flags == (is_over and end == "terminated", is_over and end == "truncated")
    return [episode.observation[:, :2].tolist() for episode in buffer.replay.iter_episodes()]


WHOLE = [[[e, step] for step in range(4)] for e in range(1, 14) for _ in range(2)]


@pytest.mark.parametrize("size", [2, 300])  # arrays of steps, and drawn from the replay
@pytest.mark.parametrize(
    ("mode", "end"),
    [
        *((mode, end) for mode in (None, SAME_STEP) for end in ("terminated", "truncated")),
        (AutoresetMode.DISABLED, "terminated"),
    ],
)
def test_the_last_observation_of_an_episode_is_the_true_one(mode: Any, end: str, size: int) -> None:
    """Done is what terminated, and infos are a dict that marks what ran out of time."""
    assert sorted(played(mode, size=size, end=end))[:26] == WHOLE


@pytest.mark.parametrize("mode", [None, SAME_STEP])
def test_an_end_that_infos_mark_may_be_followed_by_the_same_observation(mode: Any) -> None:
    found = played(mode, is_constant=True)
    assert sorted(map(len, found)) == [2, 2] + [4] * 26


@pytest.mark.parametrize("size", [2, 300])
@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_a_reset_of_next_step_mode_is_refused(reward: float, size: int) -> None:
    with pytest.raises(ValueError, match=r"env 0.*NEXT_STEP.*autoreset_mode=SAME_STEP"):
        played(AutoresetMode.NEXT_STEP, reward=reward, size=size)
