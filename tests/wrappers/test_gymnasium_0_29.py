"""Files for Gymnasium 0.29: what the patched names do, and that nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from stepwell.wrappers.gymnasium_0_29 import SameStepVectorEnv, frame_stack, gray_scale_observation

NUM_ENVS, STEPS = 3, 60


class Reusing(gym.Env[Any, Any]):
    """Writes each observation into one array; lengths and ends of its episodes follow a plan."""

    observation_space = gym.spaces.Box(0, 1e6, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, number: int) -> None:
        self._array = np.zeros(2)
        self._number, self._episode, self._step = number, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._episode, self._step = self._episode + 1, 0
        return self._observation(), {"begins": self._episode}

    def step(self, action: Any) -> Any:
        self._step += 1
        over = self._step == 1 + (self._number + self._episode) % 4
        by_clock = bool(over and self._episode % 2)
        info: dict[str, Any] = {"list": [self._step]}
        if over:
            info["episode"] = {"r": float(self._episode), "l": self._step}
        return self._observation(), float(action), over and not by_clock, by_clock, info

    def _observation(self) -> Any:
        self._array[:] = self._number * 1000 + self._episode, self._step
        return self._array


def test_an_end_has_the_last_observation_and_info_of_its_env_as_in_0_29() -> None:
    envs = SameStepVectorEnv([lambda i=i: Reusing(i) for i in range(NUM_ENVS)])  # type: ignore[misc]
    twins = [Reusing(i) for i in range(NUM_ENVS)]
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    envs.reset(seed=0)
    current = np.stack([twin.reset()[0].copy() for twin in twins])
    rng, ends = np.random.default_rng(0), 0
    for _ in range(STEPS):
        actions = rng.integers(2, size=NUM_ENVS)
        observation, reward, terminated, truncated, info = envs.step(actions)
        found = {"final_observation", "_final_observation", "final_info", "_final_info"} & set(info)
        expected: dict[int, tuple[Any, Any]] = {}
        for i, twin in enumerate(twins):
            last, gain, by_end, by_clock, last_info = twin.step(actions[i])
            assert (reward[i], terminated[i], truncated[i]) == (gain, by_end, by_clock)
            if by_end or by_clock:
                expected[i] = last.copy(), last_info
                last = twin.reset()[0]
            current[i] = last
        np.testing.assert_array_equal(observation, current)
        assert "final_obs" not in info
        assert len(found) == (4 if expected else 0)
        for i in range(NUM_ENVS if expected else 0):
            assert info["_final_observation"][i] == info["_final_info"][i] == (i in expected)
            last, last_info = expected.get(i, (None, None))
            np.testing.assert_array_equal(info["final_observation"][i], last)
            assert info["final_info"][i] == last_info
        ends += len(expected)
    assert ends > STEPS // 2


@pytest.mark.parametrize("mode", [*AutoresetMode, "SameStep"])
def test_a_call_that_names_a_mode_gets_the_env_of_gymnasium_1(mode: Any) -> None:
    make = [lambda: gym.make("CartPole-v1", max_episode_steps=3)] * 2
    both = SameStepVectorEnv(make, autoreset_mode=mode), SyncVectorEnv(make, autoreset_mode=mode)
    assert len({envs.metadata["autoreset_mode"] for envs in both}) == 1
    seen = []
    for envs in both:
        envs.reset(seed=0)
        seen.append([envs.step(np.array([step % 2, 1])) for step in range(3)][-1])
    assert seen[0][3].all()
    assert sorted(seen[0][4]) == sorted(seen[1][4])
    np.testing.assert_array_equal(seen[0][0], seen[1][0])


class Noise(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(0, 255, (7, 5, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.integers(256, size=(7, 5, 3), dtype=np.uint8), {}

    def step(self, action: Any) -> Any:
        return self.np_random.integers(256, size=(7, 5, 3), dtype=np.uint8), 0.0, False, False, {}


@pytest.mark.parametrize("keep_dim", [False, True])
def test_gray_levels_are_opencv_s_as_in_0_29(keep_dim: bool) -> None:
    bare, gray = Noise(), gray_scale_observation(Noise(), keep_dim)
    expected = cv2.cvtColor(bare.reset(seed=0)[0], cv2.COLOR_RGB2GRAY)
    observation, _ = gray.reset(seed=0)
    assert observation in gray.observation_space
    np.testing.assert_array_equal(observation, expected[..., None] if keep_dim else expected)


def test_the_first_observation_fills_a_stack() -> None:
    bare, stacked = Noise(), frame_stack(Noise(), 3)
    first = bare.reset(seed=0)[0]
    np.testing.assert_array_equal(stacked.reset(seed=0)[0], [first] * 3)
    second = bare.step(0)[0]
    np.testing.assert_array_equal(stacked.step(0)[0], [first, first, second])


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments], cwd=folder, capture_output=True, text=True
    )


FILE = """
import sys, beside
import gymnasium as gym
from gymnasium.vector import SyncVectorEnv
assert __name__ == "__main__" and sys.argv[1:] == ["--env-id", "CartPole-v1"], sys.argv
assert SyncVectorEnv.__name__ == "SameStepVectorEnv"
assert gym.wrappers.GrayScaleObservation and gym.wrappers.FrameStack
assert "BreakoutNoFrameskip-v4" in gym.registry
envs = SyncVectorEnv([lambda: gym.make("CartPole-v1", max_episode_steps=2)])
envs.reset(seed=0)
envs.step([0])
print(envs.step([0])[-1]["final_observation"][0].shape, beside.number)
import stepwell as sw
with sw.Collector(gym.make("CartPole-v1"), sw.RandomPolicy(), seed=0) as collector:
    print(collector.collect(steps=50).steps)
stacked = sw.make_vec(lambda: gym.wrappers.FrameStack(gym.make("CartPole-v1"), 3), 2, num_workers=0)
from stepwell.wrappers.recipe import stack_of_vector
print(stack_of_vector(stacked))
"""


@pytest.mark.proof
def test_a_file_runs_as_its_user_would_start_it(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "main.py").write_text(FILE)
    (tmp_path / "old" / "beside.py").write_text("number = 7")
    command = "-m", "stepwell.wrappers.gymnasium_0_29"
    done = run(*command, "old/main.py", "--env-id", "CartPole-v1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == ["(4,) 7", "50", "(3, 'repeat')"]


@pytest.mark.proof
@pytest.mark.parametrize("arguments", [[], ["nowhere.py"]])
def test_a_missing_file_is_named(arguments: list[str], tmp_path: Path) -> None:
    done = run("-m", "stepwell.wrappers.gymnasium_0_29", *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert "FILE" in done.stderr
    assert (*arguments, "no argument")[0] in done.stderr
    assert "Traceback" not in done.stderr
