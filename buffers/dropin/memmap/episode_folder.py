"""A folder of stored episodes, numbered in the order in which they were stored."""

from __future__ import annotations

import contextlib
import os
import shutil
import weakref
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import NotEnoughData, StepwellError, StoreNotFound
from ...replay.replay import SequenceReplayBuffer
from ...rows.episode import Chunk, End
from ...sampling.requests import Episodes, Sequences
from ...spec.spec import Field, Spec, field_of
from ...storage.disk.files import Files
from ...storage.disk.folder import StoreFolder
from ...storage.disk.storage import DiskStorage, closing_on_error
from .config import Config, Marker, has_marker, missing_marker, read_marker, to_plain, write_marker

_WRITERS: weakref.WeakValueDictionary[Path, EpisodeFolder] = weakref.WeakValueDictionary()
"""The folders open for writing in this process; opening one again returns the same object."""


class EpisodeFolder:
    """The episodes in a folder, numbered 0, 1, 2, ... in the order in which they were stored."""

    # Create one with `write`, which holds the folder's lock, or with `read`.

    def __init__(self, path: Path, lock: FileIO | None, marker: Marker) -> None:
        self.path = path
        self.users: weakref.WeakSet[object] = weakref.WeakSet()
        """The buffers that share this object: closing the last one closes the folder."""
        self._process = os.getpid()
        self._lock = lock
        self._resources = contextlib.ExitStack()
        if lock is not None:
            self._resources.callback(lock.close)
        # The finalizer references the resources and not this object, or it would never run.
        self._finalizer = weakref.finalize(self, _release, self._resources)
        self._load(marker)

    @classmethod
    def write(cls, path: Path, config: Config | None, *, overwrite: bool) -> EpisodeFolder:
        """Open a folder for writing, and create it if needed; None accepts the stored config."""
        path = path.absolute().resolve()
        before = _WRITERS.get(path)
        if before is not None and before.is_open and before._process == os.getpid():
            if not overwrite:
                _check_same(path, before.config, config)
                return before
            before.close()
        if config is None:
            read_marker(path)  # raises before creating any file if there is no marker
        _check_usable(path)
        path.mkdir(parents=True, exist_ok=True)
        lock = StoreFolder(path, Files()).lock()
        with closing_on_error(lock):
            folder = cls(path, lock, _current_marker(path, config, overwrite))
        _WRITERS[path] = folder
        return folder

    @classmethod
    def read(cls, path: Path) -> EpisodeFolder:
        """Open a folder for reading, also while another process writes into it."""
        return cls(path.absolute(), None, read_marker(path))

    @property
    def config(self) -> Config:
        """The configuration."""
        return self._marker.config

    @property
    def is_read_only(self) -> bool:
        """True if the folder is open for reading only."""
        return self._lock is None

    @property
    def is_open(self) -> bool:
        """True until the folder is closed."""
        return self._finalizer.alive

    @property
    def total(self) -> int:
        """Number of episodes ever stored; the next episode gets this number."""
        return self._replay.storage.index.next_episode if self._replay.is_bound else 0

    @property
    def oldest(self) -> int:
        """Number of the oldest live episode."""
        return max(0, self.total - self.config.max_episodes)

    @property
    def replay(self) -> SequenceReplayBuffer:
        """The replay that holds the rows."""
        self.check_open()
        return self._replay

    def episodes(self) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Of the live episodes numbers [E], steps [E], and values [E, ...] by name of field."""
        fields = self.config.meta_fields
        if not self.total:
            none = np.zeros(0, np.int64)
            return none, none, {name: field.full((0,)) for name, field in fields.items()}
        storage: Any = self.replay.storage
        with storage.lock:
            index = storage.index
            shift = index.base - int(index.records["episode"][0])
            records = index.records[-(self.total - self.oldest) :]
            numbers, lengths = records["episode"].copy(), records["rows"].copy()
            for number in numbers.tolist() if fields else ():
                if number not in self._metas:  # each is read once
                    plain = storage.metadata(number + shift)
                    self._metas[number] = {
                        name: np.asarray(plain[name]).astype(field.dtype).reshape(field.shape)
                        for name, field in fields.items()
                    }
            found = [self._metas[number] for number in numbers.tolist()] if fields else []
        return numbers, lengths, {n: np.array([metas[n] for metas in found]) for n in fields}

    def row_ids(self, numbers: np.ndarray) -> np.ndarray:
        """Ids [B] of the first rows of episodes."""
        storage = self.replay.storage
        with storage.lock:
            records = storage.index.records
            ids: np.ndarray = records["row_id"][numbers - int(records["episode"][0])]
            return ids

    def add(self, steps: Mapping[str, np.ndarray], metas: Mapping[str, np.ndarray]) -> None:
        """Store an episode, [T, ...] and [...] by field; it is durable when this returns."""
        self.check_room()
        number = self.total
        fields = {f"observation/{name}": rows for name, rows in steps.items()}
        fields["reward"] = np.zeros(len(next(iter(steps.values()))))
        plain = {name: to_plain(value) for name, value in metas.items()}
        self.replay.add([Chunk(number, 0, 0, End.NONE, fields, plain)])
        if self.oldest > 0:
            self.replay.drop_before(int(self.row_ids(np.array([self.oldest]))[0]))
        self._metas[number] = metas
        self._metas.pop(self.oldest - 1, None)

    def check_room(self) -> None:
        """Raise ValueError if there is no room for a new episode."""
        most = self.config.max_episodes
        if not self.config.circular and self.total >= most:
            raise ValueError(
                f"the replay buffer is full: expected fewer episodes than max_episodes={most}, got "
                f"{self.total}; set circular=True, or overwrite=True, which removes them"
            )

    def leave(self, user: object) -> None:
        """Close the folder if no other buffer uses it."""
        self.users.discard(user)
        if not self.users:
            self.close()

    def close(self) -> None:
        """Release files and lock; closing twice is harmless."""
        if self._finalizer.detach() is not None:
            self._resources.close()

    def check_writable(self, call: str) -> None:
        """Raise ValueError, which names the call, if the folder is closed or read-only."""
        self.check_open()
        if self.is_read_only:
            raise ValueError(
                f"cannot call `{call}` in read-only mode: expected a buffer opened with "
                f"read_only=False"
            )

    def check_open(self) -> None:
        """Raise ValueError if the folder was closed, or overwritten by another buffer."""
        if not self.is_open:
            raise ValueError(
                f"{self.path}: expected an open buffer, got one that was closed, or overwritten by "
                f"another one; open it again"
            )

    def _load(self, marker: Marker) -> None:
        """Open the current store."""
        while True:
            self._marker = marker
            try:
                self._replay = self._open_replay()
            except (StoreNotFound, FileNotFoundError):
                # The writer may have moved on to the next store meanwhile.
                marker = read_marker(self.path)
                if marker == self._marker:
                    raise
            else:
                break
        self._resources.callback(self._replay.close)
        self._metas: dict[int, Mapping[str, np.ndarray]] = {}  # by number, of those that are known
        if not self.is_read_only:
            _remove_leftovers(self.path, marker.store)

    def _open_replay(self) -> SequenceReplayBuffer:
        path = self.path / f"store-{self._marker.store}"
        if self.is_read_only:
            if DiskStorage.exists(path):
                return SequenceReplayBuffer.open(path, read_only=True)
            return SequenceReplayBuffer()  # the writer has not created its store yet
        replay = SequenceReplayBuffer(path, capacity=self.config.capacity)
        if not replay.is_bound:
            try:
                replay.bind(_spec(self.config), {"source": "memmap drop-in"})
            except BaseException:
                replay.close()
                raise
        return replay


class SlotReader:
    """Reads the episodes that were stored when it was made, in the order of their slots."""

    # Slots fill up from 0. Episodes that were overwritten since are refused. Another process, which
    # gets this with a data set, opens the folder for itself.

    def __init__(self, folder: EpisodeFolder) -> None:
        self._opened, self._process = [folder], os.getpid()
        self._path = folder.path
        self.config = folder.config
        self._slots = folder.config.max_episodes
        numbers, lengths, metas = folder.episodes()
        by_slot = np.argsort(numbers % self._slots)
        self.numbers, self.lengths = numbers[by_slot], lengths[by_slot]
        self._metas = {name: values[by_slot] for name, values in metas.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": [], "_process": 0}

    @property
    def _folder(self) -> EpisodeFolder:
        if self._process != os.getpid():
            # A parent's one is kept: releasing it here would close the folder there.
            self._opened.append(EpisodeFolder.read(self._path))
            self._process = os.getpid()
        return self._opened[-1]

    def steps(
        self, names: Sequence[str], numbers: np.ndarray, steps: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Single steps, [B, ...] by field, at the positions [B] of episodes ``numbers`` [B]."""
        return {name: rows[:, 0] for name, rows in self.windows(names, numbers, steps, 1).items()}

    def windows(
        self, names: Sequence[str], numbers: np.ndarray, first: np.ndarray, length: int
    ) -> dict[str, np.ndarray]:
        """Steps from ``first`` [B] on, [B, length, ...] by field, zeros behind an episode's end."""
        borders: Any = "pad_after" if length > 1 else "inside"
        request = Sequences(len(numbers), length, borders, fields=_full_names(names))
        return self._take(request, names, numbers, first)

    def episodes(self, names: Sequence[str], numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Whole episodes, [B, longest, ...] by field, zero padded after an episode's end."""
        fields, lengths = _full_names(names), self.lengths[numbers % self._slots]
        request: Any = Episodes(len(numbers), fields=fields)
        if len(lengths) and np.count_nonzero(lengths == lengths[0]) == len(lengths):
            # The usual case, and cheaper: the plan for a shape is cached, and there is no padding.
            request = Sequences(len(numbers), int(lengths[0]), fields=fields)
        return self._take(request, names, numbers, np.zeros(len(numbers), np.int64))

    def metas(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Values of all fields of episodes, [B, ...] by field."""
        self._check(numbers)
        return {name: values[numbers % self._slots] for name, values in self._metas.items()}

    def _take(
        self, request: Any, names: Sequence[str], numbers: np.ndarray, first: np.ndarray
    ) -> dict[str, np.ndarray]:
        if not names or not len(numbers):
            lead = (len(numbers), getattr(request, "length", 0))
            return {name: self.config.fields[name].full(lead) for name in names}
        self._check(numbers)
        folder = self._folder
        batch = folder.replay.take(request, folder.row_ids(numbers) + first)
        rows: dict[str, np.ndarray] = {name: batch.observation[name] for name in names}
        self._check(numbers)  # another thread may have overwritten one meanwhile
        return rows

    def _check(self, numbers: np.ndarray) -> None:
        """Raise NotEnoughData if an episode was overwritten."""
        folder = self._folder
        folder.check_open()
        oldest = folder.oldest
        if len(numbers) and int(numbers.min()) < oldest:
            gone = int((numbers < oldest).sum())
            raise NotEnoughData(
                f"{folder.path}: expected all {len(numbers)} episodes that were asked for, got "
                f"{gone} that were overwritten since the loader was made; make a new one"
            )


def _full_names(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"observation/{name}" for name in names)


def _release(resources: contextlib.ExitStack) -> None:
    """Close a folder that was garbage collected; errors cannot be reported from here."""
    with contextlib.suppress(OSError, StepwellError):
        resources.close()


def _check_usable(path: Path) -> None:
    """Raise ValueError for a folder that is neither a buffer nor empty."""
    if has_marker(path) or not path.exists():
        return
    own = {"LOCK", "replay_buffer.json.tmp"}
    other = sorted(set(os.listdir(path)) - own) if path.is_dir() else [path.name]
    if not other:
        return
    if (path / "metadata.pkl").exists():
        raise missing_marker(path)
    raise ValueError(
        f"{path}: expected a replay buffer or an empty folder, got {other[0]!r}; nothing in it was "
        f"changed, choose another folder"
    )


def _current_marker(path: Path, config: Config | None, overwrite: bool) -> Marker:
    """Read or write the marker of a locked folder."""
    if not has_marker(path):
        assert config is not None
        marker = Marker(config, 0)
    else:
        before = read_marker(path)
        if not overwrite:
            _check_same(path, before.config, config)
            return before
        marker = Marker(config or before.config, before.store + 1)
    write_marker(path, marker)
    return marker


def _check_same(path: Path, stored: Config, config: Config | None) -> None:
    difference = None if config is None else stored.difference(config)
    if difference:
        raise ValueError(
            f"{path} was made with a different config: {difference}; open it with its own "
            f"arguments, choose another folder, or give overwrite=True, which removes its episodes"
        )


def _remove_leftovers(path: Path, store: int) -> None:
    """Remove the stores that an overwrite or a crash left behind."""
    (path / "replay_buffer.json.tmp").unlink(missing_ok=True)
    for each in path.iterdir():
        kind, _, number = each.name.partition("-")
        if kind == "store" and number.isdigit() and int(number) != store:
            shutil.rmtree(each)


def _spec(config: Config) -> Spec:
    """The Spec of the store: one observation field per field of steps."""
    names = {name: f"observation/{name}" for name in config.fields}
    fields = [field_of(names[f.name], f.dtype, f.shape) for f in config.fields.values()]
    return Spec((*fields, Field("reward", "float64", (), "narrow")), names, [])
