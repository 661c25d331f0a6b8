"""The proof that a stacked observation loses nothing when only its newest frame is stored."""

from __future__ import annotations

import numpy as np

from stepwell.buffers.errors import SpecMismatch
from stepwell.buffers.spec import Field

__all__ = ["StackCheck"]


class StackCheck:
    """Compares each stack with the one before it in the same env.

    Args:
        field: The stacked field.
        num_envs: Number of envs N.
    """

    def __init__(self, field: Field, num_envs: int) -> None:
        self._field = field
        self._before = _words(np.zeros((num_envs, *field.source_shape), field.numpy_dtype))

    def check(
        self, stacks: np.ndarray, first: np.ndarray | None, envs: np.ndarray | None, owned: bool
    ) -> None:
        """Refuse stacks that are not the ones before, moved on by one frame; remember the others.

        Args:
            stacks: Observations ``[n, k, ...]``.
            first: [n] bool: rows of a reset, which must be padded instead; None where none is.
            envs: [n] indices of the envs; None for all in order.
            owned: The array may be kept instead of copied.

        Raises:
            SpecMismatch: A stack is another one; nothing was remembered.
        """
        now = _words(stacks)
        before = self._before if envs is None else self._before[envs]
        if not self._continues(now, before, first):
            field = self._field
            raise SpecMismatch(
                f"field {field.name!r}: expected each stack of {field.stack} frames to be the one "
                f"before, moved on by one frame, and padded by {field.stack_padding} at a reset, "
                f"got other frames; collect with frame_stack=1 to store whole observations"
            )
        if envs is None:
            self._before = now if owned else now.copy()
        else:  # never into the array that is kept, which may be the caller's
            self._before = self._before.copy()
            self._before[envs] = now

    def _continues(self, now: np.ndarray, before: np.ndarray, first: np.ndarray | None) -> bool:
        if first is None:
            return _moved_on(now, before)
        new, old = now[first], ~first
        padding = new[:, -1:] if self._field.stack_padding == "repeat" else 0
        return bool((new[:, :-1] == padding).all()) and _moved_on(now[old], before[old])


def _moved_on(now: np.ndarray, before: np.ndarray) -> bool:
    """Whether each stack begins with the last k - 1 frames of the one before."""
    return bool((now[:, :-1] == before[:, 1:]).all())


def _words(stacks: np.ndarray) -> np.ndarray:
    """The frames' bytes [n, k, words], eight bytes a word where they can be seen so."""
    n, k = stacks.shape[:2]
    frames = np.ascontiguousarray(stacks).reshape(n, k, -1 if n else 0).view(np.uint8)
    return frames.view(np.uint64) if frames.shape[2] % 8 == 0 else frames
