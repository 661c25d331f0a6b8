"""Which fields are images, and that their pixels are the stored ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stepwell.buffers import End, Episode, Field, Spec
from stepwell.buffers.pictures.image_fields import ImageField, image_field, image_fields
from support.examples import examples


def spec_of(shape: tuple[int, ...], dtype: str = "uint8", stack: int = 1) -> Spec:
    field = Field("observation", dtype, shape, "raw", stack)
    return Spec((field, Field("reward", "float64", (), "raw")), "observation", {})


def image_of(shape: tuple[int, ...], dtype: str = "uint8") -> ImageField | None:
    found = image_fields(spec_of(shape, dtype))
    assert len(found) < 2
    return found[0] if found else None


def shown_as(shape: tuple[int, ...], dtype: str = "uint8") -> ImageField:
    found = image_of(shape, dtype)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("shape", "expected"),
    [  # height, width, channels, layout, pictures
        ((84, 84), (84, 84, 1, "HW", 1)),
        ((210, 160, 3), (210, 160, 3, "HWC", 1)),
        ((3, 64, 48), (64, 48, 3, "CHW", 1)),
        ((84, 84, 1), (84, 84, 1, "HWC", 1)),
        ((4, 84, 84), (84, 336, 1, "CHW", 4)),  # a stack in a plain Box
        ((2, 84, 84), (84, 168, 1, "CHW", 2)),
        ((9, 84, 84), (84, 252, 3, "CHW", 3)),  # three RGB frames, channels first
        ((84, 84, 12), (84, 336, 3, "HWC", 4)),
        ((4, 84, 84, 3), (84, 336, 3, "HWC", 4)),
        ((4, 3, 84, 84), (84, 336, 3, "CHW", 4)),
        ((2, 84, 84, 6), (84, 336, 3, "HWC", 4)),
        ((8, 8), (8, 8, 1, "HW", 1)),
        ((8, 10, 9), (10, 72, 1, "CHW", 8)),
        ((16_383, 8), (16_383, 8, 1, "HW", 1)),
    ],
)
def test_a_shape_is_shown_as_documented(
    shape: tuple[int, ...], expected: tuple[int, int, int, str, int]
) -> None:
    image = shown_as(shape)
    names = ("height", "width", "channels", "layout", "pictures")
    assert tuple(getattr(image, name) for name in names) == expected
    assert (image.is_exact, image.scale) == (True, "")


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((128,), "uint8"),
        ((1, 1), "uint8"),
        ((7, 7, 3), "uint8"),  # MiniGrid's codes
        ((84, 84, 0), "uint8"),
        ((0, 84), "uint8"),
        ((17, 84, 84), "uint8"),  # more pictures than are shown
        ((84, 84, 49), "uint8"),
        ((2, 2, 84, 84, 3), "uint8"),
        ((16_384, 8), "uint8"),
        ((8, 8_192, 8), "uint8"),  # side by side it is too wide
        ((16_000, 16_000), "uint8"),
        ((15, 84), "float32"),
        ((84, 84), "complex64"),
    ],
)
def test_other_shapes_are_no_images(shape: tuple[int, ...], dtype: str) -> None:
    assert image_of(shape, dtype) is None


@settings(max_examples=examples(60))
@given(
    st.integers(1, 3),
    st.sampled_from([1, 3]),
    st.integers(1, 5),
    st.tuples(st.integers(16, 20), st.integers(16, 20)),
    st.sampled_from(["channels last", "channels first", "stack", "stack, channels first"]),
    st.integers(0, 1 << 32),
)
def test_pixels_are_the_pictures_that_were_stored(
    rows: int, channels: int, count: int, size: tuple[int, int], layout: str, seed: int
) -> None:
    if channels == 1 and count == 3 and not layout.startswith("stack"):
        count = 2  # three grey pictures are stored like an RGB one
    rng = np.random.default_rng(seed)
    shape = (rows, count, *size, channels)
    pictures = rng.integers(0, 256, shape).astype(np.uint8)
    stored = []
    for row in pictures:
        if layout == "channels last":
            stored.append(np.concatenate(list(row), -1))
        elif layout == "channels first":
            stored.append(np.concatenate([one.transpose(2, 0, 1) for one in row], 0))
        elif layout == "stack":
            stored.append(np.stack(list(row)))
        else:
            stored.append(np.stack([one.transpose(2, 0, 1) for one in row]))
    image = shown_as(stored[0].shape)
    shown = image.pixels(np.array(stored))
    expected = np.array([np.concatenate(list(row), 1) for row in pictures])
    assert shown.dtype == np.uint8
    assert (shown == (expected[..., 0] if channels == 1 else expected)).all()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_stack_of_several_pictures_is_shown_in_its_order(channels: int, is_last: bool) -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (2, 4, 2, 16, 17, channels)).astype(np.uint8)
    joined = np.concatenate(list(pictures.transpose(2, 0, 1, 3, 4, 5)), -1)  # [2, 4, H, W, 2C]
    rows = joined if is_last else joined.transpose(0, 1, 4, 2, 3)
    image = shown_as(rows.shape[1:])
    expected = np.stack(
        [np.concatenate([*row.reshape(8, 16, 17, channels)], 1) for row in pictures]
    )
    assert (image.pixels(rows).reshape(expected.shape) == expected).all()


def test_pixels_that_are_stored_so_are_not_copied() -> None:
    for shape in ((84, 84), (84, 84, 1), (84, 84, 3), (1, 84, 84), (3, 84, 84)):
        image, rows = image_of(shape), np.zeros((5, *shape), np.uint8)
        assert image is not None
        assert np.shares_memory(image.pixels(rows), rows)
        assert image.pixels(rows[:0]).shape[0] == 0


def level_of(value: float, values: list[float]) -> float:
    """The grey level by the rule in the documentation, in Python's numbers, not rounded."""
    if math.isnan(value):
        return 0
    finite = [each for each in values if math.isfinite(each)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if 0 <= low and high <= 1:
        low, high = 0.0, 1.0
    if value <= low:
        return 0
    if value >= high:
        return 255
    # Halves, as the difference of two large numbers is infinite.
    return 255 * ((value / 2 - low / 2) / (high / 2 - low / 2))


@settings(max_examples=examples(60))
@given(
    arrays.arrays(
        st.sampled_from(["float16", "float32", "float64", "int8", "uint16", "int64"]), (2, 5)
    )
    | arrays.arrays(np.float64, (2, 5), elements=st.floats(0, 1))
)
def test_numbers_are_scaled_by_the_documented_rule(values_of_rows: np.ndarray) -> None:
    rows = np.resize(values_of_rows.repeat(52, 1)[:, :256], (2, 16, 16))
    image = shown_as((16, 16), rows.dtype.name)
    assert not image.is_exact
    assert "lowest" in image.scale
    shown = image.pixels(rows)
    assert shown.dtype == np.uint8
    for row, levels in zip(rows, shown, strict=True):
        values = [float(value) for value in row.reshape(-1)]
        expected = [level_of(value, values) for value in values]
        # Halves may be rounded to either side.
        assert np.abs(levels.reshape(-1) - expected).max() <= 0.5 + 1e-6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bytes_as_parts_of_one_are_the_bytes(dtype: str) -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    image = shown_as((16, 16), dtype)
    assert (image.pixels((levels / 255).astype(dtype)) == levels).all()


def test_a_row_of_one_value_is_black_or_white() -> None:
    image = shown_as((16, 16), "float64")
    for value, level in ((0.0, 0), (1.0, 255), (7.0, 0), (-7.0, 0), (np.nan, 0), (np.inf, 255)):
        assert (image.pixels(np.full((1, 16, 16), value)) == level).all()


def test_images_of_the_observation_come_first_and_others_are_found() -> None:
    names = ["extra/mask", "info/rgb", "observation/left", "observation/right", "action"]
    fields = [Field(name, "uint8", (16, 16), "raw") for name in names]
    small = Field("observation/joints", "float32", (7,), "raw")
    spec = Spec((*fields, small), {}, {})
    expected = ["observation/left", "observation/right", "extra/mask", "info/rgb"]
    assert [image.name for image in image_fields(spec)] == expected
    assert image_field(spec).name == "observation/left"
    assert image_field(spec, "info/rgb").name == "info/rgb"
    with pytest.raises(ValueError, match=r"field: .*observation/left.*info/rgb.*got 'left'"):
        image_field(spec, "left")
    with pytest.raises(ValueError, match=r"got 'observation/joints'"):
        image_field(spec, "observation/joints")


def test_a_stack_stores_single_frames_and_says_its_size() -> None:
    (image,) = image_fields(spec_of((84, 84), stack=4))
    assert (image.height, image.width, image.pictures, image.stack) == (84, 84, 1, 4)


def test_without_images_the_error_names_the_fields_and_a_cure() -> None:
    spec = spec_of((4,), "float32")
    with pytest.raises(ValueError, match=r"observation: float32 \(4,\).*AddRenderObservation"):
        image_field(spec)
    rows: dict[str, np.ndarray] = {
        "observation": np.zeros((2, 4), np.float32),
        "reward": np.zeros(2),
    }
    with pytest.raises(ValueError, match=r"observation: float32 \(4,\).*AddRenderObservation"):
        Episode(spec, 0, 0, 0, End.NONE, rows, {}).frames()


def test_frames_of_an_episode_are_its_rows() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 16, 16)).astype(np.uint8)
    rows: dict[str, np.ndarray] = {"observation": pixels, "reward": np.zeros(5)}
    episode = Episode(spec_of((3, 16, 16)), 0, 0, 0, End.NONE, rows, {})
    assert (episode.frames() == pixels.transpose(0, 2, 3, 1)).all()
    assert (episode.frames("observation") == episode.frames()).all()
