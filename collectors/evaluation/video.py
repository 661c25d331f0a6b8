"""Records videos of chosen episodes of envs of this process, kept compressed in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from zstandard import ZstdCompressor, ZstdDecompressor

from ...buffers.pictures.encode import Frame, Mp4Writer
from ...wrappers.ale_env import emulator_of
from ...wrappers.recipe import recipe_of
from ..loop.report import StepReport
from ..loop.vector_envs import Vector, mode_of


@dataclass(frozen=True, slots=True)
class CompressedFrames:
    """Frames compressed without loss."""

    packed: bytes = field(repr=False)  # all in order, by zstd
    shape: tuple[int, int, int, int]  # (frames, H, W, 3)

    def unpack(self) -> Frame:
        """The frames, uint8 [T + 1, H, W, 3], in new memory."""
        frames = np.empty(self.shape, np.uint8)
        target, filled = memoryview(cast("Any", frames.reshape(-1))), 0
        with ZstdDecompressor().stream_reader(BytesIO(self.packed)) as reader:
            while count := reader.readinto(target[filled:]):
                filled += count
        assert filled == frames.size
        return frames


@dataclass(frozen=True, slots=True)
class Video:
    """The frames of one episode.

    They are kept compressed: drawn scenes take about a hundredth of their size, noisy ones almost
    all of it.

    Args:
        episode: Number of the episode in the evaluation.
        fps: Frames per second at which it plays in real time.
        path: The MP4 file; None where no file was requested.
        kept: The compressed frames.
    """

    episode: int
    fps: float
    path: Path | None
    kept: CompressedFrames = field(repr=False)

    @property
    def frames(self) -> Frame:
        """The frames uint8 [T + 1, H, W, 3]: one of the reset, then one of each of T steps.

        Every access decompresses them: keep the result if you need it more than once.
        """
        return self.kept.unpack()

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of `frames`."""
        return self.kept.shape

    def to_json(self) -> dict[str, object]:
        """Plain data, without the frames."""
        path = None if self.path is None else str(self.path)
        return {"episode": self.episode, "fps": self.fps, "path": path, "shape": list(self.shape)}


class FrameCompressor:
    """Compresses frames one by one."""

    def __init__(self) -> None:
        self._compressor = ZstdCompressor(level=1).compressobj()
        self._parts: list[bytes] = []
        self._shape: tuple[int, ...] = ()
        self._count = 0

    def add(self, frame: Frame) -> None:
        """Add a frame uint8 [H, W, 3], of the first one's size; it is copied."""
        if self._count and frame.shape != self._shape:
            raise ValueError(
                f"video: expected frames of one size {self._shape}, got one of {frame.shape}; "
                f"render all of an episode in the same size"
            )
        self._shape = frame.shape
        self._parts.append(self._compressor.compress(frame.tobytes()))
        self._count += 1

    def finish(self) -> CompressedFrames:
        """The frames so far; no more can be added."""
        packed = b"".join([*self._parts, self._compressor.flush()])
        shape = (self._count, *self._shape)
        return CompressedFrames(packed, cast("tuple[int, int, int, int]", shape))


def file_names(target: Path, episodes: Iterator[int]) -> dict[int, Path]:
    """The path of each episode's MP4 file, by its number: in a folder, or of one episode a file."""
    numbers = list(episodes)
    if target.suffix.lower() != ".mp4":
        if target.is_file():
            raise ValueError(
                f"video: expected a folder, or a file that ends in .mp4, got the file {target}; "
                f"choose another name"
            )
        return {number: target / f"episode-{number}.mp4" for number in numbers}
    if len(numbers) > 1:
        raise ValueError(
            f"video: expected a folder for {len(numbers)} episodes, got the file {target}; name a "
            f"folder, or one episode in video_episodes"
        )
    return {number: target for number in numbers}


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
                    if number in self._open:  # started again after it was cut
                        self._open.pop(number).abort()
                    self._open[number] = _OpenVideo(number, real_time_fps(env), self._files[number])
                self._open[number].add(rendered(env, "video"))
                if ended[place]:
                    self._videos[number] = self._open.pop(number).finish()

    def abort(self) -> None:
        """Remove the files of episodes that did not end."""
        while self._open:
            self._open.popitem()[1].abort()


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
