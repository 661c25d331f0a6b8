"""Facts about a run: what its envs, its numbers and its machine were."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FlattenObservation, TransformObservation
from gymnasium.wrappers.vector import ClipReward, RecordEpisodeStatistics

import stepwell as sw
from stepwell.collectors.loop.session import describe
from stepwell.collectors.loop.vector_envs import frame_skip
from support.envs.fakes import CounterEnv, InfoEnv

gym.register_envs(ale_py)


def facts_of(*envs: Any, **options: Any) -> dict[str, Any]:
    """The facts of a run, as a store has them."""
    replay = sw.SequenceReplayBuffer()
    groups = envs[0] if len(envs) == 1 else list(envs)
    with sw.Collector(groups, sw.RandomPolicy(), replay, seed=3, **options) as collector:
        collector.collect(steps=5)
    (facts,) = replay.sessions
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    return dict(facts)


def test_facts_are_json_and_leave_the_recipe_as_it_is() -> None:
    def mine(observation: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        return np.zeros(len(is_first))

    envs = SyncVectorEnv([CounterEnv] * 3)
    recipe = {"size": (84, 84), "frame_skip": 4, "versions": {"ale-py": "0.12"}}
    envs.metadata = {**envs.metadata, "stepwell": recipe}
    facts = describe([envs], policy=mine, seed=7, session=2, reseed_steps=None, missing={})
    assert json.loads(json.dumps(facts)) == facts
    assert facts["recipe"] == {"size": [84, 84], "frame_skip": 4}
    assert facts["versions"]["ale-py"] == "0.12"  # type: ignore[index]
    assert (facts["num_envs"], facts["session"], facts["seed"]) == (3, 2, "7")
    assert frame_skip(envs) == 4
    where = "test_session_description.test_facts_are_json_and_leave_the_recipe_as_it_is"
    assert str(facts["policy"]).endswith(f"{where}.<locals>.mine")


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_mode_and_reseed_steps_are_noted(mode: AutoresetMode) -> None:
    facts = facts_of(SyncVectorEnv([CounterEnv], autoreset_mode=mode))
    assert (facts["autoreset"], facts["reseed_steps"]) == (mode.name, 50_000)
    assert facts_of(CounterEnv(), reseed_steps=None)["reseed_steps"] is None


def test_versions_and_machine_are_those_that_run() -> None:
    import cv2  # noqa: F401

    facts = facts_of(CounterEnv())
    for name in ("stepwell", "gymnasium", "numpy", "zstandard"):
        assert facts["versions"][name] == version(name)
    assert any(name.startswith("opencv") for name in facts["versions"])
    assert facts["machine"] == {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "libc": "-".join(platform.libc_ver()),
    }


@pytest.mark.proof
def test_versions_of_given_envs_are_those_of_their_packages() -> None:
    pong = lambda: gym.make("ALE/Pong-v5")  # noqa: E731
    for envs in (SyncVectorEnv([pong]), gym.make_vec("ALE/Pong-v5", 1)):
        assert facts_of(envs)["versions"]["ale-py"] == version("ale-py")


def test_values_that_stand_for_missing_info_come_back_bit_by_bit() -> None:
    missing = {
        "a": -1,
        "b": np.array([0.1, np.nan, -np.inf], np.float32),
        "c": np.zeros((3, 4), np.int16),
        "d": np.complex128(1 / 3 + 2j),
        "e": np.array([True, False]),
        "f": np.uint64(2**64 - 1),
        "g": np.nan,
        "h": np.zeros((0,)),
        "i": np.array([0.0, -0.0]),
        "j": np.full((2, 2), np.nan),
    }
    facts = facts_of(SyncVectorEnv([InfoEnv]), info=missing)
    assert facts["missing"]["a"] == -1
    assert (facts["missing"]["c"], facts["missing"]["j"]) == (0, "nan")
    for name, value in missing.items():
        given = np.asarray(value)
        back = np.broadcast_to(np.array(facts["missing"][name], given.dtype), given.shape)
        assert back.tobytes() == given.tobytes(), name


def made_again(text: str) -> Any:
    return gym.make(EnvSpec.from_json(text))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_spec_of_given_envs_makes_one_of_them(kind: str) -> None:
    envs = gym.make_vec("MountainCar-v0", 2, kind, goal_velocity=0.5)
    facts = facts_of(envs)
    again = made_again(facts["env_spec"])
    assert again.spec.id == "MountainCar-v0"
    assert again.unwrapped.goal_velocity == 0.5
    assert "shared_generator" not in facts


def test_the_spec_of_a_single_env_has_its_wrappers() -> None:
    env = FlattenObservation(gym.make("FrozenLake-v1", is_slippery=False))
    again: Any = made_again(facts_of(env)["env_spec"])
    assert type(again) is FlattenObservation
    inner: Any = again.unwrapped
    assert inner.spec.kwargs["is_slippery"] is False


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore:env .* expected observations")  # a wrapper scales them
def test_an_env_spec_is_left_out_where_it_would_make_other_envs() -> None:
    make = lambda: gym.make("MountainCar-v0")  # noqa: E731
    wrapped = lambda: TransformObservation(make(), lambda x: x + 1, None)  # type: ignore[no-untyped-call]  # noqa: E731
    other = lambda: gym.make("MountainCar-v0", goal_velocity=0.5)  # noqa: E731
    for envs in (
        SyncVectorEnv([wrapped]),  # JSON has no functions
        SyncVectorEnv([make, other]),
        SyncVectorEnv([CounterEnv]),
        ClipReward(SyncVectorEnv([make]), 0, 1),
        gym.make_vec("MountainCar-v0", 2, "async", wrappers=[FlattenObservation]),
        AsyncVectorEnv([make]),
        gym.make_vec("ALE/Pong-v5", 2),
    ):
        assert "env_spec" not in facts_of(envs)
    assert "env_spec" in facts_of(SyncVectorEnv([make]), SyncVectorEnv([make]))
    assert "env_spec" not in facts_of(SyncVectorEnv([make]), SyncVectorEnv([other]))


@pytest.mark.proof
@pytest.mark.parametrize("is_game", [False, True])
def test_rows_that_went_through_vector_wrappers_are_not_played_again(is_game: bool) -> None:
    made = sw.make_atari("Pong", 2) if is_game else sw.make_vec("MountainCar-v0", 2)
    envs = ClipReward(RecordEpisodeStatistics(made), -0.5, 0.5)
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=4)
    assert replay.sessions[0]["vector_wrappers"] == ["ClipReward"]
    with pytest.raises(ValueError, match=r"vector wrappers \['ClipReward'\]"):
        sw.resimulate(replay)


def test_a_wrapper_that_only_counts_is_not_noted() -> None:
    assert "vector_wrappers" not in facts_of(RecordEpisodeStatistics(sw.make_vec("CartPole-v1", 2)))


def test_a_generator_for_all_envs_is_noted() -> None:
    facts = facts_of(gym.make_vec("CartPole-v1", 2))
    assert facts["shared_generator"] is True
    assert "env_spec" not in facts
