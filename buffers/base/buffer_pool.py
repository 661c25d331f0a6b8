"""Memory that is used again."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import cast

import numpy as np

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
        self._free: list[_Lent] = []

    def lend(self) -> np.ndarray:
        """Bytes ``[nbytes]`` from the beginning of a page on, until no array refers to them."""
        lease = _Lease(self.nbytes, np.uint8, self._take())
        lease.spare = weakref.ref(self)
        return np.ndarray(self.nbytes, np.uint8, lease)

    def give_back(self, memory: _Lent) -> None:
        """Let memory be used again; called by any thread."""
        if len(self._free) < _SPARE_BYTES // self.nbytes:
            self._free.append(memory)

    def _take(self) -> _Lent:
        """Memory that nothing else refers to."""
        try:
            return self._free.pop()
        except IndexError:
            memory = np.empty(self.nbytes + PAGE, np.uint8)
            begin = -memory.__array_interface__["data"][0] % PAGE
            return memory[begin : begin + self.nbytes].view(_Lent)


class _Lent(np.ndarray):
    """Memory. Of a plain array numpy would make the ``base`` of all arrays that refer to it."""


class _Lease(np.ndarray):
    """The array to which every array in the memory refers, directly or not, as its ``base``."""

    spare: Callable[[], SpareMemory | None] = staticmethod(lambda: None)  # for views of it

    def __del__(self) -> None:
        spare = self.spare()
        if spare is not None:
            spare.give_back(cast("_Lent", self.base))
