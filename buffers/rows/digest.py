"""A fingerprint of recorded data: equal for equal rows, however they were flushed."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..base.untrusted_json import items, mapping, whole
from .episode import Chunk, End

# Plain numbers: an operation on flags takes a microsecond, as long as the CRC of 4 kB.
_PENDING, _FINAL = int(End.PENDING), int(End.TERMINATED | End.TRUNCATED)


class Digest:
    """Running fingerprint of the episodes of all streams.

    Every row of every field counts, the order within a stream, and where episodes begin and end.
    The order in which streams were flushed, the sizes of chunks and the episode ids do not count.
    Made to distinguish data (CRC-32 of each field and stream, then SHA-256), not for security.

    Args:
        state: The state of another one, which this one continues.

    Example:
        >>> import numpy as np
        >>> from stepwell.buffers import Chunk, End
        >>> whole, halves = Digest(), Digest()
        >>> rows = {"reward": np.arange(4.0)}
        >>> chunk = Chunk(0, 0, 0, End.TERMINATED, rows)
        >>> whole.update(chunk)
        >>> for half in chunk.split(2):
        ...     halves.update(half)
        >>> whole.hexdigest() == halves.hexdigest()
        True
    """

    def __init__(self, state: DigestState | None = None) -> None:
        self._streams: dict[int, _Stream] = {} if state is None else dict(state.streams)

    def update(self, chunk: Chunk) -> None:
        """Add the next rows of an episode, in the order of their stream."""
        stream = self._streams.get(chunk.stream, _NOTHING)
        # The next chunk begins with a pending last row again, then with its action.
        rows, end = chunk.rows, int(chunk.end)
        settled = rows - bool(end & _PENDING)
        known = stream.settled if chunk.episode == stream.episode else stream.whole
        fields = chunk.fields.items()
        now = {name: _crc(array[:settled], known.get(name, 0)) for name, array in fields}
        then = now
        if settled < rows:
            then = {name: _crc(array[settled:], now[name]) for name, array in fields}
        borders, length = stream.borders, chunk.first_row + rows
        if chunk.episode != stream.episode:
            borders = zlib.crc32(b"%d rows" % stream.rows, borders)
        if end & _FINAL:
            borders = zlib.crc32(b"end %d" % end, borders)
        self._streams[chunk.stream] = _Stream(chunk.episode, length, now, then, borders)

    @property
    def state(self) -> DigestState:
        """The fingerprint so far, as a value."""
        return DigestState(tuple(sorted(self._streams.items())))

    def hexdigest(self) -> str:
        """The fingerprint, 16 hexadecimal digits."""
        return self.state.hexdigest()


class DigestState(NamedTuple):
    """The state of a `Digest`: small, and equal for equal rows in the same chunks."""

    # number of each stream and the state of its rows, in the order of the numbers
    streams: tuple[tuple[int, _Stream], ...] = ()

    @property
    def next_episode(self) -> int:
        """A number that no newest episode of a stream has, nor a larger one."""
        return max((stream.episode + 1 for _, stream in self.streams), default=0)

    def hexdigest(self) -> str:
        """The fingerprint, 16 hexadecimal digits."""
        total = hashlib.sha256()
        for number, stream in self.streams:
            fields = sorted(stream.whole.items())
            total.update(repr((number, fields, stream.borders, stream.rows)).encode())
        return total.hexdigest()[:16]

    def as_json(self) -> list[object]:
        """The state as plain JSON values."""
        return [[number, *stream] for number, stream in self.streams]

    @classmethod
    def from_json(cls, value: object) -> DigestState:
        """The state that `as_json` gave; ValueError for anything else."""
        streams: list[tuple[int, _Stream]] = []
        for each in items(value, "digest"):
            number, episode, rows, settled, final, borders = items(each, "stream", 6)
            sums = [
                {name: whole(crc, name) for name, crc in mapping(one, "sums").items()}
                for one in (settled, final)
            ]
            place = whole(episode, "episode", -1), whole(rows, "rows")
            stream = _Stream(*place, sums[0], sums[1], whole(borders, "borders"))
            streams.append((whole(number, "stream"), stream))
        return cls(tuple(streams))

    @classmethod
    def of_groups(cls, states: Sequence[DigestState], num_envs: int) -> DigestState:
        """The state of several groups' rows in one replay: stream s is ``group * num_envs + s``."""
        return cls(
            tuple(
                (group * num_envs + number, stream)
                for group, state in enumerate(states)
                for number, stream in state.streams
            )
        )


class _Stream(NamedTuple):
    episode: int
    """Id of the newest episode."""
    rows: int
    """Number of its rows."""
    settled: dict[str, int]
    """CRC of each field, without a pending row."""
    whole: dict[str, int]
    """CRC of each field, with it."""
    borders: int
    """CRC of the lengths and ends of the episodes."""


_NOTHING = _Stream(-1, 0, {}, {}, 0)


def _crc(rows: np.ndarray, start: int) -> int:
    return zlib.crc32(np.ascontiguousarray(rows).data, start)
