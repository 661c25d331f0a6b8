"""Pools of EnvPool are stepped, recorded and checked as any vector env."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import stepwell as sw
from stepwell.buffers import End
from stepwell.wrappers.envpool import EnvPoolVectorEnv, from_envpool

envpool = pytest.importorskip("envpool", reason="needs EnvPool: pip install 'stepwell[envpool]'")

# Task, options and vector steps: episodes end by time and by themselves, with dicts and numbers.
TASKS: dict[str, tuple[dict[str, Any], int]] = {
    "CartPole-v1": ({}, 60),
    "FrozenLake-v1": ({}, 60),
    "Taxi-v3": ({"max_episode_steps": 9}, 40),
    "Pendulum-v1": ({"max_episode_steps": 12}, 40),
    "CheetahRun-v1": ({"max_episode_steps": 7}, 20),
    "Ant-v4": ({}, 60),
    "Pong-v5": ({"max_episode_steps": 15}, 40),
    "Breakout-v5": ({"episodic_life": True}, 60),
}
N = 3


def flat(observation: Any) -> dict[str, np.ndarray]:
    return observation if isinstance(observation, dict) else {"": observation}


def bare_pool(task: str, seeds: list[int], options: dict[str, Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        # EnvPool lets Gymnasium warn of bounds that it gives in double precision.
        patch.setattr("gymnasium.logger.warn", lambda *args, **kwargs: None)
        pool = envpool.make(
            task, env_type="gymnasium", num_envs=len(seeds), env_seed=seeds, **options
        )
        assert pool.observation_space is not None
        assert pool.action_space is not None
    return pool


def logged_episodes(
    task: str, seeds: list[int], options: dict[str, Any], actions: list[Any]
) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """The rows of a bare pool's episodes, by env and number: a slow model."""
    pool = bare_pool(task, seeds, options)
    dtype = pool.spec.action_array_spec["action"].dtype

    def rows_of(observation: Any) -> list[dict[str, Any]]:
        leaves = flat(observation)
        return [
            {"observation": {name: rows[env].copy() for name, rows in leaves.items()}}
            for env in range(N)
        ]

    open_ones = [[row] for row in rows_of(pool.reset()[0])]
    episodes = {(env, 0): rows for env, rows in enumerate(open_ones)}
    numbers, ended = [0] * N, [False] * N
    for action in actions:
        observation, reward, terminated, truncated, info = pool.step(action.astype(dtype))
        assert_array_equal(info["env_id"], np.arange(N))
        for env, row in enumerate(rows_of(observation)):
            if ended[env]:
                numbers[env] += 1
                open_ones[env] = [row]
                episodes[env, numbers[env]] = open_ones[env]
            else:
                open_ones[env][-1]["action"] = action[env]
                row |= {"reward": reward[env], "end": (terminated[env], truncated[env])}
                open_ones[env].append(row)
            ended[env] = bool(terminated[env] or truncated[env])
    pool.close()
    return episodes


@pytest.mark.parametrize("task", TASKS)
def test_stored_rows_are_those_of_a_bare_pool(task: str) -> None:
    options, steps = TASKS[task]
    envs = sw.make_vec(f"envpool:{task}", N, env_kwargs=options)
    given: list[Any] = []
    random = sw.RandomPolicy()
    random.begin(envs.single_action_space, np.random.default_rng(0))

    def policy(observation: Any, is_first: np.ndarray) -> Any:
        given.append(np.array(random(observation, is_first)))
        return given[-1]

    replay = sw.SequenceReplayBuffer()
    with sw.Collector(envs, policy, replay, seed=0, reseed_steps=None) as collector:
        loop = [collector.rollout(1) for _ in range(steps)]
    assert len(loop) == steps
    episodes = list(replay.iter_episodes())
    firsts = [e for e in episodes if e.metadata["stream_episode"] == 0]
    seeds = [int(str(e.metadata["seed"])) for e in sorted(firsts, key=lambda e: e.stream)]
    assert seeds == list(range(seeds[0], seeds[0] + N))

    expected = logged_episodes(task, seeds, options, given[:steps])
    stored = {(e.stream, int(str(e.metadata["stream_episode"]))): e for e in episodes}
    # One of which only the reset's row came is not stored.
    assert set(stored) == {key for key, rows in expected.items() if len(rows) > 1}
    for key, episode in stored.items():
        rows = expected[key]
        assert episode.steps == len(rows) - 1
        for name, column in flat_rows(episode).items():
            assert_array_equal(column, np.stack([row["observation"][name] for row in rows]))
        assert episode.reward[0] == 0  # EnvPool repeats the last one there
        assert_array_equal(episode.reward[1:], [row["reward"] for row in rows[1:]])
        assert_array_equal(episode.action[:-1], [row["action"] for row in rows[:-1]])
        terminated, truncated = rows[-1]["end"]
        assert bool(episode.end & End.TERMINATED) == terminated
        assert bool(episode.end & End.TRUNCATED) == truncated


def flat_rows(episode: Any) -> dict[str, np.ndarray]:
    """The observations of an episode by name, whole stacks of frames."""
    from stepwell.buffers.rows.step_columns import with_stacks

    rows = with_stacks(episode)
    return {name.partition("/")[2]: rows[name] for name in rows if name.startswith("observation")}


def test_the_last_observation_of_an_atari_game_repeats_the_one_before_and_that_is_reported() -> (
    None
):
    report = sw.check_vector_env(lambda: from_envpool("Breakout-v5", 4), steps=400)
    assert report.autoreset == "next_step"
    assert report.final_observation == "repeats"
    assert (report.frame_stack, report.stack_padding) == (4, "repeat")
    assert report.is_fine


def test_a_reward_that_is_repeated_at_a_reset_does_not_hide_the_reset() -> None:
    make: Callable[[], EnvPoolVectorEnv] = lambda: from_envpool(  # noqa: E731
        "CheetahRun-v1", 2, max_episode_steps=5
    )
    envs = make()
    envs.reset(seed=0)
    steps = [envs.step(np.full((2, 6), 0.5)) for _ in range(6)]
    assert steps[4][3].all()
    assert_array_equal(steps[5][1], steps[4][1])  # what EnvPool does
    envs.close()
    report = sw.check_vector_env(make, steps=40)
    assert (report.autoreset, report.is_fine) == ("next_step", True)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: from_envpool("CartPol-v1"), "'CartPol-v1'.*CartPole-v1"),
        (lambda: from_envpool("CartPole-v1", 0), "num_envs.*0"),
        (lambda: from_envpool("CartPole-v1", seed=1), "seed"),
        (lambda: from_envpool("CartPole-v1", legs=4), "legs"),
        (lambda: from_envpool("CartPole-v1", 4, batch_size=2), "batch_size=2.*4"),
        (lambda: sw.make_vec("envpool:Pong-v5", 2, num_workers=2), "num_workers"),
        (lambda: from_envpool(bare_pool("CartPole-v1", [1], {}), 3), "num_envs=3"),
        (
            lambda: from_envpool(gym.make_vec("CartPole-v1", 2, vectorization_mode="sync")),
            "SyncVectorEnv",
        ),
    ],
)
def test_what_cannot_be_made_is_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        make()


@pytest.mark.parametrize(
    ("method", "given", "words"),
    [
        *(
            ("reset", {"seed": seed}, "seed")
            for seed in (-1, 2**31, [1, 2], [1, 2, -3], [1, None, 2])
        ),
        ("reset", {"options": {"reset_mask": np.array([True, False, True])}}, "options"),
        ("step", {"actions": np.array([0.5, 1.0, 0.0])}, "int32"),
    ],
)
def test_what_a_pool_cannot_take_is_refused(method: str, given: Any, words: str) -> None:
    envs = from_envpool("CartPole-v1", 3)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=words):
        getattr(envs, method)(**given)
    envs.close()


def test_envs_of_a_pool_are_not_played_again_without_a_maker() -> None:
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(sw.make_vec("envpool:CartPole-v1", 2), "random", replay) as collector:
        collector.collect(steps=20)
    with pytest.raises(ValueError, match=r"CartPole-v1.*env="):
        sw.resimulate(replay)
