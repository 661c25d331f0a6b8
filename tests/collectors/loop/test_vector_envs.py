"""Declarations and quirks of vector envs."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorEnv,
    VectorObservationWrapper,
)
from gymnasium.wrappers import FrameStackObservation, TimeLimit, TransformObservation
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from gymnasium.wrappers.vector import TransformObservation as VectorTransformObservation

from stepwell.collectors.loop.vector_envs import (
    FrameCounters,
    frame_skip,
    frame_stack_of,
    has_known_stacks,
    is_ale,
    mode_of,
    recipe_of,
    returns_copies,
    split_step,
)
from stepwell.wrappers import FrameStack, make_atari, make_vec, vectorize
from support.envs.fakes import CounterEnv


def counters(**options: Any) -> SyncVectorEnv:
    return SyncVectorEnv([CounterEnv] * 2, **options)


def test_the_mode_is_what_the_env_itself_says() -> None:
    for mode in AutoresetMode:
        assert mode_of(counters(autoreset_mode=mode)) is mode
        if mode is not AutoresetMode.SAME_STEP:
            assert mode_of(RecordEpisodeStatistics(counters(autoreset_mode=mode))) is mode


def test_the_mode_in_the_metadata_is_taken_where_there_is_no_other() -> None:
    class Bare(VectorEnv[Any, Any, Any]):
        num_envs = 1
        metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    assert mode_of(Bare()) is AutoresetMode.DISABLED
    Bare.metadata = {"autoreset_mode": "next_step"}
    message = r"metadata\['autoreset_mode'\]: .*AutoresetMode, got 'next_step'; .*check_vector_env"
    with pytest.raises(ValueError, match=f"^envs.{message}"):
        mode_of(Bare())


def test_a_step_is_not_split_past_what_a_wrapper_adds() -> None:
    calls: list[str] = []

    class Wrapped(RecordEpisodeStatistics):
        def step(self, actions: Any) -> Any:
            calls.append("step")
            return super().step(actions)

    envs = make_vec(CounterEnv, 2, num_workers=1)
    assert split_step(envs) == (envs.send, envs.recv)  # type: ignore[attr-defined]
    with contextlib.closing(Wrapped(envs)) as wrapped:
        wrapped.reset(seed=0)
        send, receive = split_step(wrapped)
        send(np.zeros(2, np.int64))
        assert calls == []
        assert receive()[0][:, 1].tolist() == [1, 1]
        assert calls == ["step"]


def test_copies_are_left_out_only_for_envs_known_to_copy() -> None:
    class Mine(SyncVectorEnv):
        pass

    assert returns_copies(counters())
    assert not returns_copies(counters(copy=False))
    assert not returns_copies(Mine([CounterEnv]))
    assert not returns_copies(RecordEpisodeStatistics(counters()))
    envs = AsyncVectorEnv([CounterEnv], copy=False)
    assert not returns_copies(envs)
    envs.close()


@pytest.mark.proof
def test_ale_py_gives_arrays_of_its_own_each_step() -> None:
    """The property that `returns_copies` relies on."""
    envs = AtariVectorEnv("pong", 2, img_height=8, img_width=8)
    assert is_ale(envs)
    assert is_ale(RecordEpisodeStatistics(envs))
    assert not is_ale(counters())
    assert returns_copies(envs)
    observation, _ = envs.reset(seed=0)
    held = [(observation, observation.copy())]
    for _ in range(20):
        observation = envs.step(np.ones(2, np.int64))[0]
        assert not any(np.shares_memory(observation, one) for one, _ in held)
        held.append((observation, observation.copy()))
    assert all(np.array_equal(one, copy) for one, copy in held)
    envs.close()


def test_a_frame_counter_separates_a_reset_from_a_lost_life() -> None:
    def info(frames: list[int], episode_frames: list[int]) -> dict[str, Any]:
        return {
            "frame_number": np.array(frames, np.int32),
            "episode_frame_number": np.array(episode_frames, np.int32),
        }

    clock, everyone = FrameCounters(2), slice(None)
    clock.forget()
    for frames in range(-3, 4):  # whatever they show after a reset, it was one
        assert not clock.advanced_equally(info([frames, 5], [frames, 4]), everyone).any()
    clock.set(info([100, 200], [50, 60]), everyone)
    assert clock.advanced_equally(info([104, 200], [54, 0]), everyone).tolist() == [True, False]
    assert clock.advanced_equally(info([204], [64]), np.array([1])).tolist() == [True]
    clock.set(info([204], [0]), np.array([1]))
    assert clock.advanced_equally(info([104, 205], [54, 1]), everyone).tolist() == [True, True]


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


@pytest.mark.proof
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv, partial(vectorize, num_workers=2)])
def test_size_and_padding_of_gymnasiums_own_stack_are_found(kind: Any) -> None:
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


def test_a_declared_stack_takes_precedence_over_the_detected_one() -> None:
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


def test_a_stack_that_a_spec_cannot_describe_is_refused_on_request() -> None:
    envs = SyncVectorEnv([partial(stacked, np.full(4, 0.1, np.float32))])
    with pytest.raises(ValueError, match=r"frame_stack=3: .*padding.*frame_stack=1"):
        frame_stack_of(envs, 3)
    assert frame_stack_of(envs, 1)[0] == 1


class TurnedStacks(VectorObservationWrapper):
    """The newest frame first, in the same space."""

    def observations(self, observations: Any) -> Any:
        return observations[:, ::-1]


@pytest.mark.parametrize("backend", ["native", "python"])
def test_only_stacks_of_our_own_envs_are_known_to_be_right(backend: Any) -> None:
    with contextlib.closing(make_atari("Pong", 1, backend=backend)) as envs:
        assert has_known_stacks(envs, 4)
        assert not has_known_stacks(envs, 3)  # the user says otherwise
        assert not has_known_stacks(RecordEpisodeStatistics(envs), 4)  # not one of ours
        changed = TurnedStacks(envs)
        assert recipe_of(changed)["maker"] == "make_atari"
        assert not has_known_stacks(changed, 4)


def test_stacks_of_given_envs_are_not_known_to_be_right() -> None:
    def make() -> gym.Env[Any, Any]:
        return FrameStack(CounterEnv(), 4, padding="zero")

    with contextlib.closing(make_vec(make, 1, num_workers=0)) as envs:
        assert frame_stack_of(envs, None)[0] == 4
        assert not has_known_stacks(envs, 4)
