"""A consistent view of a store at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...base.errors import StoreCorrupt
from ...base.untrusted_json import items, mapping, member, whole
from ...rows.episode import End
from ..chunk_index import CHUNK, ChunkIndex, ChunkInfo, Counters
from .folder import StoreFolder
from .format import MOST_SEGMENTS, MOST_SLOTS, Manifest, NextNumbers
from .segment import LoadedSegment, Segment, SegmentMaps, load

# A lost segment leaves a gap of as many records as it had chunks: at most a few times as many as
# are there, or as a small store has. If a file declares more, no memory is allocated for it.
_LOST_CHUNKS, _LOST_SHARE = 1 << 18, 4

_MANY_NEW = 32  # linking one new chunk takes as long as linking as many at once


class Recovery(NamedTuple):
    """The traces of a crash that were found when a store was opened."""

    healed: int = 0  # copies of slots that were damaged or missing, the other one being whole
    torn: int = 0  # chunks of the flush during which the writer ended, which never returned

    @classmethod
    def of(cls, loaded: Sequence[LoadedSegment]) -> Recovery:
        """The traces in the files of these segments."""
        return cls(
            sum(len(each.committed.missing_a) + len(each.committed.missing_b) for each in loaded),
            sum(each.committed.torn for each in loaded),
        )


class Border(NamedTuple):
    """The end of a store when a checkpoint was saved."""

    counters: Counters
    sessions: int
    segments: dict[int, int]  # slots of each live segment by its number, the oldest first
    is_open: bool  # the last one was being written
    sizes: tuple[int, int]  # slots and bytes that the next one was to have at least

    def to_json(self) -> dict[str, object]:
        """Plain data for a checkpoint; `from_json` reads it."""
        lists = {"counters": [*self.counters], "sizes": [*self.sizes]}
        segments = [[number, slots] for number, slots in self.segments.items()]
        return {**self._asdict(), **lists, "segments": segments}

    @classmethod
    def from_json(cls, value: object) -> Border:
        """The border that `to_json` described; ValueError if it can be none."""
        data = mapping(value, "border")
        counters, sizes = (
            [whole(each, name) for each in items(member(data, name), name, count)]
            for name, count in (("counters", 3), ("sizes", 2))
        )
        pairs = [items(each, "segment", 2) for each in items(member(data, "segments"), "segments")]
        segments = {
            whole(number, "segment", 0, MOST_SEGMENTS - 1): whole(slots, "slots", 0, MOST_SLOTS)
            for number, slots in pairs
        }
        if [*segments] != sorted(segments) or len(segments) < len(pairs):
            raise ValueError("segments: expected rising numbers, got others")
        is_open, sessions = member(data, "is_open"), whole(member(data, "sessions"), "sessions")
        if not isinstance(is_open, bool) or is_open > len(segments):
            raise ValueError(f"is_open: expected a bool, true only with segments, got {is_open!r}")
        return cls(Counters(*counters), sessions, segments, is_open, (sizes[0], sizes[1]))


class StoreSnapshot:
    """Manifest, chunk index and segments of a store."""

    def __init__(
        self,
        manifest: Manifest,
        # live segments as found in their files; the chunks of a missing one are lost
        loaded: Sequence[LoadedSegment],
        before: StoreSnapshot | None = None,  # an earlier view, whose index may be continued
    ) -> None:
        self.manifest = manifest
        self.segments: dict[int, Segment] = {each.entry.number: each.segment for each in loaded}
        self.recovery = Recovery.of(loaded)
        self.index = _index_of(manifest, loaded, before)

    def shows(self, manifest: Manifest, loaded: Sequence[LoadedSegment]) -> bool:
        """True if a later reading of the files has found nothing else."""
        return (
            manifest == self.manifest
            and len(loaded) == len(self.segments)
            and all(
                mine.chunks == each.segment.chunks and each.segment.follows(mine)
                for mine, each in zip(self.segments.values(), loaded, strict=True)
            )
            and Recovery.of(loaded) == self.recovery
        )

    def find(self, maps: SegmentMaps, position: int) -> tuple[np.ndarray, Segment, ChunkInfo]:
        """The memory, the segment and the record of the chunk at a position."""
        record = self.index.record(position)
        segment = self.segments[record.segment]
        return maps.of(segment), segment, record

    @property
    def lost_chunks(self) -> int:
        """Chunks that are damaged and left out."""
        first = min(self.segments, default=1 << 32)
        before = sum(entry.slots for entry in self.manifest.sealed if entry.number < first)
        return before + int((self.index.records["end"] & End.LOST != 0).sum())

    @property
    def nbytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.nbytes for segment in self.segments.values())

    @property
    def extent(self) -> tuple[int, int]:
        """Position of the oldest chunk, and the number of chunks."""
        return self.index.base, len(self.index)

    @property
    def next(self) -> NextNumbers:
        """The next free numbers."""
        after = max(self.manifest.numbers, default=-1) + 1
        number = max(after, self.manifest.next.segment)
        return NextNumbers(number, sum(self.extent), *self.index.counters)


def load_all(
    folder: StoreFolder,
    manifest: Manifest,
    known: dict[int, LoadedSegment] | None = None,  # from an earlier call
    *,
    skip: bool = False,  # leave out those that cannot be read
) -> list[LoadedSegment]:
    """Read the live segments, except for known ones that did not change."""
    sealed = {entry.number: entry for entry in manifest.sealed}
    loaded: list[LoadedSegment] = []
    for number in manifest.numbers:
        found = (known or {}).get(number)
        try:
            if found is None or found.entry != sealed.get(number):
                found = load(folder.files, folder.path, manifest, number, keep_rest=skip)
            loaded.append(found)
        except StoreCorrupt:
            if not skip:
                raise
    return loaded


def read_view(
    folder: StoreFolder,
    # sealed ones from an earlier call; replaced by those of this one
    known: dict[int, LoadedSegment],
    # the view of an earlier call, which is returned again if nothing changed
    before: StoreSnapshot | None = None,
    *,
    skip: bool = False,  # leave out damaged segments
) -> StoreSnapshot:
    """Read the store while a writer may change it: only a problem found twice is an error."""
    seen = ""
    while True:
        manifest = folder.read_newest_manifest()
        try:
            loaded = load_all(folder, manifest, known)
            if before is not None and before.shows(manifest, loaded):
                return before
            view = StoreSnapshot(manifest, loaded, before)
        except StoreCorrupt as error:
            if str(error) != seen:
                seen = str(error)
                continue
            if not skip:
                raise
            loaded = load_all(folder, manifest, known, skip=True)
            view = StoreSnapshot(manifest, loaded)
        known.clear()
        numbers = {entry.number for entry in manifest.sealed}
        known.update(
            (each.entry.number, each.kept(view.index))
            for each in loaded
            if each.entry.number in numbers
        )
        return view


def _index_of(
    manifest: Manifest, loaded: Sequence[LoadedSegment], earlier: StoreSnapshot | None
) -> ChunkIndex:
    """The index of all chunks; a lost one keeps its position."""
    if not loaded:
        counters = Counters(*manifest.next[2:])
        return ChunkIndex.restore([], counters, manifest.next.position)
    base = position = loaded[0].segment.header.position
    most_lost = _LOST_CHUNKS + _LOST_SHARE * sum(len(each.records) for each in loaded)
    parts: list[np.ndarray] = []
    before = Counters()
    for each in loaded:
        begin = each.segment.header.position
        gap = _gap(position, begin, each.segment, most_lost)
        _check_follows(before, each)
        parts += [gap, each.records]
        position, before = begin + len(each.records), each.counters
    last = loaded[-1].segment
    parts.append(_gap(position, max(position, manifest.next.position), last, most_lost))
    counters = Counters(*map(max, zip(loaded[-1].counters, manifest.next[2:], strict=True)))
    added = None if earlier is None else _added(earlier, loaded, parts)
    if earlier is not None and added is not None:
        return earlier.index.followed_by(added, counters)
    return ChunkIndex.restore(parts, counters, base)


def _added(
    earlier: StoreSnapshot, loaded: Sequence[LoadedSegment], parts: Sequence[np.ndarray]
) -> np.ndarray | None:
    """The records of the chunks that were added to those of an earlier view."""
    # None if something else changed, too, or if they are so many that linking them one by one takes
    # longer than linking all.
    known, segments = len(earlier.index), [*earlier.segments.values()]
    added = sum(map(len, parts)) - known
    if (
        not segments
        or segments[-1].header.position + segments[-1].chunks != sum(earlier.extent)
        or not 0 <= added * _MANY_NEW <= known
        or len(segments) > len(loaded)
        or not all(new.segment.follows(old) for new, old in zip(loaded, segments, strict=False))
    ):
        return None
    newest = [part[:0] for part in parts[:1]]
    for part in reversed(parts):
        if added:
            newest.insert(0, part[max(0, len(part) - added) :])
            added -= len(newest[0])
    records = np.concatenate(newest)
    return None if (records["end"] & End.LOST).any() else records


def _gap(begin: int, end: int, segment: Segment, most: int) -> np.ndarray:
    """Records of the chunks of missing segments, with the number of an existing segment."""
    if not begin <= end <= begin + most:
        raise StoreCorrupt(
            f"{segment.path} begins with chunk {end}, expected {begin} or at most {most} more: "
            f"its store was put together from two copies; restore all of it from one"
        )
    records = np.zeros(end - begin, CHUNK)
    records["end"], records["segment"] = int(End.LOST), segment.header.number
    records["episode"] = records["stream"] = -1
    return records


def _check_follows(before: Counters, each: LoadedSegment) -> None:
    """Refuse a segment that uses numbers of the one before it again."""
    for name, used, first in zip(
        Counters._fields, before, each.segment.header.counters, strict=True
    ):
        if first < used:
            raise StoreCorrupt(
                f"{each.segment.path} begins with {name} {first}, expected {used} or more: its "
                f"store was put together from two copies; restore all of it from one"
            )
