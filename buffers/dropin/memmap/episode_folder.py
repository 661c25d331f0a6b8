"""Episodes of declared fields in a folder, by the numbers in which they were stored."""

from __future__ import annotations

import contextlib
import os
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepwell.buffers.dropin.memmap.config import (
    Config,
    Marker,
    is_buffer,
    read_marker,
    write_marker,
)
from stepwell.buffers.dropin.memmap.declared import Codecs, to_plain
from stepwell.buffers.dropin.memmap.meta_columns import MetaColumns
from stepwell.buffers.dropin.memmap.updates import Changes, Updates
from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.errors import StepwellError, StoreNotFound
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.spec import Field, Spec, default_codec
from stepwell.buffers.storage.disk.files import Files
from stepwell.buffers.storage.disk.folder import StoreFolder
from stepwell.buffers.storage.disk.storage import DiskStorage, closing_on_error

__all__ = ["EpisodeFolder", "NewEpisode"]

_WRITERS: weakref.WeakValueDictionary[Path, EpisodeFolder] = weakref.WeakValueDictionary()
"""The folders that this process writes into: whoever opens one again writes through the same."""


class NewEpisode(NamedTuple):
    """An episode that is to be stored.

    Args:
        steps: [T, ...] of every field of steps.
        metas: [...] of every field of episodes.
    """

    steps: Mapping[str, np.ndarray]
    metas: Mapping[str, np.ndarray]


class EpisodeFolder:
    """The episodes of a folder. They are numbered 0, 1, 2, ... in the order of their storing.

    Made by `write` or `read`.

    Args:
        path: The folder.
        lock: Its lock, held; None to read.
        marker: What it says.
        codecs: How new fields are kept.
    """

    def __init__(self, path: Path, lock: FileIO | None, marker: Marker, codecs: Codecs) -> None:
        self.path = path
        self.users: weakref.WeakSet[object] = weakref.WeakSet()
        """The buffers that were opened on it: the last one to be closed closes it."""
        self._process = os.getpid()
        self._lock = lock
        self._codecs: Codecs = codecs
        self._held = contextlib.ExitStack()
        if lock is not None:
            self._held.callback(lock.close)
        # It holds what must be released, and not this, so it comes whenever this goes.
        self._free = weakref.finalize(self, _release, self._held)
        self._use(marker)

    @classmethod
    def write(
        cls, path: Path, asked: Config | None, codecs: Codecs, *, overwrite: bool
    ) -> EpisodeFolder:
        """Open a folder to write into it, and make it where there is none.

        Args:
            path: The folder.
            asked: What it is to be; None for what it is.
            codecs: How fields are kept.
            overwrite: Remove the episodes that it holds.

        Raises:
            ValueError: It holds something else, or is not what is asked for.
            StoreLocked: Another process writes into it.
        """
        path = path.absolute().resolve()
        before = _WRITERS.get(path)
        if before is not None and before.is_open and before._process == os.getpid():
            if not overwrite:
                _check_same(path, before.config, asked)
                return before
            before.close()
        if asked is None:
            read_marker(path)  # refuses a folder without one, before anything is made in it
        _check_usable(path)
        path.mkdir(parents=True, exist_ok=True)
        lock = StoreFolder(path, Files()).lock()
        with closing_on_error(lock):
            folder = cls(path, lock, _settled(path, asked, overwrite), codecs)
        _WRITERS[path] = folder
        return folder

    @classmethod
    def read(cls, path: Path, asked: Config | None) -> EpisodeFolder:
        """Open a folder to read it, also while another process writes into it.

        Raises:
            ValueError: It holds something else, or is not what is asked for.
        """
        marker = read_marker(path)
        _check_same(path, marker.config, asked)
        return cls(path.absolute(), None, marker, None)

    @property
    def config(self) -> Config:
        """What it is made for."""
        return self._marker.config

    @property
    def store(self) -> int:
        """Number of the store in which the episodes are: another one after `clear`."""
        return self._marker.store

    @property
    def is_read_only(self) -> bool:
        """Nothing can be stored."""
        return self._lock is None

    @property
    def is_open(self) -> bool:
        """It was not closed."""
        return self._free.alive

    @property
    def total(self) -> int:
        """Episodes ever stored: the number that the next one gets."""
        return self._replay.storage.table.next_episode if self._replay.is_bound else 0

    @property
    def oldest(self) -> int:
        """Number of the oldest episode that counts."""
        return max(0, self.total - self.config.max_episodes)

    @property
    def replay(self) -> SequenceReplayBuffer:
        """The replay in which the rows are."""
        self.check_open()
        return self._replay

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers [E] of the episodes that count, and how many steps [E] they have."""
        if not self.total:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        storage = self.replay.storage
        with storage.lock:
            records = storage.table.records[-(self.total - self.oldest) :]
            return records["episode"].copy(), records["rows"].copy()

    def row_ids(self, numbers: np.ndarray) -> np.ndarray:
        """Ids [B] of the rows that episodes begin with."""
        storage = self.replay.storage
        with storage.lock:
            records = storage.table.records
            ids: np.ndarray = records["row_id"][numbers - int(records["episode"][0])]
            return ids

    def metas(self, name: str, numbers: np.ndarray) -> np.ndarray:
        """Values [B, ...] of a field of episodes."""
        self._know_metas()
        return self._metas.take(name, numbers)

    def add(self, episodes: Sequence[NewEpisode]) -> None:
        """Store whole episodes; when it returns they are durable.

        Raises:
            ValueError: There is no room.
        """
        self.check_room(len(episodes))
        self._know_metas()
        first = self.total
        zeros = np.zeros(max(len(next(iter(e.steps.values()))) for e in episodes))
        chunks: list[Chunk] = []
        for place, (steps, metas) in enumerate(episodes):
            fields = {f"observation/{name}": rows for name, rows in steps.items()}
            fields["reward"] = zeros[: len(next(iter(steps.values())))]
            plain = {name: to_plain(value) for name, value in metas.items()}
            chunks.append(Chunk(first + place, 0, 0, End.NONE, fields, plain))
        self.replay.add(chunks)
        if self.oldest > 0:
            self.replay.drop_before(int(self.row_ids(np.array([self.oldest]))[0]))
        for place, episode in enumerate(episodes):
            self._updates.forget(first + place - self.config.max_episodes)
            self._metas.put(first + place, episode.metas)

    def check_room(self, count: int) -> None:
        """Refuse more episodes than there is room for.

        Raises:
            ValueError: With both numbers.
        """
        most = self.config.max_episodes
        if count > most:
            raise ValueError(
                f"episodes that end together: expected at most max_episodes={most}, got {count}; "
                f"some would take the place of others: make max_episodes larger"
            )
        room = most - self.total
        if not self.config.circular and count > room:
            raise ValueError(
                f"the replay buffer is full: expected room for {count} more of max_episodes="
                f"{most}, got {room}; set circular=True, or clear() it"
            )

    def change(self, changes: Changes) -> None:
        """Change stored episodes, all of it or nothing; when it returns it is durable."""
        self.check_open()
        self._know_metas()
        self._updates.add(changes)
        self._lay_metas()

    @property
    def updates(self) -> Updates:
        """What was changed of stored steps."""
        return self._updates

    def clear(self) -> None:
        """Forget all episodes for good: now, or, after a crash in here, when it is opened again."""
        self.check_open()
        marker = Marker(self.config, self.store + 1)
        write_marker(self.path, marker)
        self._stores.close()
        self._use(marker)

    def refresh(self) -> bool:
        """Take up what the writer has stored since.

        Returns:
            Whether there was anything new.
        """
        marker = read_marker(self.path)
        if marker != self._marker or not self._replay.is_bound:
            before = self._marker, self.total
            self._stores.close()
            self._use(marker)
            return before != (self._marker, self.total)
        is_changed = self._replay.refresh()
        is_changed |= self._updates.refresh()
        if is_changed:
            self._metas.forget_changes()
        return is_changed

    def leave(self, user: object) -> None:
        """Close this where no other user is left.

        Raises:
            StoreFailed: The disk failed; what was stored before is kept.
        """
        self.users.discard(user)
        if not self.users:
            self.close()

    def close(self) -> None:
        """Release files and lock; closing twice is harmless.

        Raises:
            StoreFailed: The disk failed; what was stored before is kept.
        """
        if self._free.detach() is not None:
            self._held.close()

    def check_writable(self, what: str) -> None:
        """Refuse a call that changes something where that cannot be.

        Args:
            what: Name of the call.

        Raises:
            ValueError: It was closed, or opened to read.
        """
        self.check_open()
        if self.is_read_only:
            raise ValueError(
                f"cannot call `{what}` in read-only mode: expected a buffer opened with "
                f"read_only=False"
            )

    def check_open(self) -> None:
        """Refuse to go on with a folder that was closed.

        Raises:
            ValueError: It was, or another buffer of this process overwrote it.
        """
        if not self.is_open:
            raise ValueError(
                f"{self.path}: expected an open buffer, got one that was closed, or overwritten by "
                f"another one; open it again"
            )

    def _use(self, marker: Marker) -> None:
        """Open the store that is in force."""
        while True:
            self._marker = marker
            try:
                self._replay = self._opened()
            except (StoreNotFound, FileNotFoundError):
                marker = read_marker(self.path)
                if marker == self._marker:
                    raise
            else:
                break
        self._stores = self._held.enter_context(contextlib.ExitStack())
        self._stores.callback(self._replay.close)
        self._updates = Updates(
            self.path / f"updates-{self.store}",
            self._stores,
            _oldest_of(weakref.ref(self)),
            is_read_only=self.is_read_only,
        )
        self._metas = MetaColumns(self.config.meta_fields, self.config.max_episodes)
        if not self.is_read_only:
            _sweep(self.path, self.store)

    def _opened(self) -> SequenceReplayBuffer:
        path = self.path / f"store-{self.store}"
        if self.is_read_only:
            if DiskStorage.exists(path):
                return SequenceReplayBuffer.open(path, read_only=True)
            return SequenceReplayBuffer()  # whoever made the folder did not come further yet
        replay = SequenceReplayBuffer(path, capacity=self.config.capacity)
        if not replay.is_bound:
            try:
                replay.bind(_spec(self.config, self._codecs), {"source": "memmap drop-in"})
            except BaseException:
                replay.close()
                raise
        return replay

    def _know_metas(self) -> None:
        """Read what is not known yet of the fields of episodes."""
        total = self.total
        if self._metas.known == total or not self.config.meta_fields:
            return
        storage: Any = self.replay.storage
        with storage.lock:
            table = storage.table
            shift = table.base - int(table.records["episode"][0])
            for number in range(max(self._metas.known, self.oldest), total):
                self._metas.read(number, storage.metadata(number + shift))
            self._metas.known = total
        self._lay_metas()

    def _lay_metas(self) -> None:
        for name, values in self._updates.metas.items():
            for number, value in values.items():
                if self.oldest <= number < self.total:
                    self._metas.change(name, number, value)


def _oldest_of(folder: weakref.ref[EpisodeFolder]) -> Callable[[], int]:
    """What asks a folder for its oldest episode, and does not keep it from going."""

    def oldest() -> int:
        there = folder()
        return 0 if there is None else there.oldest

    return oldest


def _release(held: contextlib.ExitStack) -> None:
    """Close what nobody closed, where nobody could be told that it failed."""
    with contextlib.suppress(OSError, StepwellError):
        held.close()


def _check_usable(path: Path) -> None:
    """Refuse a folder that is neither such a buffer nor empty.

    Raises:
        ValueError: It is another thing.
    """
    if is_buffer(path) or not path.exists():
        return
    if path.is_dir() and not set(os.listdir(path)) - {"LOCK", "replay_buffer.json.tmp"}:
        return
    if (path / "metadata.pkl").exists():
        read_marker(path)  # says how it is converted
    raise ValueError(
        f"{path} is neither a replay buffer nor empty, expected one of the two: nothing in it was "
        f"touched; choose another folder"
    )


def _settled(path: Path, asked: Config | None, overwrite: bool) -> Marker:
    """What the folder is from now on, the lock being held."""
    if not is_buffer(path):
        assert asked is not None
        marker = Marker(asked, 0)
    else:
        before = read_marker(path)
        if not overwrite:
            _check_same(path, before.config, asked)
            return before
        marker = Marker(asked or before.config, before.store + 1)
    write_marker(path, marker)
    return marker


def _check_same(path: Path, there: Config, asked: Config | None) -> None:
    difference = None if asked is None else there.difference(asked)
    if difference:
        raise ValueError(
            f"{path} was made with a different config: {difference}; ask for what it is, choose "
            f"another folder, or give overwrite=True, which removes its episodes"
        )


def _sweep(path: Path, store: int) -> None:
    """Remove what an earlier `clear`, an overwritten buffer, or a crash left."""
    (path / "replay_buffer.json.tmp").unlink(missing_ok=True)
    for each in path.iterdir():
        kind, _, number = each.name.partition("-")
        if kind in ("store", "updates") and number.isdigit() and int(number) != store:
            shutil.rmtree(each)


def _spec(config: Config, codecs: Codecs) -> Spec:
    """The fields of a row of the store."""
    names = {name: f"observation/{name}" for name in config.fields}
    fields = [
        Field(names[f.name], f.dtype.name, f.shape, default_codec(f.dtype, f.shape))
        for f in config.fields.values()
    ]
    spec = Spec((*fields, Field("reward", "float64", (), "narrow")), names, [])
    if codecs is None:
        return spec
    if isinstance(codecs, str):
        return spec.with_codecs({"observation": codecs})
    return spec.with_codecs({f"observation/{name}": codec for name, codec in codecs.items()})
