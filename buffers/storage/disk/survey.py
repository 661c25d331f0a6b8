"""Every checksum of a store, and every row decoded: what `verify` reports and `repair` works on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np

from stepwell.buffers.episode import End
from stepwell.buffers.errors import StoreCorrupt
from stepwell.buffers.storage.chunk_info import ChunkInfo
from stepwell.buffers.storage.disk.files import Files
from stepwell.buffers.storage.disk.folder import StoreFolder
from stepwell.buffers.storage.disk.format import SLOT, Manifest
from stepwell.buffers.storage.disk.segment import (
    Loaded,
    check_size,
    damage,
    load,
    lost_slot,
    open_segment,
    segment_path,
)

__all__ = ["Damage", "SegmentSurvey", "survey"]

_RUN_BYTES = 8 << 20


class Damage(NamedTuple):
    """One thing that is not what was written.

    Args:
        path: The file.
        what: A sentence that says where in it, and what is gone.
        slot: Number of the chunk in the segment; None where the whole file is meant.
        rows: Rows that are gone; None where that is not known.
        is_harmless: Nothing is gone.
    """

    path: Path
    what: str
    slot: int | None = None
    rows: int | None = None
    is_harmless: bool = False


class SegmentSurvey(NamedTuple):
    """What a segment's file holds.

    Args:
        number: Number of the segment.
        loaded: Its slots; None where they cannot be read.
        damages: What is not what was written.
        nbytes: Bytes whose checksums were compared.
    """

    number: int
    loaded: Loaded | None
    damages: list[Damage]
    nbytes: int

    @property
    def lost(self) -> list[int]:
        """Slots whose chunks are gone."""
        return [each.slot for each in self.damages if each.slot is not None]


def survey(
    folder: StoreFolder, manifest: Manifest, on_bytes: Callable[[int], None]
) -> Iterator[SegmentSurvey]:
    """Compare every checksum of the live segments, one segment after the other.

    Args:
        folder: The store's folder.
        manifest: Its manifest.
        on_bytes: Called with the number of bytes that were compared since the last call.
    """
    sealed = {entry.number: entry for entry in manifest.sealed}
    for number in manifest.numbers:
        path = segment_path(folder.path, number)
        try:
            loaded = load(folder.files, folder.path, manifest, number, keep_rest=True)
        except (StoreCorrupt, OSError) as error:
            entry = sealed.get(number)
            rows = 0 if entry is not None and entry.slots == 0 else None
            yield SegmentSurvey(number, None, [Damage(path, _sentence(path, error), rows=rows)], 0)
            continue
        damages = _wrong_length(manifest, loaded)
        damages += [
            Damage(path, lost_slot(path, slot), slot) for slot in loaded.verdict.lost.tolist()
        ]
        chunks, nbytes = _damaged_chunks(folder.files, loaded, on_bytes)
        yield SegmentSurvey(number, loaded, damages + chunks, nbytes)


def _wrong_length(manifest: Manifest, loaded: Loaded) -> list[Damage]:
    segment = loaded.segment
    number = segment.header.number
    sealed = {entry.number: entry for entry in manifest.sealed}.get(number)
    try:
        check_size(segment.header, sealed, segment.nbytes, segment.path)
    except StoreCorrupt as error:
        return [Damage(segment.path, str(error), is_harmless=True)]
    return []


def _damaged_chunks(
    files: Files, loaded: Loaded, on_bytes: Callable[[int], None]
) -> tuple[list[Damage], int]:
    """The chunks that are not what was written, and the number of bytes compared.

    They are read, before they are looked at where they are mapped: a sector that cannot be read is
    then an error, not the end.
    """
    path, header = loaded.segment.path, loaded.segment.header
    found = list[Damage]()
    nbytes = header.header_bytes + 2 * SLOT.itemsize * len(loaded.records)
    most = min(loaded.entry.nbytes, loaded.segment.nbytes)
    memory: np.ndarray | None = None
    with open_segment(files, path) as file:
        for number, slot in enumerate(loaded.verdict.slots):
            if int(slot["end"]) & End.LOST:
                continue
            record = ChunkInfo._make(loaded.records[number].tolist())
            if record.offset + record.nbytes > most:  # as for a reader
                what = damage(path, record, f"expected them before {most}, where the data end")
                found.append(Damage(path, what, number, record.stored_rows))
                continue
            try:
                crc = 0
                for offset in range(0, record.nbytes, _RUN_BYTES):
                    count = min(_RUN_BYTES, record.nbytes - offset)
                    data = files.pread(file, count, record.offset + offset)
                    crc = crc32(data, crc)
                    on_bytes(len(data))
                is_right = crc == int(slot["data_crc"])
                what = damage(path, record)
                if is_right:
                    memory = files.map(file) if memory is None else memory
                    loaded.segment.check_all(memory, header.position + number, record)
            except (StoreCorrupt, OSError) as error:
                is_right, what = False, _sentence(path, error)
            nbytes += record.nbytes
            if not is_right:
                found.append(Damage(path, what, number, record.stored_rows))
    return found, nbytes


def _sentence(path: Path, error: StoreCorrupt | OSError) -> str:
    if isinstance(error, StoreCorrupt):
        return str(error)
    return f"{path} cannot be read: {error.strerror or error}; restore it from a copy"
