"""The values that episodes have as a whole, as one array a field, by the slots of a ring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepwell.buffers.dropin.memmap.declared import DeclaredField

__all__ = ["MetaColumns"]


class MetaColumns:
    """Values of episodes: episode number k stands in slot ``k % max_episodes``.

    Args:
        fields: What an episode has.
        max_episodes: Slots there are at most; the arrays grow to that.
    """

    def __init__(self, fields: Mapping[str, DeclaredField], max_episodes: int) -> None:
        self._fields = fields
        self._most = max_episodes
        self._columns = {name: field.filled((0,)) for name, field in fields.items()}
        self.known = 0
        """Episodes of which the values are here: those with lower numbers."""

    def take(self, name: str, numbers: np.ndarray) -> np.ndarray:
        """Values [B, ...] of a field, in new memory."""
        values: np.ndarray = self._columns[name][numbers % self._most]
        return values

    def put(self, number: int, values: Mapping[str, np.ndarray]) -> None:
        """Take up the next episode."""
        for name, value in values.items():
            self.change(name, number, value)
        self.known = number + 1

    def read(self, number: int, stored: Mapping[str, Any]) -> None:
        """Take up an episode as it was stored."""
        for name, field in self._fields.items():
            value = np.asarray(stored[name]).astype(field.dtype).reshape(field.shape)
            self.change(name, number, value)

    def change(self, name: str, number: int, value: np.ndarray) -> None:
        """Put another value in place of an episode's."""
        slot = number % self._most
        if slot >= len(self._columns[name]):
            rows = min(self._most, max(64, 2 * (slot + 1)))
            more = self._fields[name].filled((rows - len(self._columns[name]),))
            self._columns[name] = np.concatenate([self._columns[name], more])
        self._columns[name][slot] = value

    def forget_changes(self) -> None:
        """Read everything anew when it is asked for."""
        self.known = 0
