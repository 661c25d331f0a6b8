"""What is written as a video decodes to the frames that were given; sheets show the right ones."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers.dropin.memmap.video import frames_to_sheet, trajectory_to_video
from support.mp4_files import needs_av, read


def scene(count: int = 12, height: int = 40, width: int = 56) -> np.ndarray:
    """A smooth background in all colours, and a square that moves over it."""
    rows, columns = np.mgrid[0:height, 0:width]
    background = np.stack(
        [rows * 255 / height, columns * 255 / width, 255 - columns * 255 / width], -1
    )
    frames = np.repeat(background[None].astype(np.uint8), count, 0)
    for t, frame in enumerate(frames):
        frame[4:16, 3 * t % (width - 12) :][:, :12] = [250, 20, 20]
    return frames


def few_colours(count: int = 9) -> np.ndarray:
    """Flat colours, as of a drawn game: fewer than 256."""
    frames = np.zeros((count, 20, 30, 3), np.uint8)
    for t, frame in enumerate(frames):
        frame[...] = [t * 20, 60, 90]
        frame[2:9, 2 * t : 2 * t + 6] = [200, 5 * t, 33]
    return frames


def read_gif(path: Path) -> tuple[list[float], np.ndarray]:
    """Time of each frame in seconds, and the frames [T, H, W, 3]."""
    av = importlib.import_module("av")
    with av.open(str(path)) as container:
        assert container.format.name == "gif"
        found = list(container.decode(video=0))
        times = [float(frame.pts * frame.time_base) for frame in found]
        return times, np.stack([frame.to_ndarray(format="rgb24") for frame in found])


def assert_near(decoded: np.ndarray, frames: np.ndarray) -> None:
    """Each frame once, in order, hardly changed."""
    assert len(decoded) == len(frames)
    height, width = frames.shape[1:3]
    seen = decoded[:, :height, :width].astype(int)
    assert np.abs(seen - frames).mean() < 8
    for t in range(len(frames)):
        apart = [np.abs(seen[t] - frame).mean() for frame in frames.astype(int)]
        assert np.argmin(apart) == t


FORMS: dict[str, Callable[[Any], Any]] = {
    "uint8 RGB": lambda f: f,
    "RGB in floats": lambda f: (f / 255).astype(np.float32),
    "RGB in doubles": lambda f: f / 255,
    "channel first": lambda f: np.moveaxis(f, -1, 1),
    "channel first in floats": lambda f: np.moveaxis(f / 255, -1, 1),
    "opaque RGBA": lambda f: np.concatenate([f, np.full_like(f[..., :1], 255)], -1),
    "opaque RGBA in floats": lambda f: np.concatenate([f / 255, np.ones((*f.shape[:3], 1))], -1),
    "not contiguous": lambda f: np.repeat(f, 2, 0)[::2],
    "read-only": lambda f: np.frombuffer(f.tobytes(), np.uint8).reshape(f.shape),
    "a list": lambda f: list(f),
}


@needs_av
@pytest.mark.parametrize("form", FORMS)
def test_colours_come_back_from_an_mp4(form: str) -> None:
    frames = scene()
    path = trajectory_to_video(FORMS[form](frames), "a.mp4", fps=20)
    assert path == Path("a.mp4")
    facts, decoded = read(path)
    assert (facts["codec"], facts["fps"], facts["frames"]) == ("h264", 20, len(frames))
    assert_near(decoded, frames)


@needs_av
@pytest.mark.parametrize("form", FORMS)
def test_few_colours_come_back_exactly_from_a_gif(form: str) -> None:
    frames = few_colours()
    times, decoded = read_gif(trajectory_to_video(FORMS[form](frames), "a.gif", fps=20))
    assert times == pytest.approx(np.arange(len(frames)) / 20)
    assert (decoded == frames).all()


GRAY_FORMS: dict[str, Callable[[Any], Any]] = {
    "two axes": lambda f: f,
    "channel last": lambda f: f[..., None],
    "channel first": lambda f: f[:, None],
    "floats": lambda f: f / 255,
    "floats of 16 bits": lambda f: (f / 255).astype(np.float16),
    "three equal channels": lambda f: np.repeat(f[..., None], 3, -1),
}


@needs_av
@pytest.mark.parametrize("form", GRAY_FORMS)
@pytest.mark.parametrize("ending", [".mp4", ".gif", ".GIF", ".Mp4"])
def test_gray_frames_come_back(form: str, ending: str) -> None:
    frames = scene()[..., 0]
    path = trajectory_to_video(GRAY_FORMS[form](frames), f"a{ending}", fps=10)
    if ending == ".GIF" or ending == ".gif":
        _, decoded = read_gif(path)
        assert (decoded == frames[..., None]).all()
    else:
        _, decoded = read(path)
        assert_near(decoded, np.repeat(frames[..., None], 3, -1))


@needs_av
def test_all_256_gray_levels_of_noise_come_back_exactly_from_a_gif() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (7, 33, 47)).astype(np.uint8)
    _, decoded = read_gif(trajectory_to_video(frames, "a.gif"))
    assert (decoded == frames[..., None]).all()


@needs_av
@pytest.mark.parametrize("count", [256, 257])
def test_a_gif_is_exact_up_to_256_colours_and_near_from_there_on(count: int) -> None:
    rng = np.random.default_rng(count)
    colours = rng.choice(2**24, count, replace=False)
    order = np.concatenate([np.arange(count), rng.integers(0, count, 7 * 20 * 30 - count)])
    numbers = colours[rng.permutation(order)].reshape(7, 20, 30, 1)
    frames = (numbers >> np.array([16, 8, 0]) & 255).astype(np.uint8)
    _, decoded = read_gif(trajectory_to_video(frames, "a.gif"))
    different = (decoded != frames).any(-1).mean()
    assert different == 0 if count == 256 else 0 < different < 0.2
    assert_near(decoded, frames)


@needs_av
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_are_rounded_to_the_nearest_level(dtype: type) -> None:
    levels = np.array([0, 0.3, 0.7, 1.2, 1.8, 127.4, 127.6, 254.3, 254.8, 255])
    frames: Any = np.broadcast_to((levels / 255).astype(dtype), (2, 3, 10))
    _, decoded = read_gif(trajectory_to_video(frames, "a.gif"))
    assert decoded[1, 2, :, 0].tolist() == [0, 0, 1, 1, 2, 127, 128, 254, 255, 255]


@needs_av
def test_many_colours_come_near_in_a_gif() -> None:
    frames = scene()
    _, decoded = read_gif(trajectory_to_video(frames, "a.gif"))
    assert_near(decoded, frames)


@needs_av
def test_frames_that_are_equal_each_have_their_time() -> None:
    frames = np.repeat(few_colours(3), 4, 0)
    times, decoded = read_gif(trajectory_to_video(frames, "a.gif", fps=25))
    assert (decoded == frames).all()
    assert times == pytest.approx(np.arange(12) / 25)


@needs_av
@pytest.mark.parametrize("fps", [1, 29.97, Fraction(50, 3), 50])
@pytest.mark.parametrize("ending", [".mp4", ".gif"])
def test_frames_come_as_often_as_told(fps: Any, ending: str) -> None:
    frames = few_colours()
    path = trajectory_to_video(frames, f"a{ending}", fps=fps)
    if ending == ".mp4":
        assert float(read(path)[0]["fps"]) == pytest.approx(float(fps), rel=1e-4)
    else:
        times, _ = read_gif(path)
        assert times == pytest.approx(np.arange(len(frames)) / float(fps), abs=0.0051)


@needs_av
@pytest.mark.parametrize("ending", [".mp4", ".gif"])
@pytest.mark.parametrize("shape", [(1, 2, 2, 3), (1, 1, 1), (2, 7, 5, 3), (3, 1, 8, 3)])
def test_small_and_odd_sizes_are_written(shape: tuple[int, ...], ending: str) -> None:
    frames = np.full(shape, 200, np.uint8)
    path = trajectory_to_video(frames, f"a{ending}")
    decoded = read(path)[1] if ending == ".mp4" else read_gif(path)[1]
    assert len(decoded) == shape[0]
    assert np.abs(decoded[:, : shape[1], : shape[2]].astype(int) - 200).max() <= 3


@needs_av
def test_a_tensor_is_taken() -> None:
    torch = pytest.importorskip("torch")
    frames = few_colours()
    tensor = torch.from_numpy(np.moveaxis(frames / np.float32(255), -1, 1).copy())
    _, decoded = read_gif(trajectory_to_video(tensor.requires_grad_(), "a.gif"))
    assert (decoded == frames).all()


@needs_av
@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from([1, 3, 4]), st.booleans())
def test_where_both_axes_could_be_channels_it_is_the_last(
    height: int, width: int, channels: int, first: bool
) -> None:
    frames = np.arange(2 * height * width * channels).reshape(2, height, width, channels)
    frames = (frames % 256).astype(np.uint8)
    given_ = np.moveaxis(frames, -1, 1) if first else frames
    sheet = frames_to_sheet(given_, 1, 2)
    if first and given_.shape[-1] in (1, 3, 4):
        frames = given_
    assert (sheet == np.concatenate(list(frames), 1)).all()


BAD: list[tuple[Any, Any, type[Exception], str]] = [
    (np.zeros((3, 8, 8), np.int64), "a.mp4", TypeError, "uint8, or floats from 0 to 1, got int64"),
    (np.zeros((3, 8, 8), bool), "a.mp4", TypeError, "got bool"),
    (np.zeros((3, 8, 8), complex), "a.mp4", TypeError, "got complex128"),
    (np.full((3, 8, 8), 1.5), "a.mp4", ValueError, "floats from 0 to 1, got 1.5 to 1.5"),
    (np.full((3, 8, 8), -0.1), "a.gif", ValueError, "got -0.1 to -0.1"),
    (np.full((3, 8, 8), np.nan), "a.gif", ValueError, "got nan to nan"),
    (np.zeros((8, 8), np.uint8), "a.mp4", ValueError, "got shape (8, 8)"),
    (np.zeros((3, 8, 8, 2), np.uint8), "a.mp4", ValueError, "got shape (3, 8, 8, 2)"),
    (np.zeros((3, 2, 8, 8), np.uint8), "a.mp4", ValueError, "got shape (3, 2, 8, 8)"),
    (np.zeros((3, 8, 8, 8, 3), np.uint8), "a.mp4", ValueError, "got shape (3, 8, 8, 8, 3)"),
    (np.zeros((0, 8, 8, 3), np.uint8), "a.mp4", ValueError, "expected at least one frame"),
    (np.zeros((3, 0, 8, 3), np.uint8), "a.gif", ValueError, "got shape (3, 0, 8, 3)"),
    (np.zeros((3, 8, 8, 4), np.uint8), "a.gif", ValueError, "something shines through"),
    (np.zeros((3, 8, 8), np.uint8), "a.avi", ValueError, "ends in .mp4 or .gif, got '.avi'"),
    (np.zeros((3, 8, 8), np.uint8), "a", ValueError, "got 'no ending'"),
    (np.zeros((3, 8, 8), np.uint8), "missing/a.mp4", OSError, "missing/a.mp4.part"),
    (np.zeros((3, 8, 8), np.uint8), "missing/a.gif", OSError, "missing/a.gif.part"),
]


@needs_av
@pytest.mark.parametrize(("frames", "path", "error", "problem"), BAD, ids=range(len(BAD)))
def test_frames_that_cannot_be_shown_are_refused_and_leave_no_file(
    frames: Any, path: str, error: type[Exception], problem: str
) -> None:
    with pytest.raises(error) as caught:
        trajectory_to_video(frames, path)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert os.listdir() == []


@needs_av
@pytest.mark.parametrize(("fps", "path"), [(0, "a.mp4"), (-3, "a.gif"), (51, "a.gif")])
@pytest.mark.parametrize("extra", [0, float("inf"), float("nan")])
def test_a_rate_at_which_nothing_plays_is_refused(fps: float, path: str, extra: float) -> None:
    frames = np.zeros((3, 8, 8), np.uint8)
    with pytest.raises(ValueError, match=r"^fps: expected more than 0 and at most"):
        trajectory_to_video(frames, path, fps=extra or fps)
    assert os.listdir() == []


@needs_av
@pytest.mark.parametrize("path", ["a.mp4", "a.gif"])
def test_a_file_is_replaced_by_a_whole_one_or_not_at_all(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(path).write_text("old")
    module = "stepwell.buffers.dropin.memmap.video"
    real = importlib.import_module(module)._bytes_of
    calls: list[int] = []

    def failing(frame: np.ndarray) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError("no room")
        return real(frame)

    with monkeypatch.context() as patch:
        patch.setattr(f"{module}._bytes_of", failing)
        with pytest.raises(MemoryError):
            trajectory_to_video(few_colours(), path)
    assert os.listdir() == [path]
    assert Path(path).read_text() == "old"
    trajectory_to_video(few_colours(), path)
    assert os.listdir() == [path]
    assert Path(path).read_bytes()[:3] != b"old"


@needs_av
@pytest.mark.parametrize("path", ["a.mp4", "a.gif"])
def test_a_name_that_is_a_folder_leaves_nothing_else(path: str) -> None:
    Path(path).mkdir()
    with pytest.raises(OSError, match=r"a\.(mp4|gif)"):
        trajectory_to_video(few_colours(), path)
    assert os.listdir() == [path]


def test_without_pyav_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    for path in ("a.mp4", "a.gif"):
        with pytest.raises(ImportError, match=r"pip install 'stepwell\[video\]'"):
            trajectory_to_video(few_colours(), path)
    assert os.listdir() == []


def test_a_sheet_shows_frames_spread_over_time() -> None:
    frames = scene(23)
    sheet = frames_to_sheet(frames, rows=2, columns=3)
    assert sheet.shape == (80, 168, 3)
    assert sheet.dtype == np.uint8
    for place, t in enumerate([0, 4, 8, 13, 17, 22]):
        row, column = divmod(place, 3)
        tile = sheet[row * 40 : row * 40 + 40, column * 56 : column * 56 + 56]
        assert (tile == frames[t]).all()


@pytest.mark.parametrize("count", [1, 3, 10, 11])
def test_a_sheet_of_few_frames_shows_some_twice(count: int) -> None:
    frames = np.arange(count, dtype=np.uint8).repeat(4 * 18 * 3).reshape(count, 4, 18, 3)
    sheet = frames_to_sheet(frames)
    assert sheet.shape == (8, 90, 3)
    tiles = sheet.reshape(2, 4, 5, 18, 3).swapaxes(1, 2).reshape(10, 4, 18, 3)
    shown = [int(np.abs(frames.astype(int) - tile).sum((1, 2, 3)).argmin()) for tile in tiles]
    assert shown == np.linspace(0, count - 1, 10).astype(int).tolist()
    assert all((tile == frames[t]).all() for tile, t in zip(tiles, shown, strict=True))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_a_sheet_keeps_the_dtype_and_makes_gray_frames_rgb(dtype: type) -> None:
    frames: Any = np.arange(60).astype(dtype).reshape(10, 2, 3)
    sheet = frames_to_sheet(frames)
    assert (sheet.shape, sheet.dtype) == ((4, 15, 3), np.dtype(dtype))
    assert (sheet[0, :3] == frames[0, 0, :, None]).all()
    assert frames_to_sheet(frames[..., None]).shape == (4, 15, 1)
    sheet[:] = 0
    assert frames.any(), "the sheet is the caller's own"


def test_a_sheet_without_frames_or_places_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least one frame"):
        frames_to_sheet(np.zeros((0, 4, 4, 3), np.uint8))
    for rows, columns in ((0, 5), (2, 0), (-1, -1)):
        with pytest.raises(ValueError, match=rf"whole numbers >= 1, got {rows} and {columns}"):
            frames_to_sheet(scene(), rows, columns)


@needs_av
def test_a_sheet_is_that_of_the_original() -> None:
    original = pytest.importorskip(
        "memmap_replay_buffer", reason="needs memmap-replay-buffer==0.2.3"
    )
    for frames in (scene(23), scene(4), scene(9)[..., 0], scene(9)[..., :1] / 255):
        ours, theirs = (make(frames, 3, 4) for make in (frames_to_sheet, original.frames_to_sheet))
        assert (ours == theirs).all()
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
