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
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import stepwell as sw
from stepwell.buffers import SpecMismatch
from stepwell.collectors.loop.collector import Seeds
from stepwell.wrappers import WorkerVectorEnv
from support.envs.fakes import (
    CounterEnv,
    DictEnv,
    DieEnv,
    FrameEnv,
    InfoEnv,
    LiveBufferEnv,
    RestartVectorEnv,
    RewardKind,
    RewardKindEnv,
    SeededEnv,
    TraceEnv,
)
from support.models.model import copied, row_of, same
from support.models.rollout_model import (
    ModelRollout,
    RolloutModel,
    TraceRule,
    assert_equal_rollouts,
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
MakeEnv = Callable[[], gym.Env[Any, Any]]


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


@pytest.mark.parametrize("mode", [NEXT_STEP, DISABLED])
@pytest.mark.parametrize("copy", [True, False])
def test_1_a_live_buffer_is_copied_at_once(mode: AutoresetMode, copy: bool) -> None:
    rollout = rolled(vector([partial(LiveBufferEnv, [3, 5])] * 2, mode, copy=copy), 14)
    seen = np.asarray(rollout.observation)[:, 0, 0, 0].tolist()
    last = {NEXT_STEP: [3], DISABLED: []}[mode]
    after = {NEXT_STEP: [5], DISABLED: []}[mode]
    assert seen == [0, 1, 2, *last, 0, 1, 2, 3, 4, *after, 0, 1, 2, *last, 0, 1, 2][:14]
    assert rollout.mask[:, 0].tolist() == [
        not (last and place in (3, 9, 13)) for place in range(14)
    ]


def test_1_a_live_buffer_of_a_single_env_is_copied_at_once() -> None:
    rollout = rolled(LiveBufferEnv(4), 7)
    assert np.asarray(rollout.observation)[:, 0, 1, 1].tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert np.asarray(rollout.bootstrap.observation)[:, 0, 0].tolist() == [2]


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_2_the_true_last_observation_is_bootstrapped_from(kind: type[Any]) -> None:
    make = [lambda: TimeLimit(LiveBufferEnv(10**6), 3)] * 2
    with sw.Collector(kind(make, autoreset_mode=SAME_STEP), zeros, seed=0) as collector:
        rollout = collector.rollout(7)
    assert np.asarray(rollout.observation)[:, 0, 0, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    ends = rollout.bootstrap
    assert ends.step.tolist() == [2, 2, 5, 5, 6, 6]
    assert ends.observation[:, 0, 0].tolist() == [3, 3, 3, 3, 1, 1]


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


def test_21_what_the_policy_was_given_stays_as_it_was() -> None:
    seen: list[tuple[Any, Any]] = []

    def policy(observation: Any, is_first: Any) -> Any:
        seen.append((observation, copied(observation)))
        seen.append((is_first, copied(is_first)))
        return zeros(observation, is_first)

    make: list[Any] = [partial(CounterEnv, [3, 5], tag) for tag in range(2)]
    with sw.Collector(vector(make, copy=False), policy, seed=0) as collector:
        first = collector.rollout(6)
        collector.rollout(6, out=first)
    assert all(same(given, kept) for given, kept in seen)


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
def test_14_seven_then_thirteen_rows_equal_twenty(mode: AutoresetMode) -> None:
    plans = [[(6, "terminated"), (2, "truncated")], [(3, "both")], [(40, "terminated")]]
    make: list[Any] = [partial(TraceEnv, plan, tag) for tag, plan in enumerate(plans)]
    whole = rolled(vector(make, mode), 20, sw.RandomPolicy())
    with sw.Collector(vector(make, mode), sw.RandomPolicy(), seed=3) as collector:
        first, second = collector.rollout(7), collector.rollout(13)
    for name in ("observation", "action", "reward", "is_first", "terminated", "truncated", "mask"):
        parts = np.concatenate([getattr(first, name), getattr(second, name)])
        assert_same(name, parts, getattr(whole, name))
    # At the border the long episode is open, and neither ended nor cut.
    assert (6, 2) in ends_of(first)
    assert not first.terminated[6, 2] | first.truncated[6, 2] | first.cut[6, 2]
    assert not second.is_first[0, 2]


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


@ALL_MODES
def test_16_a_policy_sees_is_first_once_for_each_episode(mode: AutoresetMode) -> None:
    class Counting:
        def __init__(self) -> None:
            self.counts = np.zeros(3, np.int64)

        def __call__(self, observation: Any, is_first: Any) -> Any:
            self.counts = np.where(is_first, 0, self.counts + 1)
            return np.zeros(3, np.int64), {"count": self.counts}

    envs = vector([partial(CounterEnv, [3, 1, 4], tag) for tag in range(3)], mode)
    with sw.Collector(envs, Counting(), seed=0) as collector:
        for steps in (7, 1, 13, 30):
            rollout = collector.rollout(steps)
            assert same(rollout.extras["count"], times_of(rollout))
            assert same(rollout.is_first, times_of(rollout) == 0)


# 18, 31: what is reported


@ALL_MODES
def test_31_every_reported_length_is_right(mode: AutoresetMode) -> None:
    envs = vector([partial(CounterEnv, 3)] * 2, mode)
    wrapped = RecordEpisodeStatistics(envs) if mode is not SAME_STEP else envs
    ended: list[Any] = []
    with sw.Collector(wrapped, zeros, seed=0, on_episode=ended.append) as collector:
        rollouts = [collector.rollout(steps) for steps in (1, 2, 5, 8, 1)]
    lengths = [length for rollout in rollouts for length in rollout.episode_lengths]
    returns = [each for rollout in rollouts for each in rollout.episode_returns]
    assert len(lengths) == {NEXT_STEP: 8, SAME_STEP: 10, DISABLED: 10}[mode]
    assert set(lengths) == {3}
    assert set(returns) == {6.0}
    assert [(one.steps, one.total_reward) for one in ended] == [(3, 6.0)] * len(lengths)


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


@ALL_MODES
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_28_info_that_comes_and_goes_is_stored_with_its_step(
    kind: type[Any], mode: AutoresetMode
) -> None:
    missing = {"t": -1, "even": np.nan, "array": np.zeros(2, np.int16), "never": False}
    envs = vector([partial(InfoEnv, [3, 4])] * 2, mode, kind)
    with sw.Collector(envs, zeros, seed=0, info=missing) as collector:
        rollouts = [collector.rollout(steps) for steps in (3, 1, 10, 6)]
    for rollout in rollouts:
        mask, after = rollout.mask, times_of(rollout)[rollout.mask] + 1
        assert set(rollout.info) == set(missing)
        assert rollout.info["t"][mask].tolist() == after.tolist()
        even = np.where(after % 2 == 0, after * 1.5, np.nan)
        assert np.array_equal(rollout.info["even"][mask], even, equal_nan=True)
        assert rollout.info["array"][mask].tolist() == [[t, t] for t in after]
        assert not rollout.info["never"].any()
        assert rollout.info["array"].dtype == np.int16
        assert rollout.info["array"].shape == (*mask.shape, 2)
        assert rollout.info["never"].dtype == np.bool_


@pytest.mark.parametrize("kind", ["float", "0-d", "(1,)", "int32"])
@pytest.mark.parametrize("how", ["single", "sync", "async"])
def test_29_rewards_of_any_scalar_kind_are_alike(kind: RewardKind, how: str) -> None:
    if (kind, how) == ("(1,)", "sync"):
        pytest.skip("gymnasium's SyncVectorEnv itself refuses them")
    make = partial(RewardKindEnv, kind, 3)
    envs: dict[str, Callable[[], Any]] = {
        "single": make,
        "sync": lambda: vector([make]),
        "async": lambda: AsyncVectorEnv([make]),
    }
    rollout = rolled(envs[how](), 6)
    assert rollout.reward[:, 0].tolist() == [1, 2, 3, 0, 1, 2]
    assert rollout.reward.dtype == np.float32
    assert rollout.episode_returns == (6.0,)


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


def test_8_a_wrong_padding_is_refused_with_frame_stack_1_as_the_fix() -> None:
    def make() -> gym.Env[Any, Any]:
        env = FrameStackObservation(FrameEnv(), 3, padding_type="zero")
        env.metadata = {**env.metadata, "stepwell": {"stack_padding": "repeat"}}
        return env

    replay = sw.SequenceReplayBuffer()
    with (
        sw.Collector(vector([make]), sw.RandomPolicy(), replay, seed=0, frame_stack=3) as collector,
        pytest.raises(SpecMismatch, match=r"repeat.*frame_stack=1"),
    ):
        collector.rollout(5)


@ALL_MODES
def test_box_actions_keep_their_shape_and_dtype(mode: AutoresetMode) -> None:
    makes: list[Any] = [lambda: gym.make("Pendulum-v1", max_episode_steps=5)] * 2
    rollout = rolled(vector(makes, mode), 8, sw.RandomPolicy())
    action = np.asarray(rollout.action)
    assert (action.shape, action.dtype) == ((8, 2, 1), np.dtype(np.float32))
    assert rollout.truncated.any()
    assert np.asarray(rollout.observation).dtype == np.float32


def test_a_single_env_is_a_rollout_of_one_column() -> None:
    rollout = rolled(CounterEnv(3), 5, counted())
    assert (rollout.num_steps, rollout.num_envs, rollout.steps) == (5, 1, 4)
    assert times_of(rollout)[:, 0].tolist() == [0, 1, 2, 3, 0]


def test_20_equal_seeds_give_equal_rollouts_and_others_do_not() -> None:
    def one(seed: int, kind: Any) -> sw.Rollout:
        with sw.Collector(kind([SeededEnv] * 3), sw.RandomPolicy(), seed=seed) as collector:
            return collector.rollout(12)

    assert_equal_rollouts(one(1, SyncVectorEnv), one(1, AsyncVectorEnv))
    assert not same(one(1, SyncVectorEnv).observation, one(2, SyncVectorEnv).observation)
    orders = []
    for seed in (1, 1, 2):
        rollout = one(seed, SyncVectorEnv)
        minibatches = list(rollout.minibatches(5))
        orders.append([(batch.step.tolist(), batch.env.tolist()) for batch in minibatches])
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


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


def test_a_worker_that_really_dies_cuts_its_episode() -> None:
    """The second env ends its process at the 8th step of its life, in its second episode."""
    make: list[Any] = [partial(CounterEnv, 5, 0), partial(DieEnv, 8, 5, 1)]
    replay = sw.SequenceReplayBuffer()
    envs = WorkerVectorEnv(make, num_workers=2)
    with sw.Collector(envs, counted(), replay, seed=0) as collector:
        rollout = collector.rollout(12)
    assert times_of(rollout)[:, 1].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 0, 1, 2]
    assert np.flatnonzero(~rollout.mask[:, 1]).tolist() == [5, 8]
    assert np.argwhere(rollout.cut).tolist() == [[7, 1]]
    ends = ends_of(rollout)
    assert sorted(ends) == [(7, 1), (11, 1)]
    newest = np.asarray(rollout.bootstrap.observation)[ends.index((7, 1))]
    assert newest.tolist() == [1, 2, 1]
    assert np.flatnonzero(~rollout.mask[:, 0]).tolist() == [5, 11]
    assert replay.steps == rollout.steps
    assert collector.report.restarts == 1
    streams = [[e for e in replay.iter_episodes() if e.stream == n] for n in (0, 1)]
    assert [(e.steps, bool(e.cut[-1])) for e in streams[1]] == [(5, False), (2, True), (3, True)]
