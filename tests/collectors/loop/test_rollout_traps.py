"""The traps of vector envs, each by its number in the list of traps, through rollouts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation, TimeLimit

import stepwell as sw
from stepwell.collectors.loop.collector import Seeds
from support.envs.fakes import (
    CounterEnv,
    DictEnv,
    FrameEnv,
    LiveBufferEnv,
    RestartVectorEnv,
    nested_action,
    zeros,
)
from support.models.model import copied, row_of, same
from support.models.rollout_model import (
    ModelRollout,
    RolloutModel,
    TraceRule,
    assert_rollout,
    assert_same,
    ends_of,
    leaves,
    policy_of,
)

NEXT_STEP, SAME_STEP, DISABLED = (
    AutoresetMode.NEXT_STEP,
    AutoresetMode.SAME_STEP,
    AutoresetMode.DISABLED,
)
ALL_MODES = pytest.mark.parametrize("mode", list(AutoresetMode))


def vector(
    make_env: list[Any], mode: AutoresetMode = NEXT_STEP, kind: Any = SyncVectorEnv, **options: Any
) -> Any:
    return kind(make_env, autoreset_mode=mode, **options)


def rolled(envs: Any, steps: int, policy: Any = zeros, **options: Any) -> sw.Rollout:
    with sw.Collector(envs, policy, seed=3, **options) as collector:
        return collector.rollout(steps)


def times_of(rollout: sw.Rollout) -> np.ndarray:
    return np.asarray(rollout.observation)[..., 1]


class Worth:
    """Acts anyhow; an observation is worth one number of it: V(s) = s."""

    def __init__(self, worth_of: Callable[[Any], Any]) -> None:
        self.worth_of = worth_of
        self.asked: list[Any] = []

    def __call__(self, observation: Any, is_first: Any) -> Any:
        return zeros(observation, is_first), {"value": self.value_of(observation)}

    def value(self, observation: Any) -> np.ndarray:
        self.asked.append(copied(observation))
        return self.value_of(observation)

    def value_of(self, observation: Any) -> np.ndarray:
        return np.asarray(self.worth_of(observation), np.float32)


def counted() -> Worth:
    return Worth(lambda observation: observation[:, 1])


# 1, 2, 21: arrays that are written again


@ALL_MODES
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_21_a_rollout_that_is_held_stays_what_it_was(kind: type[Any], mode: AutoresetMode) -> None:
    make: list[Any] = [partial(CounterEnv, [3, 5], tag) for tag in range(2)]
    with sw.Collector(vector(make, mode, kind, copy=False), counted(), seed=0) as collector:
        held: list[tuple[sw.Rollout, Any]] = []
        for _ in range(3):
            rollout = collector.rollout(6)
            held.append((rollout, copied(everything_of(rollout))))
    for rollout, kept in held:
        assert same(everything_of(rollout), kept)
    arrays = [leaf for rollout, _ in held for leaf in leaves(everything_of(rollout))]
    for place, one in enumerate(arrays):
        for other in arrays[place + 1 :]:
            assert not np.shares_memory(one, other)


def everything_of(rollout: sw.Rollout) -> dict[str, Any]:
    names = ("observation", "action", "reward", "is_first", "terminated", "truncated", "cut")
    ends = {name: part for name, part in rollout.bootstrap._asdict().items() if part is not None}
    return {
        **{name: getattr(rollout, name) for name in (*names, "mask", "info", "extras")},
        "bootstrap": ends,
    }


def test_21_what_the_policy_returns_may_be_written_again() -> None:
    """A policy may fill the same arrays at every call."""
    action, extra = np.zeros(2, np.int64), np.zeros(2)

    def policy(observation: Any, is_first: Any) -> Any:
        action[:] = observation[:, 1] % 4
        extra[:] = observation[:, 1]
        return action, {"value": extra}

    rollout = rolled(vector([partial(CounterEnv, 9)] * 2), 8, policy)
    assert same(rollout.action, times_of(rollout) % 4)
    assert same(rollout.extras["value"], times_of(rollout))


# 3, 4: autoreset


# 12, 13: what is bootstrapped from


@pytest.mark.parametrize("mode", [NEXT_STEP, DISABLED])
@pytest.mark.parametrize("copy", [True, False])
def test_13_also_where_the_env_writes_into_the_array_it_gave(
    mode: AutoresetMode, copy: bool
) -> None:
    make = lambda: TimeLimit(LiveBufferEnv(100), 3)  # noqa: E731
    policy = Worth(lambda observation: observation[:, 0, 0])
    rollout = rolled(vector([make] * 2, mode, copy=copy), 11, policy)
    assert rollout.truncated.sum() == 6
    ends = rollout.bootstrap
    truncated = rollout.truncated[ends.step, ends.env]
    assert np.asarray(ends.observation)[truncated, 0, 0].tolist() == [3] * int(truncated.sum())
    _, returns = rollout.advantages(1.0, 0.0)
    assert (returns[rollout.truncated] == 1 + 3).all()


# 14, 15: borders and alignment


# 16: what a policy carries over (more in test_recurrent_policy.py)


# 18, 31: what is reported


# 28, 29: info and rewards of all kinds


def test_29_returns_are_summed_before_rewards_become_float32() -> None:
    class Fine(CounterEnv):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, 0.1, *rest

    rollout = rolled(vector([partial(Fine, 3)]), 3)
    assert rollout.episode_returns == (0.1 + 0.1 + 0.1,)
    assert rollout.reward[:, 0].tolist() == [np.float32(0.1)] * 3


# Spaces


class NestedRule(TraceRule):
    def act(self, observation: Any, is_first: bool, state: Any) -> Any:
        return nested_action(observation), None, {"sum": self.value(observation, state)}

    def value(self, observation: Any, state: Any) -> Any:
        return np.float32(np.sum(observation["image"]) + observation["pair"][0])


def played(
    makes: list[Any], rule: Any, mode: AutoresetMode, *steps: int, seed: int = 3
) -> list[ModelRollout]:
    model = RolloutModel(
        [make() for make in makes], rule, mode=mode, seed_of=Seeds(seed, 0).env_seed
    )
    model.reset(Seeds(seed, 0).next_envs_seed(len(makes)))
    return [model.rollout(each) for each in steps]


@pytest.mark.proof
@ALL_MODES
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_all_kinds_of_spaces_come_as_trees_of_arrays(kind: type[Any], mode: AutoresetMode) -> None:
    makes: list[Any] = [partial(DictEnv, [3, 5])] * 2
    with sw.Collector(vector(makes, mode, kind), policy_of(NestedRule()), seed=3) as collector:
        rollouts = [collector.rollout(steps) for steps in (12, 5)]
        first = rollouts[0]
        again = collector.rollout(5, out=rollouts[1])
    for rollout, expected in zip(
        [first, again], played(makes, NestedRule(), mode, 12, 5, 5)[::2], strict=True
    ):
        assert_rollout(rollout, expected)
    observation: Any = first.observation
    assert observation["image"].shape == (12, 2, 3, 4)
    assert observation["image"].dtype == np.uint8
    assert observation["pair"][1].dtype == np.float32
    assert isinstance(observation["pair"], tuple)
    action: Any = first.action
    assert action["stick"][1].dtype == np.int8
    assert action["stick"][0].shape == (12, 2, 2)


class Pixels(TraceRule):
    def act(self, observation: Any, is_first: bool, state: Any) -> Any:
        total = observation.sum(dtype=np.int64)
        return total % 2, None, {"sum": np.float32(total)}

    def value(self, observation: Any, state: Any) -> Any:
        return np.float32(observation.sum())


@ALL_MODES
@pytest.mark.parametrize(("padding", "stored"), [("reset", "repeat"), ("zero", "zero")])
def test_8_stacks_are_full_in_the_rollout_and_stored_once(
    mode: AutoresetMode, padding: str, stored: str
) -> None:
    def make() -> gym.Env[Any, Any]:
        env = FrameStackObservation(FrameEnv([2, 6, 4]), 3, padding_type=padding)
        recipe = {"frame_stack": 3, "stack_padding": stored}
        env.metadata = {**env.metadata, "stepwell": recipe}
        return env

    replay, makes = sw.SequenceReplayBuffer(), [make, make]
    with sw.Collector(vector(makes, mode), policy_of(Pixels()), replay, seed=3) as collector:
        rollouts = [collector.rollout(steps) for steps in (9, 4)]
    for rollout, expected in zip(rollouts, played(makes, Pixels(), mode, 9, 4), strict=True):
        assert np.asarray(rollout.observation).shape[1:] == (2, 3, 4, 4)
        assert_open_ends_of_pixels(rollout, expected)
    assert replay.spec["observation"].shape == (4, 4)
    assert replay.steps == sum(rollout.steps for rollout in rollouts)


def assert_open_ends_of_pixels(rollout: sw.Rollout, expected: ModelRollout) -> None:
    assert_same("stacks", rollout.observation, expected.column(lambda row: row.observation))
    ends = ends_of(rollout)
    for place, (t, n) in enumerate(ends):
        assert same(row_of(rollout.bootstrap.observation, place), expected.rows[t][n].follows)


# Workers that die


@pytest.mark.parametrize("at_step", [4, 5])
def test_a_worker_that_dies_at_a_border_cuts_nothing_behind_it(at_step: int) -> None:
    """The row before lies in the rollout before, where it is an open end anyway."""
    make: list[Any] = [partial(CounterEnv, 9, tag) for tag in (0, 1)]
    envs = RestartVectorEnv(make, at_step=at_step, env=1)
    with sw.Collector(envs, counted(), seed=0) as collector:
        first, second = collector.rollout(4), collector.rollout(4)
    died_in_first = at_step == 4
    assert np.argwhere(first.cut).tolist() == ([[2, 1]] if died_in_first else [])
    assert first.mask[:, 1].tolist() == [True, True, True, not died_in_first]
    assert second.mask[:, 1].tolist() == [died_in_first, True, True, True]
    assert not second.cut.any()
    ends = {
        (step, env): observation[1]
        for step, env, observation in zip(
            first.bootstrap.step.tolist(),
            first.bootstrap.env.tolist(),
            np.asarray(first.bootstrap.observation).tolist(),
            strict=True,
        )
    }
    assert ends == {(3, 0): 4, (2, 1) if died_in_first else (3, 1): 3 if died_in_first else 4}
    assert second.is_first[:2, 1].tolist() == [died_in_first, not died_in_first]
