"""What was changed of stored episodes: kept in RAM, and in a second store beside theirs.

Stored rows are immutable. A changed column stands before them, as far as it reaches from the
episode's first step on. Each call that changes something is one "episode" of the second store, of
bytes: a few arrays in numpy's own format, one after the other. Now and then one that holds all that
still says something takes the place of those before it.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.sampling.requests import Episodes
from stepwell.buffers.spec import Field, Spec
from stepwell.buffers.storage.disk.storage import DiskStorage

__all__ = ["Changes", "Updates"]

Columns: TypeAlias = "dict[str, dict[int, np.ndarray]]"
_SPARE_BYTES = 1 << 20
_ROW_BYTES = 4096
_SPEC = Spec(
    (
        Field("observation", "uint8", (_ROW_BYTES,), "raw"),
        Field("reward", "float64", (), "narrow"),
    ),
    "observation",
    [],
)
# Nothing is evicted by it, but readers of a ring hold on to the files that they have seen.
_CAPACITY = 1 << 60


class Changes(NamedTuple):
    """Values by field and number of the episode.

    Args:
        steps: [rows, ...] of the fields of steps, from an episode's first step on.
        metas: [...] of the fields of episodes.
    """

    steps: Columns
    metas: Columns

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return sum(v.nbytes for each in self for by in each.values() for v in by.values())


class Updates:
    """The changes of a store's episodes.

    Args:
        path: Folder of the second store; made when there are any changes.
        held: What closes it.
        oldest: Gives the number of the oldest episode that counts.
        is_read_only: Write nothing.
    """

    def __init__(
        self,
        path: Path,
        held: contextlib.ExitStack,
        oldest: Callable[[], int],
        *,
        is_read_only: bool,
    ) -> None:
        self._path = path
        self._held = held
        self._oldest = oldest
        self._is_read_only = is_read_only
        self._lock = RLock()
        self._is_loaded = False
        self._changes = Changes({}, {})
        self._replay: SequenceReplayBuffer | None = None
        self._known = 0  # chunks that were taken up
        self._file_bytes = 0
        self._least_bytes = 0  # what was last known to say something

    @property
    def metas(self) -> Mapping[str, Mapping[int, np.ndarray]]:
        """Changed values of episodes, by field and number of the episode."""
        return self._loaded().metas

    def refresh(self) -> bool:
        """Take up what another process has stored since.

        Returns:
            Whether there was anything new.

        Raises:
            StoreCorrupt: Something is not what was written.
        """
        with self._lock:
            is_new, self._is_loaded = self._load(), True
            return is_new

    def _loaded(self) -> Changes:
        """The changes, which are read when they are first asked for."""
        if not self._is_loaded:
            with self._lock:
                if not self._is_loaded:
                    self._load()
                    self._is_loaded = True
        return self._changes

    def _load(self) -> bool:
        if self._replay is not None:
            if self._is_read_only:
                self._replay.refresh()
        elif DiskStorage.exists(self._path):
            self._replay = self._opened()
        if self._replay is None or not self._replay.is_bound:
            return False
        storage: Any = self._replay.storage
        table = storage.table
        stop = position = table.base + len(table)
        if stop == self._known:
            return False
        sizes: list[int] = []
        is_whole = False
        while position > max(self._known, table.base) and not is_whole:
            position -= 1
            facts = storage.metadata(position)
            sizes.append(int(facts["nbytes"]))
            is_whole = bool(facts["is_whole"])
        if is_whole:
            self._changes, self._file_bytes = Changes({}, {}), 0
        for place, nbytes in enumerate(reversed(sizes), position - table.base):
            rows = self._replay.take(Episodes(1), table.records["row_id"][[place]]).observation
            read = _unpacked(rows.tobytes()[:nbytes])
            self._changes = _merged(self._changes, read)
            self._file_bytes += read.nbytes
        self._known = stop
        self._forget_before(self._oldest())
        return True

    def add(self, changes: Changes) -> None:
        """Keep changes, all of them or none; when it returns they are durable.

        Args:
            changes: Owned by this from now on. Of steps all that is changed of an episode so far.
        """
        after, added = _merged(self._loaded(), changes), changes.nbytes
        if self._replay is None:
            self._replay = self._opened()
        is_whole = self._file_bytes + added > _SPARE_BYTES + 2 * self._least_bytes
        if is_whole:  # perhaps: to know what says something costs more than to say it
            self._least_bytes = after.nbytes
            is_whole = self._file_bytes + added > _SPARE_BYTES + 2 * self._least_bytes
        table = self._replay.storage.table
        data = _packed(after if is_whole else changes)
        self._replay.add([_chunk(table.next_episode, data, is_whole)])
        self._changes = after
        self._known = table.base + len(table)
        self._file_bytes = self._least_bytes if is_whole else self._file_bytes + added
        if is_whole:
            self._replay.drop_before(int(table.records["row_id"][-1]))

    def _opened(self) -> SequenceReplayBuffer:
        if self._is_read_only:
            replay = SequenceReplayBuffer.open(self._path, read_only=True)
        else:
            replay = SequenceReplayBuffer(self._path, capacity=_CAPACITY)
        self._held.callback(replay.close)
        if not replay.is_bound:
            replay.bind(_SPEC, {"source": "changes of the memmap drop-in"})
        return replay

    def forget(self, number: int) -> None:
        """Leave an episode out that does not count any more; its bytes go with a later change."""
        for columns in self._changes:
            for by_number in columns.values():
                by_number.pop(number, None)

    def _forget_before(self, oldest: int) -> None:
        numbers = {k for columns in self._changes for by in columns.values() for k in by}
        for number in sorted(numbers):
            if number < oldest:
                self.forget(number)

    def of(self, name: str, number: int) -> np.ndarray | None:
        """Changed steps of an episode, [rows, ...] from its first one on; None without any."""
        return self._loaded().steps.get(name, {}).get(number)

    def reaches(self, name: str, steps: int) -> bool:
        """Of some episode more than the first so many steps of a field were changed."""
        columns = self._loaded().steps.get(name, {})
        return any(len(rows) > steps for rows in columns.values())

    def lay(self, name: str, numbers: np.ndarray, first: np.ndarray, out: np.ndarray) -> None:
        """Put what was changed over rows that were read.

        Args:
            name: The field.
            numbers: [B] numbers of the episodes.
            first: [B] the steps in them that the rows begin with.
            out: [B, T, ...] rows.
        """
        columns = self._loaded().steps.get(name)
        if not columns:
            return
        length = out.shape[1]
        pairs = zip(numbers.tolist(), first.tolist(), strict=True)
        for place, (number, begin) in enumerate(pairs):
            rows = columns.get(number)
            if rows is not None and begin < len(rows):
                part = rows[begin : begin + length]
                out[place, : len(part)] = part


def _chunk(number: int, data: bytes, is_whole: bool) -> Chunk:
    """A change as it is stored."""
    rows = -(-len(data) // _ROW_BYTES)
    padded = np.zeros((rows, _ROW_BYTES), np.uint8)
    padded.reshape(-1)[: len(data)] = np.frombuffer(data, np.uint8)
    fields: dict[str, np.ndarray] = {"observation": padded, "reward": np.zeros(rows)}
    facts = {"nbytes": len(data), "is_whole": is_whole}
    return Chunk(number, 0, 0, End.NONE, fields, facts)


def _merged(before: Changes, new: Changes) -> Changes:
    """Both, the new ones in place of the old ones, in dicts of their own."""

    def merged(one: Columns, other: Columns) -> Columns:
        return {name: {**one.get(name, {}), **other.get(name, {})} for name in [*one, *other]}

    return Changes(merged(before.steps, new.steps), merged(before.metas, new.metas))


def _packed(changes: Changes) -> bytes:
    """The bytes of a file."""
    names: list[tuple[str, str]] = []
    arrays: list[np.ndarray] = []
    for name, columns in changes.steps.items():
        if columns:
            names.append(("step", name))
            rows = [len(values) for values in columns.values()]
            arrays.append(np.array([list(columns), rows], np.int64))
            arrays.append(np.concatenate(list(columns.values())))
    for name, values in changes.metas.items():
        if values:
            names.append(("meta", name))
            arrays += [np.array([list(values)], np.int64), np.stack(list(values.values()))]
    into = io.BytesIO()
    head = np.frombuffer(json.dumps(names).encode(), np.uint8)
    for array in (head, *arrays):
        np.lib.format.write_array(into, array, allow_pickle=False)
    return into.getvalue()


def _unpacked(data: bytes) -> Changes:
    """What the bytes of a file hold."""
    source, changes = io.BytesIO(data), Changes({}, {})
    for kind, name in json.loads(_next_array(source).tobytes()):
        episodes, values = _next_array(source), _next_array(source)
        if kind == "meta":
            changes.metas[name] = dict(zip(episodes[0].tolist(), values, strict=True))
        else:
            columns = np.split(values, np.cumsum(episodes[1])[:-1])
            changes.steps[name] = dict(zip(episodes[0].tolist(), columns, strict=True))
    return changes


def _next_array(source: io.BytesIO) -> np.ndarray:
    array: np.ndarray = np.lib.format.read_array(source, allow_pickle=False)
    return array
