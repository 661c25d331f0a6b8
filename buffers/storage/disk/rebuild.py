"""Rebuilds a lost manifest, or a segment's header, from the rest of a store."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ...base.errors import StoreCorrupt
from ..chunk_index import Counters
from .files import path_kind
from .folder import StoreFolder
from .format import MOST_SLOTS, SLOT, Header, Manifest, NextNumbers, SealedSegment, TableCopy, align
from .segment import LoadedSegment, load, open_segment, read_header, segment_path


def rebuild_manifest(folder: StoreFolder) -> Manifest | None:
    """Rebuild the manifest from the headers of the segments; None if there is no header."""
    # Headers contain only the first of the sessions. Segments that were evicted, but not yet
    # removed, are listed again.
    found = _read_headers(folder)
    known = [header for header in found.values() if header is not None]
    if not known:
        return None
    store = Counter(header.store for header in known).most_common(1)[0][0]
    template = [header for header in known if header.store == store][-1]
    bare = Manifest(store, template.facts)
    headers = {
        number: header
        if header is not None and (header.store, header.number) == (store, number)
        else rebuild_header(folder, bare, number)
        for number, header in found.items()
    }
    numbers = list(headers)
    sealed = tuple(
        _sealed(folder, number, headers[number], headers[following])
        for number, following in pairwise(numbers)
    )
    newest = headers[numbers[-1]] or template
    following = NextNumbers(numbers[-1] + 1, newest.position, *newest.counters)
    return Manifest(store, template.facts, sealed, numbers[-1], following)


def rebuild_header(
    folder: StoreFolder,
    manifest: Manifest,
    number: int,
    before: LoadedSegment | None = None,  # the segment before it, if there is one
) -> Header | None:
    """Rebuild a damaged header from the offset of the second slot table."""
    path = segment_path(folder.path, number)
    if path_kind(path) != "file":
        return None
    position, counters = 0, Counters()
    if before is not None:
        position = before.segment.header.position + len(before.records)
        counters = before.counters
    text = manifest.facts.short_text
    guess = Header(manifest.store, number, 1, 0, position, counters, text)
    with open_segment(folder.files, path) as file:
        nbytes = folder.files.size(file)
        header_bytes = guess.header_bytes
        last = min(nbytes, header_bytes + MOST_SLOTS * SLOT.itemsize) - SLOT.itemsize
        for begin in range(header_bytes + 4096, last, 4096):
            slot = folder.files.pread(file, SLOT.itemsize, begin)
            if TableCopy.parse(slot, guess).is_valid.all():
                return _fitted(guess, begin - header_bytes, nbytes, slot)
    return None


def _read_headers(folder: StoreFolder) -> dict[int, Header | None]:
    """The headers of all segments in the folder, in order; None for a damaged one."""
    found: dict[int, Header | None] = {}
    for number, path in folder.segments().items():
        if path_kind(path) != "file":
            continue
        try:
            with open_segment(folder.files, path) as file:
                found[number] = read_header(folder.files, file, path)
        except (StoreCorrupt, OSError):
            found[number] = None
    return found


def _sealed(
    folder: StoreFolder, number: int, header: Header | None, following: Header | None
) -> SealedSegment:
    """The manifest's entry of a segment that another one follows."""
    with open_segment(folder.files, segment_path(folder.path, number)) as file:
        nbytes = folder.files.size(file)
    if header is None:
        return SealedSegment(number, nbytes, 0)
    if following is not None and following.number == number + 1:
        slots = following.position - header.position
        return SealedSegment(number, nbytes, slots if 0 <= slots <= header.slots else 0)
    alone = Manifest(header.store, header.facts, (), number)  # the one that follows is lost
    try:
        slots = len(load(folder.files, folder.path, alone, number, keep_rest=True).records)
    except StoreCorrupt:
        slots = 0
    return SealedSegment(number, nbytes, slots)


def _fitted(guess: Header, table_bytes: int, nbytes: int, first: bytes) -> Header:
    slot = np.frombuffer(first, SLOT)[0]
    data_offset = guess.header_bytes + 2 * table_bytes
    return replace(
        guess,
        slots=table_bytes // SLOT.itemsize,
        data_bytes=align(max(0, nbytes - data_offset)),
        position=int(slot["position"]),
        counters=guess.counters._replace(next_row_id=int(slot["row_id"])),
    )
