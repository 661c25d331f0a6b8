"""Forged folders with right checksums, made to harm the process that opens them.

A reader refuses each fault, and `verify` reports it, with a message that names place and value.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import socket
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from stepwell.buffers import DiskStorage, End, SequenceReplayBuffer, StoreCorrupt, repair, verify
from stepwell.buffers.base import memory_limit
from stepwell.buffers.storage.checkpoint import pack
from stepwell.buffers.storage.disk.segment import segment_path
from stepwell.buffers.testing import chunk_of, play
from support.crash.disk_faults import NoSyncFiles
from support.disk_stores import copy_of, create, filled, read_all, reopen
from support.forged.stores import (
    Json,
    forge_chunk,
    forge_header,
    forge_manifest,
    forge_slot,
    header_of,
    manifest_of,
    slots_of,
    write_manifest,
)

Forge = Callable[[Path], object]

HUGE = (1 << 63) - 1
OBSERVATION, ACTION, REWARD, MEMORY = range(4)  # the fields, in the order of the Spec


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "a"
    filled(path)
    assert len(manifest_of(path).sealed) >= 3
    assert len(slots_of(path)) >= 3
    return path


@pytest.fixture
def store(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "a"))


def read_to_the_end(path: Path) -> None:
    """Read all that a reader can read."""
    with SequenceReplayBuffer.open(path, read_only=True, seed=0) as replay:
        for episode in replay.iter_episodes():
            assert episode.metadata is not None
        replay.sample_sequences(8, length=2)


def assert_refused(path: Path, *, place: str, message: str = "") -> None:
    """A reader refuses the store, `verify` reports the same, and nothing is changed."""
    before = {each.name: each.read_bytes() for each in path.iterdir() if each.is_file()}
    with pytest.raises(StoreCorrupt) as caught:
        read_to_the_end(path)
    assert place in str(caught.value)
    assert re.search(message, str(caught.value)), caught.value
    found = [str(damage.what) for damage in verify(path, files=NoSyncFiles()).damages]
    assert any(re.search(message, what) for what in found), found
    assert before == {each.name: each.read_bytes() for each in path.iterdir() if each.is_file()}


def test_the_store_is_whole_before_it_is_forged(store: Path) -> None:
    read_to_the_end(store)
    assert verify(store).is_whole


# --- manifests ------------------------------------------------------------------------------------


def put(*keys: Any, value: object) -> Callable[[Json], None]:
    """Put a value into the manifest."""

    def change(body: Json) -> None:
        at: Any = body
        for key in keys[:-1]:
            at = at[key]
        at[keys[-1]] = value

    return change


def without(*keys: Any) -> Callable[[Json], None]:
    def change(body: Json) -> None:
        at: Any = body
        for key in keys[:-1]:
            at = at[key]
        del at[keys[-1]]

    return change


FIELD = "spec", "fields", MEMORY
MANIFESTS: dict[str, tuple[Callable[[Json], None], str]] = {
    "no spec": (without("spec"), "spec: .*none"),
    "a field without a dtype": (without(*FIELD, "dtype"), "dtype: .*none"),
    "a dtype of objects": (put(*FIELD, "dtype", value="O"), r"'extra/memory': .*dtype.* O\b"),
    "an unknown dtype": (put(*FIELD, "dtype", value="float33"), "dtype .*'float33'"),
    "a shape of a huge length": (put(*FIELD, "shape", value=[HUGE]), r"shape .*\b63 bits"),
    "a shape of many large lengths": (
        put(*FIELD, "shape", value=[1 << 20] * 4),
        r"'extra/memory': .*\(1048576, 1048576, 1048576, 1048576\)",
    ),
    "a shape of many axes": (
        put(*FIELD, "shape", value=[1] * 100),
        r"'extra/memory': .*\b32 axes.*\(1, 1",
    ),
    "a shape of a bool": (put(*FIELD, "shape", value=[True]), "shape .* True"),
    "a huge stack": (put(*FIELD, "stack", value=1 << 31), r"'extra/memory': .*\(2147483648, 3\)"),
    "an unknown codec": (put(*FIELD, "codec", value="pickle"), "codec .*'pickle'"),
    "a name twice": (put(*FIELD, "name", value="reward"), "'reward'"),
    "an observation that is no field": (
        put("spec", "observation", value="x"),
        "observation: .*'x'",
    ),
    "a number of a segment that is a path": (
        put("sealed", 0, 0, value="/../../home/model"),
        "number of a segment: .*'/../../home/model'",
    ),
    "a number of a segment that is a bool": (
        put("sealed", 1, 0, value=True),
        "number of a segment: .* True",
    ),
    "a number of nine digits": (
        put("sealed", 0, 0, value=10**8),
        r"number of a segment: .*\b100000000\b",
    ),
    "a segment twice": (put("sealed", 1, 0, value=0), r"segments: .*\b0 .*\b0\b"),
    "many slots": (put("sealed", 0, 2, value=1 << 40), rf"slots of a segment: .*\b{1 << 40}\b"),
    "an open segment before sealed ones": (put("open", value=0), r"segments: .*\b0 .*\b\d\b"),
    "four counters": (put("next", value=[0, 0, 0, 0]), r"next: .*\b5 .*\b4\b"),
    "a huge counter": (put("next", 2, value=1 << 70), r"next: .*\b71 bits"),
    "a store of other characters": (put("store", value="../" * 10 + "zz"), r"store: .*'\.\./.*zz'"),
    "a capacity of 0": (put("capacity", value=0), r"capacity: .*\b0\b"),
    "sessions that are text": (put("sessions", value="x"), "sessions: .*'x'"),
    "a provenance that is a list": (put("provenance", value=[]), "provenance: .*list"),
    "a least reader that is text": (put("least_reader", value="1"), "least_reader: .*'1'"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_forged_manifest_is_refused(store: Path, name: str) -> None:
    change, message = MANIFESTS[name]
    forge_manifest(store, change)
    assert_refused(store, place=str(store / "manifest.json"), message=message)
    with pytest.raises(StoreCorrupt, match=message):
        reopen(store)


BODIES = {
    "a list": b"[]",
    "no JSON": b"{x}",
    "other bytes": b'{"a":"\xff\xfe"}',
    "not a number": b'{"a":NaN}',
    "an infinite number": b'{"a":1e999}',
    "a number of many digits": b'{"a":' + b"9" * 5000 + b"}",
    "many levels": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("name", BODIES)
def test_a_manifest_of_other_json_is_refused(store: Path, name: str) -> None:
    write_manifest(store, BODIES[name])
    assert_refused(store, place=str(store / "manifest.json"), message=r"\bJSON\b")


def test_a_huge_manifest_is_not_read(store: Path) -> None:
    os.truncate(store / "manifest.json", 1 << 40)  # takes no room on the disk
    with pytest.raises(StoreCorrupt, match=rf"/manifest\.json .*\b{1 << 40}\b"):
        read_to_the_end(store)
    assert not verify(store).is_whole


def test_a_capacity_that_was_given_as_a_float_is_still_read(store: Path) -> None:
    forge_manifest(store, put("capacity", value=1e6))
    with reopen(store, read_only=True) as reader:
        assert reader.capacity == 1_000_000
        assert type(reader.capacity) is int


# --- headers --------------------------------------------------------------------------------------

HEADERS: dict[str, tuple[dict[int, bytes], str]] = {
    "a huge length": (
        {12: struct.pack("<I", 0xFFFFF000)},
        r"length of the header: .*\b4294963200\b",
    ),
    "many slots": ({20: struct.pack("<I", 0xFFFFFFFF)}, r"slots: .*\b4294967295\b"),
    "a huge data part": ({24: struct.pack("<Q", 1 << 60)}, rf"length of the data: .*\b{1 << 60}\b"),
    "a data part of odd length": ({24: struct.pack("<Q", 4097)}, r"\bdata\b.*\b4097\b"),
    "a huge position": ({48: struct.pack("<q", HUGE)}, r"counters: .*\b63 bits"),
    "facts longer than the header": ({80: struct.pack("<I", 1 << 31)}, "JSON"),
    "facts that are a list": ({80: struct.pack("<I", 2), 84: b"[]"}, "JSON"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_forged_header_is_refused(store: Path, name: str) -> None:
    changes, message = HEADERS[name]
    forge_header(store, changes)
    assert_refused(store, place=str(segment_path(store, 0)), message=message)


@pytest.mark.parametrize("more", [1, 1 << 22, 1 << 40, 1 << 61])
def test_a_gap_that_no_lost_segment_leaves_is_refused(store: Path, more: int) -> None:
    """Each missing chunk would need memory for a record."""
    header, following = header_of(store, 1), header_of(store, 2)
    forge_header(store, {48: struct.pack("<q", header.position + more)}, 1)
    for slot in range(manifest_of(store).sealed[1].slots):
        forge_slot(store, slot, 1, position=header.position + slot + more)
    begin, expected = header.position + more, header.position
    place = segment_path(store, 1)
    if more == 1:  # the segment after it begins before it ends
        begin, expected = following.position, following.position + 1
        place = segment_path(store, 2)
    assert_refused(store, place=str(place), message=rf"\bchunk {begin}, .*\b{expected}\b")


def test_a_segment_that_reuses_row_ids_is_refused(store: Path) -> None:
    forge_header(store, {56: struct.pack("<q", 0)}, 1)
    assert_refused(store, place="segment-00000001.bin", message=r"\bnext_row_id 0\b")


# --- slots ----------------------------------------------------------------------------------------

SLOTS: dict[str, tuple[dict[str, int], str]] = {  # the values, and the name of the wrong one
    "a huge number of rows": ({"rows": HUGE}, "rows"),
    "more rows than its bytes hold": ({"rows": 1 << 30}, "nbytes"),
    "no rows": ({"rows": 0}, "rows"),
    "a huge first row": ({"first_row": HUGE}, "first_row"),
    "an episode below zero": ({"episode": -2}, "episode"),
    "no episode, but rows": ({"episode": -1}, "episode"),
    "a huge stream": ({"stream": 1 << 40}, "stream"),
    "an unknown end": ({"end": 16}, "end"),
    "another position": ({"position": 7}, "position"),
    "another row id": ({"row_id": 1 << 20}, "row_id"),
    "fewer steps than before": ({"total_steps": 0}, "total_steps"),
    "bytes in the header": ({"offset": 0}, "offset"),
    "bytes that overflow": ({"offset": HUGE - 8}, "offset"),
    "bytes of the chunk before": ({"offset": -1}, "offset"),
    "too few bytes": ({"nbytes": 8}, "nbytes"),
    "a head longer than the chunk": ({"head_bytes": 0xFFFFFFFF}, "head_bytes"),
}


def slot_message(wrong: str, values: Mapping[str, int]) -> str:
    """A pattern of the slot, the name of its wrong number, and the forged value."""
    ((name, value),) = values.items()
    return rf"\bslot 1 .* {wrong}: .*'{name}': {value}\b"


@pytest.fixture(params=["sealed", "open"])
def forged(request: pytest.FixtureRequest, original: Path, tmp_path: Path) -> Path:
    """A store whose first segment is sealed, or still being written."""
    if request.param == "sealed":
        return Path(shutil.copytree(original, tmp_path / "a"))
    with create(tmp_path / "a", segment_bytes=1 << 20) as storage:
        play(storage, 4)
        return copy_of(tmp_path / "a")


@pytest.mark.parametrize("name", SLOTS)
def test_a_forged_slot_is_refused(forged: Path, name: str) -> None:
    values, wrong = SLOTS[name]
    forge_slot(forged, 1, **values)
    place, message = str(segment_path(forged, 0)), slot_message(wrong, values)
    assert_refused(forged, place=place, message=message)
    with pytest.raises(StoreCorrupt, match=message):
        reopen(forged)


@pytest.mark.parametrize(
    "values", [{"group": 0xFFFFFFFF}, {"group_slots": 0xFFFFFFFF}, {"group": 1 << 31}]
)
def test_a_forged_flush_is_refused(tmp_path: Path, values: dict[str, int]) -> None:
    with create(tmp_path / "a", segment_bytes=1 << 20) as storage:
        storage.add([chunk_of(0)])
        path = copy_of(tmp_path / "a")
    forge_slot(path, 0, **values)
    assert_refused(path, place=str(segment_path(path, 0)), message=r"\bslot 0 .*\bslots \d+ to \d+")


@pytest.mark.parametrize(
    "values", [{"nbytes": HUGE}, {"offset": -1}, {"nbytes": 1 << 45}, {"offset": HUGE}]
)
def test_the_data_of_the_last_flush_is_read_within_the_file_only(
    tmp_path: Path, values: dict[str, int]
) -> None:
    """The data of a flush without copy B is read, as much as its slots say."""
    with create(tmp_path / "a", segment_bytes=1 << 20) as storage:
        storage.add([chunk_of(0)])
        path = copy_of(tmp_path / "a")
    forge_slot(path, 0, **values)
    with segment_path(path, 0).open("r+b") as file:
        file.seek(header_of(path).table_offsets[1])
        file.write(bytes(128))
    assert_refused(path, place=str(segment_path(path, 0)), message=r"\bslot 0\b")


# --- chunks ---------------------------------------------------------------------------------------


def entry(field: int, offset: int, data: bytes) -> Callable[[bytearray], None]:
    """Change bytes of a field's entry."""

    def change(chunk: bytearray) -> None:
        start = 8 + 32 * field + offset
        chunk[start : start + len(data)] = data

    return change


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def in_field(field: int, change: Callable[[bytearray, int, int], None]) -> Callable[..., None]:
    """Change a field: call ``change`` with the chunk, the field's offset and its length."""

    def changed(chunk: bytearray) -> None:
        begin, nbytes = struct.unpack_from("<QQ", chunk, 8 + 32 * field + 16)
        change(chunk, begin, nbytes)

    return changed


def ends(values: Mapping[int, int]) -> Callable[[bytearray], None]:
    """Change the ends of compressed blocks."""

    def change(chunk: bytearray, begin: int, _: int) -> None:
        for block, end in values.items():
            chunk[begin + 4 * block : begin + 4 * block + 4] = struct.pack("<I", end)

    return in_field(OBSERVATION, change)


def _broken_frame(chunk: bytearray, begin: int, nbytes: int) -> None:
    chunk[begin + 12 : begin + nbytes] = bytes(nbytes - 12)


def _frame_of_more(chunk: bytearray, begin: int, nbytes: int) -> None:
    """Change the frame's content size, which follows magic number and descriptor."""
    frame = begin + 12  # after the ends of three blocks
    assert chunk[frame : frame + 4] == b"\x28\xb5\x2f\xfd"
    descriptor = chunk[frame + 4]
    assert descriptor >> 6 == 1, "a size of two bytes"
    at = frame + 5 + (not descriptor >> 5 & 1)
    chunk[at : at + 2] = b"\xff\xff"


CHUNKS: dict[str, tuple[Callable[[bytearray], None], str]] = {
    "objects": (entry(MEMORY, 1, b"|O\0\0"), "'extra/memory'"),
    "a wider dtype": (entry(MEMORY, 1, b"<f8\0"), "'extra/memory'"),
    "a big-endian dtype": (entry(MEMORY, 1, b">f4\0"), "'extra/memory'"),
    "no dtype": (entry(MEMORY, 1, bytes(4)), "'extra/memory'"),
    "an unknown codec": (entry(MEMORY, 0, b"\x09"), "'extra/memory'"),
    "raw bytes read as deltas": (entry(MEMORY, 0, b"\x03"), "'extra/memory'"),
    "zstd read as raw": (entry(OBSERVATION, 0, b"\x00"), "'observation'"),
    "blocks of no rows": (entry(OBSERVATION, 8, bytes(4)), "'observation'"),
    "a field that overflows": (entry(REWARD, 16, u64(HUGE)), "'reward'"),
    "a field in the head": (entry(OBSERVATION, 16, u64(0)), "'observation'"),
    "a field of too few bytes": (entry(MEMORY, 24, u64(12)), "'extra/memory'"),
    "compressed rows of two bytes": (entry(OBSERVATION, 24, u64(2)), "'observation'"),
    "many fields": (
        lambda chunk: chunk.__setitem__(slice(0, 4), b"\xff" * 4),
        r"\b4294967295 fields",
    ),
    "much metadata": (
        lambda chunk: chunk.__setitem__(slice(4, 8), b"\xff" * 4),
        r"\b4294967295 .*metadata",
    ),
    "metadata that is a list": (
        lambda chunk: chunk.__setitem__(slice(136, 146), b"[12345678]"),
        "metadata: .*list",
    ),
    "a block that ends before it begins": (ends({0: 0}), "'observation'"),
    "an invalid frame": (in_field(OBSERVATION, _broken_frame), r"\b65472 bytes"),
    "a frame of more bytes": (in_field(OBSERVATION, _frame_of_more), r"\b65791 bytes.*\b65472\b"),
}


@pytest.fixture(scope="module")
def two_blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of one long chunk, its rows in compressed blocks that are alike."""
    path = tmp_path_factory.mktemp("blocks") / "a"
    chunk = chunk_of(0, 0, 1500, End.TERMINATED)
    chunk.fields["observation"][:] = 7
    with create(path, segment_bytes=1 << 20) as storage:
        storage.add([chunk, chunk_of(1, 0, 30, End.TERMINATED)])
    return path


@pytest.mark.parametrize("name", CHUNKS)
def test_a_forged_chunk_is_refused(two_blocks: Path, tmp_path: Path, name: str) -> None:
    path = Path(shutil.copytree(two_blocks, tmp_path / "a"))
    change, message = CHUNKS[name]
    forge_chunk(path, change)
    assert_refused(path, place="rows 0 to 1499 of episode 0", message=message)


@pytest.mark.parametrize("name", ["an invalid frame", "objects", "metadata that is a list"])
def test_a_forged_chunk_is_skipped_and_repaired_like_damage(
    two_blocks: Path, tmp_path: Path, name: str
) -> None:
    path = Path(shutil.copytree(two_blocks, tmp_path / "a"))
    forge_chunk(path, CHUNKS[name][0])
    with SequenceReplayBuffer.open(path, read_only=True, on_corrupt="skip", seed=0) as replay:
        if "metadata" not in name:
            replay.sample_sequences(64, length=2)
            assert replay.lost_chunks == 1
        assert [episode.id for episode in replay.iter_episodes()] == [1]
    assert repair(path, yes=True).is_done
    assert verify(path).is_whole
    with SequenceReplayBuffer.open(path, read_only=True) as replay:
        assert [episode.id for episode in replay.iter_episodes()] == [1]


# --- checkpoints ----------------------------------------------------------------------------------


def checkpoint(text: bytes, arrays: bytes = b"") -> bytes:
    from zlib import crc32

    body = struct.pack("<I", len(text)) + text + b"\0" * (-(16 + len(text)) % 8) + arrays
    return b"\x93SWCHK\r\n" + struct.pack("<I", crc32(body)) + body


def array(*values: object) -> bytes:
    return json.dumps({"replay": {"$array": values}, "learner": {}}).encode()


CHECKPOINTS = {
    "objects": checkpoint(array("|O", [1], 0, 8), bytes(8)),
    "a huge shape": checkpoint(array("<f8", [1 << 40], 0, 8), bytes(8)),
    "another place": checkpoint(array("<f8", [1], 1 << 40, 8), bytes(8)),
    "no array": checkpoint(json.dumps({"replay": {"$array": 5}, "learner": {}}).encode()),
    "no JSON": checkpoint(b"{"),
    "many levels": checkpoint(b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    "no state": checkpoint(b"{}"),
    "JSON after the file": pack({})[:12] + struct.pack("<I", 1 << 31),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_forged_checkpoint_is_refused(store: Path, name: str) -> None:
    (store / "checkpoint-latest.bin").write_bytes(CHECKPOINTS[name])
    with (
        SequenceReplayBuffer.open(store, read_only=True, seed=0) as replay,
        pytest.raises(StoreCorrupt, match=rf"checkpoint 'latest' .*{store}\b"),
    ):
        replay.load_checkpoint()


# --- links, pipes and folders instead of files ----------------------------------------------------


def as_link(path: Path) -> None:
    """A link to a file that must not change."""
    target = path.parent.parent / "model.bin"
    if path.exists():
        path.rename(target)
    else:
        target.write_bytes(b"the user's own")
    path.symlink_to(target)


def as_broken_link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.parent.parent / "nothing")


def as_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def as_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def as_socket(path: Path) -> None:
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX)
    where = os.getcwd()
    os.chdir(path.parent)  # its name may be no longer than 108 bytes
    try:
        made.bind(path.name)
    finally:
        os.chdir(where)
        made.close()


KINDS: dict[str, Forge] = {
    "symbolic link": as_link,
    "symbolic link to nothing": as_broken_link,
    "named pipe": as_pipe,
    "folder": as_folder,
    "socket": as_socket,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["manifest.json", "segment-00000001.bin"])
def test_only_regular_files_are_opened_to_read(store: Path, name: str, kind: str) -> None:
    KINDS[kind](store / name)
    message = rf"{store / name} .*\b{kind.removesuffix(' to nothing')}\b.*\bfile\b"
    with pytest.raises(StoreCorrupt, match=message):
        read_to_the_end(store)
    assert any(re.search(message, damage.what) for damage in verify(store).damages)
    with pytest.raises(StoreCorrupt, match=message):
        reopen(store)
    assert repair(store, yes=True).is_done
    assert verify(store).is_whole
    target = store.parent / "model.bin"
    assert target.exists() == (kind == "symbolic link")
    assert not (store.parent / "nothing").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_that_is_no_regular_file_is_refused(store: Path, kind: str) -> None:
    (store / "LOCK").unlink()
    KINDS[kind](store / "LOCK")
    message = rf"{store}/LOCK .*\b{kind.removesuffix(' to nothing')}\b.*\bfile\b"
    with pytest.raises(StoreCorrupt, match=message):
        reopen(store)
    with pytest.raises(StoreCorrupt, match=message):
        repair(store, yes=True)
    with reopen(store, read_only=True) as reader, pytest.raises(StoreCorrupt, match=message):
        _ = reader.is_being_written
    if kind == "symbolic link":
        assert (store.parent / "model.bin").read_bytes() == b"the user's own"
    assert not (store.parent / "nothing").exists()


TEMPORARY = ["manifest.json.tmp", "segment-00000050.bin.tmp", "checkpoint-latest.bin.tmp"]


def as_second_name(path: Path) -> None:
    as_link(path)
    os.link(path.readlink(), path.with_name("hard"))
    path.with_name("hard").rename(path)


@pytest.mark.parametrize("name", TEMPORARY)
@pytest.mark.parametrize("kind", ["second name", *(kind for kind in KINDS if kind != "folder")])
def test_a_link_or_pipe_with_the_name_of_a_temporary_file_is_replaced(
    store: Path, name: str, kind: str
) -> None:
    (KINDS | {"second name": as_second_name})[kind](store / name)
    with SequenceReplayBuffer(store, seed=0) as replay:
        replay.save_checkpoint()
    assert not os.path.lexists(store / name)
    if kind in ("second name", "symbolic link"):
        assert (store.parent / "model.bin").read_bytes() == b"the user's own"
    assert not (store.parent / "nothing").exists()
    assert verify(store).is_whole


@pytest.mark.parametrize("name", TEMPORARY)
def test_a_folder_with_the_name_of_a_temporary_file_is_refused(store: Path, name: str) -> None:
    (store / name).mkdir()
    with pytest.raises(StoreCorrupt, match=rf"{store / name} .*\bfolder\b.*\bfile\b"):
        reopen(store)


def test_a_copy_by_hard_links_stays_readable_when_the_store_is_continued(tmp_path: Path) -> None:
    with create(tmp_path / "a", segment_bytes=1 << 20) as storage:
        play(storage, 4)
        killed = copy_of(tmp_path / "a")
    linked = tmp_path / "linked"
    shutil.copytree(killed, linked, copy_function=os.link)
    with reopen(killed) as storage:
        storage.add([chunk_of(1000)])
    for path in (killed, linked):
        with reopen(path, read_only=True) as reader:
            read_all(reader)
        assert verify(path).is_whole


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "folder"])
def test_a_repair_keeps_nothing_outside_of_the_store(store: Path, kind: str) -> None:
    outside = store.parent / "outside"
    outside.mkdir()
    if kind == "symbolic link":
        (store / "damaged").symlink_to(outside)
    else:
        KINDS[kind](store / "damaged")
    with (store / "segment-00000001.bin").open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"\xff" * 50)
    os.truncate(store / "segment-00000000.bin", 5000)
    before = sorted(os.listdir(store))
    with pytest.raises(
        StoreCorrupt, match=rf"{store}/damaged .*\b{kind.removesuffix(' to nothing')}\b.*\bfolder\b"
    ):
        repair(store, yes=True)
    assert list(outside.iterdir()) == []
    assert sorted(os.listdir(store)) == before


def test_a_repair_moves_nothing_when_a_number_is_a_path(store: Path) -> None:
    """It used to link and remove a file of that name, outside of the folder."""
    own = store.parent / "segment-victim.bin"
    own.write_bytes(b"the user's own")
    forge_manifest(store, put("sealed", 0, 0, value="/../../segment-victim"))
    repair(store, yes=True)
    assert own.read_bytes() == b"the user's own"
    assert sorted(each.name for each in store.parent.iterdir()) == ["a", "segment-victim.bin"]
    assert verify(store).is_whole


@pytest.mark.parametrize("name", ["segment-abcdefgh.bin", f"segment-{chr(0x661) * 8}.bin"])
def test_files_with_other_names_are_ignored(store: Path, name: str) -> None:
    (store / name).write_bytes(b"x")
    read_to_the_end(store)
    assert verify(store).is_whole
    with reopen(store):
        pass
    (store / "manifest.json").unlink()
    assert repair(store, yes=True).is_done
    assert (store / name).read_bytes() == b"x"


# --- a manifest that is older than its segments ---------------------------------------------------


def with_old_manifest(path: Path) -> Path:
    """A store as a copy leaves it that was stopped before the manifest was copied."""
    with create(path) as storage:
        play(storage, 4)
    old = (path / "manifest.json").read_bytes()
    with reopen(path) as storage:
        first = storage.index.next_episode
        for episode in range(first, first + 30):
            storage.add([chunk_of(episode, 0, 20, End.TERMINATED)])
        assert len(manifest_of(path).sealed) > 2
    (path / "manifest.json").write_bytes(old)
    return path


def test_a_manifest_older_than_its_segments_is_refused(tmp_path: Path) -> None:
    path = with_old_manifest(tmp_path / "a")
    before = (path / "manifest.json").read_bytes()
    message = rf"{path}/segment-\d+\.bin .*\bmanifest\.json\b.*stepwell repair {path}\b"
    assert_refused(path, place=str(path / "segment-"), message=message)
    for on_corrupt in ("raise", "skip"):
        with pytest.raises(StoreCorrupt, match=message):
            SequenceReplayBuffer.open(path, read_only=True, on_corrupt=on_corrupt)
    with pytest.raises(StoreCorrupt, match=message):
        reopen(path)
    assert (path / "manifest.json").read_bytes() == before


def test_a_repair_lists_newer_segments_in_the_manifest(tmp_path: Path) -> None:
    path = with_old_manifest(tmp_path / "a")
    assert not repair(path).is_done
    report = repair(path, yes=True)
    assert report.is_done
    assert "manifest.json.0" in [kept.name for kept in report.kept]
    assert verify(path).is_whole
    with SequenceReplayBuffer.open(path, read_only=True) as replay:
        assert sum(episode.rows == 20 for episode in replay.iter_episodes()) >= 30


def test_an_unused_segment_that_is_not_listed_is_accepted(store: Path) -> None:
    """A writer may be killed between making a segment and listing it."""
    other = store.parent / "other"
    with DiskStorage.open(store, files=NoSyncFiles()) as storage:
        storage.add([chunk_of(1000)])
        number = manifest_of(store).open
        assert number is not None
        shutil.copytree(store, other)
    file = segment_path(other, number)
    header = header_of(other, number)
    file.write_bytes(header.pack().ljust(header.file_bytes, b"\0"))
    shutil.copyfile(store.parent / "a" / "manifest.json", other / "manifest.json")
    forge_manifest(other, put("open", value=None))
    forge_manifest(other, lambda body: put("next", 0, value=number)(body))
    forge_manifest(other, lambda body: body["sealed"].__delitem__(slice(number, None)))
    read_to_the_end(other)
    assert verify(other).is_whole


# --- large stores, and stores that are being written ----------------------------------------------


class WritingMeanwhile(NoSyncFiles):
    """Calls a function after each of the first reads of a manifest."""

    def __init__(self, act: Callable[[], object], times: int) -> None:
        self._act, self._times = act, times

    def pread(self, file: io.FileIO, nbytes: int, offset: int) -> bytes:
        data = super().pread(file, nbytes, offset)
        if str(file.name).endswith("manifest.json") and self._times:
            self._times -= 1
            self._act()
        return data


@pytest.mark.parametrize("times", [1, 2, 5])
def test_segments_that_a_writer_begins_meanwhile_are_accepted(tmp_path: Path, times: int) -> None:
    path = tmp_path / "a"
    with create(path) as writer:
        writer.add([chunk_of(0)])

        def begin_another() -> None:
            number = manifest_of(path).open
            while manifest_of(path).open == number:
                writer.add([chunk_of(writer.index.next_episode, 0, 40, End.TERMINATED)])

        files = WritingMeanwhile(begin_another, times)
        with DiskStorage.open(path, read_only=True, files=files) as reader:
            assert len(reader.index) == len(writer.index)
        files = WritingMeanwhile(begin_another, times)
        assert verify(path, files=files).is_whole


def test_an_episode_larger_than_the_free_memory_is_refused(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_limit, "_MUCH_BYTES", 0)
    monkeypatch.setattr(memory_limit, "free_memory", lambda: 100)
    with (
        SequenceReplayBuffer.open(store, read_only=True) as replay,
        pytest.raises(MemoryError, match=r"^episode 0 .*\d [kMG]?B.*\d [kMG]?B"),
    ):
        list(replay.iter_episodes())
