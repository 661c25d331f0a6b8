"""Frames are kept exactly."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stepwell import RandomPolicy, evaluate
from stepwell.collectors.evaluation.video import FrameCompressor, file_names
from support.mp4_files import scene


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


def test_without_pyav_evaluate_says_what_to_install_and_what_needs_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"PyAV.*pip install 'stepwell\[video\]'.*video=True"):
        evaluate("CartPole-v1", RandomPolicy(), episodes=1, video="films")
    assert os.listdir() == []


def test_names_of_files_contain_the_episodes() -> None:
    assert file_names(Path("v"), iter([0, 7])) == {
        0: Path("v/episode-0.mp4"),
        7: Path("v/episode-7.mp4"),
    }
    assert file_names(Path("v/best.MP4"), iter([7])) == {7: Path("v/best.MP4")}
    with pytest.raises(ValueError, match=r"video: .*2 episodes.*v/a\.mp4"):
        file_names(Path("v/a.mp4"), iter([0, 7]))
