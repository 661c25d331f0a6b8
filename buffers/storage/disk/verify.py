"""Compares every checksum of a store, decodes every row, and reports the damage."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np

from ...base.errors import StoreCorrupt, StoreNotFound
from ...base.progress import Progress, bytes_status, check_progress, progress_function
from ...rows.episode import End
from ..chunk_index import ChunkInfo
from .files import Files
from .folder import StoreFolder, ignored_file
from .format import SLOT, Manifest, repair_advice
from .rebuild import rebuild_manifest
from .segment import (
    LoadedSegment,
    check_size,
    damage_message,
    load,
    lost_slot_message,
    open_segment,
    segment_path,
)
from .snapshot import Recovery, StoreSnapshot

_RUN_BYTES = 8 << 20


class Damage(NamedTuple):
    """One damaged part of a store."""

    path: Path  # of the file
    what: str  # a sentence that names the place in the file and the lost rows
    slot: int | None = None  # number of the chunk in the segment; None for the whole file
    rows: int | None = None  # number of lost rows; None if it is unknown
    is_harmless: bool = False  # no row is lost


class SegmentSurvey(NamedTuple):
    """The chunks and damages found in a segment's file."""

    number: int  # of the segment
    loaded: LoadedSegment | None  # None if its slots cannot be read
    damages: list[Damage]
    nbytes: int  # whose checksums were compared

    @property
    def lost(self) -> list[int]:
        """Slots whose chunks are lost."""
        return [each.slot for each in self.damages if each.slot is not None]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of `verify`.

    Args:
        path: The folder.
        damages: Damaged parts; empty in a sound store.
        recovery: Traces of a crash, which the next writer removes; no row is lost by them.
        segments: Number of files.
        chunks: Undamaged chunks.
        rows: Rows in them that count.
        episodes: Episodes with such rows.
        nbytes: Bytes whose checksums were compared.
        lost_chunks: Chunks that an earlier repair removed.
        ignored: A sentence about a file that only earlier versions read; empty without one.
    """

    path: Path
    damages: tuple[Damage, ...]
    recovery: Recovery
    segments: int
    chunks: int
    rows: int
    episodes: int
    nbytes: int
    lost_chunks: int
    ignored: str = ""

    @property
    def is_whole(self) -> bool:
        """True if nothing is damaged."""
        return not self.damages


def verify(
    path: str | os.PathLike[str],
    *,
    progress: Progress[int, int] = None,
    files: Files | None = None,
) -> VerifyReport:
    """Compare every checksum of the store in a folder, and decode every row.

    Changes nothing and takes no lock. While another process writes, the chunks that were stored at
    the beginning are verified.

    Args:
        path: The folder.
        progress: True shows a line in a terminal or in a notebook, or a line of text every 30
            seconds where there is neither. Or a function that is called with the bytes that were
            compared so far, and those of all files.
        files: The system calls; tests inject faults here.

    Raises:
        StoreNotFound: There is no store in the folder.
        StoreTooNew: A later version wrote it.
        TypeError: ``progress`` is neither True nor a function.

    Example:
        >>> import tempfile
        >>> import stepwell as sw
        >>> from stepwell.buffers import verify
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with sw.SequenceReplayBuffer(folder) as replay:
        ...         envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        ...         with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...             report = collector.collect(steps=100)
        ...     verify(folder).is_whole
        True
    """
    check_progress(progress)
    folder = StoreFolder(path, files or Files())
    manifest, damages = read_or_rebuild(folder)
    found = survey_all(folder, manifest, progress)
    live = set(read_or_rebuild(folder)[0].numbers)
    # A segment that a writer has evicted meanwhile is not missing.
    found = [each for each in found if each.number in live]
    return _report(folder, manifest, damages, found)


def survey_all(
    folder: StoreFolder, manifest: Manifest, progress: Progress[int, int]
) -> list[SegmentSurvey]:
    """The survey of all live segments, with its progress in the bytes that are compared."""
    done = total = 0
    for path in folder.path.glob("segment-*.bin"):
        with contextlib.suppress(FileNotFoundError):  # a writer may have removed it since
            total += os.lstat(path).st_size
    with progress_function(progress, bytes_status(str(folder.path))) as report:

        def add(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            if report is not None:
                report(done, total)

        return list(survey(folder, manifest, add))


def read_or_rebuild(folder: StoreFolder) -> tuple[Manifest, list[Damage]]:
    """Read the manifest, or rebuild it from the segments."""
    path = folder.path / "manifest.json"
    try:
        return folder.read_newest_manifest(), []
    except (StoreNotFound, StoreCorrupt) as error:
        rebuilt = rebuild_manifest(folder)
        if rebuilt is None:
            raise
        with contextlib.suppress(StoreNotFound, StoreCorrupt):
            old = folder.read_manifest()  # one that is too old still lists the earlier runs
            if old.store == rebuilt.store:
                rebuilt = replace(rebuilt, facts=old.facts)
        is_missing = isinstance(error, StoreNotFound)
        what = f"{path} is missing; {repair_advice(path)}" if is_missing else str(error)
    return rebuilt, [Damage(path, what, is_harmless=True)]


def _report(
    folder: StoreFolder,
    manifest: Manifest,
    damages: list[Damage],
    found: list[SegmentSurvey],
) -> VerifyReport:
    damages = damages + [damage for each in found for damage in each.damages]
    loaded = [each.loaded for each in found if each.loaded is not None]
    try:
        view = StoreSnapshot(manifest, loaded)
    except StoreCorrupt as error:
        # segments that are whole one by one, and contradict each other
        damages.append(Damage(folder.path, str(error)))
        view = StoreSnapshot(manifest, [])
    taken_out = view.lost_chunks - sum(len(each.committed.lost) for each in loaded)
    index = view.index
    index.lose(
        each.loaded.segment.header.position + slot
        for each in found
        if each.loaded is not None and each.loaded.entry.number in view.segments
        for slot in each.lost
    )
    whole = index.records[index.records["rows"] > 0]
    return VerifyReport(
        path=folder.path,
        damages=tuple(damages),
        recovery=view.recovery,
        segments=len(manifest.numbers),
        chunks=len(whole),
        rows=index.rows,
        episodes=index.episodes,
        nbytes=sum(each.nbytes for each in found),
        lost_chunks=taken_out,
        ignored=ignored_file(folder.path),
    )


def survey(
    folder: StoreFolder,
    manifest: Manifest,
    # called with the number of bytes that were compared since the last call
    on_bytes: Callable[[int], None],
) -> Iterator[SegmentSurvey]:
    """Compare every checksum of the live segments, segment by segment."""
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
        damages: list[Damage] = []
        try:
            check_size(loaded.segment.header, sealed.get(number), loaded.segment.nbytes, path)
        except StoreCorrupt as error:
            damages.append(Damage(path, str(error), is_harmless=True))
        damages += [
            Damage(path, lost_slot_message(path, slot), slot)
            for slot in loaded.committed.lost.tolist()
        ]
        chunks, nbytes = _damaged_chunks(folder.files, loaded, on_bytes)
        yield SegmentSurvey(number, loaded, damages + chunks, nbytes)


def _damaged_chunks(
    files: Files, loaded: LoadedSegment, on_bytes: Callable[[int], None]
) -> tuple[list[Damage], int]:
    """The damaged chunks, and the number of bytes compared."""
    # Chunks are read before they are mapped: a sector that cannot be read is then an error, not the
    # end of the process.
    path, header = loaded.segment.path, loaded.segment.header
    found = list[Damage]()
    nbytes = header.header_bytes + 2 * SLOT.itemsize * len(loaded.records)
    most = min(loaded.entry.nbytes, loaded.segment.nbytes)
    memory: np.ndarray | None = None
    with open_segment(files, path) as file:
        for number, slot in enumerate(loaded.committed.slots):
            if int(slot["end"]) & End.LOST:
                continue
            record = ChunkInfo._make(loaded.records[number].tolist())
            if record.offset + record.nbytes > most:  # as for a reader
                what = damage_message(
                    path, record, f"expected them before {most}, where the data end"
                )
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
                what = damage_message(path, record)
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
