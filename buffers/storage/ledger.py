"""The ledger of a storage: actions of rows that are gone, which stored episodes still need.

An episode without a seed of its own can only be played again after the episodes before it in its
stream, from a seeded one on: its *chain*. So when rows of a chain are evicted or left out, their
actions stay. An episode is identified by its session, stream and number within the stream, as ids
change in a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import numpy as np

from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.errors import StoreCorrupt
from stepwell.buffers.spec import Spec
from stepwell.buffers.storage.chunk_codec import Buffer, ChunkDecoder, ChunkEncoder
from stepwell.buffers.storage.chunk_index import ChunkIndex, ChunkInfo

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
        # False as long as no episode can have a chain, so that an eviction costs nothing.
        self.has_chains = False

    def notice(self, chunks: Iterable[Chunk]) -> None:
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
        index = rows.index
        evicted = index.records[:count]
        # The last chunk of each stream: later ones overwrite earlier ones.
        last = dict(zip(evicted["stream"].tolist(), range(count), strict=True))
        added: list[Chunk] = []
        gone: list[Kept[PlaceT]] = []
        self._unsure -= {key for key in self._unsure if key[1] in last}  # are judged now
        self._look_again(rows, count, newest_session, gone)
        for stream, place in last.items():
            position = index.base + place
            after = self._after(rows, count, stream, index.record(position).stream_next)
            added += self._evict_stream(rows, stream, position, after, newest_session, gone)
        return added, gone

    def _evict_stream(
        self,
        rows: EvictedRows,
        stream: int,
        position: int,
        after: tuple[int, ChunkInfo] | None,
        newest_session: int,
        gone: list[Kept[PlaceT]],
    ) -> list[Chunk]:
        """`evict` for one stream, of which the last evicted chunk is at a position."""
        facts = _facts_at(rows, position if after is None else after[0])
        if facts is None:
            return []
        oldest = None if after is None else Oldest(facts, after[1].first_row)
        self._drop_before(stream, facts.session, gone)
        key = facts.session, stream
        if oldest is None and facts.session < newest_session:
            self._replace(key, [], gone)
            return []
        old = self.kept.get(key, [])
        found: list[Kept[int]] = []
        if oldest is None or not facts.is_seeded or oldest.first_row:
            found = _evicted(rows, position, facts, oldest)
        if not old and not found:
            return []
        # The actions of evicted chunks are only read if they are needed. What cannot be read is
        # missing, so that other pieces may be needless, too.
        read: dict[int, Chunk | None] = {}
        while True:
            pieces: list[Kept[PlaceT | int]] = [*old, *found]
            wanted = needed(pieces, oldest)
            mine = set(map(id, found))
            new = [cast("Kept[int]", each) for each in wanted if id(each) in mine]
            for each in new:
                if each.place not in read:
                    read[each.place] = self._read(rows, each)
            if all(read[each.place] is not None for each in new):
                break
            found = [each for each in found if read.get(each.place, 0) is not None]
        self._replace(key, [cast("Kept[PlaceT]", e) for e in wanted if id(e) not in mine], gone)
        if oldest is None:  # look again at the next eviction
            self._unsure.add(key)
        return [*joined(cast("Chunk", read[each.place]) for each in new)]

    def _after(
        self, rows: EvictedRows, count: int, stream: int, following: int
    ) -> tuple[int, ChunkInfo] | None:
        """Position and record of the oldest chunk of a stream that stays."""
        index = rows.index
        if following < index.base + count:  # the stream has a gap, or ends here
            stays = index.records[count:]
            there = np.flatnonzero((stays["stream"] == stream) & (stays["end"] & _LOST == 0))
            if not len(there):
                return None
            following = index.base + count + int(there[0])
        return following, index.record(following)

    def _look_again(
        self,
        rows: EvictedRows,
        count: int,
        newest_session: int,
        gone: list[Kept[PlaceT]],
    ) -> None:
        """Remove entries of streams of which nothing is stored, nor will be."""
        for key in sorted(self._unsure):
            session, stream = key
            if key not in self.kept:
                self._unsure.discard(key)
                continue
            after = self._after(rows, count, stream, -1)
            facts = None if after is None else _facts_at(rows, after[0])
            if after is None:
                if session < newest_session:
                    self._replace(key, [], gone)
            elif facts is not None:
                self._drop_before(stream, facts.session, gone)
                if facts.session == session:
                    stay = needed(self.kept[key], Oldest(facts, after[1].first_row))
                    self._replace(key, stay, gone)

    def _drop_before(self, stream: int, session: int, gone: list[Kept[PlaceT]]) -> None:
        """Remove entries of a stream from sessions of which it holds nothing any more."""
        for key in [key for key in self.kept if key[1] == stream and key[0] < session]:
            self._replace(key, [], gone)

    def _replace(self, key: Stream, stay: list[Kept[PlaceT]], gone: list[Kept[PlaceT]]) -> None:
        """Leave only some entries of a stream and session."""
        stays = set(map(id, stay))
        gone += [each for each in self.kept.get(key, ()) if id(each) not in stays]
        self._unsure.discard(key)
        if stay:
            self.kept[key] = stay
        else:
            self.kept.pop(key, None)

    def _read(self, rows: EvictedRows, piece: Kept[int]) -> Chunk | None:
        """The actions of an evicted chunk; None if its bytes are damaged."""
        position = piece.place
        record = rows.index.record(position)
        try:
            buffer, origin = rows.payload(position)
            metadata = chain_metadata(rows.metadata(position))
            count = piece.stop - piece.first_row
            fields = actions_of(
                self._spec, self._decoder, buffer, origin, record.stored_rows, count
            )
        except StoreCorrupt:
            return None
        end = End(record.end) & (End.TERMINATED | End.TRUNCATED)
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


def _evicted(
    rows: EvictedRows, position: int, facts: Facts, oldest: Oldest | None
) -> list[Kept[int]]:
    """Evicted chunks that may be needed: back to a seeded reset, a gap, or another session.

    Args:
        rows: The chunks.
        position: The last one of the stream that is evicted.
        facts: Those of the oldest episode that stays, or, without one, of the last evicted one.
        oldest: The oldest episode that stays.
    """
    index = rows.index
    found: list[Kept[int]] = []
    episode, own = -1, facts
    while position >= index.base:
        record = index.record(position)
        if record.end & _LOST:
            break
        if record.episode != episode:
            if found and own.is_seeded:
                break
            told = _facts_at(rows, position)
            if told is None or told.session != facts.session:
                break
            episode, own = record.episode, told
            if oldest is not None and oldest.facts.is_seeded and told != oldest.facts:
                break
        # A row without its action is stored again by the next chunk, or was the last one.
        count = record.stored_rows - (record.end & _PENDING != 0)
        if count:
            stop = record.first_row + count
            is_final = End(record.end).is_final
            found.append(Kept(*own[1:], record.first_row, stop, is_final, position))
        position = record.stream_previous
    return found[::-1]


def _facts_at(rows: EvictedRows, position: int) -> Facts | None:
    try:
        return facts_of(rows.metadata(position))
    except StoreCorrupt:
        return None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
