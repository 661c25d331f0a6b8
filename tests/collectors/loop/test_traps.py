"""The traps of vector envs, each by its number in the list of traps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation

import stepwell as sw
from stepwell.buffers import Episode, SpecMismatch
from stepwell.collectors.loop.collector import Seeds
from support.envs.fakes import CounterEnv, FrameEnv, InfoEnv, LiveBufferEnv, RestartVectorEnv, zeros
from support.models.model import copied, row_of, same
from support.models.rollout_model import (
    RolloutModel,
    TraceRule,
    assert_same,
    ends_of,
    leaves,
    policy_of,
)

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode
ALL_MODES = pytest.mark.parametrize("mode", list(AutoresetMode))
MakeEnv = Callable[[], gym.Env[Any, Any]]


def vector(
    make_env: Sequence[MakeEnv], mode: AutoresetMode = NEXT_STEP, **options: Any
) -> SyncVectorEnv:
    return SyncVectorEnv(make_env, autoreset_mode=mode, **options)


def collected(envs: Any, steps: int, **options: Any) -> tuple[list[Episode], Any]:
    replay = sw.SequenceReplayBuffer(seed=0)
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=3, **options) as collector:
        report = collector.collect(steps=steps)
    return list(replay.iter_episodes()), report


def rolled(envs: Any, steps: int, policy: Any = zeros) -> sw.Rollout:
    with sw.Collector(envs, policy, seed=3) as collector:
        return collector.rollout(steps)


def times_of(rollout: sw.Rollout) -> np.ndarray:
    return np.asarray(rollout.observation)[..., 1]


def test_1_a_live_buffer_of_a_single_env_is_copied_at_once() -> None:
    episodes, _ = collected(LiveBufferEnv(4), 12)
    assert [np.asarray(e.observation)[:, 1, 1].tolist() for e in episodes] == [[0, 1, 2, 3, 4]] * 3


def test_4_a_same_step_env_without_last_observations_is_refused() -> None:
    class Forgetful(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            *rest, info = super().step(actions)
            return *rest, {key: value for key, value in info.items() if key != "final_obs"}

    envs = Forgetful([partial(CounterEnv, 2)], autoreset_mode=SAME_STEP)
    with (
        sw.Collector(envs, sw.RandomPolicy(), sw.SequenceReplayBuffer(), seed=0) as collector,
        pytest.raises(ValueError, match=r"SAME_STEP.*info\['final_obs'\], got .*\[.*\]"),
    ):
        collector.collect(steps=5)


class Pixels(TraceRule):
    def act(self, observation: Any, is_first: bool, state: Any) -> Any:
        total = observation.sum(dtype=np.int64)
        return total % 2, None, {}

    def value(self, observation: Any, state: Any) -> Any:
        return np.float32(0)


@ALL_MODES
@pytest.mark.parametrize(("padding", "stored"), [("reset", "repeat"), ("zero", "zero")])
def test_8_stacks_are_full_in_rollouts_and_rebuilt_as_the_source_padded_them(
    mode: AutoresetMode, padding: str, stored: str
) -> None:
    def make() -> gym.Env[Any, Any]:
        return FrameStackObservation(FrameEnv([2, 6, 4]), 3, padding_type=padding)

    seeds = Seeds(3, 0)
    model = RolloutModel([make(), make()], Pixels(), mode=mode, seed_of=seeds.env_seed)
    model.reset(seeds.next_envs_seed(2))
    replay = sw.SequenceReplayBuffer(seed=0)
    with sw.Collector(vector([make, make], mode), policy_of(Pixels()), replay, seed=3) as collector:
        for steps in (9, 24):
            rollout, expected = collector.rollout(steps), model.rollout(steps)
            wanted = expected.column(lambda row: row.observation)
            assert_same("stacks", rollout.observation, wanted)
            for place, (t, n) in enumerate(ends_of(rollout)):
                last = row_of(rollout.bootstrap.observation, place)
                assert same(last, expected.rows[t][n].follows)
    field = replay.spec["observation"]
    assert (field.shape, field.stack, field.stack_padding) == ((4, 4), 3, stored)
    known = {
        tuple(stack.tobytes() for stack in e.observations[start : start + 3])
        for e in model.episodes
        for start in range(e.steps - 1)
    }
    batch = replay.sample_sequences(500, 3, stack=True)
    assert np.asarray(batch.observation).shape == (500, 3, 3, 4, 4)
    drawn = {tuple(stack.tobytes() for stack in window) for window in np.asarray(batch.observation)}
    assert drawn == known


class LiveFrames(FrameEnv):
    """Gymnasium stacks k times the newest frame then, and the policy sees no other."""

    def frame(self) -> Any:
        self.live = getattr(self, "live", np.zeros((4, 4), np.uint8))
        self.live[...] = super().frame()
        return self.live


def wrongly_padded() -> gym.Env[Any, Any]:
    env = FrameStackObservation(FrameEnv(), 3, padding_type="zero")
    env.metadata = {**env.metadata, "stepwell": {"frame_stack": 3, "stack_padding": "repeat"}}
    return env


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FrameStackObservation(LiveFrames(), 3), r"3 frames.*frame_stack=1"),
        (wrongly_padded, r"repeat.*frame_stack=1"),
    ],
)
def test_8_stacks_that_cannot_be_rebuilt_are_refused_before_a_row_is_stored(
    make: MakeEnv, message: str
) -> None:
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(vector([make]), sw.RandomPolicy(), replay, seed=0) as collector:
        with pytest.raises(SpecMismatch, match=message):
            collector.collect(steps=20)
    assert replay.steps == 0
    assert collected(vector([make]), 20, frame_stack=1)[1].steps == 20


def test_8_a_replay_that_holds_whole_stacks_goes_on_with_them() -> None:
    make = lambda: FrameStackObservation(FrameEnv(), 3, padding_type="zero")  # noqa: E731
    replay = sw.SequenceReplayBuffer()
    for frame_stack in (1, None):
        with sw.Collector(
            vector([make]), sw.RandomPolicy(), replay, seed=0, frame_stack=frame_stack
        ) as collector:
            collector.collect(steps=5)
    assert replay.steps == 10
    assert replay.spec["observation"].shape == (3, 4, 4)


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


@ALL_MODES
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_21_what_is_held_stays_what_it_was(kind: type[Any], mode: AutoresetMode) -> None:
    """Rollouts, and what the policy was given: the envs write into their arrays again."""
    make: list[Any] = [partial(CounterEnv, [3, 5], tag) for tag in range(2)]
    held: list[tuple[Any, Any]] = []

    class Holding(Worth):
        def __call__(self, observation: Any, is_first: Any) -> Any:
            held.append((observation, copied(observation)))
            return super().__call__(observation, is_first)

    envs = kind(make, autoreset_mode=mode, copy=False)
    rollouts: list[Any] = []
    with sw.Collector(envs, Holding(lambda observation: observation[:, 1]), seed=0) as collector:
        for _ in range(3):
            rollouts.append(everything_of(collector.rollout(6)))
            held.append((rollouts[-1], copied(rollouts[-1])))
    for given, kept in held:
        assert same(given, kept)
    arrays = [leaf for rollout in rollouts for leaf in leaves(rollout)]
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
@pytest.mark.parametrize("num_envs", [2, 3])  # as long as the array, and not
def test_28_info_keys_that_come_and_go_are_read_where_they_are(
    mode: AutoresetMode, num_envs: int
) -> None:
    missing = {"t": -1, "even": np.nan, "array": np.zeros(2, np.int16), "never": False}
    replay, rollout = sw.SequenceReplayBuffer(), None
    envs = vector([partial(InfoEnv, [3, 4])] * num_envs, mode)
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=3, info=missing) as collector:
        collector.collect(steps=15)
        for _ in range(3):
            rollout = collector.rollout(5, out=rollout)
            assert rollout.steps < rollout.mask.size or mode is not NEXT_STEP
            times = times_of(rollout)[rollout.mask] + 1
            assert rollout.info["t"][rollout.mask].tolist() == times.tolist()
            assert same(rollout.info["array"][rollout.mask], np.stack([times, times], -1))
    episodes = list(replay.iter_episodes())
    assert {episode.steps for episode in episodes} >= {3, 4}
    for episode in episodes:
        times = np.arange(episode.rows)
        fields = episode.fields
        assert fields["info/t"].tolist() == [-1, *times[1:]]
        even = [t * 1.5 if t % 2 == 0 and t else np.nan for t in times]
        assert np.array_equal(fields["info/even"], even, equal_nan=True)
        assert fields["info/array"].tolist() == [[t, t] for t in times]
        assert not fields["info/never"].any()
        assert fields["info/array"].dtype == np.int16


class KeyEnv(CounterEnv):
    """Each info has a value under a key."""

    def __init__(self, key: Any, value: Any) -> None:
        super().__init__([3])
        self._info = {key: value}

    def reset(self, **options: Any) -> tuple[Any, dict[Any, Any]]:
        return super().reset(**options)[0], self._info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[Any, Any]]:
        return *super().step(action)[:4], self._info


@pytest.mark.filterwarnings("ignore::UserWarning")  # gymnasium's, of a worker that raised
@pytest.mark.parametrize("envs", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("key", ["final_obs", "final_info"])
def test_28_an_info_that_hides_the_last_row_is_refused(envs: Any, key: str) -> None:
    makers = [partial(KeyEnv, key, np.full(2, 7.0, np.float32))] * 2
    with pytest.raises(ValueError, match=rf"env [01]: info: .*got {key};"):
        collected(envs(makers, autoreset_mode=SAME_STEP), 12)
    assert collected(envs(makers), 12)[1].returns


@pytest.mark.parametrize("workers", [0, 1])
def test_28_keys_of_an_info_need_not_be_texts(workers: int) -> None:
    envs = sw.make_vec(partial(KeyEnv, 1, 5), 2, num_workers=workers)
    episodes, _ = collected(envs, 12, metadata=lambda _, info: {"seen": info[1]})
    assert {episode.metadata["seen"] for episode in episodes} == {5}


def test_29_returns_are_summed_before_rewards_become_float32() -> None:
    class Fine(CounterEnv):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, 0.1, *rest

    rollout = rolled(vector([partial(Fine, 3)]), 3)
    assert rollout.episode_returns == (0.1 + 0.1 + 0.1,)
    assert rollout.reward[:, 0].tolist() == [np.float32(0.1)] * 3


def test_an_episode_that_was_cut_by_a_dead_worker_is_replaced() -> None:
    envs = RestartVectorEnv([partial(CounterEnv, 6, tag) for tag in (0, 1)], at_step=3, env=1)
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        report = collector.collect(episodes=2)
    assert (report.lengths, report.cut, report.restarts) == ((6, 6), 1, 1)
    assert sorted((e.steps, bool(e.cut[-1])) for e in replay.iter_episodes()) == [
        (2, True),
        (6, False),
        (6, False),
    ]
