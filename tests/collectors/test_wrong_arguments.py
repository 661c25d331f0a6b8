"""Wrong arguments of a Collector are refused in one sentence, before it steps."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import stepwell as sw


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("replay", "runs/x", TypeError),
        ("seed", "a", ValueError),
        ("seed", 1.5, ValueError),
        ("seed", -1, ValueError),
        ("info", ["lives"], TypeError),
        ("metadata", {"a": {1}}, TypeError),
        ("metadata", [1], TypeError),
        ("flush_seconds", -1, ValueError),
        ("flush_seconds", "a", ValueError),
        ("flush_seconds", float("nan"), ValueError),
        ("on_step", 5, TypeError),
    ],
)
def test_arguments_of_a_collector(name: str, value: Any, error: type[Exception]) -> None:
    envs = gym.make_vec("CartPole-v1", num_envs=2)
    with pytest.raises(error, match=f"^{name}: expected"):
        sw.Collector(envs, sw.RandomPolicy(), **{name: value})
    envs.close()


def test_extras_are_returned_in_a_dict() -> None:
    def policy(observation: np.ndarray, is_first: np.ndarray) -> Any:
        return np.zeros(2, np.int64), [1]

    envs = gym.make_vec("CartPole-v1", num_envs=2)
    with sw.Collector(envs, policy) as collector, pytest.raises(ValueError, match="extras"):
        collector.collect(steps=2)


def test_progress_is_a_function() -> None:
    progress: Any = 3
    envs = gym.make_vec("CartPole-v1", num_envs=2)
    with (
        sw.Collector(envs, sw.RandomPolicy()) as collector,
        pytest.raises(TypeError, match=r"^progress: .*got 3"),
    ):
        collector.collect(steps=2, progress=progress)
    with pytest.raises(TypeError, match=r"^progress: .*got 3"):
        sw.evaluate("CartPole-v1", sw.RandomPolicy(), episodes=1, progress=progress)


def test_a_video_is_a_path_or_a_bool() -> None:
    video: Any = 3
    with pytest.raises(TypeError, match=r"^video: .*got 3"):
        sw.evaluate("CartPole-v1", sw.RandomPolicy(), episodes=1, video=video)
