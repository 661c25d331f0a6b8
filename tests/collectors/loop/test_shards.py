"""Shards: no two of them reset an env with the same seed, whoever draws the seed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import hypothesis
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import strategies as st

import stepwell as sw
from stepwell.collectors.loop.collector import Seeds
from stepwell.wrappers import SeededResets, WorkerVectorEnv
from stepwell.wrappers.seeded_resets import ShardSeed, derived_seed, in_shard_of
from support.envs.fakes import DieEnv, SeededEnv

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode
SHARDS = st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n)))


class NotesSeeds(gym.Wrapper[Any, Any, Any, Any]):
    """Notes every seed that the env itself is reset with."""

    def __init__(self, env: gym.Env[Any, Any], seen: list[int | None]) -> None:
        super().__init__(env)
        self._seen = seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._seen.append(None if seed is None else int(seed))
        return self.env.reset(seed=seed, options=options)


class Strict(gym.Env[Any, Any]):
    """Takes an int and nothing else, as NumPy's and Python's own generators do."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            assert np.random.RandomState(seed).rand() == np.random.RandomState(int(seed)).rand()
        return self.np_random.random(1), {}

    def step(self, action: Any) -> Any:
        return self.np_random.random(1), 0.0, bool(self.np_random.random() < 0.3), False, {}


def noted(replay: sw.SequenceReplayBuffer) -> list[int]:
    seeds = [episode.metadata.get("seed") for episode in replay.iter_episodes()]
    assert all(type(seed) is int for seed in seeds if seed is not None)
    return [seed for seed in seeds if isinstance(seed, int)]


def collected(
    envs: Any, shard: tuple[int, int] | None, calls: int = 2, **options: Any
) -> sw.SequenceReplayBuffer:
    replay = sw.SequenceReplayBuffer()
    options = {"reseed_steps": 9, **options}
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=3, shard=shard, **options) as collector:
        for _ in range(calls):
            collector.collect(steps=150)
            collector.collect(episodes=2)
    return replay


def plain(mode: AutoresetMode) -> SyncVectorEnv:
    return SyncVectorEnv([SeededEnv] * 2, autoreset_mode=mode)


def seeded(mode: AutoresetMode) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: SeededResets(SeededEnv())] * 2, autoreset_mode=mode)


ENVS: dict[str, Callable[[], Any]] = {
    "plain, next step": partial(plain, NEXT_STEP),
    "plain, same step": partial(plain, SAME_STEP),
    "plain, disabled": partial(plain, DISABLED),
    "seeded, next step": partial(seeded, NEXT_STEP),
    "seeded, same step": partial(seeded, SAME_STEP),
    "seeded, disabled": partial(seeded, DISABLED),
    "single": Strict,
    "async": lambda: AsyncVectorEnv([lambda: SeededResets(SeededEnv())] * 2),
    "workers": lambda: WorkerVectorEnv([lambda: SeededResets(SeededEnv())] * 2, num_workers=2),
    "groups": lambda: [seeded(NEXT_STEP), seeded(NEXT_STEP)],
}


@pytest.mark.proof
@pytest.mark.parametrize("name", ENVS)
def test_all_seeds_of_a_shard_are_in_its_class(name: str) -> None:
    found: list[set[int]] = []
    for part in (1, 2, 3):
        replay = collected(ENVS[name](), (part, 3))
        seeds = noted(replay)
        assert len(seeds) > 20
        assert {seed % 3 for seed in seeds} == {part % 3}
        assert all(0 <= seed < 2**31 for seed in seeds)
        found.append(set(seeds))
        assert replay.sessions[0]["shard"] == [part, 3]
    assert len(set.union(*found)) == sum(map(len, found))


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_seed_that_reaches_an_env_is_in_the_class(mode: AutoresetMode) -> None:
    seen: list[int | None] = []

    def nested() -> gym.Env[Any, Any]:
        inner = SeededResets(SeededResets(NotesSeeds(SeededEnv(), seen)))
        return NotesSeeds(inner, seen)

    makers = [
        lambda: SeededResets(NotesSeeds(SeededEnv(), seen)),
        nested,
        lambda: NotesSeeds(SeededEnv(), seen),
    ]
    collected(SyncVectorEnv(makers, autoreset_mode=mode), (5, 7), reseed_steps=1)
    given = [seed for seed in seen if seed is not None]
    assert len(given) > 50
    assert {seed % 7 for seed in given} == {5}


def test_a_restarted_worker_goes_on_in_the_class() -> None:
    envs = WorkerVectorEnv([lambda: SeededResets(DieEnv(40, 5))], num_workers=1, max_restarts=50)
    replay = collected(envs, (2, 5))
    restarts = sum(episode.end == 0 for episode in replay.iter_episodes())
    seeds = noted(replay)
    assert restarts > 2
    assert {seed % 5 for seed in seeds} == {2}


def test_one_of_one_and_no_shard_are_the_same() -> None:
    replays = [collected(seeded(NEXT_STEP), shard) for shard in (None, (1, 1))]
    assert replays[0].digest() == replays[1].digest()
    assert noted(replays[0]) == noted(replays[1])
    assert all("shard" not in replay.sessions[0] for replay in replays)


FIRST_OF_7, RESEED_OF_7, POLICY_OF_7 = 505765124, 466841989, 529440576438
DERIVED_OF_7 = [600562731, 394211478, 1809491585]


def test_seeds_without_shards_are_those_of_earlier_versions() -> None:
    """Written down before there were shards."""
    assert Seeds(7, 0).next_resets(3) == Seeds(7, 0).next_envs_seed(3) == FIRST_OF_7
    assert Seeds(7, 0).env_seed(2, 5) == RESEED_OF_7
    assert int(Seeds(7, 1).policy_rng().integers(2**40)) == POLICY_OF_7
    assert [derived_seed(7, n) for n in (1, 2, 65)] == DERIVED_OF_7


@hypothesis.given(SHARDS, st.integers(0, 2**64), st.integers(0, 3), st.integers(1, 1000))
def test_the_collectors_seeds_are_in_the_class_and_take_different_places(
    shard: tuple[int, int], seed: int, session: int, num_envs: int
) -> None:
    seeds = Seeds(seed, session, shard)
    resets = seeds.next_resets(num_envs)
    all_seeds = resets if isinstance(resets, list) else [*range(resets, resets + num_envs)]
    assert len(set(all_seeds)) == num_envs
    for one in (*all_seeds, seeds.env_seed(num_envs, 3), derived_seed(all_seeds[0], num_envs)):
        assert 0 <= one < 2**31
        assert (one - shard[0]) % shard[1] == 0


@hypothesis.given(SHARDS, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_a_derived_seed_is_the_nearest_in_the_shard(
    shard: tuple[int, int], given: int, drawn: int
) -> None:
    count = shard[1]
    seed = in_shard_of(ShardSeed(given, count), drawn)
    below = [one for one in range(drawn, drawn - count, -1) if (one - given) % count == 0]
    nearest = [one for one in below if one >= 0] or [below[0] + count]
    assert [seed] == nearest
    assert in_shard_of(given, drawn) == drawn
    for same in (pickle.loads(pickle.dumps(seed)), copy.deepcopy(seed)):
        assert isinstance(same, ShardSeed)
        assert (same, same.count) == (seed, count)


def test_given_seeds_must_be_of_the_shard() -> None:
    def collect(seeds: list[int]) -> list[int]:
        replay = sw.SequenceReplayBuffer()
        with sw.Collector(seeded(NEXT_STEP), sw.RandomPolicy(), replay, shard=(4, 4)) as collector:
            collector.collect(seeds=seeds)
        return noted(replay)

    assert collect([0, 4, 8]) == [0, 4, 8]
    with pytest.raises(ValueError, match=r"^seeds: .*\(4, 4\).*\b0 modulo 4\b.*got 6\b"):
        collect([0, 4, 6])


@pytest.mark.parametrize(
    "wrong", [(0, 4), (5, 4), (1, 0), (-1, 2), (1,), (1, 2, 3), "1/4", 3, (1, 10_001), (1.0, 2)]
)
def test_what_is_no_shard_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^shard: ") as caught:
        sw.Collector(Strict(), sw.RandomPolicy(), shard=wrong)
    assert repr(wrong) in str(caught.value)
