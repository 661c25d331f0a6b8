"""Values as the arrays that a buffer has declared, or not at all."""

from __future__ import annotations

import contextlib

import numpy as np

__all__ = ["as_declared", "one_hot"]


def as_declared(
    what: str, value: object, dtype: np.dtype[np.generic], shape: tuple[int, ...]
) -> np.ndarray:
    """A value as an array of exactly this dtype and shape.

    Whole numbers and bools go into any dtype that keeps them all; floats only into floats, where
    they may be rounded, for the buffers that are stood in for declare float32. Something that is
    one number fits ``()`` and ``(1,)``.

    Args:
        what: What to call it in an error.
        value: An array, or what numpy, or PyTorch, makes one of.
        dtype: The declared dtype.
        shape: The declared shape.

    Returns:
        The array; it is the value itself where that fits already.

    Raises:
        ValueError: It has another shape, or numbers that the dtype does not hold.

    Example:
        >>> as_declared("action", [0, 1], np.dtype(np.float32), (2,))
        array([0., 1.], dtype=float32)
        >>> as_declared("image", [0.7], np.dtype(np.uint8), (1,))
        Traceback (most recent call last):
        ...
        ValueError: image: expected uint8, got float64 values; convert them as they are meant first
    """
    if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape:
        return value
    if shape == () and dtype.kind in "iu" and isinstance(value, int | np.integer):
        with contextlib.suppress(OverflowError):  # said below
            return np.array(int(value), dtype)
    array = np.asarray(value)
    if array.shape != shape:
        if array.size != 1 or (array.shape, shape) not in (((), (1,)), ((1,), ())):
            raise ValueError(
                f"{what}: expected an array of shape {shape}, got {array.shape}; reshape it first"
            )
        array = array.reshape(shape)
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and dtype.kind != "f"):
        raise ValueError(
            f"{what}: expected {dtype}, got {array.dtype} values; convert them as they are meant "
            f"first"
        )
    if array.dtype.kind != "f" and not _is_kept(array, dtype):
        raise ValueError(
            f"{what}: expected values that {dtype} holds, got {array.min()} to {array.max()}; "
            f"convert them as they are meant first"
        )
    return array.astype(dtype)


def one_hot(what: str, value: object, size: int) -> np.ndarray:
    """The float32 vector [size] of a choice among ``size``.

    Raises:
        ValueError: It is no whole number from 0 to ``size`` - 1.
    """
    choice = np.asarray(value)
    if choice.size != 1 or choice.dtype.kind not in "iu" or not 0 <= int(choice.item()) < size:
        raise ValueError(
            f"{what}: expected one whole number from 0 to {size - 1}, got {value!r}; give the "
            f"number of the action"
        )
    vector = np.zeros(size, np.float32)
    vector[int(choice.item())] = 1
    return vector


def _is_kept(array: np.ndarray, dtype: np.dtype[np.generic]) -> bool:
    """All whole numbers come out of the dtype as they went in."""
    if not array.size:
        return True
    low, high = int(array.min()), int(array.max())
    if dtype.kind == "b":
        return low >= 0 and high <= 1
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)  # type: ignore[type-var]
        return bool(limits.min <= low and high <= limits.max)
    return bool((array.astype(dtype).astype(array.dtype) == array).all())
