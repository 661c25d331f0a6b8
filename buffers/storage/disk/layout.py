"""The layout of a store's folder: all that its files are made of besides the bytes of the chunks.

With it the folder can be written again, byte for byte: `read_layout` and `write_folder`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np

from stepwell.buffers.json_values import MOST, items, member, text, whole
from stepwell.buffers.storage.chunk_codec import Part
from stepwell.buffers.storage.chunk_index import ChunkIndex, Counters
from stepwell.buffers.storage.disk.files import Files, replace_file, write_at
from stepwell.buffers.storage.disk.folder import StoreFolder
from stepwell.buffers.storage.disk.format import (
    MOST_SEGMENTS,
    MOST_SLOTS,
    SLOT,
    Header,
    Manifest,
    NextNumbers,
    SealedSegment,
    StoreFacts,
    align,
    pack_slots,
)
from stepwell.buffers.storage.disk.segment import load, segment_path

__all__ = ["FolderLayout", "SegmentLayout", "read_layout", "write_folder"]

_MOST_DATA_BYTES = 1 << 48


class SegmentLayout(NamedTuple):
    """The layout of one segment.

    Args:
        number: Its number.
        slots: Places in each slot table.
        data_bytes: Room for chunks when it was opened.
        counters: The counters of the index when it was opened.
        text: Index of its facts among the texts of the layout.
        chunks: Number of its chunks.
        crc: Checksum of the checksums of its chunks.
    """

    number: int
    slots: int
    data_bytes: int
    counters: Counters
    text: int
    chunks: int
    crc: int


class FolderLayout(NamedTuple):
    """The layout of a folder.

    Args:
        store: The store's 16 random bytes.
        position: Position of the first chunk.
        next: Numbers that are not used yet.
        texts: Facts that segments have in their headers.
        segments: The segments, the oldest first.
        begins_flush: [chunks] bool: a flush began with the chunk.
        row_ids: Ids of the first row [chunks].
        total_steps: Steps of the store after each chunk [chunks].
    """

    store: bytes
    position: int
    next: NextNumbers
    texts: tuple[bytes, ...]
    segments: tuple[SegmentLayout, ...]
    begins_flush: np.ndarray
    row_ids: np.ndarray
    total_steps: np.ndarray

    def to_json(self) -> dict[str, object]:
        """All but the arrays as plain data."""
        return {
            "store": self.store.hex(),
            "position": self.position,
            "next": list(self.next),
            "texts": [each.decode() for each in self.texts],
            "segments": [
                [*each[:3], *each.counters, each.text, each.chunks, each.crc]
                for each in self.segments
            ],
        }

    @classmethod
    def from_json(
        cls,
        data: Mapping[str, object],
        begins_flush: np.ndarray,
        row_ids: np.ndarray,
        total_steps: np.ndarray,
    ) -> FolderLayout:
        """The layout that `to_json` described, with its arrays.

        Raises:
            ValueError: It described none.
        """
        store = bytes.fromhex(text(member(data, "store"), "store"))
        texts = tuple(text(each, "text").encode() for each in items(member(data, "texts"), "texts"))
        for each in texts:
            Header(store, 0, 1, 0, 0, Counters(), each).facts  # noqa: B018  # all of it is read
        entries = items(member(data, "segments"), "segments")
        segments = tuple(_segment(entry, len(texts)) for entry in entries)
        numbers, numbered = [each.number for each in segments], (row_ids, total_steps)
        following = (whole(value, "next") for value in items(member(data, "next"), "next", 5))
        layout = cls(
            *(store, whole(member(data, "position"), "position"), NextNumbers(*following), texts),
            *(segments, begins_flush, row_ids, total_steps),
        )
        if (
            len(store) != 16
            or numbers != sorted(set(numbers))
            or sum(each.chunks for each in segments) != len(begins_flush)
            or not len(begins_flush) == len(row_ids) == len(total_steps)
            or any(len(each) and not 0 <= each.min() <= each.max() <= MOST for each in numbered)
        ):
            raise ValueError(f"segments {numbers[:10]} of {len(begins_flush)} chunks")
        return layout


def read_layout(folder: StoreFolder, manifest: Manifest, index: ChunkIndex) -> FolderLayout:
    """The layout of a folder.

    Args:
        folder: The folder.
        manifest: Its manifest.
        index: The index of its chunks.

    Raises:
        StoreCorrupt: A segment is damaged.
        ValueError: Chunks are missing.
    """
    texts: dict[bytes, int] = {}
    segments: list[SegmentLayout] = []
    parts: list[np.ndarray] = []
    counts = dict(zip(*np.unique(index.records["segment"], return_counts=True), strict=True))
    for number in manifest.numbers:
        found = load(folder.files, folder.path, manifest, number)
        header, chunks = found.segment.header, int(counts.get(number, 0))
        slots = found.committed.slots[:chunks]  # a writer may have added others
        segments.append(
            SegmentLayout(
                *(number, header.slots, header.data_bytes, header.counters),
                *(texts.setdefault(header.facts_text, len(texts)), chunks, _crc_of(slots)),
            )
        )
        parts.append(slots)
    slots = np.concatenate([np.zeros(0, SLOT), *parts])
    if len(slots) != len(index) or (slots["position"] != index.base + np.arange(len(index))).any():
        raise ValueError(
            f"{folder.path} has {len(index)} chunks, of which {len(slots)} are in its files, "
            f"expected all of them; copy it first: stepwell copy"
        )
    after = max([manifest.next.segment, *(number + 1 for number in manifest.numbers)])
    return FolderLayout(
        store=manifest.store,
        position=index.base,
        next=NextNumbers(after, index.base + len(index), *index.counters),
        texts=tuple(texts),
        segments=tuple(segments),
        begins_flush=slots["group"] == slots["number"],
        row_ids=slots["row_id"].astype(np.int64),
        total_steps=slots["total_steps"].astype(np.int64),
    )


def write_folder(
    path: Path,
    facts: StoreFacts,
    layout: FolderLayout,
    columns: Mapping[str, np.ndarray],
    chunks: Iterable[Sequence[Part]],
    files: Files | None = None,
) -> bool:
    """Write a store's folder again.

    Args:
        path: An empty folder.
        facts: The store's facts.
        layout: Its layout.
        columns: Episode, stream, first row, rows and end [chunks] of the chunks, by name.
        chunks: The bytes of each chunk.
        files: The system calls.

    Returns:
        True if the bytes of all chunks are those that the layout was read with.
    """
    files = files or Files()
    slots = np.zeros(len(layout.row_ids), SLOT)
    for name, values in columns.items():
        slots[name] = values
    slots["position"] = layout.position + np.arange(len(slots))
    slots["row_id"], slots["total_steps"] = layout.row_ids, layout.total_steps
    encoded = iter(chunks)
    sealed: list[SealedSegment] = []
    is_same, begin = True, 0
    for segment in layout.segments:
        stop = begin + segment.chunks
        own = slots[begin:stop]
        _number_flushes(own, layout.begins_flush[begin:stop])
        position = layout.position + begin
        sealed.append(_write_segment(files, path, layout, segment, position, own, encoded))
        is_same = is_same and _crc_of(own) == segment.crc
        begin = stop
    manifest = Manifest(layout.store, facts, tuple(sealed), None, layout.next)
    replace_file(files, path / "manifest.json", manifest.pack())
    return is_same


def _write_segment(
    files: Files,
    path: Path,
    layout: FolderLayout,
    segment: SegmentLayout,
    position: int,
    slots: np.ndarray,
    chunks: Iterable[Sequence[Part]],
) -> SealedSegment:
    """Write one segment, and complete its slots."""
    header = Header(
        *(layout.store, segment.number, segment.slots, segment.data_bytes, position),
        *(segment.counters, layout.texts[segment.text]),
    )
    end = header.data_offset
    with files.create(segment_path(path, segment.number)) as file:
        for slot, parts in zip(slots, chunks, strict=False):
            crc = 0
            slot["offset"], slot["head_bytes"], slot["head_crc"] = (
                end,
                len(parts[0]),
                crc32(parts[0]),
            )
            for part in parts:
                write_at(files, file, part, end)
                end, crc = end + len(part), crc32(part, crc)
            slot["nbytes"], slot["data_crc"] = end - slot["offset"], crc
        # Another version of zstd may need more room.
        room = max(segment.data_bytes, align(end - header.data_offset))
        header = Header(
            *(layout.store, segment.number, segment.slots, room, position),
            *(segment.counters, layout.texts[segment.text]),
        )
        packed = pack_slots(header, slots)
        write_at(files, file, header.pack(), 0)
        for offset in header.table_offsets:
            write_at(files, file, packed, offset)
        files.truncate(file, align(end))
        files.fsync(file)
    return SealedSegment(segment.number, align(end), len(slots))


def _number_flushes(slots: np.ndarray, begins: np.ndarray) -> None:
    """Set number, group and length of the group of a segment's slots."""
    slots["number"] = np.arange(len(slots))
    if not len(slots):
        return
    begins = begins.copy()
    begins[0] = True
    first = np.flatnonzero(begins)
    lengths = np.diff(np.append(first, len(slots)))
    slots["group"], slots["group_slots"] = np.repeat(first, lengths), np.repeat(lengths, lengths)


def _crc_of(slots: np.ndarray) -> int:
    return crc32(np.ascontiguousarray(slots["data_crc"], "<u4").tobytes())


def _segment(entry: object, texts: int) -> SegmentLayout:
    """One segment of `FolderLayout.to_json`."""
    number, slots, data_bytes, *counters, name, chunks, crc = items(entry, "segment", 9)
    found = SegmentLayout(
        number=whole(number, "number of a segment", 0, MOST_SEGMENTS - 1),
        slots=whole(slots, "slots", 1, MOST_SLOTS),
        data_bytes=whole(data_bytes, "length of the data", 0, _MOST_DATA_BYTES),
        counters=Counters(*(whole(value, "counters") for value in counters)),
        text=whole(name, "text", 0, texts - 1),
        chunks=whole(chunks, "chunks", 0, MOST_SLOTS),
        crc=whole(crc, "crc", 0, 2**32 - 1),
    )
    if found.chunks > found.slots or found.data_bytes != align(found.data_bytes):
        raise ValueError(
            f"segment {found.number} with {found.chunks} chunks in {found.slots} slots"
        )
    return found
