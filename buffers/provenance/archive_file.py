"""The file of an archive: a store without what its envs show again, with checksums of that.

The folder of that store is packed into one compressed tar file, under a digest of all bytes. An
episode's metadata have the checksums of its rows of each field that is left out. Nothing in a file
is used before it is checked; `docs/provenance.md` describes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import re
import shutil
import stat
import struct
import tarfile
import tempfile
from collections.abc import Container, Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TypeAlias
from zlib import crc32

import numpy as np
import zstandard

from ..base.errors import StoreCorrupt, StoreNotFound, StoreTooNew
from ..base.untrusted_json import items, mapping, member, whole
from ..curation.episode_writer import EpisodeWriter
from ..curation.stored_episode import StoredEpisode, stored_episodes
from ..replay.replay import SequenceReplayBuffer
from ..rows.episode import Chunk
from ..spec.spec import Spec
from ..storage.disk.files import LateFiles
from ..storage.disk.storage import DiskStorage
from ..storage.joined import JoinedStorage
from ..storage.protocol import Storage

_Reader: TypeAlias = "zstandard.ZstdDecompressionReader"

CHECKSUMS = "archive_checksums"
"""Key of an episode's metadata: the crc32 of its rows of each field that is left out."""

_FACTS = "archive"
_ZSTD, _OLD = b"\x28\xb5\x2f\xfd", b"\x93SWA"
_DIGEST = struct.Struct("<II32s")  # a frame that zstd skips
_SKIPPED, _DIGEST_BYTES = 0x184D2A50, 32
_BLOCK = tarfile.BLOCKSIZE
_NAME = re.compile(r"manifest\.json|segment-[0-9]{8}\.bin")
# What a message about a store's folder advises at its end: an archive has no folder to repair.
_ADVICE = re.compile(r"[;:] (open it again, or restore|restore|give the folder) [^;]*$")
# What is unpacked has at most so many bytes, so that none takes much room by surprise.
_CONTENT_BYTES, _MOST_RATIO = 64 << 20, 1 << 10
_WINDOW_BYTES = 1 << 27
_LEVEL, _FAST_LEVEL, _LONG_BYTES = 19, 9, 64 << 20
_RUN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Archived:
    """The contents of an archive."""

    path: Path
    storage: DiskStorage
    spec: Spec  # of the store that was archived
    is_proved: bool  # its episodes were played again before, and were equal
    versions: Mapping[str, object]  # of the packages that wrote it

    def checksums(self, episode: StoredEpisode) -> list[int]:
        """The checksums of an episode, for each field that is left out."""
        count = len(self.spec.fields) - len(self.storage.spec.fields)
        try:
            values = items(member(episode.metadata, CHECKSUMS), CHECKSUMS, count)
            return [whole(each, CHECKSUMS, 0, (1 << 32) - 1) for each in values]
        except ValueError as error:
            raise _damaged(self.path, f"episode {episode.id}: {error}") from error


def check_archivable(storage: Storage) -> None:
    """Refuse a store with lost chunks or no action, several stores, and an unpacked archive."""
    if isinstance(storage, JoinedStorage):
        raise ValueError(
            f"an archive holds one store, got {len(storage.storages)}: archive each, or join them "
            f"first (stepwell merge)"
        )
    if storage.lost_chunks:
        raise ValueError(
            f"{storage.lost_chunks:,} chunks of the store are lost, expected none: archive a copy "
            f"of what is left (stepwell copy)"
        )
    if isinstance(storage, DiskStorage) and _FACTS in storage.provenance:
        raise ValueError(
            f"{storage.path} is what an archive holds, expected a store with all of its rows: "
            f"restore the archive first (stepwell restore)"
        )
    if not storage.spec.of_kind("action"):
        raise ValueError(
            f"fields of the store: expected an action, got {', '.join(storage.spec.names)}; rows "
            f"without one cannot be played again"
        )


def write_archive(
    storage: Storage,  # to which nothing is added meanwhile
    file: IO[bytes],  # empty, open for reading, too
    episodes: Container[int],  # ids; they get others, as in a copy
    *,
    is_proved: bool = False,  # they were played again before, and were equal
) -> None:
    """Write the archive of a store."""
    facts = {
        "spec": storage.spec.to_json(),
        "is_proved": is_proved,
        "versions": {"stepwell": importlib.metadata.version("stepwell")},
    }
    with tempfile.TemporaryDirectory(prefix="stepwell-") as name:
        folder = Path(name) / "store"
        spec, files = _archived_spec(storage.spec), LateFiles()
        with DiskStorage.create(folder, spec, provenance={_FACTS: facts}, files=files) as kept:
            for session in storage.sessions:
                kept.append_session(session)
            writer = EpisodeWriter(SequenceReplayBuffer.of(kept), with_digest=False)
            for episode in stored_episodes(storage):
                if episode.id in episodes:
                    writer.add_episode(_kept_chunks(episode, spec, writer.max_rows))
            writer.flush()
        _pack(folder, file)


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Generator[Archived]:
    """Unpack an archive for as long as the block runs, in which StoreCorrupt may be raised, too."""
    path = Path(path)
    with tempfile.TemporaryDirectory(prefix="stepwell-") as name:
        folder = Path(name)
        try:
            _unpack(path, folder)
            with DiskStorage.open(folder, read_only=True) as storage:
                yield _checked(path, storage)
        except (StoreCorrupt, StoreNotFound, StoreTooNew) as error:
            if name not in str(error):  # of another store, or it names the archive
                raise
            if isinstance(error, StoreTooNew):
                raise StoreTooNew(str(error).replace(name, str(path))) from error
            what = str(error).replace(f"{name}{os.sep}", "").replace(name, "its folder")
            raise _damaged(path, _ADVICE.sub("", what)) from error


def archived_ids(path: str | os.PathLike[str]) -> list[int]:
    """The ids of the episodes in an archive; raises as `opened` does."""
    with opened(path) as archived:
        ids: list[int] = np.unique(archived.storage.index.records["episode"]).tolist()
        return ids


def _archived_spec(spec: Spec) -> Spec:
    """The fields of an archive: no env shows actions and what a policy adds again; and rewards."""
    kept = [
        replace(field, codec="narrow")
        for field in spec.fields
        if field.kind in ("action", "reward", "extra")
    ]
    return replace(spec, fields=tuple(kept), observation={})


def _kept_chunks(episode: StoredEpisode, spec: Spec, max_rows: int) -> list[Chunk]:
    """The rows of an episode as an archive keeps them, with the checksums of the others."""
    crcs = {name: 0 for name in episode.spec.names if name not in spec.names}
    chunks: list[Chunk] = []
    for chunk in episode.chunks(max_rows):
        for name, crc in crcs.items():
            crcs[name] = crc32(np.ascontiguousarray(chunk.fields[name]).data, crc)
        kept = {name: chunk.fields[name] for name in spec.names}
        chunks.append(replace(chunk, fields=kept))
    metadata = {**episode.metadata, CHECKSUMS: list(crcs.values())}
    return [replace(chunk, metadata=metadata) for chunk in chunks]


def _checked(path: Path, storage: DiskStorage) -> Archived:
    try:
        facts = mapping(member(storage.provenance, _FACTS), _FACTS)
        spec = Spec.from_json(mapping(member(facts, "spec"), "spec"))
        versions = mapping(member(facts, "versions"), "versions")
        if storage.spec != _archived_spec(spec) or storage.lost_chunks:
            raise ValueError("its fields are not those that the archive of such a store has")
    except (ValueError, TypeError) as error:
        raise _damaged(path, f"manifest.json: {error}") from error
    return Archived(path, storage, spec, member(facts, "is_proved") is True, versions)


def _pack(folder: Path, file: IO[bytes]) -> None:
    """Write the files of a store into an empty file."""
    paths = sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    total = sum(path.stat().st_size for path in paths)
    level = _LEVEL if total <= _LONG_BYTES else _FAST_LEVEL
    # Matches of a few bytes cost more than they save: actions may be drawn at random.
    settings = zstandard.ZstdCompressionParameters.from_level(level, min_match=6)
    compressor = zstandard.ZstdCompressor(compression_params=settings)
    with compressor.stream_writer(file, closefd=False) as packed:
        for path in paths:
            entry = tarfile.TarInfo(path.name)
            entry.size = path.stat().st_size
            packed.write(entry.tobuf(tarfile.USTAR_FORMAT))
            with path.open("rb") as contents:
                shutil.copyfileobj(contents, packed, _RUN_BYTES)
            packed.write(bytes(-entry.size % _BLOCK))
        packed.write(bytes(2 * _BLOCK))
    if total + 2 * _BLOCK * len(paths) > _most_contents(file.tell()):
        raise ValueError(
            f"an archive would hold {total:,} bytes in {file.tell():,}, expected less that repeats "
            f"itself: archive fewer episodes"
        )
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
    file.write(_DIGEST.pack(_SKIPPED, _DIGEST_BYTES, digest))


def _unpack(path: Path, folder: Path) -> None:
    """Write the files of an archived store into an empty folder."""
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe may never return
        raise ValueError(
            f"{path} is no archive: expected a file of `stepwell archive`, got a folder, a pipe or "
            f"a device; name another"
        )
    with path.open("rb") as file:
        nbytes = _check_bytes(path, file)
        try:
            with zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES).stream_reader(
                file, closefd=False
            ) as packed:
                _unpack_files(packed, folder, _most_contents(nbytes))
        except (ValueError, tarfile.HeaderError, zstandard.ZstdError) as error:
            raise _damaged(path, f"it cannot be unpacked: {error}") from error


def _check_bytes(path: Path, file: IO[bytes]) -> int:
    """The bytes of an archive without its digest, which is compared."""
    start = file.read(len(_ZSTD))
    if start == _OLD:
        raise ValueError(
            f"{path} is an archive of an earlier version, which this one does not read: restore it "
            f"with Stepwell 0.1 (pip install 'stepwell<0.2'), then archive the store again"
        )
    if start != _ZSTD:
        raise ValueError(
            f"{path} is no archive: expected a file of `stepwell archive`, which begins with "
            f"{_ZSTD!r}, got one that begins with {start!r}; name another"
        )
    nbytes = os.fstat(file.fileno()).st_size - _DIGEST.size
    digest, left = hashlib.sha256(start), nbytes - len(start)
    while left > 0 and (run := file.read(min(left, _RUN_BYTES))):
        digest.update(run)
        left -= len(run)
    if file.read() != _DIGEST.pack(_SKIPPED, _DIGEST_BYTES, digest.digest()):
        raise _damaged(path, "its bytes have another digest than its last 32 bytes say")
    file.seek(0)
    return nbytes


def _unpack_files(packed: _Reader, folder: Path, most: int) -> None:
    """Write the files of a tar file."""
    names = set[str]()
    while (head := packed.read(_BLOCK)) != bytes(_BLOCK):
        entry = tarfile.TarInfo.frombuf(head, "ascii", "strict")
        most -= _BLOCK
        is_right = entry.type == tarfile.REGTYPE and _NAME.fullmatch(entry.name)
        if not is_right or entry.name in names or not 0 <= entry.size <= most:
            raise ValueError(f"it holds {entry.name!r} of {entry.size:,} bytes")
        names.add(entry.name)
        most -= entry.size
        left = entry.size
        with (folder / entry.name).open("xb") as file:
            while left > 0:
                run = packed.read(min(left, _RUN_BYTES))
                if not run:
                    raise ValueError(f"{left:,} bytes are missing at its end")
                left -= file.write(run)
        packed.read(-entry.size % _BLOCK)


def _most_contents(nbytes: int) -> int:
    """The most bytes that a file of ``nbytes`` bytes may hold."""
    return _CONTENT_BYTES + _MOST_RATIO * nbytes


def _damaged(path: Path, what: str) -> StoreCorrupt:
    return StoreCorrupt(f"{path} is damaged: {what}; restore it from a copy")
