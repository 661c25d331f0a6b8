"""The disk store with planted bugs, each of which a test of crashes must find."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import pytest

from stepwell.buffers.storage.chunk_index import ChunkIndex
from stepwell.buffers.storage.disk import appender, recovery, segment, writer
from stepwell.buffers.storage.disk.appender import Appender
from stepwell.buffers.storage.disk.files import Files, write_at
from stepwell.buffers.storage.disk.folder import StoreFolder
from stepwell.buffers.storage.disk.format import SLOT, Header, Manifest, SealedSegment, TableCopy
from stepwell.buffers.storage.disk.segment import LoadedSegment, Segment
from stepwell.buffers.storage.disk.writer import SegmentWriter, write_missing_copies
from stepwell.buffers.storage.encoded_chunk import EncodedChunk

Patch = pytest.MonkeyPatch
Method = Callable[..., Any]


class Mutant(NamedTuple):
    """A bug.

    Args:
        plant: Puts it into the store.
        found_by: The scenario that finds it.
        seed: The first seed to try: what is rare is found with few others.
    """

    plant: Callable[[Patch], None]
    found_by: str
    seed: int = 1


MUTANTS: dict[str, Mutant] = {}


def mutant(name: str, found_by: str, seed: int = 1) -> Callable[[Callable[[Patch], None]], None]:
    def note(plant: Callable[[Patch], None]) -> None:
        MUTANTS[name] = Mutant(plant, found_by, seed)

    return note


def altered(files: Files, methods: Mapping[str, Method]) -> Files:
    """The same system calls with the same state, but for some of them."""
    kind = type("Altered", (type(files),), dict(methods))
    other: Files = object.__new__(kind)
    other.__dict__ = files.__dict__
    return other


def nothing(*_: object) -> None:
    """A system call that is left out."""


def with_calls(
    patch: Patch, owner: type, method: str, attribute: str, methods: Mapping[str, Method]
) -> None:
    """Let some system calls do something else while a method runs."""
    original = getattr(owner, method)

    def changed(self: Any, *args: object) -> object:
        files = getattr(self, attribute)
        setattr(self, attribute, altered(files, methods))
        try:
            return original(self, *args)
        finally:
            setattr(self, attribute, files)

    patch.setattr(owner, method, changed)


def with_calls_of_new_segments(patch: Patch, methods: Mapping[str, Method]) -> None:
    original = writer._create

    def create(files: Files, folder: Path, header: Header) -> FileIO:
        return original(altered(files, methods), folder, header)

    patch.setattr(writer, "_create", create)


# --- what must be durable, and when ---------------------------------------------------------------


@mutant("add returns without a sync", "power loss")
def _(patch: Patch) -> None:
    with_calls(patch, SegmentWriter, "commit", "_files", {"fdatasync": nothing})


@mutant("copy B is written before the sync", "power loss")
def _(patch: Patch) -> None:
    with_calls(patch, SegmentWriter, "commit", "_files", {"fdatasync": nothing})
    unsynced = SegmentWriter.commit

    def commit(self: SegmentWriter, chunks: Sequence[EncodedChunk], table: ChunkIndex) -> None:
        unsynced(self, chunks, table)
        self._files.fdatasync(self._file)

    patch.setattr(SegmentWriter, "commit", commit)


@mutant("a new manifest is not synced before it is renamed", "power loss")
def _(patch: Patch) -> None:
    with_calls(patch, StoreFolder, "write_manifest", "files", {"fsync": nothing})


@mutant("the folder is not synced after a manifest is renamed", "power loss")
def _(patch: Patch) -> None:
    with_calls(patch, StoreFolder, "write_manifest", "files", {"fsync_folder": nothing})


@mutant("a new segment is not synced before it is renamed", "power loss")
def _(patch: Patch) -> None:
    with_calls_of_new_segments(patch, {"fsync": nothing})


@mutant("the folder is not synced after a segment is renamed", "power loss", 2)
def _(patch: Patch) -> None:
    with_calls_of_new_segments(patch, {"fsync_folder": nothing})


@mutant("the folder of a new store is not synced", "power loss")
def _(patch: Patch) -> None:
    with_calls(patch, StoreFolder, "make", "files", {"fsync_folder": nothing})


@mutant("a writer that opens trusts a manifest that may not be durable", "power loss", 23)
def _(patch: Patch) -> None:
    recover = Appender._recover

    def trust(self: Appender, loaded: Sequence[LoadedSegment]) -> None:
        folder = self._folder
        files = folder.files
        # Only the first sync is left out: that of the manifest which is written next is another.
        calls = iter([nothing])
        folder.files = altered(
            files, {"fsync_folder": lambda _, path: next(calls, files.fsync_folder)(path)}
        )
        try:
            recover(self, loaded)
        finally:
            folder.files = files

    patch.setattr(Appender, "_recover", trust)


@mutant("a sealed segment is not synced", "power loss")
def _(patch: Patch) -> None:
    with_calls(patch, SegmentWriter, "seal", "_files", {"fdatasync": nothing})


@mutant("what is healed is not synced", "power loss")
def _(patch: Patch) -> None:
    def heal_unsynced(files: Files, loaded: LoadedSegment, *, is_open: bool) -> None:
        write_missing_copies(altered(files, {"fdatasync": nothing}), loaded, is_open=is_open)

    patch.setattr(appender, "write_missing_copies", heal_unsynced)


@mutant("data that a failed sync left out is not written again", "power loss")
def _(patch: Patch) -> None:
    def heal_slots(files: Files, loaded: LoadedSegment, *, is_open: bool) -> None:
        write_missing_copies(files, loaded, is_open=False)

    patch.setattr(appender, "write_missing_copies", heal_slots)


# --- the order of steps ---------------------------------------------------------------------------


@mutant("the manifest is written in place", "power loss")
def _(patch: Patch) -> None:
    def write_manifest(self: StoreFolder, manifest: Manifest) -> None:
        data = manifest.pack()
        with self.files.open_to_write(self.path / "manifest.json") as file:
            write_at(self.files, file, data, 0)
            self.files.truncate(file, len(data))
            self.files.fsync(file)
        self.files.fsync_folder(self.path)

    patch.setattr(StoreFolder, "write_manifest", write_manifest)


@mutant("a manifest is written over what a crash left of one", "kills", 3)
def _(patch: Patch) -> None:
    def write_over(self: Files, path: Path) -> FileIO:
        return self.open_to_write(path)

    with_calls(patch, StoreFolder, "write_manifest", "files", {"create": write_over})


@mutant("a segment is removed before the manifest leaves it out", "kills")
def _(patch: Patch) -> None:
    evict = Appender._evict

    def evict_early(self: Appender) -> None:
        folder = self._folder
        files = folder.files
        files.unlink(self.view.segments[self.view.manifest.sealed[0].number].path)
        folder.files = altered(files, {"unlink": nothing})
        try:
            evict(self)
        finally:
            folder.files = files

    patch.setattr(Appender, "_evict", evict_early)


@mutant("a segment is cut off before the manifest notes its length", "kills")
def _(patch: Patch) -> None:
    seal = SegmentWriter.seal

    def seal_and_cut(self: SegmentWriter) -> SealedSegment:
        sealed = seal(self)
        self._files.truncate(self._file, sealed.nbytes)
        return sealed

    patch.setattr(SegmentWriter, "seal", seal_and_cut)


@mutant("a segment is listed before it is there", "kills")
def _(patch: Patch) -> None:
    original = writer._create

    def create(files: Files, folder: Path, header: Header) -> FileIO:
        store = StoreFolder(folder, files)
        store.write_manifest(_listing(store.read_manifest(), header.number))
        return original(files, folder, header)

    patch.setattr(writer, "_create", create)


def _listing(manifest: Manifest, number: int) -> Manifest:
    from dataclasses import replace

    return replace(manifest, open=number)


@mutant("the chunks of a flush are committed one by one", "kills")
def _(patch: Patch) -> None:
    commit = SegmentWriter.commit

    def commit_each(self: SegmentWriter, chunks: Sequence[EncodedChunk], table: ChunkIndex) -> None:
        for chunk in chunks:
            commit(self, [chunk], table)

    patch.setattr(SegmentWriter, "commit", commit_each)


@mutant("the writer goes on after a failure", "failures")
def _(patch: Patch) -> None:
    poisoning = Appender._poisoning

    @contextmanager
    def without_poisoning(self: Appender) -> Any:
        try:
            with poisoning(self):
                yield
        finally:
            self._failure = None

    patch.setattr(Appender, "_poisoning", without_poisoning)


# --- copies, checksums, lengths -------------------------------------------------------------------


def _without_copy(patch: Patch, copy: int) -> None:
    """Never write one of the two copies of slots."""
    commit = SegmentWriter.commit

    def commit_once(self: SegmentWriter, chunks: Sequence[EncodedChunk], table: ChunkIndex) -> None:
        begin = self._header.table_offsets[copy]
        files = self._files

        def pwrite(_: Files, file: FileIO, data: memoryview, offset: int) -> int:
            if begin <= offset < begin + self._header.table_bytes:
                return len(data)
            return files.pwrite(file, data, offset)

        self._files = altered(files, {"pwrite": pwrite})
        try:
            commit(self, chunks, table)
        finally:
            self._files = files

    patch.setattr(SegmentWriter, "commit", commit_once)


@mutant("copy A is never written", "power loss")
def _(patch: Patch) -> None:
    _without_copy(patch, 0)


@mutant("copy B is never written", "flips")
def _(patch: Patch) -> None:
    _without_copy(patch, 1)


@mutant("missing copies are not written again", "flips")
def _(patch: Patch) -> None:
    patch.setattr(appender, "write_missing_copies", lambda files, loaded, *, is_open: None)


@mutant("a reader does not check the data", "flips")
def _(patch: Patch) -> None:
    patch.setattr(Segment, "prove", nothing)


@mutant("recovery does not check the data", "power loss")
def _(patch: Patch) -> None:
    judge = recovery.open_slots

    def open_slots(a: TableCopy, b: TableCopy, where: str, is_data_right: object) -> object:
        return judge(a, b, where, lambda slot: True)

    patch.setattr(segment, "open_slots", open_slots)


@mutant("slots are not checked", "flips")
def _(patch: Patch) -> None:
    def parse(data: bytes, header: Header) -> TableCopy:
        right = bytearray(data[: len(data) // SLOT.itemsize * SLOT.itemsize])
        for start in range(0, len(right), SLOT.itemsize):
            crc = crc32(memoryview(right)[start : start + 124])
            right[start + 124 : start + 128] = crc.to_bytes(4, "little")
        return original(bytes(right), header)

    original = TableCopy.parse
    patch.setattr(TableCopy, "parse", parse)


@mutant("headers are not checked", "flips")
def _(patch: Patch) -> None:
    original = Header.unpack

    def unpack(data: bytes, where: str) -> Header:
        return original(data[:-4] + crc32(data[:-4]).to_bytes(4, "little"), where)

    patch.setattr(Header, "unpack", unpack)


@mutant("the manifest is not checked", "flips", 3)
def _(patch: Patch) -> None:
    original = Manifest.unpack

    def unpack(data: bytes, where: str) -> Manifest:
        body = data[len(b'{"body":') : -len(b',"crc":"00000000"}\n')]
        return original(b'{"body":%b,"crc":"%08x"}\n' % (body, crc32(body)), where)

    patch.setattr(Manifest, "unpack", unpack)


@mutant("lengths of files are not checked", "flips")
def _(patch: Patch) -> None:
    patch.setattr(segment, "check_size", nothing)
