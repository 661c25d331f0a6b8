"""Changes of stored episodes: kept in RAM, and in a second store next to the first.

Stored rows are immutable. The changed values of a field replace an episode's rows from its first
step up to the last changed one. Each call that changes something is one "episode" of bytes in the
second store: arrays in NumPy's npy format, concatenated. From time to time an entry with all live
changes replaces the entries before it.
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
# Never reached: a capacity makes readers keep the files that they have opened.
_CAPACITY = 1 << 60


class Changes(NamedTuple):
    """Changed values, by field and number of the episode.

    Args:
        steps: [rows, ...] of fields of steps, starting with the episode's first step.
        metas: [...] of fields of episodes.
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
        path: Folder of the second store; created with the first change.
        resources: Closes the second store.
        oldest: Returns the number of the oldest live episode.
        is_read_only: Never write.
    """

    def __init__(
        self,
        path: Path,
        resources: contextlib.ExitStack,
        oldest: Callable[[], int],
        *,
        is_read_only: bool,
    ) -> None:
        self._path = path
        self._resources = resources
        self._oldest = oldest
        self._is_read_only = is_read_only
        self._lock = RLock()
        self._is_loaded = False
        self._changes = Changes({}, {})
        self._replay: SequenceReplayBuffer | None = None
        self._known = 0  # chunks read so far
        self._file_bytes = 0
        self._live_bytes = 0  # of all changes, when last counted

    @property
    def metas(self) -> Mapping[str, Mapping[int, np.ndarray]]:
        """Changed values of episodes, by field and number of the episode."""
        return self._loaded().metas

    def refresh(self) -> bool:
        """Read what another process has stored since.

        Returns:
            Whether there was anything new.

        Raises:
            StoreCorrupt: The second store is damaged.
        """
        with self._lock:
            is_new, self._is_loaded = self._load(), True
            return is_new

    def _loaded(self) -> Changes:
        """The changes, which are read on first use."""
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
        index = storage.index
        stop = position = index.base + len(index)
        if stop == self._known:
            return False
        sizes: list[int] = []
        is_whole = False
        while position > max(self._known, index.base) and not is_whole:
            position -= 1
            entry = storage.metadata(position)
            sizes.append(int(entry["nbytes"]))
            is_whole = bool(entry["is_whole"])
        if is_whole:
            self._changes, self._file_bytes = Changes({}, {}), 0
        for place, nbytes in enumerate(reversed(sizes), position - index.base):
            rows = self._replay.take(Episodes(1), index.records["row_id"][[place]]).observation
            read = _deserialize(rows.tobytes()[:nbytes])
            self._changes = _merged(self._changes, read)
            self._file_bytes += read.nbytes
        self._known = stop
        self._forget_before(self._oldest())
        return True

    def add(self, changes: Changes) -> None:
        """Store changes, all or none; they are durable when this returns.

        Args:
            changes: Owned by this object from now on. The values of a field of steps include the
                earlier changes of that episode.
        """
        after, added = _merged(self._loaded(), changes), changes.nbytes
        if self._replay is None:
            self._replay = self._opened()
        is_whole = self._file_bytes + added > _SPARE_BYTES + 2 * self._live_bytes
        if is_whole:  # by an old count of the live bytes: counting is slow, so it is done only here
            self._live_bytes = after.nbytes
            is_whole = self._file_bytes + added > _SPARE_BYTES + 2 * self._live_bytes
        index = self._replay.storage.index
        data = _serialize(after if is_whole else changes)
        self._replay.add([_chunk(index.next_episode, data, is_whole)])
        self._changes = after
        self._known = index.base + len(index)
        self._file_bytes = self._live_bytes if is_whole else self._file_bytes + added
        if is_whole:
            self._replay.drop_before(int(index.records["row_id"][-1]))

    def _opened(self) -> SequenceReplayBuffer:
        if self._is_read_only:
            replay = SequenceReplayBuffer.open(self._path, read_only=True)
        else:
            replay = SequenceReplayBuffer(self._path, capacity=_CAPACITY)
        self._resources.callback(replay.close)
        if not replay.is_bound:
            replay.bind(_SPEC, {"source": "changes of the memmap drop-in"})
        return replay

    def forget(self, number: int) -> None:
        """Drop the changes of an overwritten episode; its bytes go with a later change."""
        for columns in self._changes:
            for by_number in columns.values():
                by_number.pop(number, None)

    def _forget_before(self, oldest: int) -> None:
        numbers = {k for columns in self._changes for by in columns.values() for k in by}
        for number in sorted(numbers):
            if number < oldest:
                self.forget(number)

    def of(self, name: str, number: int) -> np.ndarray | None:
        """Changed values of an episode, [rows, ...] from its first step; None without any."""
        return self._loaded().steps.get(name, {}).get(number)

    def exceeds(self, name: str, steps: int) -> bool:
        """True if the changes of a field reach beyond a number of steps in any episode."""
        columns = self._loaded().steps.get(name, {})
        return any(len(rows) > steps for rows in columns.values())

    def apply(self, name: str, numbers: np.ndarray, first: np.ndarray, out: np.ndarray) -> None:
        """Overwrite rows with their changed values.

        Args:
            name: The field.
            numbers: [B] numbers of the episodes.
            first: [B] positions of the first rows in their episodes.
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
    """A change as a chunk of the second store."""
    rows = -(-len(data) // _ROW_BYTES)
    padded = np.zeros((rows, _ROW_BYTES), np.uint8)
    padded.reshape(-1)[: len(data)] = np.frombuffer(data, np.uint8)
    fields: dict[str, np.ndarray] = {"observation": padded, "reward": np.zeros(rows)}
    metadata = {"nbytes": len(data), "is_whole": is_whole}
    return Chunk(number, 0, 0, End.NONE, fields, metadata)


def _merged(old: Changes, new: Changes) -> Changes:
    """Both, in new dicts; the new values replace the old ones."""

    def merged(one: Columns, other: Columns) -> Columns:
        return {name: {**one.get(name, {}), **other.get(name, {})} for name in [*one, *other]}

    return Changes(merged(old.steps, new.steps), merged(old.metas, new.metas))


def _serialize(changes: Changes) -> bytes:
    """Serialize changes."""
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


def _deserialize(data: bytes) -> Changes:
    """Deserialize changes."""
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
