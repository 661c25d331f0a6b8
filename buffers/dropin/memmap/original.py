"""Reads the folders that memmap-replay-buffer wrote, and never writes into one.

A folder holds ``metadata.pkl`` (the config), ``<field>.data.npy`` [slots, steps, *shape],
``<meta field>.data.meta.npy`` [slots, *shape] and three counters ``<name>.state.npy``. In a full
ring the counter ``episode_index`` is the slot of the oldest episode, which the next one replaces.
"""

from __future__ import annotations

import os
import pickletools  # only lists the opcodes of a pickle; executes none
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np
from numpy.lib.format import open_memmap

from ...base.errors import StoreCorrupt, StoreNotFound
from ...base.untrusted_files import GivenFiles
from .config import DTYPES, Config, MemmapField

_CONFIG: Final = "metadata.pkl"
_SLOT_BYTES: Final = 64
_H5: Final = "data.h5"
_MOST: Final = 2**31 - 1  # the original counts in int32
_KEYS: Final = ("max_episodes", "max_timesteps", "fields", "meta_fields", "circular")
_INTERNAL: Final = {
    "episode_lens": MemmapField("episode_lens", "int", (), 0),
    "_initted": MemmapField("_initted", "bool", (), False),
}
"""The meta fields that the original adds itself."""
_Counter = Literal["num_episodes", "episode_index", "timestep_index"]


@dataclass(frozen=True, slots=True)
class OriginalEpisode:
    """One episode of a folder of memmap-replay-buffer.

    Args:
        slot: Its index in the original's arrays.
        fields: Arrays [T, *shape] by name, copies, with T the episode's steps.
        metadata: Arrays [*shape] by name, copies.
    """

    slot: int
    fields: Mapping[str, np.ndarray]
    metadata: Mapping[str, np.ndarray]

    @property
    def steps(self) -> int:
        """Number of env steps T."""
        return len(next(iter(self.fields.values())))


class OriginalFolder:
    """The finished episodes of a folder that memmap-replay-buffer 0.1 or 0.2 wrote, oldest first.

    Nothing is unpickled: the config is read as plain values or not at all. Config, counters and
    arrays are checked against each other before anything is used. No process may write into the
    folder meanwhile; the original takes no lock, so this cannot be detected.

    Args:
        folder: The folder.
        config: Replaces ``metadata.pkl`` if that cannot be read: the arguments ``max_episodes,
            max_timesteps, fields, meta_fields, circular`` of the original buffer.
        max_bytes: Memory limit of one episode; None for half of the free memory.

    Raises:
        StoreNotFound: The folder does not exist, or is of another kind.
        StoreCorrupt: A file is missing, truncated, or does not match the config.
        ValueError: The config holds anything but plain values, or is invalid.

    Example:
        >>> OriginalFolder("replay_data")
        Traceback (most recent call last):
        ...
        stepwell.buffers.base.errors.StoreNotFound: replay_data: expected a folder of \
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
            for field in self._config.fields.values()
        }
        self._metadata = {
            field.name: self._array(f"{field.name}.data.meta.npy", field, shape[:1])
            for field in self._config.meta_fields.values()
        }
        # The file may be sparse, so its size on disk does not bound the memory for the slots.
        self._files.budget(self._folder).take(_SLOT_BYTES * self._config.max_episodes)
        internal = [
            self._array(f"{f.name}.data.meta.npy", f, shape[:1]) for f in _INTERNAL.values()
        ]
        self._lens, self._is_begun = (np.array(array) for array in internal)
        self._counters: dict[str, int] = {
            name: self._counter(name, most) for name, most in _limits(self._config).items()
        }
        self._check_lens()
        self._slots, self._left_out = self._finished()

    @property
    def config(self) -> Config:
        """The arguments of the original buffer."""
        return self._config

    @property
    def steps(self) -> int:
        """Env steps of all finished episodes."""
        return int(self._lens[self._slots].sum(dtype=np.int64))

    @property
    def left_out(self) -> tuple[str, ...]:
        """Episodes that are left out or doubtful, and why; one clause each."""
        return self._left_out

    def __len__(self) -> int:
        """Number of finished episodes."""
        return len(self._slots)

    def __iter__(self) -> Iterator[OriginalEpisode]:
        """Read the episodes one at a time, the oldest first."""
        for slot in self._slots.tolist():
            steps = int(self._lens[slot])
            budget = self._files.budget(f"{self._folder}: slot {slot}")
            budget.take(sum(array[slot, :steps].nbytes for array in self._data.values()))
            budget.take(sum(array[slot].nbytes for array in self._metadata.values()))
            yield OriginalEpisode(
                slot,
                {name: np.array(array[slot, :steps]) for name, array in self._data.items()},
                {name: np.array(array[slot]) for name, array in self._metadata.items()},
            )

    def _array(self, file: str, field: MemmapField, leading: tuple[int, ...]) -> np.ndarray:
        """Map a file as an array."""
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
        except Exception as error:  # a damaged header makes NumPy raise many kinds of errors
            expected = f"an array of {field.dtype} in numpy's format"
            raise _damaged(path, expected, f"one that cannot be mapped ({_flat(error)})") from None
        shape = (*leading, *field.shape)
        if array.shape != shape or array.dtype != field.dtype:
            raise StoreCorrupt(
                f"{path} does not fit {_CONFIG}: expected {field.dtype} {shape}, got {array.dtype} "
                f"{array.shape}; copy both again from where they were written"
            )
        return array

    def _counter(self, name: str, most: int) -> int:
        field = MemmapField(name, "int", (), 0)
        value = int(self._array(f"{name}.state.npy", field, ()))
        if not 0 <= value <= most:
            raise _damaged(self._folder / f"{name}.state.npy", f"0 to {most}", f"{value}")
        return value

    def _check_lens(self) -> None:
        wrong = np.flatnonzero((self._lens < 0) | (self._lens > self._config.max_timesteps))
        if wrong.size:
            slot = int(wrong[0])
            expected = f"lengths of 0 to {self._config.max_timesteps}"
            file = self._folder / "episode_lens.data.meta.npy"
            raise _damaged(file, expected, f"{self._lens[slot]} for slot {slot}")

    def _finished(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """The slots of the finished episodes by age, and notes about the others."""
        config = self._config
        count, newest, steps = (self._counters[name] for name in _limits(config))
        ring = (newest + np.arange(config.max_episodes)) % config.max_episodes
        is_full = count == config.max_episodes
        notes: list[str] = []
        if is_full:
            # A slot is marked when an episode starts in it, and unmarked when the one before ends.
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
        """Notes about slots without a finished episode."""
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
        """A note about slots after an unfinished episode that may be of the same batch."""
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


def _limits(config: Config) -> dict[_Counter, int]:
    """The counters and their greatest valid values."""
    return {
        "num_episodes": config.max_episodes,
        "episode_index": config.max_episodes - 1,
        "timestep_index": config.max_timesteps,
    }


def _damaged(file: Path, expected: str, got: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"{file} is damaged: expected {expected}, got {got}; copy the folder again from where it "
        f"was written"
    )


def _no_folder(folder: Path, got: str) -> StoreNotFound:
    return StoreNotFound(
        f"{folder}: expected a folder of memmap-replay-buffer, which has a {_CONFIG}, got {got}; "
        f"name the folder that its ReplayBuffer was given"
    )


def _config_of(files: GivenFiles, config: Mapping[str, object] | None) -> Config:
    folder = files.path
    path = folder / _CONFIG
    if not folder.is_dir():
        got = "a file" if folder.exists() else "no folder"
        raise _no_folder(folder, got)
    if (folder / _H5).exists():
        raise StoreNotFound(
            f"{folder}: expected a folder of memmap-replay-buffer's ReplayBuffer, got one of its "
            f"ReplayBufferH5PY ({_H5}); store its episodes in a ReplayBuffer with store_episode"
        )
    if config is not None:
        return parse_config("config", config)
    if not path.is_file():
        raise _no_folder(folder, "one without")
    with files.file(path).open("rb") as file:
        # One byte too many tells `read_plain_pickle` that the file is too long, however long it is.
        data = file.read(MOST_BYTES + 1)
    try:
        plain = read_plain_pickle(str(path), data)
    except ValueError as error:
        raise ValueError(
            f"{error}; OriginalFolder(folder, config=...) reads the folder without this file"
        ) from None
    return parse_config(str(path), plain)


def parse_config(what: str, config: object) -> Config:
    """Check the original's arguments, in a config named ``what``."""
    try:
        return _config(config)
    except ValueError as error:
        raise ValueError(
            f"{what}: expected {error}; Stepwell reads configs of memmap-replay-buffer 0.1 and 0.2"
        ) from None


def _config(config: object) -> Config:
    """The original's arguments; a ValueError says what was expected, and what there is."""
    arguments = _named("the config", config)
    odd = sorted(arguments.keys() ^ set(_KEYS))
    if odd:
        problem = "none for" if odd[0] in _KEYS else "one for"
        raise ValueError(f"values for {', '.join(_KEYS)} alone, got {problem} {odd[0][:80]!r}")
    if not isinstance(arguments["circular"], bool):
        raise ValueError(f"circular to be True or False, got {_describe(arguments['circular'])}")
    fields, meta_fields = (
        {name: _field(key, name, info) for name, info in _named(key, arguments[key]).items()}
        for key in ("fields", "meta_fields")
    )
    # The original cannot have other names, such as a path.
    invalid = [name for name in fields if not name.isidentifier()]
    invalid += [name for name in meta_fields if set(name) & set("/\\\0")]
    if invalid or not fields:
        got = f"the name {invalid[0][:80]!r}" if invalid else "no field"
        raise ValueError(f"fields with names such as 'state', got {got}")
    twice = fields.keys() & (meta_fields.keys() | _INTERNAL.keys())
    if twice:
        raise ValueError(f"fields and meta_fields of different names, got {min(twice)!r} in both")
    for name, internal in _INTERNAL.items():
        given = meta_fields.pop(name, internal)
        if given.type != internal.type:
            raise ValueError(f"{name} to be {internal.type!r}, got {given.type!r}")
    limits = [_whole(name, arguments[name]) for name in ("max_episodes", "max_timesteps")]
    return Config(limits[0], limits[1], fields, meta_fields, arguments["circular"])


def _named(part: str, value: object) -> Mapping[str, object]:
    """Check that a value is a mapping whose keys are strings."""
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, object]", value)
        if all(isinstance(key, str) for key in mapping):
            return mapping
    raise ValueError(f"{part} to be a dict whose keys are names, got {_describe(value)}")


def _field(part: str, name: str, info: object) -> MemmapField:
    items = list(cast("tuple[object, ...]", info)) if isinstance(info, tuple | list) else [info]
    type_, shape = [*items, *(None, ())[len(items) :]][:2]
    if isinstance(shape, int) and not isinstance(shape, bool):
        shape = (shape,)
    is_known = isinstance(type_, str) and type_ in DTYPES and 1 <= len(items) <= 3
    if not (is_known and _is_shape(shape)):
        raise ValueError(
            f"each of {part} to have a type ({', '.join(DTYPES)}) and a shape of whole numbers, "
            f"got something else for {name[:80]!r}"
        )
    return MemmapField(name, cast("Any", type_), tuple(cast("tuple[int, ...]", shape)), 0)


def _is_shape(shape: object) -> bool:
    if not isinstance(shape, tuple | list) or len(shape) > 30:  # numpy has at most 64 axes
        return False
    sizes = cast("tuple[object, ...]", shape)
    return all(
        isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= _MOST
        for size in sizes
    )


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
        raise ValueError(f"{name} to be a whole number from 1 to {_MOST}, got {_describe(value)}")
    return value


def _describe(value: object) -> str:
    """Describe a value of any size in few characters."""
    if isinstance(value, int) and abs(value) > _MOST:
        return "a larger one" if value > 0 else "a smaller one"
    if value is None or isinstance(value, int | float):
        return repr(value)
    return f"{value[:40]!r}" if isinstance(value, str) else f"a {type(value).__name__}"


def _flat(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


MOST_BYTES: Final = 1 << 16  # the original's configs have some hundred
_VALUES: Final = frozenset(
    "BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE BINUNICODE".split()
)
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


class _Refused(Exception):
    """An opcode that builds anything but a plain value."""


def read_plain_pickle(name: str, data: bytes) -> object:
    """Read a pickle of dicts, lists, tuples, strings, numbers, bools and None, at most 64 KiB."""
    # A pickle is a program that may call anything. Only the opcodes that build these values are
    # executed, by this function, so nothing in the pickle is ever called.
    if len(data) > MOST_BYTES:
        raise ValueError(
            f"{name}: expected a pickle of at most {MOST_BYTES:,} bytes, got {len(data):,}; it is "
            f"not the config of a replay buffer"
        )
    try:
        return _value(data)
    except _Refused as refused:
        raise ValueError(
            f"{name}: expected plain values as Python 3.8 and newer write them, got the pickle "
            f"opcode {refused}; nothing of it was run"
        ) from None
    # A damaged file can raise any of these, in genops or in an opcode.
    except (ValueError, IndexError, TypeError) as error:
        raise ValueError(
            f"{name}: expected a whole pickle, got one that is damaged ({_flat(error)}); copy the "
            f"file again from where it was written"
        ) from None


def _value(data: bytes) -> object:
    stack: list[Any] = []
    below: list[list[Any]] = []  # the stacks below each mark
    memo: list[Any] = []
    argument: Any
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if name == "EMPTY_DICT" else [])
        elif name == "MEMOIZE":
            memo.append(stack[-1])
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "MARK":
            below.append(stack)
            stack = []
        elif name in ("TUPLE", "APPENDS", "SETITEMS"):
            items, stack = stack, below.pop()
            _build(name, stack, items)
        elif name in _TAKEN:
            if len(stack) < _TAKEN[name]:
                raise IndexError("a value is missing")
            items = stack[-_TAKEN[name] :]
            del stack[-_TAKEN[name] :]
            _build(name, stack, items)
        elif name == "STOP":
            if below or len(stack) != 1:
                raise IndexError("it ends within a value")
            return stack[0]
        elif name not in ("PROTO", "FRAME"):
            shown = "" if argument is None else f" ({str(argument)[:80]!r})"
            raise _Refused(f"{name}{shown}")
    raise AssertionError  # genops ends with STOP, or raises


_TAKEN: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2}
"""Opcodes that take some values, and how many."""


def _build(name: str, stack: list[Any], items: list[Any]) -> None:
    """Make a tuple of items, or add them to the list or dict on the stack."""
    if name.startswith("TUPLE"):
        stack.append(tuple(items))
    elif name.startswith("APPEND") and type(stack[-1]) is list:
        stack[-1].extend(items)
    elif name.startswith("SETITEM") and type(stack[-1]) is dict:
        # Strings only: a deeply nested tuple can take exponential time to hash.
        if not all(isinstance(key, str) for key in items[::2]):
            raise TypeError("it holds a dict whose keys are not all text")
        stack[-1].update(zip(items[::2], items[1::2], strict=True))
    else:
        raise TypeError("it adds to something that is neither a list nor a dict")
