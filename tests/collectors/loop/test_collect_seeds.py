"""`collect(seeds=)`: one episode from each seed, whatever the number of envs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import stepwell as sw
from support.envs.fakes import RestartVectorEnv, SeededEnv, counters, zeros
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


def test_groups_give_the_same() -> None:
    groups = [SyncVectorEnv([SeededEnv] * 2), SyncVectorEnv([SeededEnv])]
    replay, report = collected(groups, SEEDS)
    found = {
        (int(e.metadata["seed"]), np.asarray(e.observation).tobytes())  # type: ignore[call-overload]
        for e in replay.iter_episodes()
    }
    assert found == {(seed, np.array(alone(seed)).tobytes()) for seed in SEEDS}
    assert report.episodes == 7


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
def test_invalid_seeds_are_refused_and_the_envs_stay_where_they_were(seeds: Any, got: str) -> None:
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(counters(9), zeros, replay, seed=0) as collector:
        for times in ([0, 1, 2], [3, 4, 5]):
            was_bound = replay.is_bound
            with pytest.raises((ValueError, TypeError), match=f"^seeds: .*{got}$") as caught:
                collector.collect(seeds=seeds)
            assert "\n" not in str(caught.value)
            assert replay.is_bound == was_bound
            assert np.asarray(collector.rollout(3).observation)[:, 0, 1].tolist() == times


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
