"""Reads the folders that memmap-replay-buffer wrote, and never writes into one.

A folder holds ``metadata.pkl`` (the config), ``<field>.data.npy`` [slots, steps, *shape],
``<meta field>.data.meta.npy`` [slots, *shape] and three counters ``<name>.state.npy``. Of a full
ring the counter ``episode_index`` names the slot of the oldest episode, which the next one will be
written over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.lib.format import open_memmap

from stepwell.buffers.dropin.memmap.original_config import (
    OriginalConfig,
    OriginalField,
    checked_config,
)
from stepwell.buffers.dropin.memmap.plain_pickle import MOST_BYTES, read_plain_pickle
from stepwell.buffers.errors import StoreCorrupt, StoreNotFound
from stepwell.buffers.given_files import GivenFiles

__all__ = ["OriginalEpisode", "OriginalFolder"]

_CONFIG: Final = "metadata.pkl"
_SLOT_BYTES: Final = 64
_H5: Final = "data.h5"
_INTERNAL: Final = ("episode_lens", "_initted")
_Counter = Literal["num_episodes", "episode_index", "timestep_index"]


@dataclass(frozen=True, slots=True)
class OriginalEpisode:
    """One episode of such a folder.

    Args:
        slot: Its place in the original's arrays.
        fields: Arrays [T, *shape] by name, T the episode's steps, in memory of their own.
        metadata: Arrays [*shape] by name, in memory of their own.
    """

    slot: int
    fields: Mapping[str, np.ndarray]
    metadata: Mapping[str, np.ndarray]

    @property
    def steps(self) -> int:
        """Its env steps T."""
        return len(next(iter(self.fields.values())))


class OriginalFolder:
    """The finished episodes of a folder that memmap-replay-buffer 0.1 or 0.2 wrote, by age.

    Nothing is unpickled: the config is read as plain values or not at all. What the counters, the
    config and the arrays say of each other is checked before anything is used. Nothing must write
    into the folder meanwhile: the original takes no lock that would tell.

    Args:
        folder: The folder.
        config: What stands in ``metadata.pkl``, where that cannot be read: the arguments
            ``max_episodes, max_timesteps, fields, meta_fields, circular`` that it was made with.
        max_bytes: Memory that one episode may take; None for half of what is free.

    Raises:
        StoreNotFound: It is no folder, or none of this kind.
        StoreCorrupt: A file is missing, not whole, or not what the config says.
        ValueError: The config holds something else than plain values, or makes no sense.

    Example:
        >>> OriginalFolder("replay_data")
        Traceback (most recent call last):
        ...
        stepwell.buffers.errors.StoreNotFound: replay_data: expected a folder of \
memmap-replay-buffer, which has a metadata.pkl, got no folder; name the folder that its \
ReplayBuffer was given
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        config: Mapping[str, object] | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._files = GivenFiles(self._folder, max_bytes)
        self._config = _config_of(self._files, config)
        shape = self._config.max_episodes, self._config.max_timesteps
        self._data = {
            field.name: self._array(f"{field.name}.data.npy", field, shape)
            for field in self._config.fields
        }
        self._metadata = {
            field.name: self._array(f"{field.name}.data.meta.npy", field, shape[:1])
            for field in self._config.meta_fields
        }
        # A file may have holes: of the slots more is kept in memory than of anything else.
        self._files.room(self._folder).take(_SLOT_BYTES * self._config.max_episodes)
        internal = [self._array(f"{f.name}.data.meta.npy", f, shape[:1]) for f in _INTERNAL_FIELDS]
        self._lens, self._is_begun = (np.array(array) for array in internal)
        self._counters: dict[str, int] = {
            name: self._counter(name, most) for name, most in _limits(self._config).items()
        }
        self._check_lens()
        self._slots, self._left_out = self._finished()

    @property
    def path(self) -> Path:
        """The folder."""
        return self._folder

    @property
    def config(self) -> OriginalConfig:
        """What it was made with."""
        return self._config

    @property
    def steps(self) -> int:
        """Env steps of all episodes that are given."""
        return int(self._lens[self._slots].sum(dtype=np.int64))

    @property
    def left_out(self) -> tuple[str, ...]:
        """What is not given, or may not be what it seems, and why: one clause each."""
        return self._left_out

    @property
    def nbytes(self) -> int:
        """Bytes of its files, as a copy of them would take."""
        return sum(file.stat().st_size for file in self._all_files())

    @property
    def disk_bytes(self) -> int:
        """Bytes of the disk that its files take: less, where they were never written to."""
        return sum(getattr(file.stat(), "st_blocks", 0) * 512 for file in self._all_files())

    def __len__(self) -> int:
        """Number of episodes that are given."""
        return len(self._slots)

    def __iter__(self) -> Iterator[OriginalEpisode]:
        """The episodes, the oldest first, read one at a time."""
        for slot in self._slots.tolist():
            steps = int(self._lens[slot])
            room = self._files.room(f"{self._folder}: slot {slot}")
            room.take(sum(array[slot, :steps].nbytes for array in self._data.values()))
            room.take(sum(array[slot].nbytes for array in self._metadata.values()))
            yield OriginalEpisode(
                slot,
                {name: np.array(array[slot, :steps]) for name, array in self._data.items()},
                {name: np.array(array[slot]) for name, array in self._metadata.items()},
            )

    def _all_files(self) -> list[Path]:
        return [file for file in self._folder.iterdir() if file.is_file()]

    def _array(self, file: str, field: OriginalField, leading: tuple[int, ...]) -> np.ndarray:
        """A file as an array that is read when it is asked for."""
        path = self._folder / file
        try:
            self._files.file(path)
        except FileNotFoundError:
            raise StoreCorrupt(
                f"{path} is missing: expected a file for each field of {_CONFIG}; copy the folder "
                f"again from where it was written"
            ) from None
        try:
            array = open_memmap(path, mode="r")
        except OSError:
            raise
        except Exception as error:  # a damaged head lets numpy stumble in many ways
            raise StoreCorrupt(
                f"{path} is damaged: expected an array of {field.dtype} in numpy's format, got one "
                f"that cannot be mapped ({_flat(error)}); copy the folder again from where it was "
                f"written"
            ) from None
        shape = (*leading, *field.shape)
        if array.shape != shape or array.dtype != field.dtype:
            raise StoreCorrupt(
                f"{path} does not fit {_CONFIG}: expected {field.dtype} {shape}, got {array.dtype} "
                f"{array.shape}; copy both again from where they were written"
            )
        return array

    def _counter(self, name: str, most: int) -> int:
        field = OriginalField(name, "int", (), None)
        value = int(self._array(f"{name}.state.npy", field, ()))
        if not 0 <= value <= most:
            raise StoreCorrupt(
                f"{self._folder / name}.state.npy is damaged: expected 0 to {most}, got {value}; "
                f"copy the folder again from where it was written"
            )
        return value

    def _check_lens(self) -> None:
        wrong = np.flatnonzero((self._lens < 0) | (self._lens > self._config.max_timesteps))
        if wrong.size:
            slot = int(wrong[0])
            raise StoreCorrupt(
                f"{self._folder / 'episode_lens.data.meta.npy'} is damaged: expected lengths of 0 "
                f"to {self._config.max_timesteps}, got {self._lens[slot]} for slot {slot}; copy "
                f"the folder again from where it was written"
            )

    def _finished(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """The slots of whole episodes by age, and what is said of the others."""
        config = self._config
        count, newest, steps = (self._counters[name] for name in _limits(config))
        ring = (newest + np.arange(config.max_episodes)) % config.max_episodes
        is_full = count == config.max_episodes
        notes: list[str] = []
        if is_full:
            # A slot is marked when an episode is begun in it, and unmarked when one ends before it.
            is_kept = ring != newest if steps or self._is_begun[newest] else ring >= 0
        elif count == newest:
            is_kept = ring < count
        else:
            is_kept = ring != newest if steps else ring >= 0
            notes.append(
                f"the counters contradict each other (num_episodes {count}, episode_index "
                f"{newest}), as after a process that was killed: every slot with a length counts"
            )
        notes += self._unfinished(ring[~is_kept], is_full)
        empty = int((self._lens[ring[is_kept]] == 0).sum()) if is_full or count == newest else 0
        if empty:
            notes.append(f"{empty:,} episodes without a step")
        return ring[is_kept & (self._lens[ring] > 0)], tuple(notes)

    def _unfinished(self, slots: np.ndarray, is_full: bool) -> list[str]:
        """What is said of slots that hold no whole episode."""
        newest, steps = self._counters["episode_index"], self._counters["timestep_index"]
        notes: list[str] = []
        if steps:
            notes.append(
                f"the episode that was being written in slot {newest}, {steps:,} steps so far"
            )
        elif is_full and len(slots):
            notes.append(
                f"slot {newest}, whose episode was emptied for one that was never finished"
            )
        more = slots[(slots != newest) | (steps == 0)] if not is_full else slots[:0]
        for slot in more[self._lens[more] > 0].tolist():
            notes.append(
                f"slot {slot}, which holds an episode that was given up or being written, "
                f"{self._lens[slot]:,} steps"
            )
        may_be_more = is_full and steps and self._config.circular
        return notes + (self._doubtful() if may_be_more else [])

    def _doubtful(self) -> list[str]:
        """Slots behind an unfinished episode that may have been begun in one batch with it."""
        newest, steps = self._counters["episode_index"], self._counters["timestep_index"]
        slots: list[str] = []
        for place in range(1, self._config.max_episodes):
            slot = (newest + place) % self._config.max_episodes
            if self._lens[slot] != steps or not self._is_begun[slot]:
                break
            slots.append(str(slot))
        if not slots:
            return []
        return [
            f"not left out, but doubtful: the episodes in slots {', '.join(slots)} are as long as "
            f"the unfinished one, and unfinished too if batched_episode wrote them"
        ]


_INTERNAL_FIELDS: Final = (
    OriginalField("episode_lens", "int", (), None),
    OriginalField("_initted", "bool", (), None),
)


def _limits(config: OriginalConfig) -> dict[_Counter, int]:
    """The counters, with the greatest value that each may have."""
    return {
        "num_episodes": config.max_episodes,
        "episode_index": config.max_episodes - 1,
        "timestep_index": config.max_timesteps,
    }


def _config_of(files: GivenFiles, config: Mapping[str, object] | None) -> OriginalConfig:
    folder = files.path
    path = folder / _CONFIG
    if not folder.is_dir():
        got = "a file" if folder.exists() else "no folder"
        raise StoreNotFound(
            f"{folder}: expected a folder of memmap-replay-buffer, which has a {_CONFIG}, got "
            f"{got}; name the folder that its ReplayBuffer was given"
        )
    if (folder / _H5).exists():
        raise StoreNotFound(
            f"{folder}: expected a folder of memmap-replay-buffer's ReplayBuffer, got one of its "
            f"ReplayBufferH5PY ({_H5}); store its episodes in a ReplayBuffer with store_episode"
        )
    if config is not None:
        return checked_config("config", config)
    if not path.is_file():
        raise StoreNotFound(
            f"{folder}: expected a folder of memmap-replay-buffer, which has a {_CONFIG}, got one "
            f"without; name the folder that its ReplayBuffer was given"
        )
    with files.file(path).open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    try:
        plain = read_plain_pickle(str(path), data)
    except ValueError as error:
        raise ValueError(
            f"{error}; OriginalFolder(folder, config=...) reads the folder without this file"
        ) from None
    return checked_config(str(path), plain)


def _flat(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
