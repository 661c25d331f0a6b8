"""Wrong arguments of the functions that make envs are refused in one sentence."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest

import stepwell as sw
from stepwell.wrappers import FrameSkip, FrameStack, WorkerVectorEnv, vectorize


def cart_pole() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1")


@pytest.mark.parametrize("num_envs", ["2", 1.5, 0, True, 100_000_000])
@pytest.mark.parametrize("make", [sw.make_vec, sw.make_atari])
def test_the_number_of_envs_is_whole(make: Callable[..., object], num_envs: Any) -> None:
    with pytest.raises(ValueError, match=f"num_envs.*{num_envs!r}"):
        make("CartPole-v1" if make is sw.make_vec else "Pong", num_envs=num_envs)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("wrappers", [(), (lambda env: 5,)])
def test_a_factory_returns_an_env(num_workers: int, wrappers: Any) -> None:
    factory = cart_pole if wrappers else (lambda: 5)
    with pytest.raises(TypeError, match=r"env: .* int .*observation_space"):
        sw.make_vec(factory, 2, num_workers=num_workers, wrappers=wrappers)  # type: ignore[arg-type]


def test_a_worker_gets_an_env() -> None:
    with pytest.raises(TypeError, match=r"env: .* int .*observation_space"):
        WorkerVectorEnv([lambda: 5])  # type: ignore[list-item, return-value]


def test_wrappers_and_factories_are_functions() -> None:
    with pytest.raises(TypeError, match=r"wrappers: .*5"):
        sw.make_vec("CartPole-v1", 2, wrappers=[5])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"env_fns: .*5"):
        vectorize([5])  # type: ignore[list-item]


@pytest.mark.parametrize("num_workers", ["2", 1.5, -1, True])
def test_the_number_of_workers_is_whole(num_workers: Any) -> None:
    with pytest.raises(ValueError, match=f"num_workers: .*{num_workers!r}"):
        sw.make_vec("CartPole-v1", 2, num_workers=num_workers)
    with pytest.raises(ValueError, match=f"num_workers: .*{num_workers!r}"):
        sw.make_atari("Pong", num_workers=num_workers)


@pytest.mark.parametrize("number", ["2", 1.5, True])
def test_numbers_of_wrappers_are_whole(number: Any) -> None:
    with pytest.raises(ValueError, match=f"skip: .*{number!r}"):
        FrameSkip(cart_pole(), number)
    with pytest.raises(ValueError, match=f"size: .*{number!r}"):
        FrameStack(cart_pole(), number)
