"""Numbers that somebody gives for the rows of a rollout, checked."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["check_finite", "place", "row_numbers", "whole"]


def row_numbers(name: str, given: npt.ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    """What was given as an array; of a tensor the numbers alone, as learners hold them constant.

    Args:
        name: What an error calls it.
        given: An array, or a tensor of any device.
        shape: What it must have: a number too many in a row would be spread over others.

    Raises:
        ValueError: It has another shape, or is no array of numbers.

    Example:
        >>> row_numbers("value", np.zeros((2, 3, 1)), (2, 3))
        Traceback (most recent call last):
        ValueError: value: expected shape (2, 3), got (2, 3, 1); leave its last axis out
    """
    detach = getattr(given, "detach", None)
    array = np.asarray(given if detach is None else detach().cpu())
    if array.shape != shape:
        cure = "leave its last axis out" if array.shape == (*shape, 1) else "give one for each"
        raise ValueError(f"{name}: expected shape {shape}, got {array.shape}; {cure}")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name}: expected numbers, got {array.dtype}; convert it")
    return array


def check_finite(name: str, array: np.ndarray, mask: np.ndarray, cure: str) -> None:
    """Raise ValueError where a row that counts has no finite number: it would spoil those before.

    Args:
        name: What the error calls the array.
        array: [T, N].
        mask: [T, N] bool: the rows that count.
        cure: What to do about it.
    """
    bad = np.argwhere(mask & ~np.isfinite(array))
    if len(bad):
        step, env = bad[0]
        raise ValueError(
            f"{name}: expected finite numbers, got {array[step, env]} in {place(step, env)}; {cure}"
        )


def whole(name: str, number: int) -> int:
    """A number >= 1 as an int.

    Raises:
        ValueError: It is none.
    """
    if not (number >= 1 and number % 1 == 0):
        raise ValueError(f"{name}: expected a whole number >= 1, got {number}; give one")
    return int(number)


def place(step: int, env: int) -> str:
    """Where something is in a rollout, for an error."""
    return f"row {step} of env {env}"
