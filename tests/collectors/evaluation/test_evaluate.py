"""Scores are those of whole episodes, chosen by their starts, as the env itself gives them."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import AtariPreprocessing, ClipReward
from hypothesis import given
from hypothesis import strategies as st

import stepwell as sw
from stepwell.wrappers import EpisodicLife, SignReward
from support.envs.fakes import CounterEnv, SeededEnv, zeros
from support.envs.screen_env import ScreenEnv
from support.mp4_files import needs_av, read

gym.register_envs(ale_py)


def push(observation: Any, is_first: np.ndarray) -> Any:
    """Keeps a pole upright for a while."""
    return (observation[:, 2] > 0).astype(np.int64)


def score_of(env: Any, seed: int, policy: Any) -> tuple[int, float, int, bool, bool]:
    """One episode in a simple loop: seed, return, steps and its end."""
    observation, _ = env.reset(seed=seed)
    total, steps, first = 0.0, 0, True
    while True:
        action = policy(observation[None], np.array([first]))[0]
        observation, reward, terminated, truncated, _ = env.step(action)
        total, steps, first = total + float(reward), steps + 1, False
        if terminated or truncated:
            return seed, total, steps, terminated, truncated


def scores(evaluation: sw.Evaluation) -> list[tuple[int | None, float, int, bool, bool]]:
    assert [one.episode for one in evaluation.episodes] == list(range(len(evaluation.episodes)))
    return [
        (one.seed, one.total_reward, one.steps, one.terminated, one.truncated)
        for one in evaluation.episodes
    ]


def sync(kinds: Sequence[Callable[[], Any]], **options: Any) -> Any:
    return SyncVectorEnv(kinds, **options)


def steps_by_start(lengths: list[list[int]], count: int) -> list[int]:
    """Lengths of the first episodes to start, each env played by itself."""
    starts = []
    for env, own in enumerate(lengths):
        at = 0
        for episode in range(count):
            starts.append((at, env, own[episode % len(own)]))
            at += own[episode % len(own)] + 1  # in NEXT_STEP mode a reset takes a step
    return [steps for _, _, steps in sorted(starts)[:count]]


@given(
    st.lists(st.lists(st.sampled_from([1, 2, 9]), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(1, 12),
)
def test_the_episodes_are_the_first_ones_to_start(lengths: list[list[int]], count: int) -> None:
    envs = sync([partial(CounterEnv, own) for own in lengths])
    found = sw.evaluate(envs, zeros, episodes=count)
    assert [one.steps for one in found.episodes] == steps_by_start(lengths, count)
    assert [one.total_reward for one in found.episodes] == [
        steps * (steps + 1) / 2 for steps in steps_by_start(lengths, count)
    ]


@pytest.mark.parametrize("num_envs", [1, 2, 3, 8])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_with_seeds_the_scores_are_those_of_a_plain_loop(
    mode: AutoresetMode, num_envs: int
) -> None:
    seeds = [9, 2, 40, 2, 7]
    envs = sync([SeededEnv] * num_envs, autoreset_mode=mode)
    env = SeededEnv()
    policy: Any = lambda observation, is_first: (observation[:, 0] * 4).astype(np.int64) % 4  # noqa: E731
    assert scores(sw.evaluate(envs, policy, seeds=seeds)) == [
        score_of(env, seed, policy) for seed in seeds
    ]
    ends: Any = ("terminated", "truncated", "both")[:num_envs]
    envs = sync([partial(CounterEnv, 3, 0, end) for end in ends], autoreset_mode=mode)
    flags = [one[3:] for one in scores(sw.evaluate(envs, zeros, seeds=seeds))]
    assert flags[: len(ends)] == [(end != "truncated", end != "terminated") for end in ends]


def test_equal_seeds_score_alike_and_none_draws_one() -> None:
    def scores_with(seed: int | None) -> list[Any]:
        envs = sync([SeededEnv] * 3)
        return scores(sw.evaluate(envs, sw.RandomPolicy(), episodes=5, seed=seed))

    assert scores_with(7) == scores_with(7) != scores_with(8)
    assert scores_with(None) != scores_with(None)
    assert scores_with(0) == scores(
        sw.evaluate(sync([SeededEnv] * 3), sw.RandomPolicy(), episodes=5)
    )


def test_given_envs_stay_open_and_can_be_evaluated_again() -> None:
    envs, single = sync([SeededEnv] * 2), SeededEnv()
    single.close = lambda: pytest.fail("closed")  # type: ignore[method-assign]
    first = [sw.evaluate(one, zeros, seeds=[1, 2, 3]) for one in (envs, single)]
    second = [sw.evaluate(one, zeros, seeds=[1, 2, 3]) for one in (envs, single)]
    assert first[0] == second[0] == first[1] == second[1]
    assert not envs.closed
    assert "stepwell" not in single.metadata


def test_envs_of_an_id_are_closed_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[object] = []
    real = SyncVectorEnv.close_extras

    def close_extras(self: Any, **options: Any) -> None:
        closed.append(self)
        real(self, **options)

    monkeypatch.setattr(SyncVectorEnv, "close_extras", close_extras)
    sw.evaluate("CartPole-v1", push, episodes=1)
    assert len(closed) == 1
    with pytest.raises(ZeroDivisionError):
        sw.evaluate("CartPole-v1", lambda observation, is_first: np.zeros(1 // 0), episodes=1)
    assert len(closed) == 2


def test_envs_that_were_evaluated_are_freed_with_the_last_reference() -> None:
    # Dead native Atari envs that wait for the garbage collector crash workers that are forked then.
    gc.collect()
    gc.disable()
    try:
        envs = sync([lambda: ScreenEnv(3)])
        sw.evaluate(envs, sw.EpsilonGreedy(zeros, 0.5), episodes=2, video=True)
        gone = weakref.ref(envs)
        del envs
        assert gone() is None
    finally:
        gc.enable()


def test_evaluate_is_a_function_whatever_was_imported_before() -> None:
    for name in ("evaluate", "video"):
        importlib.import_module(f"stepwell.collectors.evaluation.{name}")
    collectors = importlib.import_module("stepwell.collectors")
    assert isinstance(collectors.evaluate, FunctionType)
    assert sw.evaluate is collectors.evaluate


# Atari


def paddle(observation: Any, is_first: np.ndarray) -> Any:
    """Some actions that depend on each row alone."""
    return observation[:, -1].reshape(len(observation), -1).astype(np.int64).sum(1) % 4


@pytest.mark.proof
def test_an_atari_game_scores_as_in_a_plain_loop_filmed_or_not() -> None:
    seeds = [4, 9]
    found = sw.evaluate("Qbert", paddle, seeds=seeds)
    filmed = sw.evaluate("ALE/Qbert-v5", paddle, seeds=seeds, video=True, video_episodes=[1])
    env = sw.make_atari("qbert", backend="python", num_workers=0).unwrapped.envs[0]  # type: ignore[attr-defined]
    assert scores(found) == scores(filmed) == [score_of(env, seed, paddle) for seed in seeds]
    (video,) = filmed.videos
    assert (video.episode, video.fps, video.path) == (1, 15, None)
    assert video.shape == (found.episodes[1].steps + 1, 210, 160, 3)


class Points(CounterEnv):
    """Gives -3, 0, 7, -3 and 7 points."""

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, [-3.0, 0.0, 7.0, -3.0, 7.0][self.t - 1], terminated, truncated, info


class Forgetful(gym.Wrapper[Any, Any, Any, Any]):
    """Drops the info."""

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {}


@pytest.mark.parametrize(
    "make",
    [
        lambda: sync([lambda: SignReward(Points(4)), lambda: SignReward(Points(5))]),
        lambda: sw.make_vec(lambda: SignReward(Points([4, 5])), 1, num_workers=1),
        lambda: SignReward(Points([4, 5])),
        lambda: sync(
            [lambda: SignReward(Points(4)), lambda: SignReward(Points(5))],
            autoreset_mode=AutoresetMode.SAME_STEP,
        ),
    ],
    ids=["vector", "workers", "single", "SAME_STEP"],
)
def test_raw_rewards_that_sign_reward_keeps_count(make: Callable[[], Any]) -> None:
    envs = make()
    assert sw.evaluate(envs, zeros, episodes=2).returns == (1, 8)
    envs.close()


def test_missing_raw_rewards_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"info\['raw_reward'\].*got .*\[.*\]"):
        sw.evaluate(Forgetful(SignReward(Points(4))), zeros, episodes=1)


LIVES = r"envs: .*lives.*make_atari\(life_loss='ignore'\)"
LOST = "envs: .*rewards.*ClipReward"
HIDDEN = "envs: .*got .*AtariVectorEnv.*'clip_rewards'"
UNFIT: list[tuple[Callable[[], Any], str]] = [
    (lambda: sw.make_atari("pong", backend="python", num_workers=0, life_loss="end"), LIVES),
    (lambda: EpisodicLife(gym.make("ALE/Pong-v5")), LIVES),
    (
        lambda: AtariPreprocessing(
            gym.make("ALE/Pong-v5", frameskip=1), terminal_on_life_loss=True
        ),
        LIVES,
    ),
    (lambda: ClipReward(CounterEnv(), -1, 1), LOST),
    (lambda: sync([lambda: ClipReward(CounterEnv(), -1, 1)]), LOST),
    (lambda: gym.wrappers.vector.ClipReward(sync([CounterEnv]), -1, 1), LOST),
    (lambda: sw.make_vec(CounterEnv, 2, wrappers=[lambda env: ClipReward(env, -1, 1)]), LOST),
    (lambda: gym.make_vec("ALE/Pong-v5", 2), HIDDEN),
]


@pytest.mark.proof
@pytest.mark.parametrize(("make", "message"), UNFIT, ids=range(len(UNFIT)))
def test_envs_whose_scores_are_not_the_games_are_refused(
    make: Callable[[], Any], message: str
) -> None:
    envs = make()
    with pytest.raises(ValueError, match=message):
        sw.evaluate(envs, zeros, episodes=1)
    envs.close()


@pytest.mark.proof
def test_ale_pys_own_envs_are_played_where_they_are_said_not_to_clip() -> None:
    envs = gym.make_vec("ALE/Pong-v5", 2, reward_clipping=False, max_num_frames_per_episode=400)
    envs.metadata = {**envs.metadata, "stepwell": {"clip_rewards": False}}
    found = sw.evaluate(envs, zeros, seeds=[1, 2])
    envs.close()
    assert [one.truncated for one in found.episodes] == [True, True]


# Video


def screen_envs(lengths: Sequence[int] = (4, 6)) -> Any:
    return sync([partial(ScreenEnv, length) for length in lengths])


@needs_av
def test_a_folder_gets_a_file_for_each_episode_that_is_filmed() -> None:
    found = sw.evaluate(
        screen_envs(), zeros, episodes=5, video="deep/videos", video_episodes=[4, 1, 4]
    )
    assert sorted(os.listdir("deep/videos")) == ["episode-1.mp4", "episode-4.mp4"]
    for video in found.videos:
        assert video.path == Path(f"deep/videos/episode-{video.episode}.mp4")
        steps = found.episodes[video.episode].steps
        assert video.shape[0] == steps + 1 == read(Path(str(video.path)))[0]["frames"]
        assert str(video.path) in str(found).splitlines()
    assert [video["path"] for video in found.to_json()["videos"]] == [  # type: ignore[attr-defined]
        "deep/videos/episode-1.mp4",
        "deep/videos/episode-4.mp4",
    ]


@needs_av
def test_a_file_takes_one_episode() -> None:
    Path("a.mp4").write_text("an old one")
    found = sw.evaluate(screen_envs(), zeros, episodes=2, video=Path("a.mp4"))
    assert os.listdir() == ["a.mp4"]
    assert read(Path("a.mp4"))[0]["frames"] == found.videos[0].shape[0] == 5
    with pytest.raises(ValueError, match=r"video: .*2 episodes.*got.* b\.mp4"):
        sw.evaluate(screen_envs(), zeros, episodes=2, video="b.mp4", video_episodes=[0, 1])


def test_frames_alone_need_neither_a_file_nor_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    single = ScreenEnv(4, tag=9)
    (video,) = sw.evaluate(single, zeros, episodes=2, video=True).videos
    assert video.frames[:, 0, 0].tolist() == [[9, 0, t] for t in range(5)]
    assert (video.fps, video.path, os.listdir()) == (24, None, [])
    with pytest.raises(ImportError, match=r"pip install 'stepwell\[video\]'"):
        sw.evaluate(single, lambda o, f: pytest.fail("played"), episodes=1, video="videos")
    assert os.listdir() == []


@needs_av
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupted_run_keeps_only_complete_films(error: Any) -> None:
    class Breaks:
        rows = 0

        def __call__(self, observation: Any, is_first: np.ndarray) -> Any:
            self.rows += 1
            if self.rows == 6:
                raise error
            return np.zeros(len(is_first), np.int64)

    with pytest.raises(error):
        sw.evaluate(screen_envs([2, 9]), Breaks(), episodes=3, video="v", video_episodes=[0, 1, 2])
    assert sorted(os.listdir("v")) == ["episode-0.mp4", "episode-2.mp4"]


@pytest.mark.proof
def test_an_env_that_cannot_be_rendered_is_named_before_it_is_played() -> None:
    def never(observation: Any, is_first: np.ndarray) -> Any:
        return pytest.fail("played")

    with pytest.raises(ValueError, match=r"^video: .*got NativeAtari"):
        sw.evaluate(sw.make_atari("pong", backend="native"), never, episodes=1, video=True)
    with pytest.raises(ValueError, match=r"^video: .*render_mode='rgb_array'.*got None"):
        sw.evaluate(gym.make("CartPole-v1"), never, episodes=1, video=True)


class Blind(CounterEnv):
    """Takes no render mode."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(3)


def test_an_id_without_pictures_can_be_played_but_not_filmed() -> None:
    gym.register("Blind-v0", f"{__name__}:Blind", max_episode_steps=9)
    try:
        assert sw.evaluate("Blind-v0", zeros, episodes=2).returns == (6, 6)
        with pytest.raises(TypeError, match="render_mode") as caught:
            sw.evaluate("Blind-v0", zeros, episodes=2, video=True)
        assert caught.value.__notes__ == ["video: Blind-v0 was made with render_mode='rgb_array'"]
    finally:
        del gym.registry["Blind-v0"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "episodes=None and seeds=None"),
    ({"episodes": 1, "seeds": [1]}, r"episodes=1 and seeds=\[1\]"),
    ({"episodes": 0}, "^episodes: .*>= 1, got 0"),
    ({"episodes": 1.5}, r"^episodes: .*>= 1, got 1\.5"),
    ({"seeds": []}, r"seeds: .*one whole number, got \[\]"),
    ({"seeds": 5}, "seeds: .*one whole number, got 5"),
    ({"episodes": 1, "num_envs": 0}, "^num_envs: .*>= 1, got 0"),
    ({"episodes": 1, "seed": -1}, "^seed: .*>= 0.*got -1"),
    (
        {"episodes": 3, "video": True, "video_episodes": [0, 9, 1]},
        r"^video_episodes: .*0 to 2.*got \[0, 1, 9\]",
    ),
    (
        {"episodes": 3, "video": "v", "video_episodes": [-1, 2]},
        r"^video_episodes: .*0 to 2.*got \[-1, 2\]",
    ),
    ({"episodes": 3, "video": True, "video_episodes": 5}, "^video_episodes: .*got 5"),
    ({"episodes": 3, "video": True, "video_episodes": ["a"]}, r"^video_episodes: .*got \['a'\]"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=range(len(WRONG)))
def test_wrong_arguments_are_refused_before_an_env_steps(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        sw.evaluate("CartPole-v1", lambda o, f: pytest.fail("played"), **arguments)
    assert os.listdir() == []


def test_what_is_no_env_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'CartPol-v1'.*CartPole-v1"):
        sw.evaluate("CartPol-v1", zeros, episodes=1)
    with pytest.raises(ValueError, match=r"got 'ALE/Pnog-v5'; .*pong"):
        sw.evaluate("ALE/Pnog-v5", zeros, episodes=1)
    with pytest.raises(TypeError, match=r"^envs: .*VectorEnv.*got int"):
        sw.evaluate(7, zeros, episodes=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^num_envs: .*got 2"):
        sw.evaluate(SeededEnv(), zeros, episodes=1, num_envs=2)
