"""What is known of a store at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stepwell.buffers.disk.folder import StoreFolder
from stepwell.buffers.disk.format import Manifest, Next
from stepwell.buffers.disk.segment import Loaded, Segment, load
from stepwell.buffers.errors import StoreCorrupt
from stepwell.buffers.piece_table import PIECE, Counters, PieceTable

__all__ = ["Recovery", "View", "load_all", "look"]


class Recovery(NamedTuple):
    """What opening a store found amiss after a crash.

    Args:
        healed: Copies of slots that were damaged or missing, the other one being whole; nothing is
            lost.
        torn: Pieces of the flush during which the writer ended, which never returned.
    """

    healed: int = 0
    torn: int = 0


class View:
    """Manifest, table and segments of a store.

    Args:
        manifest: The manifest.
        loaded: The live segments as found in their files.
    """

    def __init__(self, manifest: Manifest, loaded: Sequence[Loaded]) -> None:
        self.manifest = manifest
        self.segments: dict[int, Segment] = {each.entry.number: each.segment for each in loaded}
        self.recovery = Recovery(
            sum(len(each.verdict.heal_a) + len(each.verdict.heal_b) for each in loaded),
            sum(each.verdict.torn for each in loaded),
        )
        counters = loaded[-1].counters if loaded else Counters(*manifest.next[2:])
        base = loaded[0].segment.header.position if loaded else manifest.next.position
        records = [np.empty(0, PIECE), *(each.records for each in loaded)]
        self.table = PieceTable.restore(np.concatenate(records), counters, base)

    @property
    def nbytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.nbytes for segment in self.segments.values())

    @property
    def extent(self) -> tuple[int, int]:
        """Position of the oldest piece, and the number of pieces."""
        return self.table.base, len(self.table)

    @property
    def next(self) -> Next:
        """What is not used yet."""
        after = max(self.manifest.numbers, default=-1) + 1
        number = max(after, self.manifest.next.segment)
        return Next(number, sum(self.extent), *self.table.counters)


def load_all(
    folder: StoreFolder, manifest: Manifest, known: dict[int, Loaded] | None = None
) -> list[Loaded]:
    """Read the live segments, but for those that are known and did not change."""
    sealed = {entry.number: entry for entry in manifest.sealed}
    loaded: list[Loaded] = []
    for number in manifest.numbers:
        found = (known or {}).get(number)
        if found is None or found.entry != sealed.get(number):
            found = load(folder.files, folder.path, manifest, number)
        loaded.append(found)
    return loaded


def look(folder: StoreFolder, known: dict[int, Loaded]) -> View:
    """Read the store while a writer may change it: only what is found twice is an error.

    Args:
        folder: The store's folder.
        known: Sealed segments from an earlier look; replaced by those of this one.

    Raises:
        StoreCorrupt: Something in the store is not what was written.
    """
    seen = ""
    while True:
        try:
            manifest = folder.read_manifest()
            loaded = load_all(folder, manifest, known)
        except StoreCorrupt as error:
            if str(error) == seen:
                raise
            seen = str(error)
        else:
            known.clear()
            sealed = loaded[: len(manifest.sealed)]
            known.update((each.entry.number, each.without_slots()) for each in sealed)
            return View(manifest, loaded)
