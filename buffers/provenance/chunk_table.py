"""The table of an archive's chunks and episodes, without their rows. Pure: uses no files."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from stepwell.buffers.episode import End
from stepwell.buffers.json_values import MOST, items, member, parse, text
from stepwell.buffers.provenance.packing import Cursor, pack_numbers, unpack_numbers

__all__ = ["ChunkTable"]

_COUNTS = struct.Struct("<QQI")
_PENDING, _FINAL = int(End.PENDING), int(End.TERMINATED | End.TRUNCATED)
_SEED, _BLOCK = "seed", 64  # as in stepwell.wrappers.seeded_resets
_MOST_ROWS, _MOST_STREAM = 1 << 40, 1 << 32


@dataclass(frozen=True, slots=True, eq=False)
class ChunkTable:
    """Chunks in the order in which they were stored, and their episodes.

    Args:
        episode_of: Index of its episode [chunks], below.
        first_row: Index of the chunk's first row in the episode [chunks].
        rows: Its rows [chunks], with one that a later chunk has again.
        end: Flags of the last row [chunks].
        episode: Ids [episodes], in the order in which their first chunks come.
        stream: Index of the env [episodes].
        metadata: JSON-able facts of each episode.
    """

    episode_of: np.ndarray
    first_row: np.ndarray
    rows: np.ndarray
    end: np.ndarray
    episode: np.ndarray
    stream: np.ndarray
    metadata: Sequence[Mapping[str, object]]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """Arrays [chunks] by the names that the slots of a store have for them."""
        return {
            "episode": self.episode[self.episode_of],
            "stream": self.stream[self.episode_of],
            "first_row": self.first_row,
            "rows": self.rows,
            "end": self.end,
        }

    @property
    def begins(self) -> np.ndarray:
        """Number of the first row of each chunk [chunks + 1], counted over all of them."""
        return np.concatenate([[0], np.cumsum(self.rows)]).astype(np.int64)

    @property
    def without_action(self) -> np.ndarray:
        """Numbers [n] of the rows, counted so, from which no action was chosen."""
        is_without = self.end & (_PENDING | _FINAL) != 0
        numbers: np.ndarray = (self.begins[1:] - 1)[is_without]
        return numbers

    @property
    def is_continued(self) -> np.ndarray:
        """[chunks] bool: a later chunk continues the episode."""
        last = np.full(len(self.episode), -1)
        last[self.episode_of] = np.arange(len(self))  # the last of equal ones stays
        is_last = np.zeros(len(self), np.bool_)
        is_last[last[last >= 0]] = True
        return ~is_last

    @property
    def new_rows(self) -> np.ndarray:
        """Rows of each chunk [chunks] without one that a later chunk has again."""
        rows: np.ndarray = self.rows - (self.is_continued & (self.end & _PENDING != 0))
        return rows

    @property
    def episode_rows(self) -> np.ndarray:
        """Rows of each episode [episodes]."""
        rows = np.zeros(len(self.episode), np.int64)
        np.add.at(rows, self.episode_of, self.new_rows)
        return rows

    def pack(self) -> bytes:
        """The table's bytes; `unpack` reads them."""
        shapes, shape_of = _shapes_of(self.metadata)
        keys = list(dict.fromkeys(key for shape in shapes for key in shape))
        numbers = [
            key
            for key in keys
            if all(_is_number(facts[key]) for facts in self.metadata if key in facts)
        ]
        head = json.dumps({"shapes": shapes, "numbers": numbers}, separators=(",", ":")).encode()
        by_stream = np.argsort(self.stream, kind="stable")
        parts = [
            _COUNTS.pack(len(self), len(self.episode), len(head)),
            head,
            pack_numbers(self.episode),
            pack_numbers(self.stream),
            pack_numbers(shape_of, by_stream),
        ]
        for key in keys:
            has_key = np.array([key in facts for facts in self.metadata], np.bool_)
            values = [facts[key] for facts in self.metadata if key in facts]
            order = _within(by_stream, has_key)
            if key in numbers:
                column = np.array(values, np.int64)
                if key != _SEED:
                    parts.append(pack_numbers(column, order))
                    continue
                counts, given = _counts_of(column.tolist(), self.stream[has_key], order)
                parts += [pack_numbers(counts, order), pack_numbers(given)]
            else:
                texts = [_text_of(value) for value in values]
                lengths = np.array([len(each) for each in texts], np.int64)
                parts += [pack_numbers(lengths, order), *texts]
        order = np.argsort(self.stream[self.episode_of], kind="stable")
        parts += [
            pack_numbers(self.episode_of),
            pack_numbers(self.rows, order),
            pack_numbers(self.end, order),
            pack_numbers(_gaps_of(self)),
        ]
        return b"".join(parts)

    @classmethod
    def unpack(cls, data: bytes) -> ChunkTable:
        """The table that `pack` has packed.

        Raises:
            ValueError: It has packed none.
        """
        cursor = Cursor(data)
        chunks, episodes, head_bytes = _COUNTS.unpack(cursor.take(_COUNTS.size))
        head = parse(bytes(cursor.take(head_bytes)))
        if max(chunks, episodes) > cursor.left:
            raise ValueError(f"{chunks} chunks of {episodes} episodes in {cursor.left} bytes")
        episode = _in_range("episode", unpack_numbers(cursor, episodes), 0, MOST)
        stream = unpack_numbers(cursor, episodes)
        _in_range("stream", stream, -_MOST_STREAM, _MOST_STREAM)
        metadata = _unpack_metadata(cursor, head, stream)
        episode_of = unpack_numbers(cursor, chunks)
        _in_range("episode of a chunk", episode_of, 0, episodes - 1)
        order = np.argsort(stream[episode_of], kind="stable")
        rows = _in_range("rows", unpack_numbers(cursor, chunks, order), 1, _MOST_ROWS)
        end = _in_range("end", unpack_numbers(cursor, chunks, order), 0, _PENDING | _FINAL)
        gaps = _in_range("missing rows", unpack_numbers(cursor, chunks), 0, _MOST_ROWS)
        cursor.finish()
        most = float(rows.sum(dtype=np.float64) + gaps.sum(dtype=np.float64))
        if most > _MOST_ROWS:
            raise ValueError(f"{most:.0f} rows")
        first_row = _first_rows(episode_of, rows, end, gaps)
        return cls(episode_of, first_row, rows, end, episode, stream, metadata)

    def check(self) -> None:
        """Refuse chunks that no storage can hold.

        Raises:
            ValueError: There is such a chunk.
        """
        seen, first = np.unique(self.episode_of, return_index=True)
        if len(seen) != len(self.episode) or (np.diff(first) < 0).any():
            raise ValueError("expected episodes in the order of their first chunks")
        if len(np.unique(self.episode)) != len(self.episode):
            raise ValueError("expected each episode once, got one twice")
        order = np.argsort(self.stream[self.episode_of], kind="stable")
        of, stream = self.episode_of[order], self.stream[self.episode_of[order]]
        is_same = of[1:] == of[:-1]
        if (~is_same & (stream[1:] == stream[:-1]) & (of[1:] < of[:-1])).any():
            raise ValueError("expected the chunks of an episode one after the other in its stream")
        if (is_same & (self.end[order][:-1] & _FINAL != 0)).any():
            raise ValueError("expected no chunk after the end of its episode")
        gaps = _gaps_of(self)
        gaps[first] = 0
        if gaps.any():
            raise ValueError("expected chunks without missing rows between them")


def _next_rows(table: ChunkTable) -> np.ndarray:
    """The row [chunks] with which the next chunk of the episode begins."""
    next_rows: np.ndarray = table.first_row + table.rows - (table.end & _PENDING != 0)
    return next_rows


def _gaps_of(table: ChunkTable) -> np.ndarray:
    """Rows [chunks] of the episode that are missing before each chunk."""
    order = np.argsort(table.episode_of, kind="stable")
    of = table.episode_of[order]
    expected = np.zeros(len(order), np.int64)
    expected[1:] = np.where(of[1:] == of[:-1], _next_rows(table)[order][:-1], 0)
    gaps = np.empty_like(expected)
    gaps[order] = table.first_row[order] - expected
    return gaps


def _first_rows(
    episode_of: np.ndarray, rows: np.ndarray, end: np.ndarray, gaps: np.ndarray
) -> np.ndarray:
    """The first row [chunks] of each chunk in its episode; see `_gaps_of`."""
    order = np.argsort(episode_of, kind="stable")
    of, gaps = episode_of[order], gaps[order]
    lengths = (rows - (end & _PENDING != 0))[order]
    total = np.cumsum(gaps + lengths) - lengths  # from the first chunk of all on
    begins = np.append(True, of[1:] != of[:-1])[: len(of)]
    before = (total - gaps)[begins]
    first_row: np.ndarray = np.empty_like(total)
    first_row[order] = total - np.repeat(
        before, np.diff(np.append(np.flatnonzero(begins), len(of)))
    )
    return first_row


def _shapes_of(metadata: Sequence[Mapping[str, object]]) -> tuple[list[list[str]], np.ndarray]:
    """The different lists of keys, and the index of that of each mapping."""
    found: dict[tuple[str, ...], int] = {}
    index = [found.setdefault(tuple(facts), len(found)) for facts in metadata]
    return [list(keys) for keys in found], np.array(index, np.int64)


def _unpack_metadata(
    cursor: Cursor, head: Mapping[str, object], stream: np.ndarray
) -> list[Mapping[str, object]]:
    """The metadata of all episodes."""
    by_stream = np.argsort(stream, kind="stable")
    shapes = [_keys(shape) for shape in items(member(head, "shapes"), "shapes")]
    numbers = set(_keys(member(head, "numbers")))
    shape_of = unpack_numbers(cursor, len(by_stream), by_stream)
    _in_range("keys of an episode", shape_of, 0, len(shapes) - 1)
    columns: dict[str, list[Any]] = {}
    for key in dict.fromkeys(key for shape in shapes for key in shape):
        has_key = np.array([key in shape for shape in shapes], np.bool_)[shape_of]
        count = int(np.count_nonzero(has_key))
        order = _within(by_stream, has_key)
        values: list[Any] = unpack_numbers(cursor, count, order).tolist()
        if key in numbers and key == _SEED:
            values = _seeds_of(values, cursor, order)
        elif key not in numbers:
            values = [_value_of(bytes(cursor.take(length))) for length in values]
        columns[key] = values[::-1]
    return [{key: columns[key].pop() for key in shapes[shape]} for shape in shape_of.tolist()]


def _counts_of(
    seeds: Sequence[int], stream: np.ndarray, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each seed its number among those that are derived from one before; 0 if it was given.

    Args:
        seeds: The seeds.
        stream: Their envs.
        order: The order in which they follow each other: env by env.

    Returns:
        The numbers, and the seeds that were given, in that order.
    """
    counts = np.zeros(len(seeds), np.int64)
    given: list[int] = []
    before, count = None, 0
    for place, env in zip(order.tolist(), stream[order].tolist(), strict=True):
        count = _count_of(seeds[place], given[-1], count) if env == before else 0
        if not count:
            given.append(seeds[place])
        counts[place] = count
        before = env
    return counts, np.array(given, np.int64)


def _count_of(seed: int, given: int, count: int) -> int:
    """The number of a seed among those derived from the given one, after ``count``; 0 for none."""
    block, start = divmod(count, _BLOCK)
    for number, first in ((block, start), (block + 1, 0)) if given >= 0 else ():
        derived = _derived_seeds(given, number)
        if seed in derived[first:]:
            return number * _BLOCK + derived.index(seed, first) + 1
    return 0


def _seeds_of(counts: Sequence[int], cursor: Cursor, order: np.ndarray) -> list[int]:
    """The seeds of `_counts_of`, of which those that were given come next."""
    given = unpack_numbers(cursor, counts.count(0)).tolist()[::-1]
    seeds = [0] * len(counts)
    last = -1
    for place in order.tolist():
        count = counts[place]
        if not count:
            last = seeds[place] = given.pop()
        elif count < 0 or last < 0:
            raise ValueError(f"seed {count} after {last}: expected whole numbers >= 0")
        else:
            block, index = divmod(count - 1, _BLOCK)
            seeds[place] = _derived_seeds(last, block)[index]
    return seeds


@lru_cache(1 << 10)
def _derived_seeds(seed: int, block: int) -> list[int]:
    """The seeds that `SeededResets` derives from one, in blocks."""
    words = np.random.SeedSequence(seed, spawn_key=(block,)).generate_state(_BLOCK)
    seeds: list[int] = (words >> 1).tolist()
    return seeds


def _within(order: np.ndarray, is_kept: np.ndarray) -> np.ndarray:
    """An order of all as an order of those that are kept."""
    places = np.cumsum(is_kept) - 1
    kept: np.ndarray = places[order[is_kept[order]]]
    return kept


def _keys(value: object) -> list[str]:
    keys = [text(key, "key") for key in items(value, "keys")]
    if len(set(keys)) != len(keys):
        raise ValueError(f"keys: expected different ones, got {keys[:10]}")
    return keys


def _is_number(value: object) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def _text_of(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _value_of(data: bytes) -> object:
    found = parse(b'{"":%b}' % data, is_finite=False)
    if list(found) != [""]:
        raise ValueError("a value: expected one, got several")
    return found[""]


def _in_range(name: str, values: np.ndarray, least: int, most: int) -> np.ndarray:
    if len(values) and not least <= int(values.min()) <= int(values.max()) <= most:
        raise ValueError(
            f"{name}: expected {least} to {most}, got {values.min()} to {values.max()}"
        )
    return values
