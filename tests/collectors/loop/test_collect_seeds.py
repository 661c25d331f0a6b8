"""`collect(seeds=)`: one episode from each seed, whatever the number of envs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import stepwell as sw
from stepwell.wrappers import WorkerVectorEnv
from support.envs.atari_games import atari
from support.envs.fakes import DieEnv, RestartVectorEnv, SeededEnv, TraceEnv
from support.models.model import same

NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
ALL_MODES = pytest.mark.parametrize("mode", list(AutoresetMode))
SEEDS = [17, 4, 2**31 - 1, 4, 0, 99, 1]


def choose(observation: Any, is_first: Any) -> Any:
    return (observation[:, 0] * 1000).astype(np.int64) % 4


def alone(seed: int, length: int = 5) -> list[Any]:
    """Observations of the episode that a new env plays from the seed."""
    env = SeededEnv(length)
    observation, _ = env.reset(seed=seed)
    found, over = [observation], False
    while not over:
        action = choose(observation[None], None)[0]
        observation, _, over, _, _ = env.step(action)
        found.append(observation)
    return found


def collected(envs: Any, seeds: Any, **options: Any) -> tuple[sw.SequenceReplayBuffer, Any]:
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(envs, choose, replay, seed=0, **options) as collector:
        report = collector.collect(seeds=seeds)
    return replay, report


def test_neither_the_collectors_seed_nor_earlier_calls_matter() -> None:
    firsts = []
    for seed, steps in ((0, 0), (1, 0), (2, 13)):
        replay = sw.SequenceReplayBuffer()
        with sw.Collector(SyncVectorEnv([SeededEnv] * 2), choose, replay, seed=seed) as collector:
            if steps:
                collector.rollout(steps)
            collector.collect(seeds=SEEDS)
        episodes = list(replay.iter_episodes())[-7:]
        firsts.append([np.asarray(e.observation) for e in episodes])
    assert all(same(one, other) for one, other in zip(firsts[0], firsts[1], strict=True))
    assert all(same(one, other) for one, other in zip(firsts[0], firsts[2], strict=True))


def test_calls_may_be_repeated_and_mixed() -> None:
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(SyncVectorEnv([SeededEnv] * 2), choose, replay, seed=0) as collector:
        collector.collect(seeds=[3])
        collector.collect(steps=4)
        collector.collect(seeds=[3, 3, 3])
        rollout = collector.rollout(2)
        collector.collect(episodes=1)
    assert rollout.is_first[0].all()
    seeded = [e for e in replay.iter_episodes() if e.metadata.get("seed") == 3]
    assert len(seeded) == 4
    assert len({np.asarray(e.observation).tobytes() for e in seeded}) == 1


def test_worker_processes_give_the_same() -> None:
    replay, _ = collected(WorkerVectorEnv([SeededEnv] * 3, num_workers=2), SEEDS)
    for episode, seed in zip(replay.iter_episodes(), SEEDS, strict=True):
        assert same(np.asarray(episode.observation), np.array(alone(seed)))


def test_groups_give_the_same() -> None:
    groups = [SyncVectorEnv([SeededEnv] * 2), SyncVectorEnv([SeededEnv])]
    replay, report = collected(groups, SEEDS)
    found = {
        (int(e.metadata["seed"]), np.asarray(e.observation).tobytes())  # type: ignore[call-overload]
        for e in replay.iter_episodes()
    }
    assert found == {(seed, np.array(alone(seed)).tobytes()) for seed in SEEDS}
    assert report.episodes == 7


@pytest.mark.proof
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_atari_plays_the_same_game_from_the_same_seed(mode: AutoresetMode) -> None:
    def games(num_envs: int) -> list[tuple[Any, bytes]]:
        envs = atari(num_envs, mode, max_num_frames_per_episode=40)
        replay = sw.SequenceReplayBuffer()
        policy = lambda observation, is_first: (  # noqa: E731
            observation.reshape(len(is_first), -1).sum(1).astype(np.int64) % 4
        )
        with sw.Collector(envs, policy, replay, seed=0) as collector:
            collector.collect(seeds=[5, 6, 7, 5])
        return [
            (e.metadata["seed"], np.asarray(e.observation).tobytes())
            for e in replay.iter_episodes()
        ]

    one, many = games(1), games(3)
    assert one == many
    assert one[0] == one[3]
    assert len({game for _, game in one}) == 3


def test_a_range_or_an_array_of_seeds_will_do() -> None:
    for seeds in (range(3), (0, 1, 2), np.arange(3), np.arange(3, dtype=np.uint8)):
        replay, _ = collected(SyncVectorEnv([SeededEnv] * 2), seeds)
        assert [e.metadata["seed"] for e in replay.iter_episodes()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("seeds", "got"),
    [
        ([], r"got \[\]"),
        ([-1], "2147483647, got -1"),
        ([1, 2.5], r"2147483647, got 2\.5"),
        ([2**31], "2147483647, got 2147483648"),
        ([2**63], "2147483647, got 9223372036854775808"),
        (["a"], "2147483647, got 'a'"),
        ([None], "2147483647, got None"),
        ("123", "got '123'"),
        (7, "got 7"),
        ([True], "2147483647, got True"),
        ([[1, 2]], r"2147483647, got \[1, 2\]"),
        ([np.nan], "2147483647, got nan"),
    ],
)
def test_invalid_seeds_are_refused(seeds: Any, got: str) -> None:
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(SyncVectorEnv([SeededEnv] * 2), choose, replay, seed=0) as collector:
        with pytest.raises((ValueError, TypeError), match=f"^seeds: .*{got}$") as caught:
            collector.collect(seeds=seeds)
        assert "\n" not in str(caught.value)
        assert not replay.is_bound
        collector.rollout(3)
        assert replay.steps == 6


def test_a_refused_call_leaves_the_envs_where_they_were() -> None:
    make: list[Any] = [partial(TraceEnv, [(50, "terminated")])]
    with sw.Collector(
        SyncVectorEnv(make), lambda observation, is_first: np.zeros(1, np.int64), seed=0
    ) as collector:
        collector.rollout(3)
        with pytest.raises(ValueError, match=r"^seeds: .*got -3"):
            collector.collect(seeds=[-3])
        rollout = collector.rollout(2)
    assert np.asarray(rollout.observation)[:, 0, 2].tolist() == [3, 4]


@ALL_MODES
@pytest.mark.parametrize("at_step", [1, 3])
def test_a_seed_whose_worker_died_is_played_again(mode: AutoresetMode, at_step: int) -> None:
    """Steps of an env after its seeded episode come from no seed, and are not recorded."""
    reported: list[Any] = []
    envs = RestartVectorEnv([SeededEnv] * 2, at_step, env=1, autoreset_mode=mode)
    replay, report = collected(envs, [3, 14, 15], on_episode=reported.append)
    episodes = [e for e in replay.iter_episodes() if e.end.is_final]
    by_seed: dict[Any, Any] = {e.metadata["seed"]: e.observation for e in episodes}
    assert sorted(by_seed) == [3, 14, 15]
    for seed, observation in by_seed.items():
        assert same(np.asarray(observation), np.array(alone(seed)))
    cut = [(e.metadata["seed"], e.steps) for e in replay.iter_episodes() if not e.end.is_final]
    assert cut == ([(14, 2)] if at_step == 3 else [])
    assert len(episodes) == len(reported) == 3
    assert {one.episode: one.seed for one in reported} == {0: 3, 1: 14, 2: 15}
    assert (report.episodes, report.restarts, report.cut) == (3, 1, len(cut))
    assert report.digest == replay.digest()


def test_a_seed_is_played_again_after_a_real_worker_death() -> None:
    envs = WorkerVectorEnv([partial(DieEnv, 8, 5, tag) for tag in (0, 1)], num_workers=2)
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        report = collector.collect(seeds=[1, 2, 3])
    ended = [e.metadata["seed"] for e in replay.iter_episodes() if e.end.is_final]
    assert len(ended) == 3
    assert set(ended) == {1, 2, 3}
    assert report.episodes == 3
    assert report.restarts >= 1
