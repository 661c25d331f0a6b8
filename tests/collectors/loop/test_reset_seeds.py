"""Seeds of resets: each that is known is noted, and from it the episode can be played again."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import stepwell as sw
from stepwell.buffers.provenance.chains import Chain, chains_of
from stepwell.collectors.loop.collector import Seeds
from stepwell.wrappers import EpisodicLife, WorkerVectorEnv
from support.envs.fakes import CounterEnv

gym.register_envs(ale_py)

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode
MODES = pytest.mark.parametrize("mode", list(AutoresetMode))
STEPS = pytest.mark.parametrize("reseed_steps", [1, 9, None])


class DrawEnv(gym.Env[Any, np.int64]):
    """Everything comes from the generator and the actions: nothing from the env's past."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.np_random.random(2)
        return self.state.copy(), {"level": int(self.np_random.integers(9))}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.state = self.state + float(action) + self.np_random.random(2)
        terminated, truncated = self.np_random.random(2) < 0.12
        return self.state.copy(), float(self.state[0]), bool(terminated), bool(truncated), {}


class OwnSeedsEnv(DrawEnv):
    """Seeds each of its resets, and says so."""

    count = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count += 1
        own = 1000 * self.count if seed is None else seed
        observation, info = super().reset(seed=own)
        return observation, {**info, "reset_seed": own, "noops": self.count % 3}


def collected(envs: Any, steps: int, **options: Any) -> sw.SequenceReplayBuffer:
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=3, **options) as collector:
        collector.collect(steps=steps)
    return replay


def seeds_in(replay: sw.SequenceReplayBuffer) -> list[object]:
    return [episode.metadata.get("seed") for episode in replay.iter_episodes()]


Row = tuple[Any, float, bool, bool]


def played(chain: Chain, env: gym.Env[Any, Any]) -> list[list[Row]]:
    """The rows that a fresh env gives for each episode of a chain: a plain loop."""
    found = []
    for number, play in enumerate(chain.plays):
        observation = env.reset(seed=None if number else chain.seed)[0]
        rows: list[Row] = [(np.array(observation), 0.0, False, False)]
        actions = [one for piece in play.actions() for one in piece["action"]]
        for action in actions:
            observation, reward, terminated, truncated, _ = env.step(action)
            rows.append((np.array(observation), float(reward), terminated, truncated))
        found.append(rows)
    return found


def assert_played_again(
    replay: sw.SequenceReplayBuffer, make_env: Callable[[], gym.Env[Any, Any]]
) -> int:
    """Every stored episode is what its chain gives in an env of its own; returns their number."""
    chains, unreachable = chains_of(replay.storage)
    assert not unreachable
    stored = {episode.id: episode for episode in replay.iter_episodes()}
    count = 0
    for chain in chains:
        env = make_env()
        for play, rows in zip(chain.plays, played(chain, env), strict=True):
            assert play.episode is not None
            episode = stored[play.episode.id]
            for name, place in (("observation", 0), ("reward", 1)):
                given = np.asarray(episode.fields[name])
                newest = np.stack([row[place] for row in rows]).astype(given.dtype)
                if newest.ndim > given.ndim:  # of a stack the newest frame
                    newest = newest[:, -1]
                assert np.array_equal(given, newest), (chain.stream, play.metadata, name)
            last = bool(episode.terminated[-1]), bool(episode.truncated[-1])
            assert last == rows[-1][2:]
            assert not any(row[2] or row[3] for row in rows[:-1])
            count += 1
        env.close()
    assert count == len(stored)
    return count


def vector(kind: str, mode: AutoresetMode, make: Callable[[], Any] = DrawEnv, n: int = 3) -> Any:
    if kind == "workers":
        return WorkerVectorEnv([make] * n, num_workers=2)
    if kind == "sync":
        return SyncVectorEnv([make] * n, autoreset_mode=mode)
    return AsyncVectorEnv([make] * n, autoreset_mode=mode, shared_memory=kind == "async")


KINDS = [
    *[(kind, mode) for kind in ("sync", "async", "async, pipes") for mode in AutoresetMode],
    ("workers", NEXT_STEP),
]


@pytest.mark.proof
@STEPS
@pytest.mark.parametrize(("kind", "mode"), KINDS)
def test_every_episode_is_played_again_from_a_seed(
    kind: str, mode: AutoresetMode, reseed_steps: int | None
) -> None:
    replay = collected(vector(kind, mode), 400, reseed_steps=reseed_steps)
    episodes = assert_played_again(replay, DrawEnv)
    assert episodes > 40
    seeds = [seed for seed in seeds_in(replay) if seed is not None]
    assert len(set(seeds)) == len(seeds)
    never = reseed_steps is None or (kind == "async, pipes" and mode is NEXT_STEP)
    if never:
        assert len(seeds) == 3
    elif reseed_steps == 1 or mode is DISABLED:
        assert len(seeds) == episodes
    else:
        assert 9 < len(seeds) < 0.8 * episodes


@pytest.mark.proof
@pytest.mark.parametrize(
    ("mode", "reseed_steps"), [(NEXT_STEP, 1), (NEXT_STEP, 60), (SAME_STEP, 60), (NEXT_STEP, None)]
)
def test_every_atari_episode_is_played_again_from_a_seed(
    mode: AutoresetMode, reseed_steps: int | None
) -> None:
    knobs = {
        "repeat_action_probability": 0.25,
        "max_num_frames_per_episode": 150,
        "img_height": 21,
        "img_width": 21,
    }
    envs = AtariVectorEnv("breakout", 3, autoreset_mode=mode, **knobs)  # type: ignore[arg-type]
    replay = collected(envs, 400, reseed_steps=reseed_steps)
    alone = OneGame("breakout", **knobs)
    episodes = assert_played_again(replay, lambda: alone)
    alone.envs.close()
    assert episodes > 9
    seeds = sum(seed is not None for seed in seeds_in(replay))
    assert seeds == {1: episodes, None: 3}.get(reseed_steps, seeds)
    assert reseed_steps != 60 or 3 < seeds < episodes


@pytest.mark.proof
def test_atari_episodes_of_one_step_have_ended() -> None:
    """An end is known by frame counters, which a load sets back."""
    envs = AtariVectorEnv(
        "pong",
        2,
        autoreset_mode=SAME_STEP,
        max_num_frames_per_episode=4,
        noop_max=1,
        use_fire_reset=False,
        img_height=21,
        img_width=21,
    )
    replay = collected(envs, 20, reseed_steps=1)
    assert [episode.steps for episode in replay.iter_episodes()] == [1] * 20
    assert None not in seeds_in(replay)


class OneGame(gym.Env[Any, Any]):
    """ale-py's vector env of one game, as an env."""

    def __init__(self, game: str, **knobs: Any) -> None:
        self.envs = AtariVectorEnv(game, 1, **knobs)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, info = self.envs.reset(seed=seed)
        return observation[0], info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.envs.step(np.array([action]))
        return observation[0], reward[0], bool(terminated[0]), bool(truncated[0]), info


def test_groups_are_seeded_by_the_numbers_of_their_envs() -> None:
    groups = [vector("sync", NEXT_STEP, n=2), vector("async", SAME_STEP, n=1)]
    replay = collected(groups, 300, reseed_steps=5)
    assert assert_played_again(replay, DrawEnv) > 30
    all_of = {(env, n): Seeds(3, 0).env_seed(env, n) for env in range(3) for n in range(99)}
    for env in range(3):
        seeds = [e.metadata.get("seed") for e in replay.iter_episodes() if e.stream == env]
        later = [seed for seed in seeds[1:] if seed is not None]
        assert later == [all_of[env, n] for n in range(len(later))] != []


def test_all_seeds_follow_from_one_and_no_two_are_equal() -> None:
    one, same = Seeds(7, 0), Seeds(7, 0)
    resets = [one.next_envs_seed(8) for _ in range(5)]
    assert resets == [same.next_envs_seed(8) for _ in range(5)]
    assert one.policy_rng().integers(2**60) == same.policy_rng().integers(2**60)
    others: list[Any] = [(7, 0), (7, 1), (8, 0), (7, 0, (1, 2)), (7, 0, (2, 2))]
    assert len({Seeds(*of).policy_rng().integers(2**60) for of in others}) == 5
    # Env i gets the seed plus i: no env of any reset meets another one's.
    used = [seed + env for seed in resets for env in range(8)]
    keys = [(run, env, n) for run in range(3) for env in range(4) for n in range(5)]
    used += [Seeds(7, run).env_seed(env, n) for run, env, n in keys]
    used += [Seeds(run, 1).next_envs_seed(1) for run in (7, 8)]
    assert len(set(used)) == len(used)
    assert all(0 <= seed < 2**31 for seed in used)
    assert Seeds(None, 0).seed != Seeds(None, 0).seed


@MODES
def test_metadata_are_asked_for_once_for_each_episode(mode: AutoresetMode) -> None:
    """With the info of its reset, which in SAME_STEP mode comes after an automatic one."""
    asked: list[tuple[int, object]] = []

    def metadata(env: int, info: Any) -> dict[str, object]:
        asked.append((env, info["level"]))
        return {"level": info["level"]}

    envs = vector("sync", mode)
    replay = collected(envs, 200, reseed_steps=9, metadata=metadata, info={"level": -1})
    stored = [(e.stream, e.metadata["level"]) for e in replay.iter_episodes()]
    # The newest episode of an env may have its first row alone, and is not stored yet.
    assert len(stored) <= len(asked) <= len(stored) + 3
    for env in range(3):
        own = [level for one, level in stored if one == env]
        assert own == [level for one, level in asked if one == env][: len(own)]
    for episode in replay.iter_episodes():
        assert episode.metadata["level"] == episode.fields["info/level"][0] >= 0


# Envs that seed themselves


@MODES
@pytest.mark.parametrize("reseed_steps", [1, 50_000])
def test_seeds_that_envs_report_are_noted_and_never_replaced(
    mode: AutoresetMode, reseed_steps: int
) -> None:
    """Next to an env without seeds of its own."""
    envs = SyncVectorEnv([OwnSeedsEnv, DrawEnv, OwnSeedsEnv], autoreset_mode=mode)
    replay = collected(envs, 200, reseed_steps=reseed_steps)
    first = Seeds(3, 0).next_envs_seed(3)
    for env in range(3):
        own = [e.metadata for e in replay.iter_episodes() if e.stream == env]
        if env == 1:
            assert not any("noops" in facts for facts in own)
            assert all("seed" in facts for facts in own) or reseed_steps > 1
            continue
        assert [facts["seed"] for facts in own] == [
            first + env,
            *(1000 * n for n in range(2, len(own) + 1)),
        ]
        assert [facts["noops"] for facts in own] == [n % 3 for n in range(1, len(own) + 1)]


def test_an_env_that_reports_only_seeds_that_it_was_given_is_seeded() -> None:
    class Reports(DrawEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            observation, info = super().reset(seed=seed)
            return observation, info if seed is None else {**info, "reset_seed": seed}

    replay = collected(SyncVectorEnv([Reports] * 2), 300, reseed_steps=1)
    for env in range(2):
        seeds = [e.metadata.get("seed") for e in replay.iter_episodes() if e.stream == env]
        # Only the second reset shows that the env does not seed each.
        assert [seed is None for seed in seeds] == [False, True] + [False] * (len(seeds) - 2)
    assert assert_played_again(replay, Reports) > 20


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True, [1]])
def test_a_seed_that_is_none_is_refused(seed: object) -> None:
    class Wrong(OwnSeedsEnv):
        def reset(self, **options: Any) -> Any:
            observation, info = super().reset(**options)
            return observation, {**info, "reset_seed": seed if self.count > 1 else 3}

    with pytest.raises(ValueError, match=r"^info\['reset_seed'\] of env 0: .*>= 0, got .*key"):
        collected(SyncVectorEnv([Wrong]), 100)


def test_info_that_only_sounds_like_no_ops_is_left_out() -> None:
    class Odd(DrawEnv):
        def reset(self, **options: Any) -> Any:
            observation, info = super().reset(**options)
            return observation, {**info, "noops": "none", "seed": 12}

    replay = collected(SyncVectorEnv([Odd]), 60)
    assert all("noops" not in episode.metadata for episode in replay.iter_episodes())
    assert 12 not in seeds_in(replay)


# Envs that are never seeded but with all others


class Subclass(SyncVectorEnv):
    """A vector env of another maker, of which nothing is known."""


def unknown_envs() -> dict[str, Callable[[], Any]]:
    lives: dict[str, Any] = {
        "episodic_life": True,
        "life_loss_info": True,
        "max_num_frames_per_episode": 200,
    }
    return {
        "one generator for all": partial(gym.make_vec, "CartPole-v1", 3),
        "another class": partial(Subclass, [DrawEnv] * 3),
        "vector wrappers": lambda: RecordEpisodeStatistics(vector("sync", NEXT_STEP)),
        "a few at a time": partial(
            AtariVectorEnv, "pong", 3, batch_size=2, max_num_frames_per_episode=200
        ),
        "lost lives": partial(AtariVectorEnv, "breakout", 3, **lives),
    }


@pytest.mark.proof
@pytest.mark.parametrize("name", unknown_envs())
def test_envs_that_may_not_take_a_seed_each_are_left_alone(name: str) -> None:
    def run(reseed_steps: int | None) -> sw.SequenceReplayBuffer:
        return collected(unknown_envs()[name](), 400, reseed_steps=reseed_steps)

    replay, plain = run(1), run(None)
    if name == "a few at a time":  # their order is the machine's
        assert sum(seed is not None for seed in seeds_in(replay)) <= 3
        return
    if name != "lost lives":  # a game that ended before the first lost life was seeded
        assert sum(seed is not None for seed in seeds_in(replay)) == 3
    assert replay.digest() == plain.digest()


class LivesEnv(gym.Env[Any, Any]):
    """A game of three lives, each of four steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = spaces.Discrete(2)
        self.game = 0

    def _row(self) -> Any:
        return np.array([self.game, self.t, self.draw])

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.game, self.t, self.draw = self.game + 1, 0, self.np_random.random()
        return self._row(), {"lives": 3}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._row(), 1.0, self.t == 12, False, {"lives": 3 - self.t // 4}


@MODES
def test_a_game_goes_on_after_a_lost_life(mode: AutoresetMode) -> None:
    """A seeded reset would begin another game."""
    envs = SyncVectorEnv([lambda: EpisodicLife(LivesEnv())] * 2, autoreset_mode=mode)
    replay = collected(envs, 200, reseed_steps=1)
    for env in range(2):
        own = [e for e in replay.iter_episodes() if e.stream == env][:-1]
        starts = [np.asarray(e.observation)[0, 1] for e in own]
        assert starts == [0, 4, 8] * (len(own) // 3) + [0, 4, 8][: len(own) % 3]
        assert [("seed" in e.metadata) for e in own] == [start == 0 for start in starts]


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_game_is_not_loaded_again_with_each_reset(kind: str) -> None:
    """A seeded reset of ale-py's takes 0.1 s."""
    make = partial(gym.make, "ALE/Pong-v5", max_num_frames_per_episode=40, frameskip=4)
    replay = collected(vector(kind, DISABLED, make, 2), 80, reseed_steps=15)
    seeds = seeds_in(replay)
    assert len(seeds) > 6
    assert 2 < sum(seed is not None for seed in seeds) < 6


# Workers that die


class DyingEnv(CounterEnv):
    """Ends its process once, in the second seeded reset, and leaves a mark."""

    def __init__(self, mark: str, **options: Any) -> None:
        super().__init__(**options)
        self.mark, self.seeds = Path(mark), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeds += seed is not None
        if self.seeds == 2 and not self.mark.exists():
            self.mark.touch()
            os._exit(7)
        return super().reset(seed=seed, options=options)


def test_a_worker_that_dies_in_a_seeded_reset_begins_new_episodes() -> None:
    mark = str(Path("mark").resolve())
    makes: Sequence[Any] = [
        partial(DyingEnv, mark, length=5, tag=0),
        partial(CounterEnv, 7, 1),  # in the same process, in the middle of an episode
        partial(CounterEnv, 5, 2),
        partial(CounterEnv, 8, 3),
    ]
    replay = sw.SequenceReplayBuffer()
    envs = WorkerVectorEnv(makes, num_workers=2)
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=3, reseed_steps=1) as collector:
        report = collector.collect(steps=100)
    assert envs.restarts == 1
    assert (report.restarts, report.cut) == (1, 1)
    assert report.steps == replay.steps
    streams = {n: [e for e in replay.iter_episodes() if e.stream == n] for n in range(4)}
    assert [e.steps for e in streams[1]][:3] == [5, 7, 7]
    assert not streams[1][0].end.is_final
    for env, length in ((0, 5), (2, 5), (3, 8)):
        assert {e.steps for e in streams[env][:-1]} == {length}
    for episodes in streams.values():
        for episode in episodes:
            times = np.asarray(episode.observation)[:, 1]
            assert times.tolist() == list(range(episode.rows))
    assert all("seed" in e.metadata for env in (0, 2, 3) for e in streams[env])
