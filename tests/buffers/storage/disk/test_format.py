"""Headers, slots and manifests have exact bytes, and every changed byte is detected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepwell.buffers import StoreCorrupt, StoreTooNew
from stepwell.buffers.storage.chunk_index import Counters
from stepwell.buffers.storage.disk.format import (
    SLOT,
    Header,
    Manifest,
    NextNumbers,
    SealedSegment,
    Slot,
    StoreOptions,
    TableCopy,
    pack_slots,
)
from stepwell.buffers.testing import SPEC

FACTS = StoreOptions(
    spec=SPEC,
    capacity=1_000,
    capacity_bytes=None,
    segment_bytes=1 << 20,
    provenance={"game": "pong", "é": [1, None]},
    sessions=({"seed": 1}, {"seed": 2}),
)
HEADER = Header(
    store=bytes(range(16)),
    number=12,
    slots=40,
    data_bytes=8192,
    position=99,
    counters=Counters(1 << 40, 7, 1 << 41),
    facts_text=FACTS.short_text,
)
MANIFEST = Manifest(
    store=bytes(range(16)),
    facts=FACTS,
    sealed=(SealedSegment(3, 4096, 5), SealedSegment(4, 8192, 0)),
    open=5,
    next=NextNumbers(6, 100, 200, 7, 150),
)


def test_the_parts_of_a_segment_are_contiguous_and_aligned_to_pages() -> None:
    assert HEADER.header_bytes == 4096
    assert HEADER.table_bytes == 8192  # 40 slots of 128 bytes
    assert HEADER.table_offsets == (4096, 12288)
    assert HEADER.data_offset == 20480
    assert HEADER.file_bytes == 28672


@pytest.mark.parametrize("facts_bytes", [2000, 4000, 4004, 4007, 4008, 4009, 20_000])
def test_a_header_is_restored_for_any_length_of_its_facts(facts_bytes: int) -> None:
    assert len(HEADER.facts_text) < 2000
    header = replace(HEADER, facts_text=HEADER.facts_text.ljust(facts_bytes))
    data = header.pack()
    assert len(data) == header.header_bytes == Header.length(data[:4096], "file")
    assert len(data) % 4096 == 0
    assert Header.unpack(data, "file") == header


def test_every_changed_byte_of_a_header_is_detected() -> None:
    data = HEADER.pack()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0x10
        with pytest.raises((StoreCorrupt, StoreTooNew)):
            read_header(bytes(changed))


def read_header(data: bytes) -> Header:
    length = Header.length(data, "file")
    return Header.unpack(data[:length], "file")


def test_every_changed_byte_of_a_manifest_is_detected() -> None:
    data = MANIFEST.pack()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0x01
        with pytest.raises(StoreCorrupt, match=r"^runs/a/manifest\.json .*checksum"):
            Manifest.unpack(bytes(changed), "runs/a/manifest.json")


def test_a_manifest_is_restored() -> None:
    assert Manifest.unpack(MANIFEST.pack(), "a") == MANIFEST
    assert MANIFEST.numbers == [3, 4, 5]
    closed = replace(MANIFEST, sealed=(), open=None)
    assert Manifest.unpack(closed.pack(), "a").numbers == []


def slots(count: int = 3) -> np.ndarray:
    made = np.zeros(count, SLOT)
    for name in ("position", "episode", "stream", "first_row", "rows", "row_id", "offset"):
        made[name] = np.random.default_rng(0).integers(0, 1 << 62, count)
    made["number"], made["group_slots"] = np.arange(count), count
    return made


def test_a_slot_has_the_same_bytes_alone_as_in_an_array() -> None:
    made, rng = slots(20), np.random.default_rng(1)
    for name in Slot._fields:
        most = np.iinfo(SLOT[name]).max
        made[name] = rng.integers(0, most, len(made), SLOT[name], endpoint=True)
    made["stream"][0], made["position"][1], made["data_crc"][2] = -1, (1 << 63) - 1, (1 << 32) - 1
    alone = [Slot(*each) for each in made[list(Slot._fields)].tolist()]
    assert b"".join(slot.pack(HEADER) for slot in alone) == pack_slots(HEADER, made)


def test_every_changed_byte_makes_a_slot_invalid() -> None:
    data = pack_slots(HEADER, slots())
    for place in range(128, 256):
        changed = bytearray(data)
        changed[place] ^= 0x80
        assert TableCopy.parse(bytes(changed), HEADER).is_valid.tolist() == [True, False, True]


def test_slots_of_another_place_segment_or_store_are_invalid() -> None:
    data = pack_slots(HEADER, slots())
    assert not TableCopy.parse(data[128:], HEADER).is_valid.any()
    assert not TableCopy.parse(data, replace(HEADER, number=13)).is_valid.any()
    assert not TableCopy.parse(data, replace(HEADER, store=bytes(16))).is_valid.any()
