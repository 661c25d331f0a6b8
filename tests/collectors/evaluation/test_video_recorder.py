"""A film of an episode shows the reset, each step once, the true last frame, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stepwell import Collector, RandomPolicy, make_atari, make_vec
from stepwell.collectors.evaluation.video import (
    FrameCompressor,
    Video,
    VideoRecorder,
    file_names,
    real_time_fps,
)
from stepwell.wrappers import FrameSkip
from support.envs.fakes import CounterEnv, RestartVectorEnv
from support.envs.screen_env import ScreenEnv
from support.mp4_files import needs_av, scene


def screens(lengths: list[Any], **options: Any) -> SyncVectorEnv[Any, Any]:
    kinds = [
        lambda length=length, tag=tag: ScreenEnv(length, tag) for tag, length in enumerate(lengths)
    ]
    return SyncVectorEnv(kinds, **options)


def film(
    envs: Any, files: Mapping[int, Path | None], seed: int = 0, **goal: Any
) -> tuple[Video, ...]:
    recorder = VideoRecorder(envs, files)
    with Collector(envs, RandomPolicy(), seed=seed, on_step=recorder.on_step) as collector:
        collector.collect(**goal)
    return recorder.videos


def labels_of(video: Video) -> list[tuple[int, ...]]:
    """(tag, episode of the env, t) of each frame, which must be of one colour."""
    frames = video.frames
    assert (frames == frames[:, :1, :1]).all()
    return [tuple(frame[0, 0].tolist()) for frame in frames]


def by_start(lengths: list[list[int]], count: int) -> list[tuple[int, int, int]]:
    """(tag, episode of the env, steps) of the first episodes to start, played one by one."""
    starts = []
    for tag, own in enumerate(lengths):
        at = 0
        for episode in range(count):
            steps = own[episode % len(own)]
            starts.append((at, tag, episode, steps))
            at += steps + 1  # in NEXT_STEP mode a reset takes a step
    return [(tag, episode, steps) for _, tag, episode, steps in sorted(starts)[:count]]


@given(
    st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3), min_size=1, max_size=4),
    st.integers(1, 6),
    st.data(),
)
def test_a_film_has_exactly_the_frames_of_its_episode(
    lengths: list[list[int]], count: int, data: st.DataObject
) -> None:
    wanted = data.draw(st.sets(st.integers(0, count - 1)))
    videos = film(screens(lengths), dict.fromkeys(wanted), episodes=count)
    expected = by_start(lengths, count)
    assert [video.episode for video in videos] == sorted(wanted)
    for video in videos:
        tag, episode, steps = expected[video.episode]
        assert labels_of(video) == [(tag, episode, t) for t in range(steps + 1)]
        assert video.shape == (steps + 1, 6, 9, 3)


def test_only_what_is_filmed_is_rendered_and_once_a_step() -> None:
    envs = screens([3, 5, 4])
    film(envs, {1: None, 3: None}, episodes=6)
    assert [env.unwrapped.renders for env in envs.envs] == [4, 6, 0]  # type: ignore[attr-defined]


def test_under_vector_wrappers_the_envs_inside_are_filmed() -> None:
    envs = gym.wrappers.vector.RecordEpisodeStatistics(screens([3, 2]))
    (video,) = film(envs, {1: None}, episodes=2)
    assert labels_of(video) == [(1, 0, 0), (1, 0, 1), (1, 0, 2)]


def test_an_episode_that_is_restarted_is_filmed_from_its_start() -> None:
    envs = RestartVectorEnv([lambda: ScreenEnv(5)], at_step=3)
    (video,) = film(envs, {0: None}, episodes=1)
    assert labels_of(video) == [(0, 1, t) for t in range(6)]


@needs_av
def test_what_was_not_filmed_to_the_end_leaves_no_file() -> None:
    envs = screens([[3, 9], 9])
    recorder = VideoRecorder(envs, {0: Path("0.mp4"), 1: Path("1.mp4"), 2: Path("2.mp4")})
    with Collector(envs, RandomPolicy(), seed=0, on_step=recorder.on_step) as collector:
        collector.collect(steps=12)
    recorder.abort()
    recorder.abort()
    assert os.listdir() == ["0.mp4"]
    assert [video.episode for video in recorder.videos] == [0]


FPS: list[tuple[Callable[[], Any], float]] = [
    (lambda: ScreenEnv(), 24),
    (lambda: FrameSkip(ScreenEnv(), 3), 8),
    (lambda: TimeLimit(ScreenEnv(), 5), 24),
    (lambda: CounterEnv(), 30),
    (lambda: gym.make("CartPole-v1"), 50),
    (lambda: make_atari("pong", backend="python", num_workers=0).unwrapped.envs[0], 15),  # type: ignore[attr-defined]
    (
        lambda: make_atari("pong", backend="python", num_workers=0, frame_skip=7).unwrapped.envs[0],  # type: ignore[attr-defined]
        60 / 7,
    ),
]


@pytest.mark.parametrize(("make", "fps"), FPS, ids=range(len(FPS)))
def test_films_play_in_real_time(make: Callable[[], Any], fps: float) -> None:
    assert float(real_time_fps(make())) == fps


class Odd(ScreenEnv):
    """Renders what is no frame."""

    def __init__(self, frame: Any) -> None:
        super().__init__()
        self.frame = frame

    def render(self) -> Any:
        return self.frame


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (None, r"^video: .*render\(\).*\[H, W, 3\], got NoneType"),
        (np.zeros((4, 4), np.uint8), r"^video: .*render\(\).*\[H, W, 3\], got \(4, 4\)"),
        (np.zeros((4, 4, 4), np.uint8), r"^video: .*render\(\).*\[H, W, 3\], got \(4, 4, 4\)"),
        (np.zeros((4, 4, 3)), r"^video: .*render\(\).*uint8, got float64"),
    ],
)
def test_what_is_no_frame_is_refused(frame: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        film(SyncVectorEnv([lambda: Odd(frame)]), {0: None}, episodes=1)


def assert_refused(envs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^video: .*{message}"):
        VideoRecorder(envs, {0: None})
    envs.close()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_envs_that_are_reset_before_they_can_be_rendered_are_refused(mode: AutoresetMode) -> None:
    assert_refused(screens([3], autoreset_mode=mode), f"NEXT_STEP, got {mode.name}")


@pytest.mark.proof
def test_envs_in_other_processes_or_in_native_code_are_refused() -> None:
    for envs in (
        AsyncVectorEnv([ScreenEnv]),
        make_vec("CartPole-v1", 2, num_workers=1),
        make_atari("pong", backend="native"),
        make_atari("pong", 2, num_workers=1),
    ):
        assert_refused(envs, f"got {type(envs).__name__}; .*num_workers=0.*backend='python'")


@pytest.mark.parametrize("mode", [None, "human", "rgb_array_list"])
def test_envs_that_do_not_render_arrays_are_refused(mode: str | None) -> None:
    envs = SyncVectorEnv([lambda: ScreenEnv(render_mode=mode)])
    assert_refused(envs, f"render_mode='rgb_array', got {mode!r};")


# What is kept of frames


@given(
    arrays.arrays(
        np.uint8, st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(1, 9), st.just(3))
    )
)
def test_kept_frames_come_back_exactly(frames: np.ndarray) -> None:
    keeper = FrameCompressor()
    live = np.empty(frames.shape[1:], np.uint8)
    for frame in frames:
        live[...] = frame  # as an env does that renders into one array
        keeper.add(live)
    kept = keeper.finish()
    assert kept.shape == frames.shape
    assert kept.unpack().tobytes() == frames.tobytes()


def test_frames_of_a_drawn_scene_are_kept_in_little_memory() -> None:
    frames = scene(300, 210, 160)
    keeper = FrameCompressor()
    for frame in frames:
        keeper.add(frame)
    assert len(keeper.finish().packed) < frames.nbytes / 50


def test_frames_of_two_sizes_are_refused() -> None:
    keeper = FrameCompressor()
    keeper.add(np.zeros((4, 6, 3), np.uint8))
    with pytest.raises(ValueError, match=r"video: .*\(4, 6, 3\).*got.*\(6, 4, 3\)"):
        keeper.add(np.zeros((6, 4, 3), np.uint8))


def test_names_of_files_contain_the_episodes() -> None:
    assert file_names(Path("v"), iter([0, 7])) == {
        0: Path("v/episode-0.mp4"),
        7: Path("v/episode-7.mp4"),
    }
    assert file_names(Path("v/best.MP4"), iter([7])) == {7: Path("v/best.MP4")}
    with pytest.raises(ValueError, match=r"video: .*2 episodes.*v/a\.mp4"):
        file_names(Path("v/a.mp4"), iter([0, 7]))
