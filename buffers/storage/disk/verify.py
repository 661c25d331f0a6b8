"""Tell whether a store is what was written, and where it is not."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from stepwell.buffers.errors import StoreCorrupt, StoreNotFound
from stepwell.buffers.storage.disk.files import Files
from stepwell.buffers.storage.disk.folder import StoreFolder
from stepwell.buffers.storage.disk.format import Manifest, cure
from stepwell.buffers.storage.disk.rebuild import rebuild_manifest
from stepwell.buffers.storage.disk.survey import Damage, SegmentSurvey, survey
from stepwell.buffers.storage.disk.view import Recovery, View

__all__ = ["VerifyReport", "read_or_rebuild", "verify"]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was found in a store.

    Args:
        path: The folder.
        damages: What is not what was written; empty in a sound store.
        recovery: What a crash left, which the next writer brings in order; nothing is lost by it.
        segments: Number of files.
        chunks: Chunks that are whole.
        rows: Rows in them that count.
        episodes: Episodes of which rows are left.
        nbytes: Bytes whose checksums were compared.
        lost_chunks: Chunks that an earlier repair took out.
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

    @property
    def is_whole(self) -> bool:
        """Every byte is what was written."""
        return not self.damages


def verify(
    path: str | os.PathLike[str],
    *,
    on_bytes: Callable[[int], None] | None = None,
    files: Files | None = None,
) -> VerifyReport:
    """Compare every checksum of the store in a folder, and decode every row.

    What is whole here can be read, all of it. Nothing is changed, no lock is taken. While another
    process writes, what it had stored at the beginning is verified.

    Args:
        path: The folder.
        on_bytes: Called with the number of bytes that were compared since the last call.
        files: The system calls; tests put faults here.

    Raises:
        StoreNotFound: There is no store in the folder.
        StoreTooNew: A later version wrote it.

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
    folder = StoreFolder(path, files or Files())
    manifest, damages = read_or_rebuild(folder)
    found = list(survey(folder, manifest, on_bytes or (lambda nbytes: None)))
    live = set(read_or_rebuild(folder)[0].numbers)
    # What a writer has evicted meanwhile is not missing.
    return _report(folder, manifest, damages, [each for each in found if each.number in live])


def read_or_rebuild(folder: StoreFolder) -> tuple[Manifest, list[Damage]]:
    """The manifest, or what the segments tell of it.

    Raises:
        StoreNotFound: There is no store in the folder.
        StoreCorrupt: There is a manifest that is damaged, and no segment to make it from.
    """
    path = folder.path / "manifest.json"
    try:
        return folder.read_newest_manifest(), []
    except (StoreNotFound, StoreCorrupt) as error:
        rebuilt = rebuild_manifest(folder)
        if rebuilt is None:
            raise
        with contextlib.suppress(StoreNotFound, StoreCorrupt):
            old = folder.read_manifest()  # where it is too old it still knows of all runs before
            if old.store == rebuilt.store:
                rebuilt = replace(rebuilt, facts=old.facts)
        is_missing = isinstance(error, StoreNotFound)
        what = f"{path} is missing; {cure(path)}" if is_missing else str(error)
    return rebuilt, [Damage(path, what, is_harmless=True)]


def _report(
    folder: StoreFolder, manifest: Manifest, damages: list[Damage], found: list[SegmentSurvey]
) -> VerifyReport:
    damages = damages + [damage for each in found for damage in each.damages]
    loaded = [each.loaded for each in found if each.loaded is not None]
    try:
        view = View(manifest, loaded)
    except StoreCorrupt as error:
        damages.append(Damage(folder.path, str(error)))
        view = View(manifest, [])
    taken_out = view.lost_chunks - sum(len(each.verdict.lost) for each in loaded)
    table = view.table
    table.lose(
        each.loaded.segment.header.position + slot
        for each in found
        if each.loaded is not None and each.loaded.entry.number in view.segments
        for slot in each.lost
    )
    whole = table.records[table.records["rows"] > 0]
    return VerifyReport(
        path=folder.path,
        damages=tuple(damages),
        recovery=view.recovery,
        segments=len(manifest.numbers),
        chunks=len(whole),
        rows=table.rows,
        episodes=table.episodes,
        nbytes=sum(each.nbytes for each in found),
        lost_chunks=taken_out,
    )
