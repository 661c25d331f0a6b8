"""Pictures come back pixel by pixel, and files of pictures are what other programs read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stepwell.buffers.pictures.encode import (
    Animated,
    animation,
    block_size,
    most_frames,
    png,
    sprite,
    webp,
)
from support.examples import examples
from support.pictures import Shown, as_rgb, decoded, of_rows, read_gif, read_webp

READERS: dict[Animated, Callable[[bytes], Shown]] = {"gif": read_gif, "webp": read_webp}
sides = st.integers(1, 20)
pictures = arrays.arrays(np.uint8, st.tuples(sides, sides) | st.tuples(sides, sides, st.just(3)))
# Few colours, so that parts of frames stay as they were.
clips = arrays.arrays(
    np.uint8,
    st.tuples(st.integers(1, 6), sides, sides)
    | st.tuples(st.integers(1, 6), sides, sides, st.just(3)),
    elements=st.sampled_from([0, 1, 255]),
)


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 256, shape).astype(np.uint8)


def moving(count: int, *shape: int) -> np.ndarray:
    """A square that moves over noise, so that consecutive frames are alike."""
    frames = np.repeat(noise(1, *shape), count, 0)
    for t, frame in enumerate(frames):
        frame[t % (shape[0] - 3) :, t * 2 % (shape[1] - 3) :][:3, :3] = 200
    return frames


@settings(max_examples=examples(60))
@given(pictures)
def test_a_picture_comes_back_pixel_by_pixel(pixels: np.ndarray) -> None:
    for encode in (png, webp):
        assert (decoded(encode(pixels)) == as_rgb(pixels, 2)).all()


def test_pictures_of_any_memory_layout_come_back() -> None:
    pixels = noise(3, 30, 40)
    for view in (pixels.transpose(1, 2, 0), noise(40, 60, 3)[::-2, ::3], noise(30, 40).T):
        for encode in (png, webp):
            assert (decoded(encode(view)) == as_rgb(view, 2)).all()


def test_red_is_red() -> None:
    red = np.full((8, 8, 3), [255, 0, 0], np.uint8)
    for data in (png(red), webp(red), sprite(red[None])):
        assert decoded(data)[0, 0].tolist() == [255, 0, 0]
    for kind, read in READERS.items():
        assert read(animation(red[None], 15, kind)).frames[0, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("encode", [png, webp])
@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((0, 5), np.uint8),
        np.zeros((5, 5, 4), np.uint8),
        np.zeros(5, np.uint8),
        np.zeros((5, 5)),
        np.zeros((1, 16_384), np.uint8),
    ],
    ids=lambda pixels: f"{pixels.dtype}{list(pixels.shape)}",
)
def test_what_is_no_picture_is_refused(
    encode: Callable[[np.ndarray], bytes], pixels: np.ndarray
) -> None:
    with pytest.raises(ValueError, match=f"{pixels.dtype} .{pixels.shape[0]}"):
        encode(pixels)


@given(st.integers(1, 16_383), st.integers(1, 16_383))
def test_a_sprite_keeps_its_limits(height: int, width: int) -> None:
    columns, rows = block_size(height, width)
    assert 1 <= columns == rows <= 8
    assert max(rows * height, columns * width) <= 16_383
    assert columns == 1 or rows * height * columns * width <= 1 << 20
    more = columns + 1
    is_too_large = (more * height) * (more * width) > 1 << 20 or more * max(height, width) > 16_383
    assert columns == 8 or is_too_large


@settings(max_examples=examples(40))
@given(
    st.tuples(sides, sides) | st.tuples(sides, sides, st.just(3)),
    st.integers(1, 64),
    st.integers(0, 1 << 32),
)
def test_each_frame_of_a_sprite_is_in_its_place(
    shape: tuple[int, ...], count: int, seed: int
) -> None:
    frames = np.random.default_rng(seed).integers(0, 256, (count, *shape)).astype(np.uint8)
    sheet = decoded(sprite(frames))
    height, width = shape[:2]
    columns, rows = block_size(height, width)
    assert sheet.shape == (rows * height, columns * width, 3)
    for place in range(columns * rows):
        top, left = place // columns * height, place % columns * width
        part = sheet[top : top + height, left : left + width]
        assert (part == (as_rgb(frames, 3)[place] if place < count else 0)).all()


@pytest.mark.parametrize("count", [0, 65])
def test_a_sprite_of_no_frames_or_too_many_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"sprite: .*64.* got {count}"):
        sprite(np.zeros((count, 84, 84), np.uint8))


@settings(max_examples=examples(60))
@given(clips)
def test_each_row_of_a_webp_is_seen_pixel_by_pixel(frames: np.ndarray) -> None:
    shown = read_webp(animation(frames, 15))
    assert (of_rows(shown, len(frames), 15) == as_rgb(frames, 3)).all()


@settings(max_examples=examples(60))
@given(clips)
def test_a_gif_has_each_row_and_nearly_its_colours(frames: np.ndarray) -> None:
    shown = read_gif(animation(frames, 15, "gif"))
    assert np.abs(shown.frames.astype(int) - as_rgb(frames, 3)).max() <= 1
    assert len(shown.durations) == len(frames)


@pytest.mark.parametrize("colours", [1, 2, 3, 4, 5, 16, 17, 254, 255])
def test_a_gif_of_up_to_255_colours_a_frame_is_off_by_one_at_most(colours: int) -> None:
    palettes = noise(3, colours, 3)
    places = np.random.default_rng(0).integers(0, colours, (3, 60, 70))
    places[:, 0, 0] = colours - 1
    frames = np.stack([palette[place] for palette, place in zip(palettes, places, strict=True)])
    shown = read_gif(animation(frames, 15, "gif")).frames
    assert np.abs(shown.astype(int) - frames).max() <= 1


def test_a_gif_of_more_colours_is_near() -> None:
    rows, columns = np.mgrid[0:80, 0:90]
    smooth = np.stack([rows * 3, columns * 2, rows + columns], -1).astype(np.uint8)
    assert len(np.unique(smooth.reshape(-1, 3), axis=0)) > 256
    for frames, most in ((smooth[None], 8), (noise(2, 40, 40, 3), 16)):
        shown = read_gif(animation(frames, 15, "gif")).frames
        assert np.abs(shown.astype(int) - frames).mean() < most
        assert len(np.unique(shown[0].reshape(-1, 3), axis=0)) > 100


@pytest.mark.parametrize("kind", ["webp", "gif"])
@pytest.mark.parametrize("fps", [Fraction(15), Fraction(50, 3), 24.0, 50, 7])
def test_a_clip_takes_the_right_time(kind: Animated, fps: float | Fraction) -> None:
    data = animation(moving(60, 20, 20), fps, kind)
    durations = READERS[kind](data).durations
    assert len(durations) == 60
    assert abs(sum(durations) - 60 / fps) <= (0.01 if kind == "gif" else 0.001)
    assert max(durations) - min(durations) < 0.0101
    assert min(durations) >= 0.02


def test_rows_in_which_nothing_moves_are_shown_as_long_as_they_take() -> None:
    frames = moving(3, 20, 20).repeat([4, 1, 3], 0)
    for kind, read in READERS.items():
        shown = read(animation(frames, 7, kind))
        assert sum(shown.durations) == pytest.approx(8 / 7, abs=0.01)
        assert np.abs(of_rows(shown, 8, 7).astype(int) - as_rgb(frames, 3)).max() <= (kind == "gif")


def test_a_frame_of_a_webp_may_last_for_hours() -> None:
    frames = moving(2, 20, 20).repeat([2000, 1], 0)
    shown = read_webp(animation(frames, 0.1))
    assert sum(shown.durations) == 20_010
    assert (of_rows(shown, 2001, 0.1)[[0, 1999, 2000]] == as_rgb(frames[[0, 1999, 2000]], 3)).all()


def test_frames_that_are_alike_take_few_bytes() -> None:
    still = np.repeat(noise(1, 60, 60), 20, 0)
    assert animation(still, 15) == animation(still[:1], 15) == webp(still[0])


@pytest.mark.parametrize("kind", ["webp", "gif"])
def test_pillow_reads_the_same_frames_which_repeat_for_ever(kind: Animated) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs pillow")
    coloured = np.stack([moving(9, 41, 50) // part for part in (1, 2, 3)], -1)
    for frames in (moving(9, 40, 51), noise(2, 100, 90), coloured):
        data = animation(frames, 25, kind)
        with image.open(BytesIO(data)) as file:
            assert (file.n_frames, file.info["loop"]) == (len(frames), 0)
            for place, frame in enumerate(READERS[kind](data).frames):
                file.seek(place)
                assert (np.asarray(file.convert("RGB")) == frame).all()


@pytest.mark.parametrize("kind", ["webp", "gif"])
def test_frames_of_two_shapes_are_refused(kind: Animated) -> None:
    frames = [np.zeros((8, 8), np.uint8), np.zeros((8, 9), np.uint8)]
    with pytest.raises(ValueError, match=r"\(8, 8\).*\(8, 9\)"):
        animation(frames, 15, kind)
    with pytest.raises(ValueError, match=r"float64 .8, 8"):
        animation(np.zeros((1, 8, 8)), 15, kind)


def test_the_frames_of_an_animation_are_bounded() -> None:
    assert most_frames("webp", 1000, 1000, 1) == 134
    assert most_frames("webp", 1000, 1000, 3) == 44
    assert most_frames("gif", 1000, 1000, 1) == most_frames("gif", 1000, 1000, 3) == 44
    assert most_frames("gif", 8000, 8000, 3) == 1


@pytest.mark.parametrize("fps", [0, -1, 0.09, 1001, float("nan"), float("inf")])
def test_frames_a_second_are_a_number_that_formats_can_hold(fps: float) -> None:
    for kind in READERS:
        with pytest.raises(ValueError, match=f"fps: .*{fps}"):
            animation(np.zeros((1, 8, 8), np.uint8), fps, kind)


@pytest.mark.parametrize("kind", ["webp", "gif"])
def test_a_frame_may_be_overwritten_after_it_was_given(kind: Animated) -> None:
    frame = np.zeros((8, 8), np.uint8)

    def levels() -> Iterator[np.ndarray]:
        for level in (10, 20):
            frame[:] = level
            yield frame

    assert READERS[kind](animation(levels(), 15, kind)).frames[:, 7, 7, 0].tolist() == [10, 20]
