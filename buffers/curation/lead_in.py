"""Finds the actions of rows that a copy lacks, and that its episodes need to be played again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from stepwell.buffers.curation.stored_episode import StoredEpisode, stored_episodes
from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.storage.joined import ID_BITS, JoinedStorage
from stepwell.buffers.storage.ledger import Facts, chain_metadata, facts_of
from stepwell.buffers.storage.protocol import Storage

__all__ = ["lead_in"]

_ROWS = 4096


class _Piece(NamedTuple):
    """Known actions of one episode.

    Args:
        first_row: The first row.
        stop: The row after the last one with an action, or after the final one.
        is_final: The last row ended the episode.
        place: Its place among the stored episodes, or, from -1 down, in the ledger.
        copied: The first row that the copy has; -1: it has none.
    """

    first_row: int
    stop: int
    is_final: bool
    place: int
    copied: int = -1


@dataclass(slots=True)
class _Stream:
    """The episodes that one env played in one session, as far as they were looked at.

    Args:
        kept: Pieces in the ledger by number of the episode, each number with its facts.
        chain: Pieces since the last seeded reset that the copy does not have.
        following: Number of the episode that would continue the chain; -1 for none.
    """

    kept: dict[int, tuple[Facts, list[_Piece]]] = field(
        default_factory=dict[int, tuple[Facts, list[_Piece]]]
    )
    chain: list[_Piece] = field(default_factory=list[_Piece])
    following: int = -1


def lead_in(storage: Storage, copied: Sequence[int]) -> Iterator[Chunk]:
    """Actions that the copied episodes of a storage need, and that are not copied.

    Args:
        storage: The storage.
        copied: For each of its stored episodes the first row that is copied, of which all later
            ones are; -1 if none is.
    """
    streams: dict[tuple[int, int], _Stream] = {}
    for number, chunk in enumerate(_ledger_of(storage)):
        facts = facts_of(chunk.metadata)
        if facts is not None:
            stream = streams.setdefault((facts.session, chunk.stream), _Stream())
            stop = chunk.first_row + chunk.rows
            piece = _Piece(chunk.first_row, stop, chunk.end.is_final, -1 - number)
            stream.kept.setdefault(facts.number, (facts, []))[1].append(piece)
    if not streams and all(first_row == 0 for first_row in copied):
        return
    wanted: dict[int, int] = {}
    numbered = zip(stored_episodes(storage), range(len(copied)), strict=True)
    for _, group in groupby(numbered, key=lambda each: each[0].id):
        parts = list(group)  # more than one if rows between are lost
        facts = facts_of(parts[0][0].metadata)
        if facts is None:
            continue
        pieces = [_piece_of(episode, place, copied[place]) for episode, place in parts]
        stream = streams.setdefault((facts.session, parts[0][0].stream), _Stream())
        for number in sorted(each for each in stream.kept if each <= facts.number):
            kept_facts, kept = stream.kept.pop(number)
            if number < facts.number:
                _follow(stream, kept_facts, kept, wanted)
            else:
                pieces += kept
        _follow(stream, facts, pieces, wanted)
    yield from _wanted_chunks(storage, wanted)


def _piece_of(episode: StoredEpisode, place: int, copied: int) -> _Piece:
    stop = episode.first_row + episode.rows - bool(episode.end & End.PENDING)
    return _Piece(episode.first_row, stop, episode.end.is_final, place, copied)


def _follow(stream: _Stream, facts: Facts, parts: Sequence[_Piece], wanted: dict[int, int]) -> None:
    """Let the next episode of a stream continue its chain, if it does.

    Args:
        stream: The stream.
        facts: The episode's place in its chain.
        parts: All pieces of the episode.
        wanted: Receives the number of needed rows for each place that has some.
    """
    if facts.is_seeded:
        stream.chain = []
    elif facts.number != stream.following:
        stream.chain, stream.following = [], -1
        return
    row, is_final, known = 0, False, list[_Piece]()
    for each in sorted(parts, key=lambda one: (one.first_row, -one.stop)):
        if each.first_row > row:
            break  # rows between are lost
        if each.stop > row:
            known.append(each)
            row, is_final = each.stop, each.is_final
    copied = min((each.copied for each in parts if each.copied >= 0), default=-1)
    if copied < 0:
        stream.chain += known
    elif copied <= row:
        wanted.update((each.place, each.stop - each.first_row) for each in stream.chain)
        wanted.update(
            (each.place, min(each.stop, copied) - each.first_row)
            for each in known
            if each.first_row < copied
        )
        stream.chain = []  # is known to be needed
    stream.following = facts.number + 1 if is_final else -1


def _wanted_chunks(storage: Storage, wanted: dict[int, int]) -> Iterator[Chunk]:
    """The first rows of some places.

    Args:
        storage: The storage.
        wanted: The number of rows for each place.
    """
    if any(place < 0 for place in wanted):
        for number, chunk in enumerate(_ledger_of(storage)):
            if count := wanted.get(-1 - number, 0):
                yield _first(chunk, count)
    names = [each.name for each in storage.spec.of_kind("action")]
    stored = stored_episodes(storage) if any(place >= 0 for place in wanted) else ()
    for place, episode in enumerate(stored):
        left = wanted.get(place, 0)
        for chunk in episode.chunks(_ROWS, names) if left else ():
            if left <= 0:
                break
            some = _first(chunk, left)
            yield replace(some, metadata=chain_metadata(episode.metadata), starts_late=False)
            left -= chunk.rows


def _first(chunk: Chunk, count: int) -> Chunk:
    """The first rows of a chunk."""
    if count >= chunk.rows:
        return chunk
    fields = {name: rows[:count] for name, rows in chunk.fields.items()}
    return replace(chunk, fields=fields, end=End.NONE)


def _ledger_of(storage: Storage) -> Iterator[Chunk]:
    """The kept actions of a storage, or of all that are read as one, with an id of that one."""
    if not isinstance(storage, JoinedStorage):
        yield from storage.ledger
        return
    for number, part in enumerate(storage.storages):
        for chunk in part.ledger:
            stream = storage.stream_of(number, chunk.stream)
            yield replace(chunk, episode=number << ID_BITS, stream=stream)
