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
        ("on_episode", 3, TypeError),
        *(("reseed_steps", value, ValueError) for value in (0, -1, 1.5, True, "9")),
    ],
)
def test_arguments_of_a_collector(name: str, value: Any, error: type[Exception]) -> None:
    envs = gym.make_vec("CartPole-v1", num_envs=2)
    with pytest.raises(error, match=f"^{name}: expected"):
        sw.Collector(envs, sw.RandomPolicy(), **{name: value})
    envs.close()


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


class OldBox:
    """Stands for a space of the old gym."""

    shape, dtype = (2,), np.dtype(np.float32)


class OldSpaces(gym.Env[Any, Any]):
    """Has a space that is not Gymnasium's."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, space: Any) -> None:
        self.observation_space = space


@pytest.mark.parametrize("space", [OldBox(), None], ids=["old", "none"])
@pytest.mark.parametrize(
    "make",
    [
        lambda env: sw.make_vec(lambda: env, 2, num_workers=0),
        lambda env: sw.make_vec(lambda: env, 2, num_workers=2),
        lambda env: sw.Collector(env, "random", sw.SequenceReplayBuffer()),
        lambda env: sw.record(env, sw.SequenceReplayBuffer()),
    ],
    ids=["make_vec", "workers", "Collector", "record"],
)
def test_spaces_of_other_libraries_are_refused_with_the_cure(make: Any, space: Any) -> None:
    with pytest.raises(TypeError, match=r"observation_space to be a space of gymnasium.*from_gym"):
        make(OldSpaces(space))


@pytest.mark.parametrize(
    ("given", "arguments", "right"),
    [
        ((100,), {}, "steps=100"),
        ((), {"num_steps": 100}, "steps"),
        ((), {"total_timesteps": 100}, "steps"),
        ((), {"n_episodes": 3}, "episodes"),
        ((), {"nonsense": 3}, "leave it out"),
    ],
)
def test_another_name_of_what_is_collected_is_answered_with_the_right_one(
    given: tuple[int, ...], arguments: dict[str, int], right: str
) -> None:
    with sw.Collector(gym.make("CartPole-v1"), "random", seed=0) as collector:
        wrong: Any = collector.collect
        with pytest.raises(TypeError, match=rf"collect: .*steps, episodes.*{right}"):
            wrong(*given, **arguments)
        assert collector.collect(steps=10).steps == 10
