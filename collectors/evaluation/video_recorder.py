"""Records videos of chosen episodes of envs that are stepped in this process."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from ...buffers.pictures.mp4 import Frame, Mp4Writer
from ...wrappers.ale_env import emulator_of
from ...wrappers.recipe import recipe_of
from ..loop.report import StepReport
from ..loop.vector_envs import Vector, mode_of
from .video import FrameCompressor, Video

__all__ = ["VideoRecorder", "real_time_fps", "rendered", "single_envs"]

_ATARI_FPS = 60  # frames of the console a second; ale-py's metadata says 30
_DEFAULT_FPS = 30  # where an env declares none, as in gymnasium

_AnyEnv = gymnasium.Env[Any, Any]


class VideoRecorder:
    """Renders an env after each row of a chosen episode, from the reset's row to the last one."""

    # ``files`` has the MP4 file of each chosen episode, by its number; None for frames alone.

    def __init__(self, envs: Vector, files: Mapping[int, Path | None]) -> None:
        self._envs = single_envs(envs, "video")
        self._files = files
        self._open: dict[int, _OpenVideo] = {}
        self._videos: dict[int, Video] = {}

    @property
    def videos(self) -> tuple[Video, ...]:
        """Videos of the episodes that ended, by number."""
        return tuple(self._videos[number] for number in sorted(self._videos))

    def on_step(self, report: StepReport) -> None:
        """Render the rows of chosen episodes."""
        ended = report.terminated | report.truncated
        for place, number in enumerate(report.episode.tolist()):
            if number in self._files:
                env = self._envs[int(report.env_ids[place])]
                if report.is_first[place]:
                    self._begin(number, env)
                self._open[number].add(rendered(env, "video"))
                if ended[place]:
                    self._videos[number] = self._open.pop(number).finish()

    def abort(self) -> None:
        """Remove the files of episodes that did not end."""
        while self._open:
            self._open.popitem()[1].abort()

    def _begin(self, number: int, env: _AnyEnv) -> None:
        if number in self._open:  # started again after it was cut
            self._open.pop(number).abort()
        self._open[number] = _OpenVideo(number, real_time_fps(env), self._files[number])


class _OpenVideo:
    """The frames of one episode so far, in memory and possibly in a file."""

    def __init__(self, episode: int, fps: Fraction, path: Path | None) -> None:
        self._episode = episode
        self._fps = fps
        self._path = path
        self._compressor = FrameCompressor()
        self._writer = None if path is None else Mp4Writer(path, fps)

    def add(self, frame: Frame) -> None:
        self._compressor.add(frame)
        if self._writer is not None:
            self._writer.add(frame)

    def finish(self) -> Video:
        if self._writer is not None:
            self._writer.close()
        return Video(self._episode, float(self._fps), self._path, self._compressor.finish())

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.abort()


def real_time_fps(env: _AnyEnv) -> Fraction:
    """Number of steps a second at which an env plays in real time, 15 for "ALE/Pong-v5"."""
    # The rate in its metadata, 60 frames a second for Atari games, divided by the frames that
    # wrappers, or an Atari env itself, skip.
    per_frame = env.metadata.get("render_fps") or _DEFAULT_FPS
    base = Fraction(_ATARI_FPS if _is_atari(env) else per_frame).limit_denominator(1001)
    return base / int(recipe_of(env, None)["frame_skip"])


def single_envs(envs: Vector, what: str) -> tuple[_AnyEnv, ...]:
    """The single envs, to be rendered one by one; ``what`` the frames are for, in errors."""
    inner = envs.unwrapped
    if not isinstance(inner, SyncVectorEnv):
        raise ValueError(
            f"{what}: expected envs that are stepped in this process, got {type(inner).__name__}; "
            f"give evaluate the env's id, or make the envs with num_workers=0 (make_atari: "
            f"backend='python' too)"
        )
    mode = mode_of(envs)
    if mode is not AutoresetMode.NEXT_STEP:
        raise ValueError(
            f"{what}: expected envs with autoreset mode NEXT_STEP, got {mode.name}, under which an "
            f"env is reset before its last frame can be rendered; make them with NEXT_STEP"
        )
    for env in inner.envs:
        if env.render_mode != "rgb_array" and not _is_atari(env):
            raise ValueError(
                f"{what}: expected envs made with render_mode='rgb_array', got "
                f"{env.render_mode!r}; make them so"
            )
    return tuple(inner.envs)


def _is_atari(env: _AnyEnv) -> bool:
    return type(env.unwrapped).__module__.split(".")[0] == "ale_py"


def rendered(env: _AnyEnv, what: str) -> Frame:
    """Render an env to uint8 [H, W, 3]; of an Atari game the screen is read, in any render mode."""
    if env.render_mode != "rgb_array":
        emulator = emulator_of(env)
        screen = np.empty((*emulator.getScreenDims(), 3), np.uint8)
        emulator.getScreenRGB(screen)
        return screen
    frame: Any = env.render()
    if not (isinstance(frame, np.ndarray) and frame.ndim == 3 and frame.shape[2] == 3):
        got = frame.shape if isinstance(frame, np.ndarray) else type(frame).__name__
        raise ValueError(f"{what}: expected render() to give a frame [H, W, 3], got {got}")
    if frame.dtype != np.uint8:
        raise ValueError(f"{what}: expected render() to give uint8, got {frame.dtype}")
    return frame
