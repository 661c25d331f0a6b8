"""Repairs a damaged store: keeps all undamaged chunks, and reports and removes the others."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path

from ...base.errors import StoreCorrupt, StoreNotFound
from ...base.progress import Progress, check_progress
from ...rows.episode import End
from .files import Files, path_kind, write_at
from .folder import StoreFolder
from .format import Header, Manifest, SealedSegment, pack_slots
from .rebuild import rebuild_header
from .segment import LoadedSegment, segment_path
from .snapshot import Recovery
from .storage import DiskStorage
from .verify import Damage, SegmentSurvey, read_or_rebuild, survey, survey_all

_LOG = logging.getLogger("stepwell.buffers.storage")
_KEPT = "damaged"
_RUN_BYTES = 8 << 20
_PAGE_BYTES = 4096
# Ids that a lost segment may have used must not be used again.
_MANY_ROWS, _MANY_EPISODES = 1 << 40, 1 << 20


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The result of `repair`.

    Args:
        path: The folder.
        damages: The damaged parts.
        is_done: The store was repaired; False if that needs ``yes=True``.
        recovery: Traces of a crash: healed copies, and a torn flush that never returned.
        kept: The damaged files, now in the folder ``damaged``.
    """

    path: Path
    damages: tuple[Damage, ...]
    is_done: bool
    recovery: Recovery
    kept: tuple[Path, ...]


def repair(
    path: str | os.PathLike[str],
    *,
    yes: bool = False,
    progress: Progress[int, int] = None,
    files: Files | None = None,
) -> RepairReport:
    """Repair the store in a folder.

    Damaged chunks are removed only with ``yes``: the rows before them are an episode ended by a
    cut, the rows after them one without its first rows. Their actions are lost, too, as no part of
    a damaged chunk can be proved right. The damaged files are kept in the folder
    ``damaged`` inside the store; nothing is deleted. A store without damage is opened for writing,
    which completes or leaves out what a crash has left.

    Args:
        path: The folder.
        yes: Remove damaged chunks.
        progress: As in `verify`.
        files: The system calls; tests inject faults here.

    Raises:
        StoreNotFound: There is no store in the folder.
        StoreLocked: Another process writes into it.
        StoreTooNew: A later version wrote it.
        TypeError: ``progress`` is neither True nor a function.
    """
    check_progress(progress)
    folder = StoreFolder(path, files or Files())
    read_or_rebuild(folder)  # raises if there is no store
    lock = folder.lock()
    with contextlib.closing(lock):
        manifest, damages = read_or_rebuild(folder)
        found = survey_all(folder, manifest, progress)
        damages += [damage for each in found for damage in each.damages]
        if damages and not yes:
            return RepairReport(folder.path, tuple(damages), False, Recovery(), ())
        kept = _Repair(folder, manifest, found).run() if damages else []
        for damage in damages:
            _LOG.warning("%s: repaired: %s", folder.path, damage.what)
    with DiskStorage.open(path, files=folder.files) as storage:  # recovers it
        return RepairReport(folder.path, tuple(damages), True, storage.recovery, tuple(kept))


class _Repair:
    """Replaces damaged segments one by one; can be run again after a crash."""

    def __init__(
        self,
        folder: StoreFolder,  # locked
        manifest: Manifest,  # as read or rebuilt
        found: list[SegmentSurvey],  # the live segments
    ) -> None:
        self._folder = folder
        self._files = folder.files
        self._manifest = manifest
        self._found = found
        self._kept: list[Path] = []
        self._gone: list[SegmentSurvey] = []

    def run(self) -> list[Path]:
        """Repair the store, and return the paths of the damaged files that were kept."""
        folder = self._folder.path / _KEPT
        if path_kind(folder) not in (None, "folder"):
            raise StoreCorrupt(
                f"{folder} is a {path_kind(folder)}, expected a folder for damaged files, or none: "
                f"links are not followed; move it away"
            )
        try:
            self._folder.read_newest_manifest()
        except StoreCorrupt:  # it is damaged, or older than the segments
            self._keep(self._folder.path / "manifest.json")
        except StoreNotFound:
            pass
        before: LoadedSegment | None = None
        entries: dict[int, SealedSegment] = {entry.number: entry for entry in self._manifest.sealed}
        for each in self._found:
            each = self._with_header(each, before)
            if each.loaded is None:
                self._keep(segment_path(self._folder.path, each.number))
                entries.pop(each.number, None)
                self._gone.append(each)
                continue
            if each.damages:
                self._replace(each.loaded, each.lost)
                entries[each.number] = each.loaded.entry
            before = each.loaded
        self._write_manifest(entries)
        for each in self._gone:  # last: a manifest must not list a missing file
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(segment_path(self._folder.path, each.number))
        return self._kept

    def _with_header(self, found: SegmentSurvey, before: LoadedSegment | None) -> SegmentSurvey:
        """The survey of a segment, with its header rebuilt where only that is damaged."""
        if found.loaded is not None:
            return found
        header = rebuild_header(self._folder, self._manifest, found.number, before)
        if header is None:
            return found
        path = segment_path(self._folder.path, found.number)
        self._keep(path)
        self._rewrite(path, header, header.pack(), 0)
        alone = replace(
            self._manifest,
            sealed=tuple(e for e in self._manifest.sealed if e.number == found.number),
            open=found.number if self._manifest.open == found.number else None,
        )
        (again,) = survey(self._folder, alone, lambda nbytes: None)
        return again

    def _replace(self, loaded: LoadedSegment, lost: list[int]) -> None:
        """Rewrite the segment with its lost chunks marked."""
        header, slots = loaded.segment.header, loaded.committed.slots.copy()
        for number in lost:  # its other values stay
            slot = slots[number]
            slot["end"] |= int(End.LOST)
            slot["number"], slot["position"] = number, header.position + number
            if slot["group_slots"] == 0:  # nothing is known
                slot["group"], slot["group_slots"] = number, 1
        self._keep(loaded.segment.path)
        packed = pack_slots(header, slots)
        self._rewrite(loaded.segment.path, header, packed, *header.table_offsets)

    def _keep(self, path: Path) -> None:
        """Link a damaged file into the folder for damaged files."""
        kind = path_kind(path)
        if kind is None:
            return
        folder = self._folder.path / _KEPT
        if path_kind(folder) is None:
            self._files.make_folder(folder)
            self._files.fsync_folder(self._folder.path)
        number = 0
        while path_kind(target := folder / f"{path.name}.{number}") is not None:
            number += 1
        # A folder cannot have a second name, and is no use to the store.
        (self._files.link if kind == "file" else self._files.rename)(path, target)
        self._files.fsync_folder(folder)
        self._kept.append(target)

    def _rewrite(self, path: Path, header: Header, data: bytes, *offsets: int) -> None:
        """Replace a segment by a copy with new bytes at some offsets, in its full length."""
        temporary = path.with_name(path.name + ".tmp")
        with self._files.open(path) as old, self._files.create(temporary) as new:
            # Not the length in the header, which may be anything.
            length = min(self._files.size(old), header.file_bytes)
            self._files.allocate(new, length)
            for offset in range(0, length, _RUN_BYTES):
                run = self._read(old, min(_RUN_BYTES, length - offset), offset)
                write_at(self._files, new, run, offset)
            self._files.truncate(new, header.file_bytes)
            for offset in offsets:
                write_at(self._files, new, data, offset)
            self._files.fsync(new)
        self._files.rename(temporary, path)
        self._files.fsync_folder(path.parent)

    def _read(self, file: FileIO, nbytes: int, offset: int) -> bytes:
        """Bytes of a damaged file; zeros past its end, or where it cannot be read."""
        try:
            return self._files.pread(file, nbytes, offset).ljust(nbytes, b"\0")
        except OSError:
            if nbytes <= _PAGE_BYTES:
                return bytes(nbytes)
            half = nbytes // 2
            return self._read(file, half, offset) + self._read(file, nbytes - half, offset + half)

    def _write_manifest(self, entries: dict[int, SealedSegment]) -> None:
        """List the remaining segments; a replaced one is sealed."""
        manifest = self._manifest
        is_gone = any(each.number == manifest.open for each in self._gone)
        is_open = manifest.open not in entries and not is_gone
        following = manifest.next
        if is_gone:  # the numbers of its chunks are unknown
            row_id, episode = following.row_id + _MANY_ROWS, following.episode + _MANY_EPISODES
            following = following._replace(
                segment=following.segment + 1, row_id=row_id, episode=episode
            )
        self._folder.write_manifest(
            replace(
                manifest,
                sealed=tuple(entries[number] for number in sorted(entries)),
                open=manifest.open if is_open else None,
                next=following,
            )
        )
