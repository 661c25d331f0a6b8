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
    nested_action,
    zeros,
)
from support.models.model import Model, assert_stored, copied, row_of

NEXT_STEP, SAME_STEP, DISABLED = (
    AutoresetMode.NEXT_STEP,
    AutoresetMode.SAME_STEP,
    AutoresetMode.DISABLED,
)
ALL_MODES = pytest.mark.parametrize("mode", list(AutoresetMode))
MakeEnv = Callable[[], gym.Env[Any, Any]]


def vector(
    make_env: Sequence[MakeEnv], mode: AutoresetMode = NEXT_STEP, **options: Any
) -> SyncVectorEnv:
    return SyncVectorEnv(make_env, autoreset_mode=mode, **options)


def collected(envs: Any, steps: int, **options: Any) -> tuple[list[Episode], Any]:
    replay = sw.SequenceReplayBuffer(seed=0)
    policy = options.pop("policy", None) or sw.RandomPolicy()
    with sw.Collector(envs, policy, replay, seed=3, **options) as collector:
        report = collector.collect(steps=steps)
    return list(replay.iter_episodes()), report


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


@ALL_MODES
@pytest.mark.parametrize(("padding", "stored"), [("reset", "repeat"), ("zero", "zero")])
def test_8_stacks_are_rebuilt_as_the_source_padded_them(
    mode: AutoresetMode, padding: str, stored: str
) -> None:
    def make() -> gym.Env[Any, Any]:
        env = FrameStackObservation(FrameEnv([2, 6, 4]), 3, padding_type=padding)
        recipe = {"frame_stack": 3, "stack_padding": stored}
        env.metadata = {**env.metadata, "stepwell": recipe}
        return env

    model = Model([make(), make()], lambda observation: np.int64(0), mode=mode)
    model.reset(0)
    model.collect(40)
    replay = sw.SequenceReplayBuffer(seed=0)
    with sw.Collector(vector([make, make], mode), zeros, replay, seed=0) as collector:
        collector.collect(steps=40)
    ids = {e.id: n for n, e in enumerate(replay.iter_episodes())}
    assert len(ids) == len(model.episodes)
    known = {
        tuple(stack.tobytes() for stack in e.observations[start : start + 3])
        for e in model.episodes
        for start in range(e.steps - 1)
    }
    batch = replay.sample_sequences(500, 3, stack=True)
    assert np.asarray(batch.observation).shape == (500, 3, 3, 4, 4)
    drawn = {tuple(stack.tobytes() for stack in window) for window in np.asarray(batch.observation)}
    assert drawn == known
    assert replay.spec["observation"].shape == (4, 4)


@pytest.mark.parametrize("asked", [None, 3])
def test_8_gymnasiums_own_stack_is_stored_once_without_being_asked(asked: int | None) -> None:
    make = lambda: FrameStackObservation(FrameEnv(), 3, padding_type="zero")  # noqa: E731
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(
        vector([make]), sw.RandomPolicy(), replay, seed=0, frame_stack=asked
    ) as collector:
        collector.collect(steps=20)
    field = replay.spec["observation"]
    assert (field.shape, field.stack, field.stack_padding) == ((4, 4), 3, "zero")


def test_8_a_stack_of_one_live_frame_is_refused_before_a_row_is_stored() -> None:
    """Gymnasium stacks k times the newest frame then, and the policy sees no other."""

    class Live(FrameEnv):
        def frame(self) -> Any:
            self.live = getattr(self, "live", np.zeros((4, 4), np.uint8))
            self.live[...] = super().frame()
            return self.live

    make = lambda: FrameStackObservation(Live(), 3)  # noqa: E731
    replay = sw.SequenceReplayBuffer()
    with (
        sw.Collector(vector([make]), sw.RandomPolicy(), replay, seed=0) as collector,
        pytest.raises(SpecMismatch, match=r"3 frames.*frame_stack=1"),
    ):
        collector.collect(steps=20)
    assert replay.steps == 0
    with sw.Collector(
        vector([make]), sw.RandomPolicy(), sw.SequenceReplayBuffer(), seed=0, frame_stack=1
    ) as whole:
        assert whole.collect(steps=20).steps == 20


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
        collector.collect(steps=5)
    with sw.Collector(
        vector([make]), sw.RandomPolicy(), sw.SequenceReplayBuffer(), seed=0, frame_stack=1
    ) as whole:
        assert whole.collect(steps=5).steps == 5


def test_20_worker_processes_are_seeded_as_envs_in_this_process_are() -> None:
    digests = set()
    for kind in (SyncVectorEnv, AsyncVectorEnv):
        replay = sw.SequenceReplayBuffer()
        with sw.Collector(kind([SeededEnv] * 3), sw.RandomPolicy(), replay, seed=4) as collector:
            digests.add(collector.collect(steps=50).digest)
    assert len(digests) == 1


@ALL_MODES
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_21_arrays_that_the_env_writes_again_are_copied(
    kind: type[Any], mode: AutoresetMode
) -> None:
    make = [partial(CounterEnv, [3, 5], tag) for tag in range(2)]
    seen: list[tuple[Any, Any]] = []

    def policy(observation: Any, is_first: Any) -> Any:
        seen.append((observation, copied(observation)))
        return np.zeros(2, np.int64)

    episodes, _ = collected(kind(make, copy=False, autoreset_mode=mode), 30, policy=policy)
    for episode in episodes:
        assert np.asarray(episode.observation)[:, 1].tolist() == list(range(episode.rows))
    # What the policy was given stays as it was, too: it may keep it.
    assert all((given == kept).all() for given, kept in seen)


@ALL_MODES
def test_28_info_keys_that_come_and_go_are_read_where_they_are(mode: AutoresetMode) -> None:
    missing = {"t": -1, "even": np.nan, "array": np.zeros(2, np.int16), "never": False}
    episodes, _ = collected(vector([partial(InfoEnv, [3, 4])] * 2, mode), 30, info=missing)
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


LAKE = "FrozenLake-v1"  # its info says prob: 1, an int, at a reset, and 1/3 at a step
LAKES: dict[str, tuple[Callable[[], Any], AutoresetMode]] = {
    **{
        f"make_vec, {workers} workers": (
            partial(sw.make_vec, LAKE, 4, num_workers=workers),
            NEXT_STEP,
        )
        for workers in (0, 1, 3)
    },
    **{
        f"gymnasium, {how}, {mode.name}": (
            partial(
                gym.make_vec,
                LAKE,
                4,
                vectorization_mode=how,
                vector_kwargs={"autoreset_mode": mode},
            ),
            mode,
        )
        for how in ("sync", "async")
        for mode in AutoresetMode
    },
}


@pytest.mark.proof
@pytest.mark.parametrize("how", LAKES)
def test_28_an_info_does_not_depend_on_what_the_other_envs_give(how: str) -> None:
    episodes, _ = collected(LAKES[how][0](), 60, info={"prob": 0.0})
    assert len(episodes) > 4
    for episode in episodes:
        expected = [1.0, *[1 / 3] * episode.steps]
        np.testing.assert_allclose(episode.fields["info/prob"], expected)


@pytest.mark.parametrize("kind", ["float", "0-d", "(1,)", "int32"])
@pytest.mark.parametrize("how", ["single", "sync", "async"])
def test_29_rewards_of_any_scalar_kind_are_stored_alike(kind: RewardKind, how: str) -> None:
    if (kind, how) == ("(1,)", "sync"):
        pytest.skip("gymnasium's SyncVectorEnv itself refuses them")
    make = partial(RewardKindEnv, kind, 3)
    envs: dict[str, Callable[[], Any]] = {
        "single": make,
        "sync": lambda: vector([make]),
        "async": lambda: AsyncVectorEnv([make]),
    }
    episodes, report = collected(envs[how](), 5)
    assert [e.reward.tolist() for e in episodes] == [[0, 1, 2, 3], [0, 1, 2]]
    assert {e.reward.dtype for e in episodes} == {np.dtype(np.float64)}
    assert report.returns == (6.0,)


def test_29_rewards_of_several_numbers_are_refused() -> None:
    class Two(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            observation, reward, *rest = super().step(actions)
            return observation, np.stack([reward, reward], 1), *rest

    with (
        sw.Collector(
            Two([CounterEnv] * 2), sw.RandomPolicy(), sw.SequenceReplayBuffer(), seed=0
        ) as collector,
        pytest.raises(ValueError, match=r"reward: .*2 envs, got .*\(2, \d"),
    ):
        collector.collect(steps=5)


@ALL_MODES
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_all_kinds_of_spaces_are_stored_and_actions_arrive(
    kind: type[Any], mode: AutoresetMode
) -> None:
    """Trap 26 too: every byte comes back."""
    make = partial(DictEnv, [3, 5])
    seeds = Seeds(9, 0)
    model = Model([make(), make()], nested_action, mode=mode, seed_of=seeds.env_seed)
    model.reset(seeds.next_envs_seed(2))
    model.collect(25)
    replay = sw.SequenceReplayBuffer(seed=0)
    policy = lambda observation, is_first: nested_action(observation)  # noqa: E731
    with sw.Collector(kind([make, make], autoreset_mode=mode), policy, replay, seed=9) as collector:
        collector.collect(steps=25)
    assert_stored(replay, model.episodes)
    batch = replay.sample_sequences(4, 2)
    assert np.asarray(row_of(batch.observation, 0)["image"]).shape == (2, 3, 4)
    assert np.asarray(batch.action["stick"][1]).dtype == np.int8


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


def test_a_worker_that_really_dies_is_counted_and_its_episode_cut() -> None:
    """The second env ends its process at the 8th step of its life, in its second episode."""
    make: list[Callable[[], gym.Env[Any, Any]]] = [
        partial(CounterEnv, 5, 0),
        partial(DieEnv, 8, 5, 1),
    ]
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(
        WorkerVectorEnv(make, num_workers=2), sw.RandomPolicy(), replay, seed=0
    ) as collector:
        report = collector.collect(steps=24)
    streams = [[e for e in replay.iter_episodes() if e.stream == n] for n in (0, 1)]
    assert [(e.steps, bool(e.cut[-1])) for e in streams[1]][:2] == [(5, False), (2, True)]
    assert [(e.steps, bool(e.cut[-1])) for e in streams[0]][:2] == [(5, False), (5, False)]
    for episode in replay.iter_episodes():
        assert np.asarray(episode.observation)[:, 1].tolist() == list(range(episode.rows))
    assert (report.restarts, report.cut) == (1, 1)
    assert report.steps == replay.steps


def test_async_envs_without_shared_memory_are_not_reset_after_an_end() -> None:
    """gymnasium 1.4.0 then resets them once more in the step after."""
    envs = AsyncVectorEnv([partial(CounterEnv, 3)] * 2, shared_memory=False)
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(episodes=2)
        with pytest.raises(
            ValueError, match=r"AsyncVectorEnv .*shared_memory=False: .*shared_memory=True"
        ):
            collector.collect(episodes=2)
        assert replay.episodes == 2
