"""OpenCV, imported only by what resizes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["area_resize", "gray", "require_opencv", "rgb_of_bgrx"]


def require_opencv() -> None:
    """Raise an ImportError that names the cures when OpenCV cannot be imported."""
    try:
        import cv2  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise ImportError(
            f"resizing and graying need OpenCV, and cv2 cannot be imported ({error}): either "
            "install opencv-python-headless instead of opencv-python, or install the system "
            "library that it lacks (on Debian and Ubuntu: apt install libgl1)"
        ) from error


def area_resize(image: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Resize a C-contiguous image [H, W] or [H, W, C] into `out` by averaging areas."""
    import cv2

    height, width = out.shape[:2]
    cv2.resize(image, (width, height), dst=out, interpolation=cv2.INTER_AREA)
    return out


def gray(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The luma of an RGB image [H, W, 3]: [H, W], in memory of its own."""
    import cv2

    out = np.empty(image.shape[:2], np.uint8)
    cv2.cvtColor(image, cv2.COLOR_RGB2GRAY, dst=out)
    return out


def rgb_of_bgrx(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """An RGB image [H, W, 3], in memory of its own, of pixels [H, W, 4]: blue, green, red, none."""
    import cv2

    out = np.empty((*pixels.shape[:2], 3), np.uint8)
    cv2.cvtColor(pixels, cv2.COLOR_BGRA2RGB, dst=out)
    return out
