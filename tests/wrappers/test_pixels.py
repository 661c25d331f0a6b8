import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.wrappers import Crop, Grayscale, Resize
from stepwell.wrappers.pixels import BandResize
from support.models.atari_reference import Image, bare, screen

# pyright: reportPossiblyUnboundVariable=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false


def whole(image: Image, size: tuple[int, int]) -> Image:
    """OpenCV's own result for the whole image."""
    small = cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_AREA)
    return np.asarray(small, np.uint8).reshape((*size, *image.shape[2:]))


SHAPES = [
    ((210, 160), (84, 84)),  # 42 bands of 5 rows
    ((210, 160, 3), (84, 84)),
    ((250, 160), (84, 84)),  # 2 bands
    ((251, 160), (84, 84)),  # one band
    ((210, 160), (105, 40)),
    ((210, 160), (64, 64)),
    ((240, 256, 3), (96, 96)),
    ((210, 160), (210, 80)),
    ((210, 160), (84, 320)),  # wider: interpolated, so one band
    ((84, 84), (210, 160)),
    ((20, 6), (8, 3)),  # a band is no whole number of 8-byte words
    ((240, 256), (84, 84)),  # NES: 12 bands of 20 rows, whose weights are not exact but equal
    ((224, 240), (84, 84)),
    ((208, 256, 3), (84, 84)),
]


@given(st.sampled_from(SHAPES), st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_resizing_what_changed_equals_resizing_the_whole(
    shapes: tuple[tuple[int, ...], tuple[int, int]], seed: int, changes: int
) -> None:
    shape, size = shapes
    rng = np.random.default_rng(seed)
    resize = BandResize(shape, size)
    image = rng.integers(256, size=shape, dtype=np.uint8)
    for _ in range(4):
        np.testing.assert_array_equal(resize(image), whole(image, size))
        rows = rng.integers(shape[0], size=changes)
        image = image.copy()
        image[rows] = rng.integers(256, size=(changes, *shape[1:]), dtype=np.uint8)


@given(st.data())
def test_any_size_is_resized_as_opencv_does(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(2, 130)), data.draw(st.integers(2, 40))
    size = data.draw(st.integers(1, rows)), data.draw(st.integers(1, columns))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    image = rng.integers(256, size=(rows, columns), dtype=np.uint8)
    np.testing.assert_array_equal(BandResize((rows, columns), size)(image), whole(image, size))


@pytest.mark.parametrize(
    ("shape", "size", "bands"),
    [
        ((210, 160), (84, 84), 42),
        ((240, 256), (84, 84), 12),
        ((224, 240), (84, 84), 28),
        ((251, 160), (84, 84), 1),
        ((84, 84), (210, 160), 1),
        ((210, 160), (84, 320), 1),
    ],
)
def test_only_exact_bands_are_resized_one_by_one(
    shape: tuple[int, int], size: tuple[int, int], bands: int
) -> None:
    assert BandResize(shape, size).bands == bands


def test_a_result_does_not_change_with_the_next_image() -> None:
    resize = BandResize((210, 160), (84, 84))
    first = resize(np.full((210, 160), 9, np.uint8))
    assert not resize(np.zeros((210, 160), np.uint8)).any()
    assert (first == 9).all()


@pytest.fixture
def broken_cv2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """cv2 is installed, but the system library that it needs is not."""
    complaint = "libGL.so.1: cannot open shared object file: No such file or directory"
    (tmp_path / "cv2.py").write_text(f"raise ImportError({complaint!r})")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cv2")


class Picture(gymnasium.Env[Any, Any]):
    """Shows an image of one shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(self.shape, np.uint8), {}


WRAPS: dict[str, Callable[[Any], Any]] = {
    "Resize": lambda env: Resize(env, (10, 15)),
    "Crop": lambda env: Crop(env, left=2, right=2),
    "Grayscale": Grayscale,
}


@pytest.mark.parametrize("name", WRAPS)
@pytest.mark.parametrize(
    "shape", [(3, 20, 30), (1, 20, 30), (4, 84, 84), (12, 84, 84), (2, 20, 300), (16, 20, 30)]
)
def test_an_axis_of_channels_or_of_frames_that_comes_first_is_refused(
    name: str, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=f"^{name}: .*{re.escape(str(shape))}"):
        WRAPS[name](Picture(shape))


@pytest.mark.parametrize(
    "shape", [(20, 30), (20, 30, 1), (20, 30, 3), (20, 30, 4), (30, 20, 12), (84, 84, 12)]
)
def test_an_axis_of_channels_at_the_end_stays_there(shape: tuple[int, ...]) -> None:
    assert WRAPS["Resize"](Picture(shape)).reset()[0].shape == (10, 15, *shape[2:])
    cropped = WRAPS["Crop"](Picture(shape)).reset()[0]
    assert cropped.shape == (shape[0], shape[1] - 4, *shape[2:])


@pytest.mark.usefixtures("broken_cv2")
def test_without_libgl_the_error_names_both_fixes() -> None:
    with pytest.raises(
        ImportError,
        match=r"cv2 .*libGL.so.1.*"
        r"opencv-python-headless instead of opencv-python, or .*apt install libgl1",
    ):
        Resize(bare(), (84, 84))


def test_pongs_field_is_that_part_of_the_screen() -> None:
    env = Crop(bare("Pong"), top=34, bottom=16, left=4, right=6)
    env.reset(seed=0)
    for _ in range(5):
        observation = env.step(2)[0]
        np.testing.assert_array_equal(observation, screen(env)[34:194, 4:154])
        assert env.observation_space.contains(observation)
