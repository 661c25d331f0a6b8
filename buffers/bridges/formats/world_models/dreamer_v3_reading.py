"""Reads chunks of DreamerV3's replay: those that Stepwell wrote, and its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from stepwell.buffers.bridges.formats.record import Beside, rebuilt
from stepwell.buffers.bridges.formats.world_models.dreamer_v3_chunks import (
    NO_CHUNK,
    Chunk,
    chains_of,
    read_chunk,
)
from stepwell.buffers.bridges.formats.world_models.dreamer_v3_keys import FLAGS, Keys
from stepwell.buffers.curation.step_columns import inferred_spec
from stepwell.buffers.episode import End, Episode
from stepwell.buffers.given_files import GivenFiles
from stepwell.buffers.spec import Spec

__all__ = ["KEYS_FILE", "ExportedChunks", "ForeignChunks"]

KEYS_FILE: Final = "keys.json"

_Rows = dict[str, np.ndarray]
_LATENTS: Final = ("enc", "dyn", "dec")


class ExportedChunks:
    """Reads what Stepwell wrote.

    Args:
        given: The data set.
        beside: What was kept beside.

    Raises:
        ValueError: It is damaged, or chunks are missing.
    """

    def __init__(self, given: GivenFiles, beside: Beside) -> None:
        self._given = given
        self._beside = beside
        self._folder = beside.folder.parent
        record = beside.record()
        told = beside.told(KEYS_FILE)
        observation, channels = told.get("observation"), told.get("channels")
        is_name = observation is None or isinstance(observation, str)
        if not is_name or channels not in (None, "first", "last"):
            raise ValueError(
                f"{beside.folder / KEYS_FILE}: expected what Stepwell noted about the keys, got "
                f"{str(told)[:200]}: remove {beside.folder} to read what is there"
            )
        self._keys = Keys(record.spec, observation, channels)
        self._chains = chains_of(self._folder)
        for chain in self._chains:
            if chain[-1].follows != NO_CHUNK:
                raise ValueError(
                    f"{chain[-1].file}: expected the chunk that its name says follows it, got none;"
                    f" put the file back"
                )
        self.spec = record.spec
        self.sessions = record.sessions
        self.notes: Sequence[str] = ()
        self.episodes = record.episodes
        self.steps = record.steps

    def __iter__(self) -> Iterator[Episode]:
        """The episodes, in the order in which they were written."""
        waiting = [_ChainRows(self._given, chain) for chain in self._chains]
        by_stream: dict[int, _ChainRows] = {}
        for number in range(self.episodes or 0):
            room = self._given.room(f"{self._folder}: episode {number}")
            facts, beside = self._beside.take(number, room)
            room.take(facts["rows"] * self.spec.row_bytes)
            stream = facts["stream"]
            if stream not in by_stream:
                if not waiting:
                    raise self._changed(f"a chain of chunks for stream {stream}", "none")
                by_stream[stream] = waiting.pop(0)
            rows = by_stream[stream].take(facts["rows"])
            if rows is None:
                raise self._changed(f"{facts['rows']:,} rows of episode {number}", "fewer")
            fields = self._keys.fields_of(rows, beside, number)
            yield rebuilt(self.spec, number, fields, facts)
        if waiting or any(rows.left for rows in by_stream.values()):
            raise self._changed(f"{self.episodes:,} episodes", "more rows")

    def close(self) -> None:
        """Nothing is open between two episodes."""

    def _changed(self, expected: str, got: str) -> ValueError:
        return ValueError(
            f"{self._folder}: expected {expected} as exported, got {got}: the data set was changed "
            f"since; remove {self._beside.folder} to read what is there"
        )


class ForeignChunks:
    """Reads what DreamerV3 wrote.

    Args:
        given: Where the chunks are.
        actions: Names of the arrays that are actions, with commas between them.

    Raises:
        ValueError: There are none, or arrays are missing.
    """

    def __init__(self, given: GivenFiles, actions: str) -> None:
        self._given = given
        self._chains = chains_of(given.path)
        self._actions = [name.strip() for name in actions.split(",")]
        self._terminal = 0
        first = self._chains[0][0]
        arrays = read_chunk(given, first)
        _check_keys(arrays, [*FLAGS, "reward", *self._actions], first)
        self._names = self._field_names(list(arrays))
        self._shapes = {name: _what(array) for name, array in arrays.items()}
        self.spec: Spec = inferred_spec(_as_steps(self._renamed(arrays)), str(first.file))
        self.sessions: Sequence[Mapping[str, object]] = ()
        self.episodes: int | None = None
        self.steps: int | None = None

    @property
    def notes(self) -> Sequence[str]:
        """What could not be told."""
        found = ["metadata are not told; each chain of chunks is a stream of its own"]
        if self._terminal:
            found.append(
                f"is_terminal was set in {self._terminal:,} rows in the middle of episodes (a lost "
                f"life, perhaps), for which there is no place: it is left out there"
            )
        return found

    def __iter__(self) -> Iterator[Episode]:
        """The episodes, one stream after the other."""
        number = 0
        for stream, chain in enumerate(self._chains):
            for rows in self._episodes(chain):
                yield self._episode(number, stream, rows)
                number += 1

    def close(self) -> None:
        """Nothing is open between two episodes."""

    def _episodes(self, chain: Sequence[Chunk]) -> Iterator[_Rows]:
        """Rows from each reset to the next one.

        Raises:
            ValueError: A chunk is missing, or has other arrays than the first one.
        """
        blocks: list[_Rows] = []
        room = self._given.room(chain[0].file)
        for chunk in chain:
            arrays = read_chunk(self._given, chunk)
            shapes = {name: _what(array) for name, array in arrays.items()}
            if shapes != self._shapes:
                name = next(
                    n for n in [*shapes, *self._shapes] if shapes.get(n) != self._shapes.get(n)
                )
                raise ValueError(
                    f"{chunk.file}: expected {name!r} as in the first chunk, "
                    f"{self._shapes.get(name, 'not at all')}, got {shapes.get(name, 'none')}; "
                    f"import it by itself"
                )
            resets = np.flatnonzero(arrays["is_first"])
            if not blocks and (not len(resets) or resets[0]):
                raise ValueError(
                    f"{chunk.file}: expected a chain of chunks to begin with a reset (is_first), "
                    f"got the middle of an episode: the chunk before is missing; put it back, or "
                    f"remove this one"
                )
            for start, stop in zip([0, *resets], [*resets, chunk.rows], strict=True):
                if start in resets and blocks:
                    yield _concatenated(blocks)
                    blocks, room = [], self._given.room(chunk.file)
                if stop > start:
                    blocks.append({name: array[start:stop] for name, array in arrays.items()})
                    room.take(sum(array.nbytes for array in blocks[-1].values()))
        if blocks:
            yield _concatenated(blocks)

    def _episode(self, number: int, stream: int, rows: _Rows) -> Episode:
        """An episode of rows.

        Raises:
            ValueError: It goes on behind its end.
        """
        last, terminal = rows["is_last"], rows["is_terminal"]
        if last[:-1].any():
            raise ValueError(
                f"stream {stream}, episode {number}: expected a reset (is_first) behind is_last, "
                f"got none at row {last.argmax() + 1} of it; restore the chunks"
            )
        self._terminal += int(terminal[:-1].sum()) + int(terminal[-1] and not last[-1])
        end = End.NONE
        if last[-1]:
            end = End.TERMINATED if terminal[-1] else End.TRUNCATED
        fields = self._renamed(rows)
        fields["reward"] = fields["reward"].astype(np.float64)
        ordered = {field.name: fields[field.name] for field in self.spec.fields}
        return Episode(self.spec, number, stream, 0, end, ordered, {})

    def _field_names(self, keys: Sequence[str]) -> dict[str, str]:
        """What the arrays are called here."""
        names = {"reward": "reward"}
        for key in self._actions:
            names[key] = "action" if len(self._actions) == 1 else f"action/{key}"
        others = [key for key in keys if key not in (*names, *FLAGS)]
        latents = [key for key in others if key.split("/")[0] in _LATENTS and "/" in key]
        observed = [key for key in others if key not in latents]
        for key in observed:
            names[key] = "observation" if len(observed) == 1 else f"observation/{key}"
        return {**names, **{key: f"extra/{key}" for key in latents}}

    def _renamed(self, rows: _Rows) -> _Rows:
        """Fields by our names."""
        return {name: rows[key] for key, name in self._names.items()}


class _ChainRows:
    """Takes rows from a chain of chunks, one chunk in memory at a time."""

    def __init__(self, given: GivenFiles, chain: Sequence[Chunk]) -> None:
        self._given = given
        self._chunks = list(chain)
        self._arrays: _Rows = {}
        self._at = self._rows = 0

    @property
    def left(self) -> bool:
        """Whether there are rows that were not taken."""
        return self._at < self._rows or bool(self._chunks)

    def take(self, count: int) -> _Rows | None:
        """The next rows; None where there are not so many."""
        blocks: list[_Rows] = []
        while count:
            if self._at == self._rows:
                if not self._chunks:
                    return None
                chunk = self._chunks.pop(0)
                self._arrays, self._at, self._rows = read_chunk(self._given, chunk), 0, chunk.rows
            stop = min(self._rows, self._at + count)
            blocks.append({name: array[self._at : stop] for name, array in self._arrays.items()})
            count -= stop - self._at
            self._at = stop
        return _concatenated(blocks)


def _concatenated(blocks: Sequence[_Rows]) -> _Rows:
    """Blocks of rows as one; those of a single block are copied."""
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def _as_steps(rows: _Rows) -> _Rows:
    """Rows as `inferred_spec` wants them: T + 1 of what arrives, T of all else."""
    return {
        name: array[1:] if name.split("/")[0] in ("action", "reward", "extra") else array
        for name, array in rows.items()
    }


def _what(array: np.ndarray) -> str:
    return f"{array.dtype} {array.shape[1:]}"


def _check_keys(arrays: _Rows, expected: Sequence[str], chunk: Chunk) -> None:
    """Refuse chunks that lack an array.

    Raises:
        ValueError: One is missing, or flags are no flags.
    """
    for name in expected:
        if name not in arrays:
            raise ValueError(
                f"{chunk.file}: expected an array {name!r}, got {', '.join(arrays)} alone; name "
                f"the actions with option actions, or restore the file"
            )
    for name in FLAGS:
        if arrays[name].dtype != np.bool_ or arrays[name].ndim != 1:
            raise ValueError(
                f"{chunk.file}: expected {name!r} as bool [T], got {_what(arrays[name])}"
            )
