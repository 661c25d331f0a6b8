"""Films chosen episodes of envs that are stepped in this process."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from stepwell.collectors.evaluation.video import Frame, FrameKeeper, Mp4Writer, Video
from stepwell.collectors.report import StepReport
from stepwell.collectors.vector_envs import Vector, mode_of
from stepwell.wrappers.ale_env import emulator_of
from stepwell.wrappers.recipe import recipe_of

__all__ = ["VideoRecorder", "real_time_fps"]

_ATARI_FPS = 60  # frames of the console a second; ale-py's metadata says 30
_USUAL_FPS = 30  # where an env does not tell, as gymnasium takes it

_AnyEnv = gymnasium.Env[Any, Any]


class VideoRecorder:
    """Renders an env after each row of an episode that is wanted: the reset's first, the last last.

    Args:
        envs: The envs.
        files: Where the MP4 of each wanted episode goes, by its number; None for frames alone.

    Raises:
        ValueError: These envs cannot be rendered at the right moment.
    """

    def __init__(self, envs: Vector, files: Mapping[int, Path | None]) -> None:
        self._envs = _single_envs(envs)
        self._files = files
        self._under_way: dict[int, _Film] = {}
        self._videos: dict[int, Video] = {}

    @property
    def videos(self) -> tuple[Video, ...]:
        """What was filmed to the end, by episode."""
        return tuple(self._videos[number] for number in sorted(self._videos))

    def look(self, report: StepReport) -> None:
        """Film the rows of wanted episodes.

        Raises:
            ValueError: An env renders something that is no frame.
        """
        ended = report.terminated | report.truncated
        for place, number in enumerate(report.episode.tolist()):
            if number in self._files:
                env = self._envs[int(report.env_ids[place])]
                if report.is_first[place]:
                    self._begin(number, env)
                self._under_way[number].add(_render(env))
                if ended[place]:
                    self._videos[number] = self._under_way.pop(number).finish()

    def abort(self) -> None:
        """Leave no file of an episode that was not filmed to the end."""
        while self._under_way:
            self._under_way.popitem()[1].abort()

    def _begin(self, number: int, env: _AnyEnv) -> None:
        if number in self._under_way:  # begun anew after it was cut off
            self._under_way.pop(number).abort()
        self._under_way[number] = _Film(number, real_time_fps(env), self._files[number])


class _Film:
    """One episode on its way to memory and, possibly, to a file."""

    def __init__(self, episode: int, fps: Fraction, path: Path | None) -> None:
        self._episode = episode
        self._fps = fps
        self._path = path
        self._keeper = FrameKeeper()
        self._writer = None if path is None else Mp4Writer(path, fps)

    def add(self, frame: Frame) -> None:
        self._keeper.add(frame)
        if self._writer is not None:
            self._writer.add(frame)

    def finish(self) -> Video:
        if self._writer is not None:
            self._writer.close()
        return Video(self._episode, float(self._fps), self._path, self._keeper.finish())

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.abort()


def real_time_fps(env: _AnyEnv) -> Fraction:
    """Steps a second at which an env plays in real time.

    What its metadata say of one step, 60 frames a second for Atari games; divided by the frames
    that wrappers, or an Atari env itself, skip.

    Example:
        >>> import ale_py
        >>> pong, pole = gymnasium.make("ALE/Pong-v5"), gymnasium.make("CartPole-v1")
        >>> real_time_fps(pong), real_time_fps(pole)
        (Fraction(15, 1), Fraction(50, 1))
    """
    per_frame = env.metadata.get("render_fps") or _USUAL_FPS
    base = Fraction(_ATARI_FPS if _is_atari(env) else per_frame).limit_denominator(1001)
    return base / int(recipe_of(env, None)["frame_skip"])


def _single_envs(envs: Vector) -> tuple[_AnyEnv, ...]:
    """The envs inside, which can be rendered one by one."""
    inner = envs.unwrapped
    if not isinstance(inner, SyncVectorEnv):
        raise ValueError(
            f"video: expected envs that are stepped in this process, got {type(inner).__name__}; "
            f"give evaluate the env's id, or make the envs with num_workers=0 (make_atari: "
            f"backend='python' too)"
        )
    mode = mode_of(envs)
    if mode is not AutoresetMode.NEXT_STEP:
        raise ValueError(
            f"video: expected envs with autoreset mode NEXT_STEP, got {mode.name}, under which an "
            f"env is reset before its last frame can be rendered; make them with NEXT_STEP"
        )
    for env in inner.envs:
        if env.render_mode != "rgb_array" and not _is_atari(env):
            raise ValueError(
                f"video: expected envs made with render_mode='rgb_array', got {env.render_mode!r}; "
                f"make them so, or give evaluate the env's id"
            )
    return tuple(inner.envs)


def _is_atari(env: _AnyEnv) -> bool:
    return type(env.unwrapped).__module__.split(".")[0] == "ale_py"


def _render(env: _AnyEnv) -> Frame:
    if env.render_mode != "rgb_array":  # an Atari game, whose screen is there in any case
        emulator = emulator_of(env)
        screen = np.empty((*emulator.getScreenDims(), 3), np.uint8)
        emulator.getScreenRGB(screen)
        return screen
    frame: Any = env.render()
    if not (isinstance(frame, np.ndarray) and frame.ndim == 3 and frame.shape[2] == 3):
        got = frame.shape if isinstance(frame, np.ndarray) else type(frame).__name__
        raise ValueError(f"video: expected render() to give a frame [H, W, 3], got {got}")
    if frame.dtype != np.uint8:
        raise ValueError(f"video: expected render() to give uint8, got {frame.dtype}")
    return frame
