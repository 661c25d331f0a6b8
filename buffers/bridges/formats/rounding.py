"""Floats that a format keeps in fewer bits: rounded, with a word about it, and kept beside."""

from __future__ import annotations

import numpy as np

__all__ = ["Rounding"]


class Rounding:
    """Rounds columns to float32, and remembers how far each was off at most.

    Example:
        >>> rounding = Rounding()
        >>> rounded, exact = rounding.float32("reward", np.array([0.5, 0.1]))
        >>> rounded.dtype, exact is None, rounding.notes
        (dtype('float32'), False, ['reward is rounded to float32, by 1.5e-09 at most; ...'])
    """

    def __init__(self) -> None:
        self._largest: dict[str, float] = {}

    @property
    def notes(self) -> list[str]:
        """A clause for each column that float32 did not hold exactly."""
        return [
            f"{name} is rounded to float32, by {largest:.2g} at most; the exact values stand beside"
            for name, largest in self._largest.items()
        ]

    def float32(self, name: str, column: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The column in float32, and the column itself unless it is the same, bit for bit.

        Args:
            name: The field's name.
            column: [T, ...] of any floats.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = column.astype(np.float32)
            back = rounded.astype(column.dtype)
            if back.tobytes() == np.ascontiguousarray(column).tobytes():
                return rounded, None
            off = np.abs(back - column)
        largest = float(np.max(off, initial=0.0, where=~np.isnan(off)))
        self._largest[name] = max(self._largest.get(name, 0.0), largest)
        return rounded, column
