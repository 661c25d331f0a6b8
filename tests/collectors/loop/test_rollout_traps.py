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


def zeros(observation: Any, is_first: Any) -> Any:
    return np.zeros(len(is_first), np.int64)


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


@ALL_MODES
def test_21_a_given_rollout_is_reused(mode: AutoresetMode) -> None:
    make: list[Any] = [partial(CounterEnv, [3, 5], tag) for tag in range(2)]
    with sw.Collector(vector(make, mode), counted(), seed=0) as collector:
        first = collector.rollout(6)
        arrays = list(leaves((first.observation, first.action, first.reward, first.extras)))
        before = copied(first.observation)
        second = collector.rollout(6, out=first)
        again = list(leaves((second.observation, second.action, second.reward, second.extras)))
    assert all(np.shares_memory(one, other) for one, other in zip(arrays, again, strict=True))
    assert not same(second.observation, before)


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


def test_3_the_row_in_which_an_env_resets_is_masked() -> None:
    rollout = rolled(vector([partial(CounterEnv, 3)]), 10)
    assert times_of(rollout)[:, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert rollout.mask[:, 0].tolist() == [time < 3 for time in times_of(rollout)[:, 0]]
    assert rollout.reward[:, 0].tolist() == [1, 2, 3, 0, 1, 2, 3, 0, 1, 2]
    assert rollout.terminated[:, 0].tolist() == [*[False, False, True, False] * 2, False, False]
    assert rollout.is_first[:, 0].tolist() == [*[True, False, False, False] * 2, True, False]
    assert rollout.steps == 8
    assert not rollout.cut.any()


@ALL_MODES
def test_3_rewards_and_steps_sum_to_the_real_ones(mode: AutoresetMode) -> None:
    class One(CounterEnv):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            made["steps"] += 1
            return observation, 1.0, *rest

    made = {"steps": 0}
    with sw.Collector(vector([partial(One, [3, 1, 2])] * 3, mode), zeros, seed=0) as collector:
        rollouts = [collector.rollout(steps) for steps in (1, 10, 7, 2)]
    assert sum(int(rollout.reward.sum()) for rollout in rollouts) == made["steps"]
    assert sum(rollout.steps for rollout in rollouts) == made["steps"]
    for rollout in rollouts:
        assert (rollout.reward == rollout.mask).all()
        assert mode is NEXT_STEP or rollout.mask.all()
        # No step leads from an episode's end to the start of the next.
        before, after = times_of(rollout)[:-1], times_of(rollout)[1:]
        steps_inside = rollout.mask[:-1] & ~rollout.terminated[:-1]
        assert (after[steps_inside] == before[steps_inside] + 1).all()


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("ends", ["truncated", "terminated"])
def test_4_gymnasiums_same_step_gives_the_true_last_observation(kind: Any, ends: Any) -> None:
    make: list[Any] = [partial(CounterEnv, [3, 2], tag, ends) for tag in (0, 1)]
    rollout = rolled(vector(make, SAME_STEP, kind), 7, counted())
    assert times_of(rollout)[:, 0].tolist() == [0, 1, 2, 0, 1, 0, 1]
    assert rollout.mask.all()
    found = ends_of(rollout)
    observation = np.asarray(rollout.bootstrap.observation)
    last = {end: observation[place].tolist() for place, end in enumerate(found)}
    expected = {(6, env): [2, 2, env] for env in (0, 1)}
    if ends == "truncated":
        expected |= {(2, env): [0, 3, env] for env in (0, 1)}
        expected |= {(4, env): [1, 2, env] for env in (0, 1)}
    assert last == expected
    given = np.asarray(rollout.bootstrap.value)
    assert given.tolist() == observation[:, 1].tolist()


# 12, 13: what is bootstrapped from


@ALL_MODES
@pytest.mark.parametrize("ends", ["terminated", "truncated", "both", "cut"])
def test_12_an_end_is_worth_what_its_kind_says(mode: AutoresetMode, ends: Any) -> None:
    """V(s) = s, gamma = 1/2, rewards t: the last row of an episode of 3, in all four cases."""
    length = 100 if ends == "cut" else 3
    rollout = rolled(
        vector([partial(CounterEnv, length, 0, "terminated" if ends == "cut" else ends)], mode),
        3,
        counted(),
    )
    advantages, returns = rollout.advantages(0.5, 0.0)
    follows = 3.0 if ends in ("truncated", "cut") else 0.0
    deltas = [1 + 0.5 * 1 - 0, 2 + 0.5 * 2 - 1, 3 + 0.5 * follows - 2]
    assert advantages[:, 0].tolist() == deltas
    assert returns[:, 0].tolist() == [delta + value for value, delta in enumerate(deltas)]
    assert rollout.terminated[:, 0].tolist() == [False, False, ends in ("terminated", "both")]
    assert rollout.truncated[:, 0].tolist() == [False, False, ends in ("truncated", "both")]
    whole, _ = rollout.advantages(0.5, 0.8)
    assert np.isclose(whole[0, 0], deltas[0] + 0.4 * (deltas[1] + 0.4 * deltas[2]))


@ALL_MODES
@pytest.mark.parametrize("ends", ["terminated", "truncated", "both"])
def test_12_nothing_flows_over_an_end_inside_a_rollout(mode: AutoresetMode, ends: Any) -> None:
    rollout = rolled(vector([partial(CounterEnv, 3, 0, ends)], mode), 9, counted())
    advantages, _ = rollout.advantages(0.5, 0.8)
    follows = 3.0 if ends == "truncated" else 0.0
    deltas = [1.5, 2.0, 1 + 0.5 * follows]
    expected = [deltas[0] + 0.4 * (deltas[1] + 0.4 * deltas[2]), deltas[1] + 0.4 * deltas[2]]
    expected.append(deltas[2])
    for first in np.flatnonzero(rollout.is_first[:, 0])[:2]:
        np.testing.assert_allclose(advantages[first : first + 3, 0], expected, rtol=1e-6)
    assert not advantages[~rollout.mask].any()


@ALL_MODES
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_13_a_truncation_is_bootstrapped_from_its_own_last_observation(
    kind: type[Any], mode: AutoresetMode
) -> None:
    """V(s) = s, gamma = 1: with the reset's observation the target would be 3, not 6."""
    make: list[Any] = [partial(CounterEnv, [3, 4], tag, "truncated") for tag in range(2)]
    policy = counted()
    rollout = rolled(vector(make, mode, kind), 12, policy)
    _, returns = rollout.advantages(1.0, 0.0)
    times = times_of(rollout)
    for step, env in zip(*np.nonzero(rollout.truncated), strict=True):
        length = times[step, env] + 1
        assert length in (3, 4)
        assert returns[step, env] == length + length
    assert len(policy.asked) == 1
    assert (np.asarray(policy.asked[0])[:, 1] > 0).all()


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


@ALL_MODES
def test_13_the_border_of_a_rollout_is_bootstrapped_from_the_newest_observation(
    mode: AutoresetMode,
) -> None:
    envs = vector([partial(CounterEnv, 100, tag) for tag in range(3)], mode)
    with sw.Collector(envs, counted(), seed=0) as collector:
        for first in (0, 5, 10):
            rollout = collector.rollout(5)
            ends = rollout.bootstrap
            assert (ends.step.tolist(), sorted(ends.env.tolist())) == ([4] * 3, [0, 1, 2])
            assert np.asarray(ends.observation)[:, 1].tolist() == [first + 5] * 3
            assert np.asarray(ends.value).tolist() == [first + 5] * 3
            assert not (rollout.terminated | rollout.truncated | rollout.cut).any()


# 14, 15: borders and alignment


@ALL_MODES
def test_14_a_border_does_not_break_what_is_stored(mode: AutoresetMode) -> None:
    replay = sw.SequenceReplayBuffer()
    envs = vector([partial(CounterEnv, 50, tag) for tag in range(2)], mode)
    with sw.Collector(envs, zeros, replay, seed=0) as collector:
        for steps in (7, 13, 1):
            collector.rollout(steps)
    assert [e.steps for e in replay.iter_episodes()] == [21, 21]
    for episode in replay.iter_episodes():
        assert np.asarray(episode.observation)[:, 1].tolist() == list(range(22))


@ALL_MODES
def test_15_a_reward_and_the_flags_belong_to_the_action_of_their_row(mode: AutoresetMode) -> None:
    """The env's reward is the action; an episode ends by the action 3."""

    class Echo(CounterEnv):
        def step(self, action: Any) -> Any:
            observation, *_ = super().step(action)
            return observation, float(action) + self.t / 8, bool(action == 3), False, {}

    rng = np.random.default_rng(0)

    def policy(observation: Any, is_first: Any) -> Any:
        action = rng.integers(4, size=2)
        return action, {"twice": 2 * action}

    rollout = rolled(vector([partial(Echo, 10**6)] * 2, mode), 60, policy)
    mask, action = rollout.mask, np.asarray(rollout.action)
    assert (rollout.reward[mask] == action[mask] + (times_of(rollout)[mask] + 1) / 8).all()
    assert (rollout.terminated[mask] == (action[mask] == 3)).all()
    assert rollout.terminated.any()
    assert (rollout.extras["twice"] == 2 * action).all()
    assert not rollout.reward[~mask].any()
    assert not rollout.terminated[~mask].any()


# 16: what a policy carries over (more in test_recurrent_policy.py)


# 18, 31: what is reported


@ALL_MODES
def test_31_an_episode_is_reported_by_the_rollout_in_which_it_ends(mode: AutoresetMode) -> None:
    envs = vector([partial(CounterEnv, 5), partial(CounterEnv, 2)], mode)
    with sw.Collector(envs, zeros, seed=0) as collector:
        first, second, third = (collector.rollout(steps) for steps in (2, 2, 1))
    assert (first.episode_lengths, first.episode_returns) == ((2,), (3.0,))
    assert second.episode_lengths == (() if mode is NEXT_STEP else (2,))
    # Both end with the fifth step under NEXT_STEP, whose second env lost a turn to its reset.
    assert third.episode_lengths == ((5, 2) if mode is NEXT_STEP else (5,))


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


def nested_action(observation: Any) -> Any:
    """An action for one observation of `DictEnv`, or for many: every part of it changes."""
    value = np.asarray(observation["many"])[..., 0]
    stick = np.stack([(value % 3 - 1) / 2, (value % 2) / 4], -1).astype(np.float32)
    bits = np.stack([value & 1, value >> 1 & 1, value >> 2 & 1], -1).astype(np.int8)
    dial = np.stack([value % 3, value % 4], -1)
    return {"button": value % 3, "stick": (stick, bits), "dial": dial}


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


def test_a_single_env_is_a_rollout_of_one_column() -> None:
    rollout = rolled(CounterEnv(3), 5, counted())
    assert (rollout.num_steps, rollout.num_envs, rollout.steps) == (5, 1, 4)
    assert times_of(rollout)[:, 0].tolist() == [0, 1, 2, 3, 0]


# Workers that die


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_a_restarted_worker_cuts_its_episode(mode: AutoresetMode) -> None:
    make: list[Any] = [partial(CounterEnv, 6, tag) for tag in (0, 1)]
    rollout = rolled(RestartVectorEnv(make, at_step=3, env=1, autoreset_mode=mode), 9, counted())
    assert times_of(rollout)[:5, 1].tolist() == [0, 1, 2, 0, 1]
    assert rollout.mask[:5, 1].tolist() == [True, True, False, True, True]
    assert rollout.is_first[:5, 1].tolist() == [True, False, False, True, False]
    assert np.argwhere(rollout.cut).tolist() == [[1, 1]]
    assert rollout.reward[2, 1] == 0
    ends = ends_of(rollout)
    place = ends.index((1, 1))
    assert np.asarray(rollout.bootstrap.observation)[place].tolist() == [0, 2, 1]
    _, returns = rollout.advantages(1.0, 0.0)
    assert returns[1, 1] == 2 + 2


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


def test_a_worker_that_dies_in_its_first_step_cuts_nothing() -> None:
    envs = RestartVectorEnv([partial(CounterEnv, 3)], at_step=5)
    rollout = rolled(envs, 8)
    assert times_of(rollout)[:, 0].tolist() == [0, 1, 2, 3, 0, 0, 1, 2]
    assert rollout.mask[:, 0].tolist() == [True] * 3 + [False] * 2 + [True] * 3
    assert not rollout.cut.any()
    assert rollout.is_first[:, 0].tolist() == [True, *[False] * 3, True, True, False, False]
