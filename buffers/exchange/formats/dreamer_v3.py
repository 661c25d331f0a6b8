"""The replay of DreamerV3 (Hafner et al., 2023): chains of npz files, one chain for each env."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import string
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as default
from pathlib import Path
from typing import Final, Literal

import numpy as np

from ...base.number_checks import check_whole
from ...base.untrusted_files import GivenFiles
from ...rows.episode import End, Episode
from ...rows.step_columns import Rounded, inferred_spec
from ...spec.spec import Field, Spec, kind_of
from .episode_reader import EpisodeReader, FoundEpisode
from .file_columns import as_rewards
from .format import Format, Reader, Source, stack_notes

_NO_CHUNK: Final = bytes(16)
"""The id in the name of a chunk without a successor."""

_DIGITS: Final = string.digits + string.ascii_letters
_NAME: Final = re.compile(r"([^-]+)-([0-9A-Za-z]{22})-([0-9A-Za-z]{22})-([0-9]+)\.npz")
# Earlier than chunks that DreamerV3 writes itself: if not all fit, it loads the newest by name.
_EPOCH: Final = datetime.datetime(2000, 1, 1)
_FLAGS = ("is_first", "is_last", "is_terminal")
_RESERVED = ("reward", *_FLAGS, "stepid", "consec", "reset", "priority")
_PREFIXES = ("log", "enc", "dyn", "dec")
_WIDE = ("int64", "uint32", "uint64")  # numbers as DreamerV3 has them are int32
_CHANNELS: Final = (1, 3, 4)  # numbers of them in pictures
_Rows = dict[str, np.ndarray]
_TERMINAL: Final = (
    "is_terminal was set in {} rows in the middle of episodes (a lost life, perhaps), which "
    "Stepwell cannot represent: it is ignored there"
)
_LATENTS: Final = ("enc", "dyn", "dec")


@dataclass(frozen=True, slots=True)
class DreamerV3Export:
    """Options for writing DreamerV3's chunks.

    Args:
        chunk: Rows of a file; rows not written yet are kept in RAM, per stream.
        observation: Name of the array, where the observation is not a Dict; none: image for
            pictures, vector for others.
        channels: Position of the channels of pictures; none: inferred from the shape.
    """

    chunk: int = 1024
    observation: str | None = None
    channels: Literal["first", "last"] | None = None


@dataclass(frozen=True, slots=True)
class DreamerV3Import:
    """Options for reading DreamerV3's chunks; the defaults fit what Stepwell exports.

    Args:
        actions: Names of the arrays that are actions, with commas between them.
    """

    actions: str = "action"


class DreamerV3Format(Format):
    """``<time>-<chunk>-<next chunk>-<rows>.npz``: each row has an observation and its reward."""

    # Each row has `image` (or `vector`, or the keys of a Dict), `reward` float32, `is_first`,
    # `is_last`, `is_terminal`, `stepid` uint8 [20], and the `action` that was chosen from it; the
    # last observation of an episode has a row, too. Each stream is a chain of files.

    name = "dreamerv3"
    about = "the replay chunks that DreamerV3 loads; needs only numpy"
    export_options = DreamerV3Export
    import_options = DreamerV3Import

    def writer(self, source: Source, options: DreamerV3Export) -> _DreamerV3Writer:
        """A writer of one folder."""
        return _DreamerV3Writer(source, options)

    def reader(self, files: GivenFiles, options: DreamerV3Import) -> Reader:
        """Open a data set."""
        if not files.path.is_dir():
            raise FileNotFoundError(
                f"{files.path}: expected a folder of DreamerV3's, got no folder"
            )
        return _DreamerV3Reader(files, options.actions)

    def loading(self, path: Path, out: str) -> str:
        """The lines that load it among DreamerV3's sources."""
        return (
            "from embodied.core.replay import Replay  # in DreamerV3's folder\n"
            f'replay = Replay(length=64, directory="{path}")\n'
            "replay.load()"
        )


class _DreamerV3Writer:
    """Writes rows of several streams, each as a chain of chunks; the last one is shorter."""

    # Names and bytes follow from the store's facts and the rows: the same export writes the same
    # files, and chunks of another store have other numbers.

    def __init__(self, source: Source, options: DreamerV3Export) -> None:
        check_whole("option chunk", options.chunk, 1)
        self._source = source
        self._options = options
        self._fields = _array_fields(source.spec, options.observation)
        self._rounded: dict[str, Rounded] = {}
        self._folder = Path()
        self._facts = b""
        self._chains: dict[int, _Chain] = {}  # by stream
        self._chunks = 0

    @property
    def notes(self) -> Sequence[str]:
        found = [
            "it holds no latents of DreamerV3's: run it with replay_context 0",
            *(note for rounded in self._rounded.values() for note in rounded.notes),
        ]
        for field in self._fields.values():
            is_last = len(field.shape) == 3 and not self._has_channels_first(field)
            if _is_picture(field) and not is_last:
                found.append(f"{field.name} {field.shape} is written as (H, W, C)")
            if _chunk_dtype(field) != field.numpy_dtype and field.dtype != "float64":
                found.append(f"{field.name} is written as {_chunk_dtype(field)}, exactly")
        found += stack_notes(self._source.spec, "which DreamerV3 does not stack")
        others = [field.name for field in self._source.spec.of_kind("info", "extra")]
        if others:
            found.append(
                f"DreamerV3 refuses arrays that it does not know: {', '.join(others)} "
                f"{'is' if len(others) == 1 else 'are'} left out"
            )
        actions = [key for key, field in self._fields.items() if field.kind == "action"]
        if actions != ["action"]:
            found.append(
                f"it does not say which arrays are actions: import it with option "
                f"actions={','.join(actions)}"
            )
        return found

    def begin(self, path: Path) -> None:
        facts = {"spec": self._source.spec.to_json(), "sessions": list(self._source.sessions)}
        self._folder, self._facts = path, json.dumps(facts).encode()

    def write(self, episode: Episode) -> None:
        rows = {name: self._converted(field, episode) for name, field in self._fields.items()}
        rows["reward"] = self._as_float32("reward", episode.reward)
        flags = np.zeros((3, episode.rows), np.bool_)
        # An episode that lost its beginning does not continue the one before it.
        flags[0, 0] = True
        flags[1, -1] = episode.end.is_final
        flags[2, -1] = bool(episode.end & End.TERMINATED)
        rows |= dict(zip(_FLAGS, flags, strict=True))
        chain, start = self._chains.setdefault(episode.stream, _Chain()), 0
        while start < episode.rows:
            if not chain.count:
                chain.number = self._chunks
                self._chunks += 1
            stop = min(episode.rows, start + self._options.chunk - chain.count)
            chain.blocks.append({key: np.array(column[start:stop]) for key, column in rows.items()})
            chain.count += stop - start
            start = stop
            if chain.count == self._options.chunk:
                self._write_chunk(episode.stream, chain)

    def finish(self) -> None:
        for stream, chain in self._chains.items():
            if chain.count:
                self._write_chunk(stream, chain)

    def close(self) -> None:
        pass

    def _write_chunk(self, stream: int, chain: _Chain) -> None:
        """Write a chunk, and rename the one before to name its successor."""
        arrays = _concatenated(chain.blocks)
        before = self._facts if chain.last is None else chain.last[1]
        uuid = _uuid_of(stream, before, arrays)
        arrays["stepid"] = _step_ids(uuid, chain.count)
        chunk = chain.number, uuid, chain.count
        write_arrays(self._folder / _file_name(*chunk), arrays)
        if chain.last is not None:
            last = self._folder / _file_name(*chain.last)
            last.rename(self._folder / _file_name(*chain.last, follows=uuid))
        chain.last, chain.blocks, chain.count = chunk, [], 0

    def _as_float32(self, name: str, rows: np.ndarray) -> np.ndarray:
        return self._rounded.setdefault(name, Rounded(name, "float32")).cast(rows)

    def _has_channels_first(self, field: Field) -> bool:
        """True for pictures [C, H, W]; where their place is unknown, the last axis is channels."""
        shape = _frame_shape(field)
        if len(shape) == 3 and self._options.channels is None:
            return shape[-1] not in _CHANNELS and shape[0] in _CHANNELS
        return len(shape) == 3 and self._options.channels == "first"

    def _converted(self, field: Field, episode: Episode) -> np.ndarray:
        """A field's rows as the chunk has them; pictures are [T, H, W, C] in it."""
        rows, dtype = episode.fields[field.name], _chunk_dtype(field)
        if field.kind == "action" and rows.dtype.kind in "iu" and rows.size and rows.min() < 0:
            raise ValueError(
                f"episode {episode.id}: expected {field.name!r} to count from 0, got "
                f"{rows.min()}; DreamerV3 makes one-hot vectors of them: number them from 0"
            )
        if rows.dtype == np.float64:
            return self._as_float32(field.name, rows)
        if rows.dtype != dtype and rows.size:
            low, high = int(rows.min()), int(rows.max())
            if low < -(2**31) or high >= 2**31:
                raise ValueError(
                    f"episode {episode.id}: expected {field.name!r} to fit into int32, as "
                    f"DreamerV3 has whole numbers, got {low} to {high}; make floats of them"
                )
        if _is_picture(field):
            rows = rows.reshape(len(rows), *_frame_shape(field))
            rows = np.moveaxis(rows, 1, -1) if self._has_channels_first(field) else rows
            rows = rows[..., None] if rows.ndim == 3 else rows
        return rows.astype(dtype, copy=False)


def _array_fields(spec: Spec, observation: str | None) -> dict[str, Field]:
    """The fields of a chunk by array name: ``image`` or ``vector``, if neither a Dict nor named."""
    if observation is not None and not isinstance(spec.observation, str):
        raise ValueError(
            f"option observation: expected none, as the parts of this observation have names, "
            f"got {observation!r}; leave it out"
        )
    fields: dict[str, Field] = {}
    for field in (*spec.of_kind("observation"), *spec.of_kind("action")):
        name = field.key or "action"
        if field.kind == "observation":
            name = field.key or observation or ("image" if _is_picture(field) else "vector")
        if name in _RESERVED or name.split("/")[0] in _PREFIXES or name in fields:
            raise ValueError(
                f"DreamerV3 keeps observations and actions by their keys: expected keys apart "
                f"from {', '.join(_RESERVED)} and {', '.join(p + '/' for p in _PREFIXES)}, each "
                f"once, got {name!r}; rename it with a wrapper, or give option observation"
            )
        fields[name] = field
    return fields


def _frame_shape(field: Field) -> tuple[int, ...]:
    """The shape of a picture, without the axis of a frame stack of length 1."""
    shape = field.shape
    return shape[1:] if len(shape) == 4 and shape[0] == 1 else shape


def _is_picture(field: Field) -> bool:
    is_bytes = field.kind == "observation" and field.dtype == "uint8"
    return is_bytes and len(_frame_shape(field)) in (2, 3)


def _chunk_dtype(field: Field) -> np.dtype[np.generic]:
    if field.dtype in _WIDE:
        return np.dtype(np.int32)
    return np.dtype(np.float32) if field.dtype == "float64" else field.numpy_dtype


def base62(uuid: bytes) -> str:
    """The form that the 16 bytes of a chunk's id have in its name: 22 characters."""
    number = int.from_bytes(uuid)
    digits = ""
    for _ in range(22):
        number, digit = divmod(number, 62)
        digits = _DIGITS[digit] + digits
    return digits


def from_base62(text: str) -> bytes:
    """The 16 bytes of an id in a name."""
    number = 0
    for char in text:
        number = number * 62 + _DIGITS.index(char)
    try:
        return number.to_bytes(16)
    except OverflowError:
        raise ValueError(f"expected a chunk's number below 2**128, got {text!r}") from None


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A file of consecutive rows of one stream, as its name describes it."""

    file: Path
    uuid: bytes  # 16 bytes that no other chunk has
    follows: bytes  # those of the next chunk; `_NO_CHUNK` at the end
    rows: int

    @classmethod
    def named(cls, file: Path) -> _Chunk:
        """The chunk that a file's name describes."""
        match = _NAME.fullmatch(file.name)
        if match is None:
            raise ValueError(
                f"{file}: expected a name such as 20260131T235959F000000-<22 letters>-<22 letters>-"
                f"1024.npz, got another; remove the file if it is not a chunk of DreamerV3's"
            )
        _, uuid, follows, rows = match.groups()
        return cls(file, from_base62(uuid), from_base62(follows), int(rows))


@dataclass(slots=True, eq=False)
class _Chain:
    """Unwritten rows of one stream, and the last chunk that was written."""

    blocks: list[_Rows] = default(default_factory=list)
    count: int = 0
    number: int = 0  # of the chunk that they will be
    last: tuple[int, bytes, int] | None = None  # its number, id and rows


def write_arrays(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an npz file, compressed; numpy's own function takes no array called ``file``."""
    with zipfile.ZipFile(file, "x", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            # opened by its name, an entry has no time in it
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def _read_chunk(given: GivenFiles, chunk: _Chunk) -> dict[str, np.ndarray]:
    """All arrays of a chunk, without ``stepid``."""
    file = chunk.file
    arrays = given.read_arrays(file)
    ids = arrays.pop("stepid", None)
    # check the length first: a name may claim any number of rows
    if (
        ids is None
        or ids.shape != (chunk.rows, 20)
        or not np.array_equal(ids, _step_ids(chunk.uuid, chunk.rows))
    ):
        raise ValueError(
            f"{file}: expected 'stepid' to hold the chunk and the rows 0 to {chunk.rows - 1:,}, as "
            f"the name does, got other ones; the file was renamed or changed: restore it"
        )
    for name, array in arrays.items():
        if not array.ndim or len(array) != chunk.rows:
            raise ValueError(
                f"{file}: expected {chunk.rows:,} rows, as the name says, got {name!r} of shape "
                f"{array.shape}; restore or remove it"
            )
    return arrays


def _chains_of(folder: Path) -> list[list[_Chunk]]:
    """The chunks of a folder in the order of their rows: one list for each stream."""
    chunks = [_Chunk.named(file) for file in sorted(folder.glob("*.npz"))]
    if not chunks:
        raise ValueError(f"{folder}: expected chunks of DreamerV3's named *.npz, got none")
    by_uuid = {chunk.uuid: chunk for chunk in chunks}
    before = {chunk.follows: chunk for chunk in chunks if chunk.follows in by_uuid}
    for chunk in chunks:
        for other in (by_uuid[chunk.uuid], before.get(chunk.follows, chunk)):
            if other is not chunk:
                raise ValueError(
                    f"{folder}: expected chunks of which each follows one other at most, got "
                    f"{chunk.file.name} and {other.file.name}; remove the one that does not belong "
                    f"there"
                )
    chains: list[list[_Chunk]] = []
    for chunk in chunks:
        if chunk.uuid not in before:
            chains.append([chunk])
            while chunk.follows in by_uuid:
                chunk = by_uuid[chunk.follows]
                chains[-1].append(chunk)
    if sum(map(len, chains)) < len(chunks):
        in_chains = {chunk.uuid for chain in chains for chunk in chain}
        first = next(chunk for chunk in chunks if chunk.uuid not in in_chains)
        raise ValueError(
            f"{folder}: expected chains of chunks, got a circle with {first.file.name}; restore "
            f"the names"
        )
    return chains


def _file_name(number: int, uuid: bytes, rows: int, follows: bytes = _NO_CHUNK) -> str:
    time = (_EPOCH + datetime.timedelta(seconds=number)).strftime("%Y%m%dT%H%M%SF%f")
    return f"{time}-{base62(uuid)}-{base62(follows)}-{rows}.npz"


def _uuid_of(stream: int, before: bytes, arrays: Mapping[str, np.ndarray]) -> bytes:
    """16 bytes derived from a chunk's content and from all chunks before it."""
    found = hashlib.blake2b(before + stream.to_bytes(8), digest_size=16)
    for name, array in arrays.items():
        found.update(f"{name} {array.dtype.str} {array.shape};".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.digest()


def _step_ids(uuid: bytes, rows: int) -> np.ndarray:
    """uint8 [rows, 20]: the chunk, and the row's number, most significant byte first."""
    ids = np.empty((rows, 20), np.uint8)
    ids[:, :16] = np.frombuffer(uuid, np.uint8)
    ids[:, 16:] = np.arange(rows, dtype=">u4").view(np.uint8).reshape(rows, 4)
    return ids


class _DreamerV3Reader(EpisodeReader):
    """Reads DreamerV3's chunks; ``actions`` are names of arrays, with commas between them."""

    def __init__(self, given: GivenFiles, actions: str) -> None:
        super().__init__(
            "metadata are not recorded; each chain of chunks becomes a separate stream"
        )
        self._given = given
        self._chains = _chains_of(given.path)
        self._actions = [name.strip() for name in actions.split(",")]
        self._headless = Counter[bytes]()
        first = self._chains[0][0]
        arrays = _read_chunk(given, first)
        _check_keys(arrays, [*_FLAGS, "reward", *self._actions], first)
        self._names = self._field_names(list(arrays))
        self._shapes = {name: _form_of(array) for name, array in arrays.items()}
        columns, _ = self._columns(arrays)
        self.spec = inferred_spec(columns, str(first.file))

    @property
    def notes(self) -> Sequence[str]:
        headless = [rows for rows in self._headless.values() if rows]
        found = [
            f"{len(headless):,} chains begin within an episode, whose first chunk is not here: "
            f"{sum(headless):,} rows before their first reset are left out"
        ]
        first, *others = super().notes
        return [first, *(found if headless else []), *others]

    def _found(self) -> Iterator[FoundEpisode]:
        self._headless.clear()
        is_empty = True
        for stream, chain in enumerate(self._chains):
            for number, rows in enumerate(self._episodes(chain)):
                yield self._episode(number, stream, rows)
                is_empty = False
        if is_empty:
            raise ValueError(
                f"{self._chains[0][0].file}: expected a reset (is_first) in one row of the chunks, "
                f"got none: the chunk before is missing; put it back"
            )

    def _episodes(self, chain: Sequence[_Chunk]) -> Iterator[_Rows]:
        """Rows from each reset to the next one; rows before the first reset are left out."""
        blocks: list[_Rows] = []
        budget = self._given.budget(chain[0].file)
        for chunk in chain:
            arrays = _read_chunk(self._given, chunk)
            shapes = {name: _form_of(array) for name, array in arrays.items()}
            if shapes != self._shapes:
                name = next(
                    n for n in [*shapes, *self._shapes] if shapes.get(n) != self._shapes.get(n)
                )
                raise ValueError(
                    f"{chunk.file}: expected {name!r} as in the first chunk, "
                    f"{self._shapes.get(name, 'not at all')}, got {shapes.get(name, 'none')}; "
                    f"import it separately"
                )
            resets = np.flatnonzero(arrays["is_first"])
            if not blocks:  # what comes before a chain's first reset is of a chunk that is gone
                self._headless[chain[0].uuid] += int(resets[0]) if len(resets) else chunk.rows
            for start, stop in zip([0, *resets], [*resets, chunk.rows], strict=True):
                if start in resets and blocks:
                    yield _concatenated(blocks)
                    blocks, budget = [], self._given.budget(chunk.file)
                if stop > start and (blocks or start in resets):
                    blocks.append({name: array[start:stop] for name, array in arrays.items()})
                    budget.take(sum(array.nbytes for array in blocks[-1].values()))
        if blocks:
            yield _concatenated(blocks)

    def _episode(self, number: int, stream: int, rows: _Rows) -> FoundEpisode:
        """An episode of rows, the n-th of its stream."""
        last, terminal = rows["is_last"], rows["is_terminal"]
        where = f"stream {stream}, episode {number}"
        if last[:-1].any():
            raise ValueError(
                f"{where}: expected a reset (is_first) behind is_last, got none at row "
                f"{last.argmax() + 1} of it; restore the chunks"
            )
        self._notes.count(_TERMINAL, int(terminal[:-1].sum()) + int(terminal[-1] and not last[-1]))
        end = End.NONE
        if last[-1]:
            end = End.TERMINATED if terminal[-1] else End.TRUNCATED
        columns, edges = self._columns({**rows, "reward": as_rewards(rows["reward"], where)})
        return FoundEpisode(where, columns, end, edges=edges, stream=stream)

    def _field_names(self, keys: Sequence[str]) -> dict[str, str]:
        """Field names by array name."""
        names = {"reward": "reward"}
        for key in self._actions:
            names[key] = "action" if len(self._actions) == 1 else f"action/{key}"
        others = [key for key in keys if key not in (*names, *_FLAGS)]
        latents = [key for key in others if key.split("/")[0] in _LATENTS and "/" in key]
        observed = [key for key in others if key not in latents]
        for key in observed:
            names[key] = "observation" if len(observed) == 1 else f"observation/{key}"
        return {**names, **{key: f"extra/{key}" for key in latents}}

    def _columns(self, rows: _Rows) -> tuple[_Rows, _Rows]:
        """Columns by field name, and the values outside of the steps: all rows have all fields."""
        named = {name: rows[key] for key, name in self._names.items()}
        inner = {"reward": np.s_[1:], "action": np.s_[:-1], "extra": np.s_[:-1]}
        outer = {"reward": np.s_[:1], "action": np.s_[-1:], "extra": np.s_[-1:]}
        columns = {name: part[inner.get(kind_of(name), np.s_[:])] for name, part in named.items()}
        edges = {
            name: part[outer[kind_of(name)]]
            for name, part in named.items()
            if kind_of(name) in outer
        }
        return columns, edges


def _concatenated(blocks: Sequence[_Rows]) -> _Rows:
    """Blocks of rows as one; those of a single block are copied."""
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def _form_of(array: np.ndarray) -> str:
    return f"{array.dtype} {array.shape[1:]}"


def _check_keys(arrays: _Rows, expected: Sequence[str], chunk: _Chunk) -> None:
    """Reject chunks that lack an array."""
    for name in expected:
        if name not in arrays:
            raise ValueError(
                f"{chunk.file}: expected an array {name!r}, got {', '.join(arrays)} alone; name "
                f"the actions with option actions, or restore the file"
            )
    for name in _FLAGS:
        if arrays[name].dtype != np.bool_ or arrays[name].ndim != 1:
            raise ValueError(
                f"{chunk.file}: expected {name!r} as bool [T], got {_form_of(arrays[name])}"
            )
