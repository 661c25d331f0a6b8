"""Stores that were changed, with every checksum computed again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from stepwell.buffers.storage.disk.files import Files
from stepwell.buffers.storage.disk.folder import StoreFolder
from stepwell.buffers.storage.disk.format import SLOT, Header, Manifest
from stepwell.buffers.storage.disk.segment import segment_path

Json = dict[str, Any]


def manifest_of(path: Path) -> Manifest:
    return StoreFolder(path, Files()).read_manifest()


def header_of(path: Path, number: int = 0) -> Header:
    data = segment_path(path, number).read_bytes()
    return Header.unpack(data[: Header.length(data, "here")], "here")


def write_manifest(path: Path, body: bytes) -> None:
    """Write any bytes as the body of a manifest."""
    text = b'{"body":%b,"crc":"%08x"}\n' % (body, crc32(body))
    (path / "manifest.json").write_bytes(text)


def forge_manifest(path: Path, change: Callable[[Json], object]) -> None:
    """Change the manifest's JSON."""
    body: Json = json.loads((path / "manifest.json").read_bytes())["body"]
    change(body)
    write_manifest(path, json.dumps(body, separators=(",", ":")).encode())


def forge_header(path: Path, changes: Mapping[int, bytes], number: int = 0) -> None:
    """Change bytes of a segment's header, by their offsets."""
    file = segment_path(path, number)
    data = bytearray(file.read_bytes())
    length = Header.length(bytes(data), "here")
    for offset, new in changes.items():
        data[offset : offset + len(new)] = new
    data[length - 4 : length] = crc32(data[: length - 4]).to_bytes(4, "little")
    file.write_bytes(data)


def slots_of(path: Path, number: int = 0) -> np.ndarray:
    """The slots of a segment as copy B has them; a copy."""
    header = header_of(path, number)
    data = segment_path(path, number).read_bytes()[header.table_offsets[1] :]
    return np.frombuffer(data[: header.slots * SLOT.itemsize], SLOT).copy()


def forge_slot(path: Path, slot: int, number: int = 0, **values: int) -> None:
    """Change a slot in both tables."""
    header, slots = header_of(path, number), slots_of(path, number)
    for name, value in values.items():
        slots[name][slot] = value
    record = bytearray(slots[slot].tobytes())
    record[-4:] = crc32(record[:-4]).to_bytes(4, "little")
    file = segment_path(path, number)
    data = bytearray(file.read_bytes())
    for table in header.table_offsets:
        start = table + slot * SLOT.itemsize
        data[start : start + SLOT.itemsize] = record
    file.write_bytes(data)


def forge_chunk(
    path: Path, change: Callable[[bytearray], object], slot: int = 0, number: int = 0
) -> None:
    """Change a chunk's bytes, but not how many there are."""
    record = slots_of(path, number)[slot]
    begin, nbytes, head = (int(record[name]) for name in ("offset", "nbytes", "head_bytes"))
    file = segment_path(path, number)
    data = bytearray(file.read_bytes())
    chunk = data[begin : begin + nbytes]
    change(chunk)
    assert len(chunk) == nbytes
    data[begin : begin + nbytes] = chunk
    file.write_bytes(data)
    forge_slot(path, slot, number, data_crc=crc32(chunk), head_crc=crc32(chunk[:head]))
