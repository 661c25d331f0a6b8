"""Seeds and facts of a run."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation, TimeLimit, TransformObservation
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from gymnasium.wrappers.vector import TransformObservation as VectorTransformObservation

from stepwell.collectors import RandomPolicy
from stepwell.collectors.session import Seeds, describe, frame_skip, frame_stack_of, recipe_of
from stepwell.wrappers import FrameStack, vectorize
from support.envs.fakes import CounterEnv


def test_all_seeds_follow_from_one() -> None:
    one, same, other = Seeds(3, 0), Seeds(3, 0), Seeds(4, 0)
    resets = [one.next_envs_seed(8) for _ in range(5)]
    assert resets == [same.next_envs_seed(8) for _ in range(5)]
    assert one.policy_rng().integers(2**60) == same.policy_rng().integers(2**60)
    assert one.policy_rng().integers(2**60) != other.policy_rng().integers(2**60)
    # Env i gets the seed plus i: no env of any reset meets another one's.
    used = {seed + env for seed in resets for env in range(8)}
    assert len(used) == 40
    assert max(used) < 2**31


def test_a_later_session_has_seeds_of_its_own() -> None:
    assert Seeds(3, 0).next_envs_seed(1) != Seeds(3, 1).next_envs_seed(1)
    draws = {int(Seeds(3, session).policy_rng().integers(2**60)) for session in range(5)}
    assert len(draws) == 5


def test_without_a_seed_one_is_drawn_and_can_be_used_again() -> None:
    drawn = Seeds(None, 0)
    assert drawn.seed != Seeds(None, 0).seed
    assert Seeds(drawn.seed, 0).next_envs_seed(2) == Seeds(drawn.seed, 0).next_envs_seed(2)


def test_what_is_told_of_a_run_fits_into_json() -> None:
    envs = SyncVectorEnv([CounterEnv] * 3)
    recipe = {"size": (84, 84), "frame_skip": 4, "versions": {"ale-py": "0.12"}}
    envs.metadata = {**envs.metadata, "stepwell": recipe}
    facts = describe([envs], RandomPolicy(), Seeds(None, 2))
    assert json.loads(json.dumps(facts)) == facts
    assert facts["recipe"] == {"size": [84, 84], "frame_skip": 4}
    assert facts["versions"]["ale-py"] == "0.12"  # type: ignore[index]
    assert (facts["num_envs"], facts["session"]) == (3, 2)
    assert frame_skip(envs) == 4


def test_envs_without_a_recipe_are_described_from_outside() -> None:
    envs = SyncVectorEnv([lambda: gym.make("CartPole-v1")])
    assert recipe_of(envs)["env"] == "CartPole-v1"
    assert recipe_of(gym.make_vec("CartPole-v1", 2))["env"] == "CartPole-v1"
    assert recipe_of(SyncVectorEnv([CounterEnv]))["env"] == "CounterEnv"
    assert frame_skip(envs) == 1
    assert frame_stack_of(envs, None) == (1, "repeat")
    assert frame_stack_of(envs, 4) == (4, "repeat")


def test_the_stack_of_ale_py_is_known_under_wrappers_too() -> None:
    envs = AtariVectorEnv("pong", 1, stack_num=3)
    assert frame_stack_of(envs, None) == (3, "zero")
    assert frame_stack_of(RecordEpisodeStatistics(envs), None) == (3, "zero")
    assert frame_stack_of(envs, 1) == (1, "zero")
    envs.close()


def stacked(padding: Any = "zero", outer: Any = None, **options: Any) -> gym.Env[Any, Any]:
    env = FrameStackObservation(gym.make("CartPole-v1"), 3, padding_type=padding)
    return env if outer is None else outer(env, **options)


def changed_outside(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    return TransformObservation(env, np.negative, env.observation_space)


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv, partial(vectorize, num_workers=2)])
def test_gymnasiums_own_stack_tells_its_size_and_padding(kind: Any) -> None:
    def seen(make: Any) -> tuple[int, str]:
        with contextlib.closing(kind([make, make])) as envs:
            found = frame_stack_of(envs, None)
            assert envs.reset(seed=0)[0].shape == (2, 3, 4)  # asking did it no harm
            return found

    assert seen(stacked) == (3, "zero")
    assert seen(partial(stacked, "reset", TimeLimit, max_episode_steps=9)) == (3, "repeat")
    assert seen(partial(stacked, np.zeros(4, np.float32))) == (3, "zero")
    assert seen(lambda: FrameStack(gym.make("CartPole-v1"), 3, padding="repeat")) == (3, "repeat")
    # Stored as they are: their first frames are of the user's, or they are changed further out.
    assert seen(partial(stacked, np.full(4, 0.1, np.float32)))[0] == 1
    assert seen(partial(stacked, "zero", changed_outside))[0] == 1


def test_what_is_said_of_a_stack_outweighs_what_is_seen() -> None:
    envs = SyncVectorEnv([stacked])
    assert frame_stack_of(envs, 1)[0] == 1
    assert frame_stack_of(RecordEpisodeStatistics(envs), 3) == (3, "zero")
    spaces = envs.observation_space, envs.single_observation_space
    # A vector wrapper may change what the envs give.
    changed = VectorTransformObservation(envs, np.negative, *spaces)
    assert frame_stack_of(changed, None) == (1, "repeat")
    envs.metadata = {"stepwell": {"frame_stack": 1, "stack_padding": "repeat"}}
    assert frame_stack_of(envs, None) == (1, "repeat")


def test_stacks_of_several_paddings_are_stored_as_they_are() -> None:
    envs = SyncVectorEnv([stacked, partial(stacked, "reset")])
    assert frame_stack_of(envs, None)[0] == 1


def test_a_stack_that_a_spec_cannot_tell_is_refused_when_asked_for() -> None:
    envs = SyncVectorEnv([partial(stacked, np.full(4, 0.1, np.float32))])
    with pytest.raises(ValueError, match=r"frame_stack=3: .*padding.*frame_stack=1"):
        frame_stack_of(envs, 3)
    assert frame_stack_of(envs, 1)[0] == 1


def test_policies_are_named_by_where_they_come_from() -> None:
    def mine(observation: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        return np.zeros(len(is_first))

    facts = describe([SyncVectorEnv([CounterEnv])], mine, Seeds(0, 0))
    assert str(facts["policy"]).endswith(
        "test_session.test_policies_are_named_by_where_they_come_from.<locals>.mine"
    )
