"""Memory of rows: written once, where a storage can keep it with a chunk, or used again."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from ..spec.spec import Spec

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


# Smaller rows are copied in less time than it takes to find them a place.
_LARGE_ROW_BYTES = 1 << 10
# For what else a chunk has: a head, an entry for each field, and metadata of a usual length.
_HEAD_BYTES, _FIELD_BYTES, _METADATA_BYTES = 64, 48, 448
# So many rows for each episode that finds a place in one memory.
_EPISODE_ROWS = 32
_LEAST_ALIGNMENT = 64  # and rows of whole pages begin at the beginning of a page


class RowMemory:
    """Memory of which a storage keeps all or nothing."""

    # It belongs to the writer of the rows, which writes the next rows over those that were stored.
    # A storage that keeps chunks in it sets `kept`: the writer goes on in other memory.

    __slots__ = ("address", "data", "kept")

    def __init__(self, spare: SpareMemory) -> None:
        self.data = spare.lend()  # goes back to `spare` when nothing refers to it any more
        self.address: int = self.data.__array_interface__["data"][0]
        # offset after the last chunk's room that a storage keeps; no storage writes before it
        self.kept = 0


class Place(NamedTuple):
    """The place of a chunk in a `RowMemory`, with the rows of the Spec's first field."""

    memory: RowMemory
    start: int  # offset of the room in front of the rows
    rows: int  # offset of the rows
    nbytes: int  # of the rows
    stop: int  # offset after the room behind the rows

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """None: the rows of a pickled or deeply copied chunk are no longer there."""
        return type(None), ()


class EnvRows:
    """The rows of a Spec's first field, in a memory for each env, with room between episodes."""

    def __init__(
        self,
        spec: Spec,
        num_envs: int,
        room: int,  # rows of an env
    ) -> None:
        field, *others = spec.fields
        self._dtype, self._shape, self._room = field.numpy_dtype, field.shape, room
        self._row_bytes = field.row_bytes
        self._more_bytes = 1 + sum(other.row_bytes for other in others)  # 1: of ends of blocks
        self._head_bytes = _HEAD_BYTES + _FIELD_BYTES * len(spec.fields) + _METADATA_BYTES
        factor = self._row_bytes & -self._row_bytes
        self._alignment = max(_LEAST_ALIGNMENT, min(factor, PAGE))
        rows = room * (self._row_bytes + self._more_bytes)
        gap = 2 * self._head_bytes + self._alignment
        self._nbytes = rows + gap * (1 + room // _EPISODE_ROWS)
        self._spare = SpareMemory(self._nbytes)
        self._memories = [RowMemory(self._spare) for _ in range(num_envs)]
        self._origins = [0] * num_envs  # offset of a row 0 of the view
        self._starts = [0] * num_envs  # the episode's first row
        # for each env its rows, [room, ...], counted from the first one in its memory
        self.views: list[np.ndarray] = [np.empty(0)] * num_envs
        # the same as [room, numbers of a row], which numpy writes to sooner
        self._flat: list[np.ndarray] = [np.empty(0)] * num_envs
        for env in range(num_envs):
            self._move(env, self._aligned(env, self._head_bytes))

    @staticmethod
    def can_hold(spec: Spec) -> bool:
        """True if the first field is stored as it is, and takes nearly all of a row's bytes."""
        field, *others = spec.fields
        more = sum(other.row_bytes for other in others)
        is_large = field.row_bytes >= max(_LARGE_ROW_BYTES, 8 * more)
        return field.codec == "raw" and field.numpy_dtype.isnative and is_large

    def __setitem__(self, place: Any, rows: np.ndarray) -> None:
        """Write n rows, or one where the place is an int: env * room + row."""
        if type(place) is int:
            env, row = divmod(place, self._room)
            self.views[env][row] = rows
            return
        flat, room = self._flat, self._room
        values = rows.reshape(len(place), -1)
        for number, value in zip(place.tolist(), values, strict=True):
            flat[number // room][number % room] = value

    def begin(self, env: int, row: int) -> int:
        """Let an episode begin with a row, behind room for what else the chunk before has."""
        # Returns the offset of the room in front of the row; 0 where it is the memory's first.
        start = 0
        if row:
            start = self._origins[env] + row * self._row_bytes
            rest = (row - self._starts[env]) * self._more_bytes + self._head_bytes
            origin = self._aligned(env, start + rest + self._head_bytes) - row * self._row_bytes
            left = self._room - row
            stop = origin + self._room * self._row_bytes + left * self._more_bytes
            if stop + self._head_bytes <= self._nbytes:
                start += rest
                self._move(env, origin)
        self._starts[env] = row
        return start

    def rows(self, env: int, offset: int, count: int) -> np.ndarray:
        """Rows from an offset on, as a view."""
        return np.ndarray((count, *self._shape), self._dtype, self._memories[env].data, offset)

    def offset(self, env: int, row: int) -> int:
        """The offset of a row of the newest episode."""
        return self._origins[env] + row * self._row_bytes

    def place(self, env: int, start: int, rows: int, count: int, stop: int | None) -> Place:
        """A chunk's place; ``stop`` is the start of the next one's, None for none."""
        nbytes = count * self._row_bytes
        stop = self._nbytes if stop is None else stop
        return Place(self._memories[env], start, rows, nbytes, stop)

    def start_over(self, env: int, kept: int | None) -> None:
        """Forget all rows of an env but one, which becomes its first; None for none."""
        row = None if kept is None else self.views[env][kept]
        if self._memories[env].kept:
            self._memories[env] = RowMemory(self._spare)
        self._starts[env] = 0
        self._move(env, self._aligned(env, self._head_bytes))
        if row is not None:
            self.views[env][0] = row

    def _move(self, env: int, origin: int) -> None:
        self._origins[env] = origin
        self.views[env] = self.rows(env, origin, self._room)
        self._flat[env] = self.views[env].reshape(self._room, -1)

    def _aligned(self, env: int, offset: int) -> int:
        """The first offset from one on at which rows may begin."""
        address = self._memories[env].address + offset
        return offset + -address % self._alignment
