"""The ledger of a storage: actions of rows that are gone, which stored episodes still need.

An episode without a seed of its own can only be played again after the episodes before it in its
stream, from a seeded one on: its *chain*. So when rows of a chain are evicted or left out, their
actions stay. An episode is identified by its session, stream and number within the stream, as ids
change in a copy.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import numpy as np

from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.errors import StoreCorrupt
from stepwell.buffers.spec import Spec
from stepwell.buffers.storage.chunk_codec import Buffer, ChunkDecoder, ChunkEncoder
from stepwell.buffers.storage.chunk_index import ChunkIndex, ChunkInfo
from stepwell.buffers.storage.encoded_chunk import EncodedChunk

__all__ = [
    "EvictedRows",
    "Facts",
    "Kept",
    "Ledger",
    "MemoryLedger",
    "action_spec",
    "actions_of",
    "chain_metadata",
    "check_actions",
    "facts_of",
    "joined",
    "needed",
    "widened",
]

PlaceT = TypeVar("PlaceT")
Stream: TypeAlias = "tuple[int, int]"
"""Session and stream: the episodes of one env in one run."""

_LOG = logging.getLogger("stepwell.buffers.storage")
_MOST_ROWS, _MOST_BYTES = 4096, 1 << 16  # of pieces that are joined
_FACTS = ("session", "stream_episode", "seed", "noops")
_LOST, _PENDING = int(End.LOST), int(End.PENDING)


class Facts(NamedTuple):
    """The place of an episode in its chain.

    Args:
        session: Index of its session.
        number: Its number within the stream.
        is_seeded: A seeded reset began it: it needs no episode before it.
    """

    session: int
    number: int
    is_seeded: bool


def facts_of(metadata: Mapping[str, object]) -> Facts | None:
    """The place of an episode in its chain; None if its metadata do not say it.

    Example:
        >>> facts_of({"session": 0, "stream_episode": 3, "seed": 7})
        Facts(session=0, number=3, is_seeded=True)
        >>> facts_of({"task": "door"}) is None
        True
    """
    session, number = metadata.get("session"), metadata.get("stream_episode")
    if not _is_count(session) or not _is_count(number):
        return None
    return Facts(cast("int", session), cast("int", number), _is_count(metadata.get("seed")))


def chain_metadata(metadata: Mapping[str, object]) -> dict[str, object]:
    """The part of an episode's metadata that is kept with its actions."""
    return {key: metadata[key] for key in _FACTS if key in metadata}


class Kept(NamedTuple, Generic[PlaceT]):
    """Actions of consecutive rows of one episode.

    Args:
        number: The episode's number within the stream.
        is_seeded: A seeded reset began it.
        first_row: Index of the first row in the episode.
        stop: Index of the row after the last.
        is_final: The last row ended the episode.
        place: Where the actions are.
    """

    number: int
    is_seeded: bool
    first_row: int
    stop: int
    is_final: bool
    place: PlaceT


class Oldest(NamedTuple):
    """The oldest stored episode of a stream.

    Args:
        facts: Its place in its chain.
        first_row: Its first row that is still stored.
    """

    facts: Facts
    first_row: int


def needed(pieces: Iterable[Kept[PlaceT]], oldest: Oldest | None) -> list[Kept[PlaceT]]:
    """The pieces that are needed to play the oldest stored episode again.

    Pieces of later episodes are all returned: they are judged when those before are gone.

    Args:
        pieces: Actions of episodes of one stream and session, in any order.
        oldest: The oldest stored one of these episodes; None: none is stored, but others may
            follow.
    """
    in_order = sorted(pieces, key=lambda each: (each.number, each.first_row, -each.stop))
    target = oldest.facts.number if oldest else None
    chain: list[Kept[PlaceT]] = []
    following = -1  # number of the episode that would continue the chain
    for number, group in groupby(in_order, key=lambda each: each.number):
        if target is not None and number >= target:
            break
        parts = list(group)
        is_seeded = parts[0].is_seeded
        parts, is_final = _contiguous(parts)
        if not parts or not (is_seeded or number == following):
            chain, following = [], -1
            continue
        chain = parts if is_seeded else chain + parts
        following = number + 1 if is_final else -1
    if oldest is None:
        return chain
    later = [each for each in in_order if each.number > oldest.facts.number]
    own, _ = _contiguous([each for each in in_order if each.number == oldest.facts.number])
    if oldest.facts.is_seeded:
        chain = []
    elif following != target:
        return later
    if oldest.first_row > (own[-1].stop if own else 0):
        return later
    return chain + [each for each in own if each.first_row < oldest.first_row] + later


def _contiguous(parts: Sequence[Kept[PlaceT]]) -> tuple[list[Kept[PlaceT]], bool]:
    """The pieces of one episode that cover its rows from the first on, and if they end it.

    Nothing is returned if rows between are missing.
    """
    found: list[Kept[PlaceT]] = []
    row, is_final = 0, False
    for each in parts:
        if each.first_row > row:
            return [], False
        if each.stop > row:
            found.append(each)
            row, is_final = each.stop, each.is_final
    return found, is_final


class EvictedRows(Protocol):
    """Reads chunks that are about to be evicted."""

    @property
    def index(self) -> ChunkIndex:
        """The index, with these chunks."""
        ...

    def payload(self, position: int) -> tuple[Buffer, int]:
        """As of a Storage."""
        ...

    def metadata(self, position: int) -> Mapping[str, object]:
        """As of a Storage."""
        ...


class Ledger(Generic[PlaceT]):
    """Knows which actions are kept, and which of them are needed.

    Args:
        spec: The fields of the rows.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._decoder = ChunkDecoder(spec)
        self.kept: dict[Stream, list[Kept[PlaceT]]] = {}
        # Of these nothing was stored when they were last looked at, or they were not yet.
        self._unsure: set[Stream] = set()
        # The entries of these are one whole chain, in order, and nothing else.
        self._chains: set[Stream] = set()
        # False as long as no episode can have a chain, so that an eviction costs nothing.
        self.has_chains = False

    def notice(self, chunks: Iterable[Chunk | EncodedChunk]) -> None:
        """Look for seeds in the metadata of chunks that are stored."""
        if not self.has_chains:
            self.has_chains = any("seed" in chunk.metadata for chunk in chunks)

    def enter(self, stream: Stream, entry: Kept[PlaceT]) -> None:
        """Enter kept actions."""
        self.kept.setdefault(stream, []).append(entry)
        self.has_chains = True

    def doubt(self, chunks: Iterable[Chunk]) -> None:
        """Judge kept actions that did not come from an eviction at the next one."""
        for chunk in chunks:
            facts = facts_of(chunk.metadata)
            if facts is not None:
                self._unsure.add((facts.session, chunk.stream))
                self._chains.discard((facts.session, chunk.stream))

    def evict(
        self, rows: EvictedRows, count: int, newest_session: int
    ) -> tuple[list[Chunk], list[Kept[PlaceT]]]:
        """Prepare for the eviction of the oldest chunks.

        Args:
            rows: The chunks, which are still there.
            count: Number of chunks to evict.
            newest_session: Index of the newest session, whose episodes may be continued.

        Returns:
            Actions of the chunks that will be needed, to be entered; and entries that are no longer
            needed, which were removed.
        """
        if not self.has_chains:
            return [], []
        reader = _Reader(rows)
        index = rows.index
        # The last chunk of each stream: later ones overwrite earlier ones.
        last = dict(zip(index.records["stream"][:count].tolist(), range(count), strict=True))
        added: list[Chunk] = []
        gone: list[Kept[PlaceT]] = []
        self._look_again(reader, count, last, newest_session, gone)
        sessions: dict[int, list[int]] = {}
        for session, stream in self.kept:
            sessions.setdefault(stream, []).append(session)
        for stream, place in last.items():
            position = index.base + place
            after = self._after(index, count, stream, index.record(position).stream_next)
            facts = reader.facts(position if after is None else after[0])
            if facts is None:
                continue
            for session in sessions.get(stream, ()):
                # Nothing of an earlier session is stored any more.
                if session < facts.session:
                    self._forget((session, stream), gone)
            key = facts.session, stream
            if after is None and facts.session < newest_session:
                self._forget(key, gone)
            else:
                added += self._evict_stream(reader, key, position, facts, after, gone)
        return added, gone

    def _evict_stream(
        self,
        reader: _Reader,
        key: Stream,
        position: int,
        facts: Facts,
        after: tuple[int, ChunkInfo] | None,
        gone: list[Kept[PlaceT]],
    ) -> list[Chunk]:
        """`evict` for one stream, and return its actions that will be needed.

        Args:
            reader: Reads the evicted chunks.
            key: Its session and stream.
            position: Position of its last evicted chunk.
            facts: Those of its oldest episode that stays or, without one, of the last evicted one.
            after: Position and record of its oldest chunk that stays.
            gone: Receives entries that are no longer needed.
        """
        oldest = None if after is None else Oldest(facts, after[1].first_row)
        entries = self.kept.get(key, [])
        found: list[Kept[int]] = []
        if oldest is None or not facts.is_seeded or oldest.first_row:
            episode = -1 if after is None else after[1].episode
            found = reader.evicted(position, facts, episode)
        if not entries and not found:
            return []
        # What is before the last episode of a chain is needed if that one is.
        start = _begin_of_last(entries) if key in self._chains else 0
        tail = [each._replace(is_seeded=each.is_seeded or start > 0) for each in entries[start:]]
        if oldest is not None and start and tail[0].number == facts.number:
            oldest = Oldest(facts._replace(is_seeded=True), oldest.first_row)
        # The actions of evicted chunks are only read if they are needed. What cannot be read is
        # missing, so that other pieces may be needless, too.
        read: dict[int, Chunk | None] = {}
        while True:
            pieces: list[Kept[Any]] = [*tail, *found]
            wanted = needed(pieces, oldest)
            evicted = set(map(id, found))
            new: list[Kept[int]] = [each for each in wanted if id(each) in evicted]
            for each in new:
                if each.place not in read:
                    read[each.place] = self._read(reader, each)
            if all(read[each.place] is not None for each in new):
                break
            found = [each for each in found if read.get(each.place, 0) is not None]
        before = {id(each): entry for each, entry in zip(tail, entries[start:], strict=True)}
        stay = [before.pop(id(each)) for each in wanted if id(each) in before]
        gone += before.values()
        if start and not any(each.number == tail[0].number for each in wanted):
            gone += entries[:start]
            start = 0
        entries[start:] = stay
        if entries:
            self.kept[key] = entries
        else:
            self.kept.pop(key, None)
        if oldest is None:  # look again at the next eviction
            self._unsure.add(key)
        is_chain = oldest is None or not wanted or wanted[-1].number <= facts.number
        (self._chains.add if is_chain else self._chains.discard)(key)
        return [*joined(cast("Chunk", read[each.place]) for each in new)]

    def _look_again(
        self,
        reader: _Reader,
        count: int,
        known: Container[int],
        newest_session: int,
        gone: list[Kept[PlaceT]],
    ) -> None:
        """Remove needless entries that were not judged when they came, or not for good.

        Args:
            reader: Reads chunks.
            count: Number of chunks to evict.
            known: Streams that are judged anyway.
            newest_session: Index of the newest session.
            gone: Receives the entries.
        """
        for key in sorted(self._unsure):
            session, stream = key
            if stream in known or key not in self.kept:
                self._unsure.discard(key)
                continue
            after = self._after(reader.index, count, stream, -1)
            facts = None if after is None else reader.facts(after[0])
            if after is None:
                if session < newest_session:
                    self._forget(key, gone)
            elif facts is not None and session < facts.session:
                self._forget(key, gone)
            elif facts is not None and session == facts.session:
                entries = self.kept[key]
                stay = needed(entries, Oldest(facts, after[1].first_row))
                stays = set(map(id, stay))
                gone += [each for each in entries if id(each) not in stays]
                self._forget(key, [])
                if stay:
                    self.kept[key] = stay

    def _after(
        self, index: ChunkIndex, count: int, stream: int, following: int
    ) -> tuple[int, ChunkInfo] | None:
        """Position and record of the oldest chunk of a stream that stays."""
        if following < index.base + count:  # the stream has a gap, or ends here
            stays = index.records[count:]
            there = np.flatnonzero((stays["stream"] == stream) & (stays["end"] & _LOST == 0))
            if not len(there):
                return None
            following = index.base + count + int(there[0])
        return following, index.record(following)

    def _forget(self, key: Stream, gone: list[Kept[PlaceT]]) -> None:
        """Remove all entries of a stream and session."""
        gone += self.kept.pop(key, ())
        self._unsure.discard(key)
        self._chains.discard(key)

    def _read(self, reader: _Reader, piece: Kept[int]) -> Chunk | None:
        """The actions of an evicted chunk; None if its bytes are damaged."""
        record = reader.index.record(piece.place)
        count = piece.stop - piece.first_row
        try:
            buffer, origin = reader.rows.payload(piece.place)
            fields = actions_of(
                self._spec, self._decoder, buffer, origin, record.stored_rows, count
            )
        except StoreCorrupt as error:
            _LOG.warning(
                "lost the actions of evicted rows %d to %d of episode %d, which other episodes "
                "need to be played again: %s",
                *(piece.first_row, piece.stop - 1, record.episode, error),
            )
            return None
        end = End(record.end) & (End.TERMINATED | End.TRUNCATED)
        metadata = chain_metadata(reader.metadata(piece.place) or {})
        return Chunk(record.episode, record.stream, record.first_row, end, fields, metadata)


class MemoryLedger(Ledger[Chunk]):
    """Kept actions in RAM, in the smallest dtypes that hold them."""

    def compact(self, chunks: Iterable[Chunk]) -> list[Chunk]:
        """The same actions in the smallest dtypes that hold them, as copies.

        Raises:
            ValueError: A chunk has no rows, or its metadata do not say its place in a chain.
            SpecMismatch: A field is missing or has another dtype or shape.
        """
        spec = action_spec(self._spec)
        encoder, decoder = ChunkEncoder(spec), ChunkDecoder(spec)
        found: list[Chunk] = []
        for chunk in chunks:
            check_actions(self._spec, chunk)
            data = b"".join(encoder.encode(chunk))
            fields = actions_of(spec, decoder, data, 0, chunk.rows, chunk.rows)
            found.append(replace(chunk, fields=fields, metadata=decoder.metadata(data, 0)))
        return found

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Keep compact actions, those that continue the newest of their stream together with it."""
        for chunk in chunks:
            facts = cast("Facts", facts_of(chunk.metadata))
            entries = self.kept.get((facts.session, chunk.stream))
            if entries and entries[-1].number == facts.number:
                both = [*joined([entries[-1].place, chunk])]
                if len(both) == 1:
                    entries.pop()
                    chunk = both[0]
            stop, is_final = chunk.first_row + chunk.rows, chunk.end.is_final
            entry = Kept(facts.number, facts.is_seeded, chunk.first_row, stop, is_final, chunk)
            self.enter((facts.session, chunk.stream), entry)

    def chunks(self) -> list[Chunk]:
        """All kept actions, in the dtypes of the Spec."""
        return [
            widened(self._spec, each.place)
            for key in sorted(self.kept)
            for each in sorted(self.kept[key], key=lambda one: (one.number, one.first_row))
        ]


def action_spec(spec: Spec) -> Spec:
    """A Spec of the action alone."""
    return Spec(spec.of_kind("action"), {}, spec.action)


def check_actions(spec: Spec, chunk: Chunk) -> Facts:
    """The place in its chain of an episode whose actions are to be kept.

    Raises:
        ValueError: Its metadata do not say it, or there are no rows.
    """
    facts = facts_of(chunk.metadata)
    if facts is None or not spec.of_kind("action") or not chunk.fields or not chunk.rows:
        raise ValueError(
            f"actions to keep: expected rows with an action, of an episode whose metadata have "
            f"session and stream_episode, got the fields {sorted(chunk.fields)} and the metadata "
            f"{dict(chunk.metadata)!r}"
        )
    return facts


def actions_of(
    spec: Spec, decoder: ChunkDecoder, buffer: Buffer, origin: int, rows: int, count: int
) -> dict[str, np.ndarray]:
    """A copy of the first actions of an encoded chunk, in dtypes that may be smaller.

    Args:
        spec: The chunk's fields.
        decoder: Reads chunks of that Spec.
        buffer: Memory that holds the chunk.
        origin: Offset of the chunk in it.
        rows: Rows of the chunk.
        count: Number of actions to copy.

    Raises:
        StoreCorrupt: A compressed block does not hold its rows.
    """
    found: dict[str, np.ndarray] = {}
    for field, (coding, offset) in zip(
        spec.fields, decoder.fields(buffer, origin, rows), strict=True
    ):
        if field.kind != "action":
            continue
        dtype = field.numpy_dtype if coding.block_rows else coding.dtype
        found[field.name] = out = np.empty((count, *field.shape), dtype)
        decoder.copy_rows(buffer, coding, offset, rows, 0, out)
    return found


def joined(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The same actions in few chunks: those that continue one another are joined, up to a size."""
    together: list[Chunk] = []
    rows = size = 0
    for chunk in chunks:
        nbytes = sum(each.nbytes for each in chunk.fields.values())
        rows, size = rows + chunk.rows, size + nbytes
        is_small = rows <= _MOST_ROWS and size <= _MOST_BYTES
        if together and not (is_small and _continues(chunk, together[-1])):
            yield _one(together)
            together, rows, size = [], chunk.rows, nbytes
        together.append(chunk)
    if together:
        yield _one(together)


def _continues(chunk: Chunk, before: Chunk) -> bool:
    return (
        chunk.first_row == before.first_row + before.rows
        and chunk.stream == before.stream
        and not before.end.is_final
        and facts_of(chunk.metadata) == facts_of(before.metadata)
    )


def _one(chunks: Sequence[Chunk]) -> Chunk:
    if len(chunks) == 1:
        return chunks[0]
    fields = {
        name: np.concatenate([chunk.fields[name] for chunk in chunks]) for name in chunks[0].fields
    }
    return replace(chunks[0], fields=fields, end=chunks[-1].end)


def widened(spec: Spec, chunk: Chunk) -> Chunk:
    """The same actions in the dtypes of the Spec."""
    fields = {name: rows.astype(spec[name].numpy_dtype) for name, rows in chunk.fields.items()}
    return replace(chunk, fields=fields)


class _Reader:
    """Reads the metadata of chunks, once for each episode.

    Args:
        rows: The chunks.
    """

    def __init__(self, rows: EvictedRows) -> None:
        self.rows = rows
        self.index = rows.index
        self._known: dict[int, Mapping[str, object] | None] = {}

    def metadata(self, position: int) -> Mapping[str, object] | None:
        """The metadata of the episode of a chunk; None if the bytes are damaged."""
        episode = self.index.record(position).episode
        if episode not in self._known:
            try:
                self._known[episode] = self.rows.metadata(position)
            except StoreCorrupt:
                self._known[episode] = None
        return self._known[episode]

    def facts(self, position: int) -> Facts | None:
        """The place in its chain of the episode of a chunk; None if that is not known."""
        return facts_of(self.metadata(position) or {})

    def evicted(self, position: int, facts: Facts, episode: int) -> list[Kept[int]]:
        """Evicted chunks that may be needed: back to a seeded reset, a gap, or another session.

        Args:
            position: The last one of the stream that is evicted.
            facts: Those of the oldest episode that stays, or, without one, of the last evicted one.
            episode: Id of the oldest episode that stays; -1 without one.
        """
        index, own = self.index, facts
        found: list[Kept[int]] = []
        while position >= index.base:
            record = index.record(position)
            if record.end & _LOST:
                break
            if record.episode != episode:
                if episode >= 0 and own.is_seeded:
                    break
                told = self.facts(position)
                if told is None or told.session != facts.session:
                    break
                episode, own = record.episode, told
            # A row without its action is stored again by the next chunk, or was the last one.
            count = record.stored_rows - (record.end & _PENDING != 0)
            if count:
                stop, is_final = record.first_row + count, End(record.end).is_final
                found.append(Kept(*own[1:], record.first_row, stop, is_final, position))
            position = record.stream_previous
        return found[::-1]


def _begin_of_last(entries: Sequence[Kept[PlaceT]]) -> int:
    """Index of the first entry of the last episode."""
    begin = len(entries)
    while begin and entries[begin - 1].number == entries[-1].number:
        begin -= 1
    return begin


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
