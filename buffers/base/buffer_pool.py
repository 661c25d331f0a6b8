"""Memory that is used again."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

__all__ = ["PAGE", "SpareMemory"]

# A copy to an address that is a little further into its page than the source's takes 30 % longer,
# and rows of whole pages are mostly stored at the beginning of a page.
PAGE = 4096

_SPARE_BYTES = 64 << 20


class SpareMemory:
    """Lends memory of one size, first such that was lent before and is not in use any more."""

    # The system takes longer to find and clear new memory than it takes to fill it. Up to 64 MiB
    # are held ready; more is given back to the system.

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._free: list[np.ndarray] = []

    def lend(self) -> np.ndarray:
        """Bytes ``[nbytes]`` from the beginning of a page on, until no array refers to them."""
        return np.asarray(_Lease(self, self.take()))

    def take(self) -> np.ndarray:
        """Memory that nothing else refers to."""
        try:
            return self._free.pop()
        except IndexError:
            memory = np.empty(self.nbytes + PAGE, np.uint8)
            begin = -memory.__array_interface__["data"][0] % PAGE
            return memory[begin : begin + self.nbytes]

    def give_back(self, memory: np.ndarray) -> None:
        """Let memory be used again; called by any thread."""
        if len(self._free) < _SPARE_BYTES // self.nbytes:
            self._free.append(memory)


class _Lease:
    """The object to which every array in the memory refers, directly or not: numpy's ``base``."""

    def __init__(self, spare: SpareMemory, memory: np.ndarray) -> None:
        self._spare, self._memory = weakref.ref(spare), memory
        self.__array_interface__: dict[str, Any] = self._memory.__array_interface__

    def __del__(self) -> None:
        spare = self._spare()
        if spare is not None:
            spare.give_back(self._memory)
